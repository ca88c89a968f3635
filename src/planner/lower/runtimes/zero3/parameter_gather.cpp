#include "planner/lower/runtimes/zero3/parameter_gather.h"

#include <utility>

namespace dsplan {

ParameterGathers::ParameterGathers(const Training& training, const ModelSpec& model, const Sharding& sharding,
                                   ParameterStore& store, Emitter& emitter)
    : training_(training),
      sharding_(sharding),
      store_(store),
      quantized_(training, model, sharding, store, emitter),
      eager_(emitter),
      gather_of_(sharding.parameters(), -1) {}

// all_gather_coalesced.
void ParameterGathers::launch(const std::vector<ParameterId>& parameters, bool secondary) {
  for (ParameterId id : parameters) {
    gather_of_[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(gathers_.size());
  }
  Gather& gather = gathers_.emplace_back();
  gather.parameters = parameters;
  gather.left = parameters.size();
  if (sharding_.world() == 1) {
    for (ParameterId id : parameters) store_.take_whole(id);
    return;
  }
  gather.secondary = secondary;
  const bool single = parameters.size() == 1 || training_.zero.allgather_sequential;
  gather.copies = !single;
  if (training_.zero.quantized_weights) {
    launch_quantized(gather);
  } else if (single) {
    for (ParameterId id : parameters) store_.gather_alone(id, secondary, gather.sent);
  } else if (training_.zero.all_reduce_for_fetch && !secondary) {
    launch_all_reduce(gather);
  } else {
    launch_coalesced(gather);
  }
}

// Of one dtype.
Variable ParameterGathers::make_flat(const std::vector<ParameterId>& list) {
  const Shard& first = sharding_.of(list.front());
  std::int64_t elements = 0;
  for (ParameterId id : list) elements = checked_add(elements, sharding_.aligned(sharding_.of(id)));
  return eager_.empty(first.bytes(elements), first.dtype,
                      {Role::RuntimeBuffers, "gather buffer", "zero/partition_parameters.py, _all_gather_coalesced"});
}

// A buffer and a collective for each dtype, by their names (_all_gather_dtype, sort_dtypes).
void ParameterGathers::launch_coalesced(Gather& gather) {
  for (const DType dtype : {DType::BFloat16, DType::Float16, DType::Float32, DType::Int8, DType::UInt8}) {
    std::vector<ParameterId> list;
    for (ParameterId id : gather.parameters) {
      if (sharding_.of(id).dtype == dtype) list.push_back(id);
    }
    if (list.empty()) continue;
    Variable flat = make_flat(list);
    std::vector<Variable> brought;
    std::vector<Part> parts;
    for (ParameterId id : list) parts.push_back(store_.sent(id, gather.secondary, brought));
    store_.all_gather(flat, parts, gather.secondary);
    let_go(brought);
    gather.held.push_back(std::move(flat));
    gather.by_dtype.push_back(std::move(list));
  }
}

// Each rank puts its part among zeros, and all are summed; the parameters are views of the sum.
void ParameterGathers::launch_all_reduce(Gather& gather) {
  gather.copies = false;
  const Variable flat = make_flat(gather.parameters);
  std::vector<Part> parts;
  for (ParameterId id : gather.parameters) parts.push_back(store_.shard(id, false));
  eager_.work()
      .read(parts)
      .write(flat)
      .really_reads(among_zeros(gather, parts))
      .run(Body::Copy, "zero and copy partitions");
  eager_.all_reduce(flat, sharding_.world());
  Bytes offset;
  for (ParameterId id : gather.parameters) {
    store_.set_full(id, flat.share(), offset);
    offset += sharding_.of(id).bytes(sharding_.aligned(sharding_.of(id)));
  }
}

// For an executor: of each parameter this rank's part, where it belongs, and zeros around it.
std::vector<ByteRange> ParameterGathers::among_zeros(const Gather& gather, const std::vector<Part>& parts) {
  std::vector<ByteRange> ranges;
  if (eager_.emitter().recording() == nullptr) return ranges;
  const auto zeros = [&](std::int64_t count, Bytes part) {
    if (count > 0) ranges.push_back({kNoBuffer, Bytes(0), part * count});
  };
  for (std::size_t index = 0; index < gather.parameters.size(); ++index) {
    const Part& own = parts[index];
    zeros(sharding_.rank(), own.bytes);
    ranges.push_back({own.buffer, own.offset, own.bytes});
    zeros(sharding_.world() - sharding_.rank() - 1, own.bytes);
  }
  return ranges;
}

// Several in one call, or each by itself.
void ParameterGathers::launch_quantized(Gather& gather) {
  std::vector<std::vector<ParameterId>> lists;
  if (gather.copies) {
    lists.push_back(gather.parameters);
  } else {
    for (ParameterId id : gather.parameters) lists.push_back({id});
  }
  for (const std::vector<ParameterId>& list : lists) {
    gather.quantized.push_back(quantized_.launch(list, gather.secondary, gather.held, gather.sent));
  }
}

void ParameterGathers::wait(ParameterId id) {
  Gather& gather = gathers_[static_cast<std::size_t>(gather_of_[static_cast<std::size_t>(id)])];
  if (std::exchange(gather.waited, true)) return;
  let_go(gather.sent);
  for (const QuantizedGather& one : gather.quantized) {
    if (!gather.copies) {
      quantized_.take_one(one);
    } else {
      quantized_.take_all(one, gather.secondary ? sharding_.inside() : sharding_.world(), gather.held);
    }
  }
  if (gather.copies && gather.quantized.empty()) copy_out(gather);
}

// Every parameter gets a tensor of its own.
void ParameterGathers::copy_out(const Gather& gather) {
  const std::int64_t ranks = gather.secondary ? sharding_.inside() : sharding_.world();
  for (std::size_t at = 0; at < gather.by_dtype.size(); ++at) {
    const std::vector<ParameterId>& list = gather.by_dtype[at];
    std::vector<BufferId> made;
    for (ParameterId id : list) made.push_back(store_.make_full(id, sharding_.of(id).elements).id());
    eager_.work()
        .read(gather.held[at])
        .write(made)
        .really_reads(coalesced(eager_.emitter(), sharding_, list, ranks, gather.held[at]))
        .run(Body::Copy, "copy gathered parameters");
  }
}

void ParameterGathers::forget(ParameterId id) {
  std::int32_t& number = gather_of_[static_cast<std::size_t>(id)];
  Gather& gather = gathers_[static_cast<std::size_t>(std::exchange(number, -1))];
  if (--gather.left == 0) let_go(gather.held, Reason::CoalescedBatch);
}

}  // namespace dsplan
