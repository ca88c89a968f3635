#include "planner/lower/runtimes/weight_packing.h"

#include <optional>
#include <string_view>

#include "model/quantized.h"
#include "model/tensor_plan.h"

namespace dsplan {

// Of packing: it is gone when the model is there.
Variable WeightPacking::passing(Bytes bytes, DType dtype) {
  const What what{Role::Temporaries, "weight before it is packed", "bitsandbytes: functional.py, quantize_4bit"};
  Variable made = eager_.scratch(bytes, dtype, what);
  eager_.work().write(made).run(Body::Nothing, "load parameter");
  return made;
}

// core_model_loading.py, convert_and_load_state_dict_in_model; bitsandbytes functional.py, quantize_4bit and
// get_4bit_type.
Variable WeightPacking::pack(ParameterId id, const std::function<Variable()>& make) {
  const Parameter& parameter = model_.parameter_at(id);
  const Quantization quantization = *packing_of(model_.module_at(parameter.module));
  const Elements values = unpacked_elements(parameter, quantization);
  if (quantization.eight_bits()) return pack_rows(parameter, quantization.loaded, make);
  const Bytes scales = storage(div_ceil(values, kQuantizedBlock), DType::Float32);
  const Variable whole = passing(storage(values, quantization.loaded), quantization.loaded);
  Variable absmax;
  if (quantization.nested) {
    absmax = passing(scales, DType::Float32);
  } else {
    buffers_(parameter.module, ".absmax");
  }
  Variable packed = make();
  buffers_(parameter.module, ".quant_map");
  {
    Variable absolute = passing(storage(Elements(16), DType::Float32), DType::Float32);
    const Variable largest = passing(storage(Elements(1), DType::Float32), DType::Float32);
    absolute.reset();
  }
  if (quantization.nested) pack_scales(scales, parameter.module);
  absmax.reset();
  return packed;
}

// Less their mean, in blocks of their own; one table of values serves all (functional.py, quantize_blockwise).
void WeightPacking::pack_scales(Bytes scales, ModuleId module) {
  buffers_(module, ".offset");
  const ReductionScratch scratch = reduction_scratch({1, scales.value() / 4, 0}, device_);
  if (scratch.staging > Bytes(0)) {
    const Variable staging = passing(scratch.staging, DType::UInt8);
    const Variable semaphores = passing(scratch.semaphores, DType::Int32);
  }
  const Variable shifted = passing(scales, DType::Float32);
  buffers_(0, "quant_map");
  for (const std::string_view state : {".nested_absmax", ".absmax", ".nested_quant_map"}) buffers_(module, state);
}

// The weight goes by way of the host, and comes back in fp16 (integrations/bitsandbytes.py, Bnb8bitQuantize.convert;
// bitsandbytes nn/modules.py, Int8Params._quantize).
Variable WeightPacking::pack_rows(const Parameter& parameter, DType loaded, const std::function<Variable()>& make) {
  const What what{Role::Temporaries, "weight before it is packed", "bitsandbytes: nn/modules.py, Int8Params"};
  const auto scratch = [&](DType dtype) {
    Variable made = eager_.scratch(storage(parameter.shape.elements(), dtype), dtype, what);
    eager_.work().write(made).run(Body::Nothing, "load parameter");
    return made;
  };
  Variable whole = scratch(loaded);
  Variable half = scratch(DType::Float16);
  buffers_(parameter.module);
  Variable packed = make();
  half.reset();
  whole.reset();
  return packed;
}

// One segment for all of it. Where there are several ranks, what a plan of tensor parallelism names counts as if it
// were cut, which it is not (modeling_utils.py, caching_allocator_warmup, get_total_byte_count).
void WeightPacking::warm_up(const std::vector<ParameterId>& loaded) {
  Bytes all;
  for (const ParameterId id : loaded) {
    const Parameter& parameter = model_.parameter_at(id);
    const std::optional<Quantization> packing = packing_of(model_.module_at(parameter.module));
    const bool packed = packing && parameter.shape.rank == 2;
    const Bytes bytes = storage(parameter.shape.elements(), packed ? *parameter.dtype : packing_of(model_)->loaded);
    all += in_tensor_plan(model_, parameter) ? Bytes(bytes.value() / world_) : bytes;
  }
  make_room(eager_, all);
}

void make_room(Eager& eager, Bytes all) {
  const Variable room = eager.scratch(Bytes(all.value() / 2 * 2), DType::UInt8,
                                      {Role::Temporaries, "room for the model", "modeling_utils.py"});
  eager.work().write(room).run(Body::Nothing, "warm up the allocator");
}

}  // namespace dsplan
