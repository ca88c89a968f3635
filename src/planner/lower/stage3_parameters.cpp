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
    if (!of.trained) return {of.own.id(), Bytes(0), in_model_dtype(of.elements)};
    return {flat_.id(), in_model_dtype(of.offset), in_model_dtype(of.elements)};
  }
  DSPLAN_CHECK(of.full, "a parameter is used while it is partitioned: " +
                            model_.parameters[static_cast<std::size_t>(parameter)].name);
  return {of.full.id(), of.full_offset, in_model_dtype(of.elements)};
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
      Variable list = eager_.empty(storage(Elements(numbers), DType::Int64), DType::Int64,
                                   {Role::Temporaries, "trace to compare", ""});
      list.mark_scratch();
      eager_.zero(list, "copy trace to device");
      if (world() > 1) {
        eager_.work().read(list).write(list).control(Collective::Broadcast, DType::Int64, eager_.bytes_of(list));
      }
      list.reset();
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
    for (ParameterId id : action.parameters) {
      if (Variable brought = gather_alone(id, action.secondary)) call.sent.push_back(std::move(brought));
    }
  } else if (zero().all_reduce_for_fetch && !action.secondary) {
    launch_all_reduce(call);
  } else {
    launch_coalesced(action.secondary, call);
  }
}

void Stage3Runtime::make_full(ParameterId id, std::int64_t elements) {
  piece(id).full = eager_.empty(
      in_model_dtype(elements), dtype(),
      {Role::RuntimeBuffers, "gathered parameter", "zero/partition_parameters.py, all_gather_coalesced"}, id);
  piece(id).full_offset = Bytes(0);
}

// Into a tensor of its own, of which the parameter is a view. Returns the copy of the partition that it was brought to
// the device in, if one was made.
Variable Stage3Runtime::gather_alone(ParameterId id, bool secondary) {
  const Piece& of = piece(id);
  make_full(id, aligned(of));
  Variable brought = bring(of, secondary);
  all_gather(of.full, brought ? brought : sent(of, secondary), secondary);
  return brought;
}

// _all_gather_coalesced.
void Stage3Runtime::launch_coalesced(bool secondary, Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : call.parameters) elements = checked_add(elements, aligned(piece(id)));
  Variable flat =
      eager_.empty(in_model_dtype(elements), dtype(),
                   {Role::RuntimeBuffers, "gather buffer", "zero/partition_parameters.py, _all_gather_coalesced"});
  std::vector<Variable> brought;
  std::vector<Part> parts;
  for (ParameterId id : call.parameters) {
    brought.push_back(bring(piece(id), secondary));
    parts.push_back(brought.back() ? brought.back() : sent(piece(id), secondary));
  }
  all_gather(flat, parts, secondary);
  let_go(brought);
  call.copies = true;
  call.secondary = secondary;
  call.held.push_back(std::move(flat));
}

// Each rank puts its part among zeros, and all are summed; the parameters are views of the sum.
void Stage3Runtime::launch_all_reduce(Call& call) {
  std::int64_t elements = 0;
  for (ParameterId id : call.parameters) elements = checked_add(elements, aligned(piece(id)));
  const Variable flat =
      eager_.empty(in_model_dtype(elements), dtype(),
                   {Role::RuntimeBuffers, "gather buffer", "zero/partition_parameters.py, _all_gather_coalesced"});
  Work copy = eager_.work();
  for (ParameterId id : call.parameters) copy.read(partition(piece(id)));
  copy.write(flat).really_reads(among_zeros(call)).run(Body::Copy, "zero and copy partitions");
  eager_.all_reduce(flat, world());
  Bytes offset;
  for (ParameterId id : call.parameters) {
    Piece& of = piece(id);
    of.full = flat.share();
    of.full_offset = offset;
    offset += in_model_dtype(aligned(of));
  }
}

// For an executor: of each parameter this rank's part, where it belongs, and zeros around it.
std::vector<ByteRange> Stage3Runtime::among_zeros(const Call& call) const {
  std::vector<ByteRange> ranges;
  if (emitter_.recording() == nullptr) return ranges;
  const auto zeros = [&](std::int64_t parts, Bytes part) {
    if (parts > 0) ranges.push_back({kNoBuffer, Bytes(0), part * parts});
  };
  for (ParameterId id : call.parameters) {
    const Part own = partition(piece(id));
    zeros(rank(), own.bytes);
    ranges.push_back({own.buffer, own.offset, own.bytes});
    zeros(world() - rank() - 1, own.bytes);
  }
  return ranges;
}

