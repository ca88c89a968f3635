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

// What is sent: the partitions, joined where they are several, as int8. Its scales are the second buffer of call.sent
// that this adds; the first is the result.
BufferId Stage3Runtime::quantize(const std::vector<ParameterId>& list, bool secondary, Call& call) {
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
  std::vector<BufferId> temporaries;
  const auto make = [&](Bytes bytes, DType type, Label label) {
    return emitter_.allocate(bytes, type, Role::RuntimeBuffers, label);
  };
  if (list.size() > 1) temporaries.push_back(make(in_model_dtype(elements), dtype(), "partitions to quantize"));
  if (!temporaries.empty()) {
    std::vector<BufferId> brought;
    for (ParameterId id : list) brought.push_back(bring(piece(id), secondary));
    emitter_.begin();
    for (std::size_t at = 0; at < list.size(); ++at) read_partition(piece(list[at]), secondary, brought[at]);
    emitter_.write(temporaries.back());
    emitter_.compute("join partitions");
    for (BufferId buffer : brought) {
      if (buffer != kNoBuffer) emitter_.release(buffer, Reason::LastUse);
    }
  }
  const auto read_source = [&] {
    emitter_.begin();
    if (temporaries.empty()) return read_partition(piece(list.front()), secondary);
    emitter_.read(temporaries.back());
  };
  // What is brought to the device is cast on the way.
  const bool brings = parameters_away() && temporaries.empty();
  if (brings) {
    const Piece& of = piece(list.front());
    const Range from =
        secondary ? Range{of.secondary, Bytes(0), in_model_dtype(elements), dtype()} : partition_range(of);
    const Range to{make(storage(Elements(elements), DType::Float16), DType::Float16, "partitions in fp16"), Bytes(0),
                   storage(Elements(elements), DType::Float16), DType::Float16};
    copy(from, to, "copy partition to device");
    temporaries.push_back(to.buffer);
  } else if (dtype() != DType::Float16) {
    const BufferId half = make(storage(Elements(elements), DType::Float16), DType::Float16, "partitions in fp16");
    read_source();
    emitter_.write(half);
    emitter_.compute("cast partitions");
    temporaries.push_back(half);
  }
  const BufferId sent = make(Bytes(elements), DType::Int8, "quantized partitions");
  const BufferId scales = make(storage(Elements(groups), DType::Float32), DType::Float32, "scales of partitions");
  read_source();
  emitter_.write(sent);
  emitter_.write(scales);
  emitter_.compute("quantize");
  for (auto at = temporaries.rbegin(); at != temporaries.rend(); ++at) emitter_.release(*at, Reason::PythonFrame);
  call.sent.push_back(sent);
  call.sent.push_back(scales);
  return sent;
}

void Stage3Runtime::launch_quantized(const std::vector<ParameterId>& list, bool secondary, Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : list) elements = checked_add(elements, aligned(piece(id)));
  const BufferId arrived =
      emitter_.allocate(Bytes(elements), DType::Int8, Role::RuntimeBuffers, "quantized gather buffer");
  const BufferId sent = quantize(list, secondary, call);
  const BufferId sent_scales = call.sent.back();
  const std::int64_t ranks = secondary ? inside() : world();
  const auto allocate_scales = [&] {
    return emitter_.allocate(emitter_.size(sent_scales) * ranks, DType::Float32, Role::RuntimeBuffers,
                             "gathered scales");
  };
  const auto gather_into = [&](BufferId from, BufferId to, DType type) {
    emitter_.begin();
    emitter_.read(from);
    emitter_.write(to);
    gather(secondary, type, emitter_.size(to));
  };
  const bool single = list.size() == 1;
  BufferId scales = kNoBuffer;
  if (!single) scales = allocate_scales();
  gather_into(sent, arrived, DType::Int8);
  if (single) scales = allocate_scales();
  gather_into(sent_scales, scales, DType::Float32);
  call.copies = !single;
  call.secondary = secondary;
  call.quantized.push_back(arrived);
  call.scales.push_back(scales);
  call.held.push_back(arrived);
  call.held.push_back(scales);
}

BufferId Stage3Runtime::gathered(ParameterId id, DType type) {
  return emitter_.allocate(storage(Elements(piece(id).elements), type), type, Role::RuntimeBuffers,
                           "gathered parameter", id);
}

// The kernel gives fp16; other dtypes are cast once more.
void Stage3Runtime::take_half(ParameterId id, BufferId half) {
  Piece& of = piece(id);
  of.full = half;
  of.full_offset = Bytes(0);
  if (dtype() == DType::Float16) return;
  of.full = gathered(id, dtype());
  emitter_.begin();
  emitter_.read(half);
  emitter_.write(of.full);
  emitter_.compute("cast parameter");
  emitter_.release(half, Reason::LastUse);
}

void Stage3Runtime::dequantize_single(ParameterId id, std::size_t index, Call& call) {
  const BufferId half = gathered(id, DType::Float16);
  emitter_.begin();
  emitter_.read(call.quantized[index], Bytes(0), Bytes(piece(id).elements));
  emitter_.read(call.scales[index]);
  emitter_.write(half);
  if (Recording* recording = emitter_.recording()) {  // Groups are those of all that arrived, padding included.
    const auto whole = [&](BufferId buffer) { return ByteRange{buffer, Bytes(0), emitter_.size(buffer)}; };
    recording->reads({whole(call.quantized[index]), whole(call.scales[index])});
  }
  emitter_.compute("dequantize");
  take_half(id, half);
}

// All of them become one fp16 tensor, which the handle keeps; each parameter is joined from it, then cast.
void Stage3Runtime::dequantize_coalesced(Call& call) {
  const BufferId flat = emitter_.allocate(emitter_.size(call.quantized.front()) * 2, DType::Float16,
                                          Role::RuntimeBuffers, "dequantized gather buffer");
  emitter_.begin();
  emitter_.read(call.quantized.front());
  emitter_.read(call.scales.front());
  emitter_.write(flat);
  emitter_.compute("dequantize");
  call.held.push_back(flat);
  for (ParameterId id : call.parameters) {
    const BufferId half = gathered(id, DType::Float16);
    emitter_.begin();
    emitter_.read(flat);
    emitter_.write(half);
    record_coalesced(call, flat, id);
    emitter_.compute("copy gathered parameter");
    take_half(id, half);
  }
}

}  // namespace dsplan
