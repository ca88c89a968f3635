// ZeRO-3: what the coordinator's fetches and releases take in memory (partition_parameters.py, the functions within
// _convert_to_deepspeed_param, and the AllGather handles).
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/lower/stage3_runtime.h"

namespace dsplan {
namespace {

Coordinator::Hook hook_of(Pass pass) {
  if (pass == Pass::Backward) return Coordinator::Hook::Backward;
  return pass == Pass::Recompute ? Coordinator::Hook::Recompute : Coordinator::Hook::Forward;
}

}  // namespace

ParameterPlace Stage3Runtime::place(ParameterId parameter) const {
  const Piece& of = piece(parameter);
  if (of.aliased) {
    if (!of.trained) return {of.own, Bytes(0), in_model_dtype(of.elements)};
    return {flat_, in_model_dtype(of.offset), in_model_dtype(of.elements)};
  }
  DSPLAN_CHECK(of.full != kNoBuffer, "a parameter is used while it is partitioned: " +
                                         model_.parameters[static_cast<std::size_t>(parameter)].name);
  return {of.full, of.full_offset, in_model_dtype(of.elements)};
}

void Stage3Runtime::forward_begins() {
  compare_trace();
  coordinator_.begin_forward();
  apply();
  calls_.clear();
}

// assert_ints_same_as_other_ranks: rank 0 sends a list's length, then the list; it is read at once, as 64-bit numbers.
void Stage3Runtime::compare_trace() {
  for (std::int64_t length : coordinator_.compared_lists()) {
    for (std::int64_t numbers : {std::int64_t{1}, length}) {
      if (numbers == 0) continue;
      const BufferId list = emitter_.allocate(storage(Elements(numbers), DType::Int64), DType::Int64, Role::Temporaries,
                                              "trace to compare");
      emitter_.mark_scratch(list);
      emitter_.begin();
      emitter_.write(list);
      emitter_.compute("copy trace to device");
      if (world() > 1) {
        emitter_.begin();
        emitter_.read(list);
        emitter_.write(list);
        emitter_.communicate(Collective::Broadcast, DType::Int64, emitter_.size(list), TrafficKind::Control);
      }
      emitter_.release(list, Reason::PythonFrame);
      emitter_.wait(kHostWaits, kComputeStream);
    }
  }
}

// Of the whole device, by the host.
void Stage3Runtime::synchronize() {
  for (const StreamId stream : {kComputeStream, gather_stream(), reduce_stream()}) emitter_.wait(kHostWaits, stream);
}

void Stage3Runtime::enter(ModuleId module, Pass pass) {
  if (!carries_hooks_[static_cast<std::size_t>(module)]) return;
  coordinator_.enter(module, hook_of(pass));
  DSPLAN_CHECK(!coordinator_.tracing_error(), "the trace that was recorded does not fit the pass that follows");
  apply(From::Fetch);
}

void Stage3Runtime::exit(ModuleId module, Pass pass) {
  if (!carries_hooks_[static_cast<std::size_t>(module)]) return;
  if (pass == Pass::Backward && coordinator_.module(module).leaf) reduce_leaf(module);
  coordinator_.exit(module, hook_of(pass));
  apply();
}

// fetch_sub_module: once what the module needs has arrived the compute stream waits for the gather stream, ahead of
// what is prefetched then. Elsewhere (release_and_reset_all) handles are waited for on the compute stream itself.
//
// The host also waits for the gather stream when more than two fetches are under way, which tells it nothing of the
// compute stream, whose uses are what gathered parameters wait for: left out.
void Stage3Runtime::apply(From from) {
  const std::vector<Coordinator::Action>& actions = coordinator_.actions();
  std::size_t arrived = 0;  // Behind the last wait.
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (actions[at].act == Coordinator::Act::Wait || actions[at].act == Coordinator::Act::Forget) arrived = at + 1;
  }
  if (from == From::Elsewhere && arrived > 0) emitter_.wait(kComputeStream, gather_stream());
  for (std::size_t at = 0; at < actions.size(); ++at) {
    if (from == From::Fetch && at == arrived) emitter_.wait(kComputeStream, gather_stream());
    const bool on_gather = from == From::Fetch && actions[at].act != Coordinator::Act::Release;
    const OnStream stream(emitter_, on_gather && !actions[at].at_once ? gather_stream() : kComputeStream);
    act(actions[at]);
  }
  if (from == From::Fetch && arrived == actions.size()) emitter_.wait(kComputeStream, gather_stream());
}

