// qwZ (zero_quantized_weights): partitions travel as int8 with one fp32 scale per group, and become fp16 again behind
// the wire (partition_parameters.py, CUDAQuantizer; csrc/quantization).
#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "planner/lower/stage3_runtime.h"

namespace dsplan {
namespace {

constexpr std::int64_t kTargetGroup = 8000;
constexpr std::int64_t kLargestGroup = 16000;

constexpr What kGathered{Role::RuntimeBuffers, "gathered parameter",
                         "zero/partition_parameters.py, all_gather_coalesced"};

// The smallest divisor of `number` that is `least` or more.
std::int64_t divisor_from(std::int64_t number, std::int64_t least) {
  std::int64_t best = number;
  for (std::int64_t small = 1; small <= number / small; ++small) {
    if (number % small != 0) continue;
    if (small >= least) return std::min(best, small);
    if (number / small >= least) best = number / small;
  }
  return best;
}

// Groups that `elements` are cut into, each a multiple of 8 long. 0: the quantizer's assertions refuse.
std::int64_t quantization_groups(std::int64_t elements) {
  if (elements % 8 != 0) return 0;
  const std::int64_t least = div_ceil(Elements(elements), kTargetGroup).value();
  if (least > elements / 8) return 0;
  std::int64_t groups = divisor_from(elements / 8, least);
  while (elements % (16 * groups) == 0 && elements > kTargetGroup * groups) groups *= 2;
  return elements < kLargestGroup * groups && elements > groups ? groups : 0;
}

}  // namespace

// What is sent, and with it its scales: the partitions, joined where they are several, as int8.
void Stage3Runtime::quantize(const std::vector<ParameterId>& list, bool secondary, Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : list) {
    elements = checked_add(elements, secondary ? aligned(piece(id)) / inside() : piece(id).part);
  }
  const std::int64_t groups = quantization_groups(elements);
  if (groups == 0) {
    throw Refusal("zero_quantized_weights",
                  formatted("the partition of {}{} has {} elements, which DeepSpeed's quantizer cannot cut into groups "
                            "of a multiple of 8 and at most {}",
                            model_.parameters[static_cast<std::size_t>(list.front())].name,
                            list.size() > 1 ? " with what is fetched beside it" : "", elements, kLargestGroup),
                  "it asserts; choose another number of ranks, or leave weights as they are");
  }
  const auto make = [&](Bytes bytes, DType type, Label label) {
    return eager_.empty(bytes, type, {Role::RuntimeBuffers, label, "zero/stage3.py"});
  };
  Variable joined;
  if (list.size() > 1) {
    joined = make(in_model_dtype(elements), dtype(), "partitions to quantize");
    std::vector<Variable> brought;
    std::vector<Part> parts;
    for (ParameterId id : list) {
      brought.push_back(bring(piece(id), secondary));
      parts.push_back(brought.back() ? brought.back() : sent(piece(id), secondary));
    }
    eager_.work().read(parts).write(joined).run(Body::Copy, "join partitions");
    let_go(brought);
  }
  const Part source = joined ? joined : sent(piece(list.front()), secondary);
  Variable half;
  const bool brings = parameters_away() && !joined;
  if (brings || dtype() != DType::Float16) {
    half = make(storage(Elements(elements), DType::Float16), DType::Float16, "partitions in fp16");
    if (brings) {  // Cast on the way to the device.
      eager_.copy_across(half, source, "copy partition to device");
    } else {
      eager_.copy(half, source, "cast partitions");
    }
  }
  Variable quantized = make(Bytes(elements), DType::Int8, "quantized partitions");
  Variable scales = make(storage(Elements(groups), DType::Float32), DType::Float32, "scales of partitions");
  eager_.work().read(half ? half : source).write(quantized).write(scales).run(Body::Quantize, "quantize");
  call.sent.push_back(std::move(quantized));
  call.sent.push_back(std::move(scales));
}

void Stage3Runtime::launch_quantized(const std::vector<ParameterId>& list, bool secondary, Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : list) elements = checked_add(elements, aligned(piece(id)));
  Variable arrived =
      eager_.empty(Bytes(elements), DType::Int8, {Role::RuntimeBuffers, "quantized gather buffer", "zero/stage3.py"});
  const std::size_t at = call.sent.size();
  quantize(list, secondary, call);
  const Part sent_scales = call.sent[at + 1];
  const auto make_scales = [&] {
    return eager_.empty(eager_.bytes_of(sent_scales) * (secondary ? inside() : world()), DType::Float32,
                        {Role::RuntimeBuffers, "gathered scales", "zero/stage3.py"});
  };
  const bool single = list.size() == 1;
  Variable scales;
  if (!single) scales = make_scales();
  all_gather(arrived, call.sent[at], secondary);
  if (single) scales = make_scales();
  all_gather(scales, sent_scales, secondary);
  call.copies = !single;
  call.secondary = secondary;
  call.quantized.push_back(arrived.id());
  call.scales.push_back(scales.id());
  call.held.push_back(std::move(arrived));
  call.held.push_back(std::move(scales));
}

// The kernel gives fp16; other dtypes are cast once more.
void Stage3Runtime::take_half(ParameterId id, Variable half) {
  Piece& of = piece(id);
  of.full_offset = Bytes(0);
  if (dtype() == DType::Float16) {
    of.full = std::move(half);
  } else {
    of.full = eager_.cast(half, dtype(), kGathered, "cast parameter", id);
  }
}

void Stage3Runtime::dequantize_single(ParameterId id, std::size_t index, Call& call) {
  const std::int64_t elements = piece(id).elements;
  Variable half = eager_.empty(storage(Elements(elements), DType::Float16), DType::Float16, kGathered, id);
  const auto whole = [&](BufferId buffer) { return ByteRange{buffer, Bytes(0), emitter_.size(buffer)}; };
  eager_.work()
      .read(Part(call.quantized[index], Bytes(0), Bytes(elements)))
      .read(call.scales[index])
      .write(half)
      .really_reads({whole(call.quantized[index]), whole(call.scales[index])})  // Groups are cut with the padding.
      .run(Body::Dequantize, "dequantize");
  take_half(id, std::move(half));
}

// All of them become one fp16 tensor, which the handle keeps; each parameter is joined from it, then cast.
void Stage3Runtime::dequantize_coalesced(Call& call) {
  const Part arrived = call.quantized.front();
  call.held.push_back(eager_.empty(eager_.bytes_of(arrived) * 2, DType::Float16,
                                   {Role::RuntimeBuffers, "dequantized gather buffer", "zero/stage3.py"}));
  const Variable& flat = call.held.back();
  eager_.work().read(arrived).read(call.scales.front()).write(flat).run(Body::Dequantize, "dequantize");
  for (ParameterId id : call.parameters) {
    Variable half = eager_.empty(storage(Elements(piece(id).elements), DType::Float16), DType::Float16, kGathered, id);
    eager_.work()
        .read(flat)
        .write(half)
        .really_reads(coalesced(call, flat, id))
        .run(Body::Copy, "copy gathered parameter");
    take_half(id, std::move(half));
  }
}

}  // namespace dsplan
