#include "planner/lower/runtimes/zero3/parameter_store.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/quantized.h"

namespace dsplan {
namespace {

bool keeps_codes(const ModelSpec& model, ParameterId id) {
  const Parameter& parameter = model.parameter_at(id);
  return parameter.dtype == DType::Int8 && packing_of(model.module_at(parameter.module));
}

}  // namespace

ParameterStore::ParameterStore(const Training& training, const ModelSpec& model, const Sharding& sharding,
                               PartitionHome& home, Emitter& emitter)
    : training_(training),
      model_(model),
      sharding_(sharding),
      home_(home),
      eager_(emitter),
      states_(sharding.parameters()) {}

void ParameterStore::cut(const NamedParameter& p, Variable whole, bool tied) {
  const Shard shard = cut_tensor(p.elements, p.dtype, sharding_.world());
  if (keeps_codes(model_, p.id)) at(p.id).codes = whole.share();
  Variable secondary;
  if (sharding_.inside() > 1) secondary = make_secondary(shard, whole);
  if (tied) {
    home_.cut_tied(shard, p.id, std::move(whole));
    if (secondary) home_.set_aside(std::move(secondary));
  } else {
    home_.cut(p.id, std::move(whole));
    at(p.id).secondary = std::move(secondary);
  }
}

ParameterPlace ParameterStore::place(ParameterId id) const {
  const State& state = states_[static_cast<std::size_t>(id)];
  if (state.codes) return {state.codes.id(), Bytes(0), sharding_.of(id).bytes(sharding_.of(id).elements)};
  if (state.aliased) {
    const Part part = home_.partition(id);
    return {part.buffer, part.offset, part.bytes};
  }
  DSPLAN_CHECK(state.full, "a parameter is used while it is partitioned: " + model_.parameter_at(id).name);
  const Shard& of = sharding_.of(id);
  return {state.full.id(), state.offset, of.bytes(of.elements)};
}

const Variable& ParameterStore::make_full(ParameterId id, std::int64_t elements) {
  set_full(id,
           eager_.empty(
               sharding_.of(id).bytes(elements), sharding_.of(id).dtype,
               {Role::RuntimeBuffers, "gathered parameter", "zero/partition_parameters.py, all_gather_coalesced"}, id));
  return at(id).full;
}

void ParameterStore::set_full(ParameterId id, Variable full, Bytes offset) {
  at(id).full = std::move(full);
  at(id).offset = offset;
}

Part ParameterStore::shard(ParameterId id, bool secondary) const {
  return secondary ? Part(states_[static_cast<std::size_t>(id)].secondary) : home_.partition(id);
}

Part ParameterStore::sent(ParameterId id, bool secondary, std::vector<Variable>& brought) {
  const Part part = shard(id, secondary);
  Variable here = home_.bring(part);
  if (!here) return part;
  brought.push_back(std::move(here));
  return brought.back();
}

void ParameterStore::all_gather(const Part& to, std::span<const Part> from, bool secondary) {
  Group group = Group::DataParallel;
  if (sharding_.inside() > 1) {
    const bool inside = secondary || sharding_.inside() == sharding_.world();
    group = inside ? Group::DataParallelInside : Group::DataParallelBetween;
  }
  eager_.all_gather(to, from, sharding_.world(), group);
}

void ParameterStore::gather_alone(ParameterId id, bool secondary, std::vector<Variable>& brought) {
  const Variable& full = make_full(id, sharding_.aligned(sharding_.of(id)));
  const Part from = sent(id, secondary, brought);
  all_gather(full, from, secondary);
}

void ParameterStore::take_whole(ParameterId id) {
  State& state = at(id);
  state.aliased = !home_.away();
  if (state.aliased) return;
  eager_.copy(make_full(id, sharding_.of(id).elements), home_.partition(id), "copy partition to device");
}

void ParameterStore::gather_whole(ParameterId id) {
  home_.read_missing({id});
  std::vector<Variable> brought;
  gather_alone(id, false, brought);
  let_go(brought);
  synchronize();
}

// First all tensors are made, then all are gathered.
void ParameterStore::gather_in_place(const std::vector<ParameterId>& list) {
  home_.read_missing(list);
  if (list.size() == 1 || training_.zero.allgather_sequential) {
    for (ParameterId id : list) gather_whole(id);
    return;
  }
  if (sharding_.world() == 1) {
    for (ParameterId id : list) take_whole(id);
    return synchronize();
  }
  std::vector<Variable> brought;
  std::vector<Part> parts;
  for (ParameterId id : list) parts.push_back(sent(id, false, brought));
  for (ParameterId id : list) make_full(id, sharding_.aligned(sharding_.of(id)));
  for (std::size_t index = 0; index < list.size(); ++index) {
    all_gather(at(list[index]).full, parts[index], false);
  }
  let_go(brought);
  synchronize();
}

// partition_parameters.py, free_param: param.data.record_stream(current_stream()), whoever has read it. What is
// released outside its module may have been read by nobody (the backward of an embedding).
void ParameterStore::release(ParameterId id, Reason reason, bool was_read) {
  const State& state = at(id);
  if (state.full && (!was_read || state.codes)) {
    const Part used(state.full.id(), state.offset, place(id).bytes);
    state.full.mark_scratch();
    eager_.work().read(used).write(used).run(Body::Nothing, "record use of gathered parameter");
  }
  leave_secondary(id);
  at(id).aliased = false;
  at(id).full.reset(reason);
}

void ParameterStore::drop_full(ParameterId id) {
  State& state = at(id);
  if (state.full && state.codes) state.full.mark_scratch();
  state.full.reset();
}

// _partition_param, has_been_updated: this rank's part of what it holds, padding as it was.
void ParameterStore::partition_again(ParameterId id) {
  leave_secondary(id);
  State& state = at(id);
  if (!state.full) return;
  const Shard& of = sharding_.of(id);
  const ElementRange mine = sharding_.real(of);
  eager_.copy(home_.partition(id), Part(state.full.id(), state.offset + of.bytes(mine.from), of.bytes(mine.elements)),
              "partition parameter");
  home_.wrote(id);
}

// invalidate_secondary_tensor.
void ParameterStore::drop_secondary() {
  for (const NamedParameter& p : sharding_.trained()) at(p.id).secondary.reset();
}

void ParameterStore::leave_secondary(ParameterId id) {
  State& state = at(id);
  if (sharding_.inside() == 1 || state.secondary) return;
  const Shard& of = sharding_.of(id);
  state.secondary = make_secondary(of, Part(state.full.id(), state.offset, of.bytes(sharding_.aligned(of))));
}

// _partition_param_sec: this rank's part of the parameter among the ranks inside, zeros behind its end.
Variable ParameterStore::make_secondary(const Shard& of, const Part& whole) {
  const std::int64_t part = sharding_.aligned(of) / sharding_.inside();
  const std::int64_t from = std::min(of.elements, checked_mul(part, sharding_.rank() % sharding_.inside()));
  const std::int64_t real = std::min(part, of.elements - from);
  Variable made = home_.empty(of.bytes(part), of.dtype, {Role::Parameters, "secondary shard", ""}, kNone);
  Work cut = eager_.work();
  if (whole.buffer != kNoBuffer) cut.read(Part(whole.buffer, whole.offset + of.bytes(from), of.bytes(real)));
  cut.write(made).run(Body::Copy, "cut secondary shard");
  // "temporary fix to avoid the issue that 2nd tensor all-gather happens".
  eager_.emitter().wait_stream(kHostSync, kComputeStream);
  return made;
}

// Of the whole device, by the host.
void ParameterStore::synchronize() {
  const bool overlaps = training_.zero.overlap_comm;
  eager_.emitter().wait_stream(kHostSync, kComputeStream);
  eager_.emitter().wait_stream(kHostSync, overlaps ? kGatherStream : kComputeStream);
  eager_.emitter().wait_stream(kHostSync, overlaps ? kReduceStream : kComputeStream);
}

}  // namespace dsplan