void Stage3Runtime::act(const Coordinator::Action& action) {
  switch (action.act) {
    case Coordinator::Act::Gather: launch(action); break;
    case Coordinator::Act::Wait: wait(action.parameters.front()); break;
    case Coordinator::Act::Forget: forget(action.parameters.front()); break;
    case Coordinator::Act::Release: release(action.parameters.front()); break;
    case Coordinator::Act::SwapIn:
      for (ParameterId id : action.parameters) files_->read(id);
      break;
    case Coordinator::Act::DropBuffers:
      for (ParameterId id : action.parameters) files_->give_back(id);
      break;
  }
}

void Stage3Runtime::launch(const Coordinator::Action& action) {
  if (action.at_once) return gather_whole(action.parameters.front());
  const auto number = static_cast<std::int32_t>(calls_.size());
  Call& call = calls_.emplace_back();
  call.parameters = action.parameters;
  call.left = action.parameters.size();
  for (ParameterId id : action.parameters) piece(id).call = number;
  if (world() == 1) {  // NoGatherHandle: the partition is the parameter.
    for (ParameterId id : action.parameters) bring_whole(id);
    return;
  }
  const bool single = call.parameters.size() == 1 || zero().allgather_sequential;
  if (zero().quantized_weights) {
    if (!single) return launch_quantized(call.parameters, action.secondary, call);
    for (ParameterId id : action.parameters) launch_quantized({id}, action.secondary, call);
  } else if (single) {
    for (ParameterId id : action.parameters) launch_single(id, action.secondary, call);
  } else if (zero().all_reduce_for_fetch && !action.secondary) {
    launch_all_reduce(call);
  } else {
    launch_coalesced(action.secondary, call);
  }
}

// Into a tensor of its own, of which the parameter is a view. Returns the copy of the partition that it was brought to
// the device in, if one was made.
BufferId Stage3Runtime::gather_alone(ParameterId id, bool secondary) {
  Piece& of = piece(id);
  of.full = emitter_.allocate(in_model_dtype(aligned(of)), dtype(), Role::RuntimeBuffers, "gathered parameter", id);
  of.full_offset = Bytes(0);
  const BufferId brought = bring(of, secondary);
  emitter_.begin();
  read_partition(of, secondary, brought);
  emitter_.write(of.full);
  gather(secondary, dtype(), emitter_.size(of.full));
  return brought;
}

void Stage3Runtime::launch_single(ParameterId id, bool secondary, Call& call) {
  const BufferId brought = gather_alone(id, secondary);
  if (brought != kNoBuffer) call.sent.push_back(brought);
}

void Stage3Runtime::launch_coalesced(bool secondary, Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : call.parameters) elements = checked_add(elements, aligned(piece(id)));
  const BufferId flat = emitter_.allocate(in_model_dtype(elements), dtype(), Role::RuntimeBuffers, "gather buffer");
  std::vector<BufferId> brought;
  for (ParameterId id : call.parameters) brought.push_back(bring(piece(id), secondary));
  emitter_.begin();
  for (std::size_t at = 0; at < brought.size(); ++at) {
    read_partition(piece(call.parameters[at]), secondary, brought[at]);
  }
  emitter_.write(flat);
  gather(secondary, dtype(), emitter_.size(flat));
  for (BufferId buffer : brought) {
    if (buffer != kNoBuffer) emitter_.release(buffer, Reason::LastUse);
  }
  call.copies = true;
  call.secondary = secondary;
  call.held.push_back(flat);
}

