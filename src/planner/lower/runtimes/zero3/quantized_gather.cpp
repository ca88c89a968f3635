#include "planner/lower/runtimes/zero3/quantized_gather.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"

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

QuantizedGathers::QuantizedGathers(const Training& training, const ModelSpec& model, const Sharding& sharding,
                                   ParameterStore& store, Emitter& emitter)
    : training_(training), model_(model), sharding_(sharding), store_(store), eager_(emitter) {}

std::int64_t QuantizedGathers::groups_of(const std::vector<ParameterId>& list, std::int64_t elements) const {
  const std::int64_t groups = quantization_groups(elements);
  if (groups > 0) return groups;
  throw Refusal("zero_quantized_weights",
                formatted("the partition of {}{} has {} elements, which DeepSpeed's quantizer cannot cut into groups "
                          "of a multiple of 8 and at most {}",
                          model_.parameter_at(list.front()).name,
                          list.size() > 1 ? " with what is fetched beside it" : "", elements, kLargestGroup),
                "it asserts; choose another number of ranks, or leave weights as they are");
}

// What is sent, and its scales: the partitions, joined where they are several, as int8.
QuantizedGathers::Sent QuantizedGathers::quantize(const std::vector<ParameterId>& list, bool secondary) {
  std::int64_t elements = 0;
  for (ParameterId id : list) {
    const Shard& of = sharding_.of(id);
    elements = checked_add(elements, secondary ? sharding_.aligned(of) / sharding_.inside() : of.part);
  }
  const std::int64_t groups = groups_of(list, elements);
  const auto make = [&](DType type, std::int64_t count, Label label) {
    return eager_.empty(storage(Elements(count), type), type, {Role::RuntimeBuffers, label, "zero/stage3.py"});
  };
  Variable joined;
  if (list.size() > 1) {
    joined = make(training_.dtype, elements, "partitions to quantize");
    std::vector<Variable> brought;
    std::vector<Part> parts;
    for (ParameterId id : list) parts.push_back(store_.sent(id, secondary, brought));
    eager_.work().read(parts).write(joined).run(Body::Copy, "join partitions");
    let_go(brought);
  }
  const Part source = joined ? joined : store_.shard(list.front(), secondary);
  const bool elsewhere = eager_.emitter().space(source.buffer) != Space::Device;
  Variable half;
  if (elsewhere || training_.dtype != DType::Float16) {
    half = make(DType::Float16, elements, "partitions in fp16");  // Cast on the way to the device.
    eager_.copy_across(half, source, elsewhere ? "copy partition to device" : "cast partitions");
  }
  Sent sent;
  sent.values = make(DType::Int8, elements, "quantized partitions");
  sent.scales = make(DType::Float32, groups, "scales of partitions");
  eager_.work().read(half ? half : source).write(sent.values).write(sent.scales).run(Body::Quantize, "quantize");
  return sent;
}

QuantizedGather QuantizedGathers::launch(const std::vector<ParameterId>& list, bool secondary,
                                         std::vector<Variable>& held, std::vector<Variable>& sent) {
  std::int64_t elements = 0;
  for (ParameterId id : list) elements = checked_add(elements, sharding_.aligned(sharding_.of(id)));
  Variable arrived =
      eager_.empty(Bytes(elements), DType::Int8, {Role::RuntimeBuffers, "quantized gather buffer", "zero/stage3.py"});
  Sent own = quantize(list, secondary);
  const auto make_scales = [&] {
    return eager_.empty(eager_.bytes_of(own.scales) * (secondary ? sharding_.inside() : sharding_.world()),
                        DType::Float32, {Role::RuntimeBuffers, "gathered scales", "zero/stage3.py"});
  };
  const bool single = list.size() == 1;
  Variable scales;
  if (!single) scales = make_scales();
  store_.all_gather(arrived, own.values, secondary);
  if (single) scales = make_scales();
  store_.all_gather(scales, own.scales, secondary);
  sent.push_back(std::move(own.values));
  sent.push_back(std::move(own.scales));
  const QuantizedGather gather{list, arrived.id(), scales.id()};
  held.push_back(std::move(arrived));
  held.push_back(std::move(scales));
  return gather;
}

Variable QuantizedGathers::make_half(ParameterId id) {
  return eager_.empty(storage(Elements(sharding_.of(id).elements), DType::Float16), DType::Float16, kGathered, id);
}

// The kernel gives fp16; other dtypes are cast once more.
void QuantizedGathers::take_half(ParameterId id, Variable half) {
  if (training_.dtype == DType::Float16) {
    store_.set_full(id, std::move(half));
  } else {
    store_.set_full(id, eager_.cast(half, training_.dtype, kGathered, "cast parameter", id));
  }
}

void QuantizedGathers::take_one(const QuantizedGather& gather) {
  const ParameterId id = gather.parameters.front();
  Variable half = make_half(id);
  const auto whole = [&](BufferId buffer) { return ByteRange{buffer, Bytes(0), eager_.bytes_of(buffer)}; };
  eager_.work()
      .read(Part(gather.arrived, Bytes(0), Bytes(sharding_.of(id).elements)))
      .read(gather.scales)
      .write(half)
      .really_reads({whole(gather.arrived), whole(gather.scales)})  // Groups are cut with the padding.
      .run(Body::Dequantize, "dequantize");
  take_half(id, std::move(half));
}

// All of them become one fp16 tensor, which the handle keeps; each parameter is joined from it, then cast.
void QuantizedGathers::take_all(const QuantizedGather& gather, std::int64_t ranks, std::vector<Variable>& held) {
  held.push_back(eager_.empty(eager_.bytes_of(gather.arrived) * 2, DType::Float16,
                              {Role::RuntimeBuffers, "dequantized gather buffer", "zero/stage3.py"}));
  const Variable& flat = held.back();
  eager_.work().read(gather.arrived).read(gather.scales).write(flat).run(Body::Dequantize, "dequantize");
  for (ParameterId id : gather.parameters) {
    Variable half = make_half(id);
    eager_.work()
        .read(flat)
        .write(half)
        .really_reads(coalesced(eager_.emitter(), sharding_, gather.parameters, ranks, flat, id))
        .run(Body::Copy, "copy gathered parameter");
    take_half(id, std::move(half));
  }
}

std::vector<ByteRange> coalesced(Emitter& emitter, const Sharding& sharding, const std::vector<ParameterId>& list,
                                 std::int64_t ranks, const Variable& flat, ParameterId wanted) {
  std::vector<ByteRange> ranges;
  if (emitter.recording() == nullptr) return ranges;
  const DType type = emitter.dtype(flat.id());
  std::int64_t all = 0;
  for (ParameterId id : list) all += sharding.aligned(sharding.of(id)) / ranks;
  std::int64_t before = 0;
  for (ParameterId id : list) {
    const Shard& of = sharding.of(id);
    const std::int64_t part = sharding.aligned(of) / ranks;
    const bool reads = wanted == kNone || wanted == id;
    for (std::int64_t from = 0, r = 0; reads && from < of.elements; from += part, ++r) {
      const std::int64_t count = std::min(part, of.elements - from);
      ranges.push_back(
          {flat.id(), storage(Elements(checked_mul(r, all) + before), type), storage(Elements(count), type)});
    }
    before += part;
  }
  return ranges;
}

}  // namespace dsplan
