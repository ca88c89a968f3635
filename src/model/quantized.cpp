#include "model/quantized.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/traits.h"

namespace dsplan {
namespace {

constexpr std::string_view kPackedClass = "Linear4bit";
constexpr std::string_view kTable = "quant_map";  // Of 8-bit values.
constexpr std::string_view kInt8Class = "Linear8bitLt";

std::optional<DType> packed_type(std::string_view text) { return text == "uint8" ? DType::UInt8 : floating_type(text); }

// A setting that names a dtype.
void read_dtype(const Setting<std::string>& said, std::string_view key, bool bytes, DType& into, Diagnostics& faults) {
  if (!said.given()) return;
  const std::optional<DType> dtype = packed_type(*said);
  if (dtype && (bytes || *dtype != DType::UInt8)) {
    into = *dtype;
    return;
  }
  faults.add(said.place.says(formatted("{} \"{}\" is none of {}bf16, fp16, fp32", key, *said, bytes ? "uint8, " : "")));
}

// Each of them is without meaning where nothing is packed, and all but the last where weights have 8 bits.
void refuse_unless_packing(const Request& request, bool eight_bits, Diagnostics& faults) {
  const auto refuse = [&](const auto& setting, std::string_view key) {
    if (!setting.given()) return;
    const std::string_view says = eight_bits ? "says how 4-bit weights are packed, and these have 8 bits"
                                             : "says how weights are packed, and none are";
    faults.add(setting.place.says(formatted("{} {}", key, says), "quantization: nf4"));
  };
  refuse(request.double_quant, "double_quant");
  refuse(request.quant_compute_dtype, "quant_compute_dtype");
  refuse(request.quant_storage, "quant_storage");
  if (!eight_bits) refuse(request.kbit_prepare, "kbit_prepare");
}

class Packer {
 public:
  Packer(const ModelSpec& model, const Quantization& quantization) : spec_(model), quantization_(quantization) {
    const std::string_view unprepared = quantization_.prepared ? "" : ", unprepared";
    if (quantization_.eight_bits()) {
      type_ = formatted("{}(int8, loaded={}{})", kInt8Class, name(quantization.loaded), unprepared);
      return;
    }
    type_ = formatted("{}({}, compute={}, storage={}, loaded={}{}{})", kPackedClass, quantization.kind,
                      name(quantization.compute), name(quantization.storage), name(quantization.loaded),
                      quantization.nested ? ", nested" : "", unprepared);
  }

  ModelSpec pack() {
    // bitsandbytes keeps one table of 8-bit values for all scales.
    if (quantization_.nested) add(std::string(kTable), {256}, DType::Float32, 0);
    for (std::size_t at = 0; at < spec_.modules.size(); ++at) {
      const Module& module = spec_.modules[at];
      const bool adapter = module.path.find(".lora_") != std::string::npos;
      if (module.type == "Linear" && !adapter && !is_head(static_cast<ModuleId>(at))) pack(static_cast<ModuleId>(at));
    }
    for (Parameter& parameter : spec_.parameters) {
      if (!parameter.dtype) keep_as_made(parameter);
    }
    return std::move(spec_);
  }

 private:
  // What gives words, tied or not (quantizers/base.py, get_keys_to_not_convert).
  [[nodiscard]] bool is_head(ModuleId id) const {
    const Module& module = spec_.module_at(id);
    if (module.path.ends_with("lm_head")) return true;
    const ParameterId weight = spec_.parameter(id, "weight");
    if (weight == kNone) return true;
    const Parameter& parameter = spec_.parameter_at(weight);
    return parameter.tied_to != kNone || (module.layer == kNone && parameter.shape.dims[0] == spec_.dims.vocab);
  }

  // autocast_adapter_dtype=False: a factor stays as it is made, in the dtype of 4-bit products, beside 8-bit weights in
  // fp32 (peft: tuners_utils.py, _get_base_layer_device_and_dtype).
  void keep_as_made(Parameter& parameter) {
    if (parameter.name.find(".lora_") == std::string::npos) return;
    parameter.kept_as_made = true;
    const ModuleId list = spec_.module_at(parameter.module).parent;
    const ModuleId base = spec_.child(spec_.module_at(list).parent, "base_layer");
    if (base == kNone || spec_.module_at(base).type != type_) return;
    parameter.dtype = quantization_.eight_bits() ? DType::Float32 : quantization_.compute;
  }

  void add(std::string name, Shape shape, DType dtype, ModuleId module) {
    ModelBuffer buffer;
    buffer.name = std::move(name);
    buffer.shape = shape;
    buffer.dtype = dtype;
    buffer.module = module;
    spec_.buffers.push_back(std::move(buffer));
  }

  void pack(ModuleId module) {
    Module& linear = spec_.module_at(module);
    linear.type = type_;
    Parameter& weight = spec_.parameter_at(spec_.parameter(module, "weight"));
    if (quantization_.eight_bits()) return pack_rows(module, weight);
    const std::int64_t values = weight.shape.elements().value();
    const std::int64_t scales = div_ceil(values, kQuantizedBlock);
    weight.shape = Shape{(values + 1) / (2 * bytes_per_element(quantization_.storage)), 1};
    weight.dtype = quantization_.storage;
    weight.split = Split::Unknown;
    if (const ParameterId bias = spec_.parameter(module, "bias"); bias != kNone) {
      // The first forward leaves it in the dtype of the products (nn/modules.py, Linear4bit.forward).
      spec_.parameter_at(bias).dtype = quantization_.compute;
    }
    const std::string prefix = linear.path + ".weight.";
    add(prefix + "absmax", {scales}, quantization_.nested ? DType::UInt8 : DType::Float32, module);
    add(prefix + "quant_map", {16}, DType::Float32, module);
    if (!quantization_.nested) return;
    add(prefix + "offset", {}, DType::Float32, module);
    add(prefix + "nested_absmax", {div_ceil(scales, kNestedBlock)}, DType::Float32, module);
    add(prefix + "nested_quant_map", {256}, DType::Float32, module);
  }