// Each rank puts its part among zeros, and all are summed; the parameters are views of the sum.
void Stage3Runtime::launch_all_reduce(Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : call.parameters) elements = checked_add(elements, aligned(piece(id)));
  const BufferId flat = emitter_.allocate(in_model_dtype(elements), dtype(), Role::RuntimeBuffers, "gather buffer");
  emitter_.begin();
  for (ParameterId id : call.parameters) read_partition(piece(id), false);
  emitter_.write(flat);
  record_among_zeros(call);
  emitter_.compute("zero and copy partitions");
  emitter_.begin();
  emitter_.read(flat);
  emitter_.write(flat);
  emitter_.communicate(Collective::AllReduce, dtype(), emitter_.size(flat));
  Bytes offset;
  for (ParameterId id : call.parameters) {
    Piece& of = piece(id);
    of.full = flat;
    of.full_offset = offset;
    offset += in_model_dtype(aligned(of));
    if (id != call.parameters.front()) emitter_.retain(flat);
  }
}

// For an executor: of each parameter this rank's part, where it belongs, and zeros around it.
void Stage3Runtime::record_among_zeros(const Call& call) {
  Recording* recording = emitter_.recording();
  if (recording == nullptr) return;
  std::vector<ByteRange> ranges;
  const auto zeros = [&](std::int64_t parts, Bytes part) {
    if (parts > 0) ranges.push_back({kNoBuffer, Bytes(0), part * parts});
  };
  for (ParameterId id : call.parameters) {
    const Range own = partition_range(piece(id));
    zeros(rank(), own.bytes);
    ranges.push_back({own.buffer, own.offset, own.bytes});
    zeros(world() - rank() - 1, own.bytes);
  }
  recording->reads(std::move(ranges));
}

// Once for a call: every parameter of it gets a tensor of its own.
void Stage3Runtime::wait(ParameterId id) {
  const auto number = static_cast<std::size_t>(piece(id).call);
  Call& call = calls_[number];
  if (std::exchange(call.waited, true)) return;
  for (BufferId buffer : call.sent) emitter_.release(buffer, Reason::PythonFrame);
  call.sent.clear();
  if (!call.quantized.empty()) {
    if (call.copies) return dequantize_coalesced(call);
    for (std::size_t index = 0; index < call.parameters.size(); ++index) {
      dequantize_single(call.parameters[index], index, call);
    }
    return;
  }
  if (!call.copies) return;
  for (ParameterId member : call.parameters) {
    Piece& of = piece(member);
    of.full =
        emitter_.allocate(in_model_dtype(of.elements), dtype(), Role::RuntimeBuffers, "gathered parameter", member);
    of.full_offset = Bytes(0);
  }
  emitter_.begin();
  emitter_.read(call.held.front());
  for (ParameterId member : call.parameters) emitter_.write(piece(member).full);
  record_coalesced(call, call.held.front());
  emitter_.compute("copy gathered parameters");
}

// A gather buffer holds, rank by rank, the partitions of all: where those of `wanted` are, or of each where it is
// kNone.
void Stage3Runtime::record_coalesced(const Call& call, BufferId flat, ParameterId wanted) {
  if (emitter_.recording() == nullptr) return;
  const DType type = emitter_.dtype(flat);
  std::int64_t all = 0;
  for (ParameterId member : call.parameters) all += aligned(piece(member)) / ranks_of(call);
  std::vector<ByteRange> ranges;
  std::int64_t before = 0;
  for (ParameterId member : call.parameters) {
    const Piece& of = piece(member);
    const std::int64_t part = aligned(of) / ranks_of(call);
    const bool reads = wanted == kNone || wanted == member;
    for (std::int64_t from = 0, r = 0; reads && from < of.elements; from += part, ++r) {
      const std::int64_t count = std::min(part, of.elements - from);
      ranges.push_back({flat, storage(Elements(checked_mul(r, all) + before), type), storage(Elements(count), type)});
    }
    before += part;
  }
  emitter_.recording()->reads(std::move(ranges));
}

void Stage3Runtime::forget(ParameterId id) {
  Call& call = calls_[static_cast<std::size_t>(std::exchange(piece(id).call, -1))];
  if (--call.left > 0) return;
  for (BufferId buffer : call.held) emitter_.release(buffer, Reason::CoalescedBatch);
  call.held.clear();
}

void Stage3Runtime::release(ParameterId id) {
  Piece& of = piece(id);
  if (inside() > 1) make_secondary(of);
  of.aliased = false;
  release_full(of, Reason::ModuleExit);
}