// Once for a call: every parameter of it gets a tensor of its own.
void Stage3Runtime::wait(ParameterId id) {
  const auto number = static_cast<std::size_t>(piece(id).call);
  Call& call = calls_[number];
  if (std::exchange(call.waited, true)) return;
  let_go(call.sent);
  if (!call.quantized.empty()) {
    if (call.copies) return dequantize_coalesced(call);
    for (std::size_t index = 0; index < call.parameters.size(); ++index) {
      dequantize_single(call.parameters[index], index, call);
    }
    return;
  }
  if (!call.copies) return;
  for (ParameterId member : call.parameters) make_full(member, piece(member).elements);
  const Variable& flat = call.held.front();
  Work copy = eager_.work().read(flat);
  for (ParameterId member : call.parameters) copy.write(piece(member).full);
  copy.really_reads(coalesced(call, flat)).run(Body::Copy, "copy gathered parameters");
}

// A gather buffer holds, rank by rank, the partitions of all: where those of `wanted` are, or of each where it is
// kNone.
std::vector<ByteRange> Stage3Runtime::coalesced(const Call& call, const Variable& flat, ParameterId wanted) const {
  std::vector<ByteRange> ranges;
  if (emitter_.recording() == nullptr) return ranges;
  const DType type = emitter_.dtype(flat.id());
  std::int64_t all = 0;
  for (ParameterId member : call.parameters) all += aligned(piece(member)) / ranks_of(call);
  std::int64_t before = 0;
  for (ParameterId member : call.parameters) {
    const Piece& of = piece(member);
    const std::int64_t part = aligned(of) / ranks_of(call);
    const bool reads = wanted == kNone || wanted == member;
    for (std::int64_t from = 0, r = 0; reads && from < of.elements; from += part, ++r) {
      const std::int64_t count = std::min(part, of.elements - from);
      ranges.push_back(
          {flat.id(), storage(Elements(checked_mul(r, all) + before), type), storage(Elements(count), type)});
    }
    before += part;
  }
  return ranges;
}

void Stage3Runtime::forget(ParameterId id) {
  Call& call = calls_[static_cast<std::size_t>(std::exchange(piece(id).call, -1))];
  if (--call.left > 0) return;
  let_go(call.held, Reason::CoalescedBatch);
}

void Stage3Runtime::release(ParameterId id) {
  Piece& of = piece(id);
  if (inside() > 1) make_secondary(of, Part(of.full.id(), of.full_offset, in_model_dtype(aligned(of))));
  of.aliased = false;
  of.full.reset(Reason::ModuleExit);
}

// _partition_param_sec: this rank's part of the parameter among the ranks inside, zeros behind its end.
void Stage3Runtime::make_secondary(Piece& of, const Part& whole) {
  if (of.secondary) return;
  const std::int64_t part = aligned(of) / inside();
  const std::int64_t from = std::min(of.elements, checked_mul(part, rank() % inside()));
  const std::int64_t real = std::min(part, of.elements - from);
  const What what{Role::Parameters, "secondary shard", ""};
  of.secondary = parameters_away() ? make_on_host(in_model_dtype(part), dtype(), what, zero().offload_param.pin_memory)
                                   : eager_.empty(in_model_dtype(part), dtype(), what);
  Work cut = eager_.work();
  if (whole.buffer != kNoBuffer) {
    cut.read(Part(whole.buffer, whole.offset + in_model_dtype(from), in_model_dtype(real)));
  }
  cut.write(of.secondary).run(Body::Copy, "cut secondary shard");
  emitter_.wait(kHostWaits, kComputeStream);  // "temporary fix to avoid the issue that 2nd tensor all-gather happens".
}

// invalidate_secondary_tensor: of what the optimizer has changed.
void Stage3Runtime::drop_secondary() {
  for (const Leaf& leaf : trained_) piece(leaf.id).secondary.reset();
  coordinator_.drop_secondary_shards();
}

// param.all_gather(), of one: a tensor of its own whatever the number of ranks.
void Stage3Runtime::gather_whole(ParameterId id) {
  read_missing({id});
  (void)gather_alone(id, false);
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
  std::vector<Variable> brought;
  for (ParameterId id : list) brought.push_back(bring(piece(id)));
  for (ParameterId id : list) make_full(id, aligned(piece(id)));
  for (std::size_t at = 0; at < list.size(); ++at) {
    const Piece& of = piece(list[at]);
    all_gather(of.full, brought[at] ? brought[at] : partition(of), false);
  }
  let_go(brought);
  synchronize();
}

void Stage3Runtime::all_gather(const Part& to, std::span<const Part> from, bool secondary) {
  Group group = Group::DataParallel;
  if (inside() > 1) {
    group = secondary || inside() == world() ? Group::DataParallelInside : Group::DataParallelBetween;
  }
  eager_.all_gather(to, from, world(), group);
}

Part Stage3Runtime::sent(const Piece& of, bool secondary) const {
  return secondary ? Part(of.secondary) : partition(of);
}

}  // namespace dsplan