  // Int8Params (nn/modules.py). Its bias is in the dtype of what comes in, which is that of what is not packed.
  void pack_rows(ModuleId module, Parameter& weight) {
    weight.dtype = DType::Int8;
    weight.split = Split::Unknown;
    const Module& linear = spec_.module_at(module);
    add(linear.path + ".weight.SCB", {weight.shape.dims[0]}, DType::Float32, module);
  }

  ModelSpec spec_;
  const Quantization& quantization_;
  std::string type_;
};

}  // namespace

std::optional<Quantization> quantization_of(const Request& request, DType loaded) {
  const Setting<std::string>& kind = request.quantization;
  Diagnostics faults;
  if (kind.value_or("none") == "none") {
    refuse_unless_packing(request, false, faults);
    faults.throw_if_any();
    return std::nullopt;
  }
  if (*kind == "int8") {
    refuse_unless_packing(request, true, faults);
  } else if (*kind != "nf4" && *kind != "fp4") {
    faults.add(
        kind.place.says(formatted("quantization \"{}\" is not known", *kind), "it is one of none, nf4, fp4, int8"));
  }
  Quantization result{.kind = *kind, .loaded = loaded};
  result.nested = request.double_quant.value_or(false);
  result.prepared = request.kbit_prepare.value_or(true);
  read_dtype(request.quant_compute_dtype, "quant_compute_dtype", false, result.compute, faults);
  read_dtype(request.quant_storage, "quant_storage", true, result.storage, faults);
  if (!request.lora.given()) {
    faults.add(kind.place.says("packed weights are not trained: adapters are", "--lora r=8,targets=all-linear"));
  }
  faults.throw_if_any();
  return result;
}

ModelSpec with_packed_weights(const ModelSpec& model, const Quantization& quantization, const Place& place) {
  // Experts are parameters of their own, which bitsandbytes leaves as they are.
  const bool mixes = model.dims.experts > 0;
  if (mixes && quantization.prepared) {
    throw Refusal(
        {place.says("packed weights beside experts that prepare_model_for_kbit_training makes fp32 are not "
                    "modelled yet",
                    "--kbit-prepare false, as axolotl and TRL leave them")});
  }
  if (mixes && quantization.eight_bits()) {
    throw Refusal({place.says("8-bit weights of a mixture of experts are not modelled yet", "4-bit ones are")});
  }
  if (biases_positions(model)) {
    throw Refusal({place.says(formatted(
        "packed weights of {} are not modelled yet: transformers leaves wo in fp32 beside them", model.graph_class))});
  }
  for (const Module& module : model.modules) {
    const bool copy = module.path.find(".modules_to_save.") != std::string::npos;
    if (copy && module.type == "Linear" && !module.path.ends_with("lm_head.modules_to_save.default")) {
      throw Refusal({place.says(formatted("{}: copies of packed weights are not trained", module.path),
                                "the head is not packed: save=lm_head")});
    }
    const bool direct = module.type.ends_with("Conv1D") || module.type.ends_with("FalconLinear") ||
                        module.type == "Llama4Router";  // Which is one of torch's Linear.
    if (!direct) continue;
    throw Refusal(
        {place.says(formatted("packed weights of {}, a {}, are not modelled yet", module.path, module.type))});
  }
  return Packer(model, quantization).pack();
}

namespace {

bool is_packed(const Module& module) {
  return module.type.starts_with(kInt8Class) || module.type.starts_with(kPackedClass);
}

}  // namespace

std::optional<Quantization> packing_of(const Module& module) {
  if (!is_packed(module)) return std::nullopt;
  const bool rows = module.type.starts_with(kInt8Class);
  const std::string_view text = module.type;
  const auto word = [&](std::string_view key) {
    const std::size_t at = text.find(key) + key.size();
    return text.substr(at, text.find_first_of(",)", at) - at);
  };
  Quantization result;
  result.kind = word("(");
  result.prepared = text.find(", unprepared") == std::string_view::npos;
  result.loaded = *packed_type(word("loaded="));
  if (rows) return result;
  result.nested = text.find(", nested") != std::string_view::npos;
  result.compute = *packed_type(word("compute="));
  result.storage = *packed_type(word("storage="));
  return result;
}

std::optional<Quantization> packing_of(const ModelSpec& model) {
  const auto found = std::find_if(model.modules.begin(), model.modules.end(), is_packed);
  return found == model.modules.end() ? std::nullopt : packing_of(*found);
}

bool is_packing_state(const ModelSpec& model, const ModelBuffer& buffer) {
  return buffer.name == kTable || packing_of(model.module_at(buffer.module)).has_value();
}

Elements unpacked_elements(const Parameter& weight, const Quantization& quantization) {
  if (quantization.eight_bits()) return weight.shape.elements();
  return Elements(checked_mul(weight.shape.elements().value(), 2 * bytes_per_element(quantization.storage)));
}

}  // namespace dsplan