void Stage3Runtime::release_full(Piece& of, Reason reason) {
  if (of.full != kNoBuffer) emitter_.release(std::exchange(of.full, kNoBuffer), reason);
}

// _partition_param_sec: this rank's part of the parameter among the ranks inside, zeros behind its end.
void Stage3Runtime::make_secondary(Piece& of) {
  if (of.secondary != kNoBuffer) return;
  const std::int64_t part = aligned(of) / inside();
  const std::int64_t from = std::min(of.elements, checked_mul(part, rank() % inside()));
  const std::int64_t real = std::min(part, of.elements - from);
  if (parameters_away()) {
    of.secondary = make_on_host(in_model_dtype(part), dtype(), Role::Parameters, "secondary shard",
                                zero().offload_param.pin_memory);
  } else {
    of.secondary = emitter_.allocate(in_model_dtype(part), dtype(), Role::Parameters, "secondary shard");
  }
  emitter_.begin();
  if (of.full != kNoBuffer) emitter_.read(of.full, of.full_offset + in_model_dtype(from), in_model_dtype(real));
  emitter_.write(of.secondary);
  emitter_.as(Body::Copy);
  emitter_.compute("cut secondary shard");
  emitter_.wait(kHostWaits, kComputeStream);  // "temporary fix to avoid the issue that 2nd tensor all-gather happens".
}

// invalidate_secondary_tensor: of what the optimizer has changed.
void Stage3Runtime::drop_secondary() {
  for (const Leaf& leaf : trained_) {
    Piece& of = piece(leaf.id);
    if (of.secondary != kNoBuffer) emitter_.release(std::exchange(of.secondary, kNoBuffer), Reason::PythonFrame);
  }
  coordinator_.drop_secondary_shards();
}

// param.all_gather(), of one: a tensor of its own whatever the number of ranks.
void Stage3Runtime::gather_whole(ParameterId id) {
  read_missing({id});
  const BufferId brought = gather_alone(id, false);
  if (brought != kNoBuffer) emitter_.release(brought, Reason::LastUse);
  synchronize();
}

// param.all_gather(list), waited for: never through a flat buffer. First all tensors are made, then all are gathered.
void Stage3Runtime::gather_in_place(const std::vector<ParameterId>& list) {
  read_missing(list);
  if (list.size() == 1 || zero().allgather_sequential) {
    for (ParameterId id : list) gather_whole(id);
    return;
  }
  if (world() == 1) {
    for (ParameterId id : list) bring_whole(id);
    return synchronize();
  }
  std::vector<BufferId> brought;
  for (ParameterId id : list) brought.push_back(bring(piece(id)));
  for (ParameterId id : list) {
    Piece& of = piece(id);
    of.full = emitter_.allocate(in_model_dtype(aligned(of)), dtype(), Role::RuntimeBuffers, "gathered parameter", id);
    of.full_offset = Bytes(0);
  }
  for (std::size_t at = 0; at < list.size(); ++at) {
    const Piece& of = piece(list[at]);
    emitter_.begin();
    read_partition(of, false, brought[at]);
    emitter_.write(of.full);
    gather(false, dtype(), emitter_.size(of.full));
  }
  for (BufferId buffer : brought) {
    if (buffer != kNoBuffer) emitter_.release(buffer, Reason::PythonFrame);
  }
  synchronize();
}

void Stage3Runtime::gather(bool secondary, DType type, Bytes payload) {
  if (world() == 1) return emitter_.compute("local copy");
  Group group = Group::DataParallel;
  if (inside() > 1) {
    group = secondary || inside() == world() ? Group::DataParallelInside : Group::DataParallelBetween;
  }
  emitter_.communicate(Collective::AllGather, type, payload, TrafficKind::Data, group);
}

void Stage3Runtime::read_partition(const Piece& of, bool secondary, BufferId brought) {
  if (brought != kNoBuffer) {
    emitter_.read(brought);
  } else if (secondary) {
    emitter_.read(of.secondary);
  } else {
    const Range range = partition_range(of);
    emitter_.read(range.buffer, range.offset, range.bytes);
  }
}

}  // namespace dsplan
