// ZeRO-3: how parameters are cut, and what initialisation makes.
#include "planner/lowering/stage3_runtime.h"

#include <algorithm>
#include <utility>

namespace dsplan {

Stage3Runtime::Stage3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter), pieces_(model.parameters.size()), active_module_(model.modules.size()) {
  own_.resize(model.modules.size());
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    const ParameterId id = parameter.tied_to == kNone ? static_cast<ParameterId>(at) : parameter.tied_to;
    own_[static_cast<std::size_t>(parameter.module)].push_back(id);
  }
  lay_out();
}

// Partitions, persistence (parameter_offload.py, mark_persistent_parameters) and sub-groups.
void Stage3Runtime::lay_out() {
  std::int64_t persistent = 0;
  for (const Leaf& leaf : leaves_) {
    Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
    piece.elements = leaf.elements;
    piece.part = div_ceil(Elements(leaf.elements), world()).value();
    piece.trained = leaf.trainable;
    if (leaf.trainable) {
      piece.offset = partition_;
      partition_ = checked_add(partition_, piece.part);
      largest_part_ = std::max(largest_part_, piece.part);
    }
    if (checked_add(leaf.elements, persistent) > zero().model_persistence_threshold.value()) continue;
    if (leaf.elements > zero().param_persistence_threshold.value()) continue;
    piece.persistent = true;
    persistent += leaf.elements;
  }
  SubGroup group;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    group.elements += pieces_[static_cast<std::size_t>(trained_[i].id)].part;
    group.end = i + 1;
    if (group.elements < zero().sub_group_size.value() && i + 1 < trained_.size()) continue;
    groups_.push_back(group);
    group = SubGroup{i + 1, i + 1, group.offset + group.elements, 0, kNoBuffer, {}};
  }
}

void Stage3Runtime::initialise() {
  // zero.Init: a module's parameters are whole until its constructor returns, then broadcast and cut.
  for (const Leaf& leaf : leaves_) partition(leaf);
  if (trained_.empty()) return;
  gather_partitions_in_one_buffer();
  gradients_ = emitter_.allocate(storage(Elements(partition_), training().grad_accum_dtype),
                                 training().grad_accum_dtype, Role::Gradients, "gradient partitions", kNone, true);
  bucket_ = emitter_.allocate(storage(zero().reduce_bucket_size, training().communication_dtype),
                              training().communication_dtype, Role::RuntimeBuffers, "gradient bucket", kNone, true);
  create_masters();
  for (const SubGroup& group : groups_) {
    if (group.master != kNoBuffer) emitter_.promise_update(group.master, Bytes(0), emitter_.size(group.master));
  }
  for (const Leaf& leaf : trained_) {
    const Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
    emitter_.promise_update(flat_, in_model_dtype(piece.offset), in_model_dtype(piece.part));
  }
  // initialize_optimizer_states: a gradient of the largest sub-group, dropped at the end.
  std::int64_t largest = 0;
  for (const SubGroup& group : groups_) largest = std::max(largest, group.elements);
  const BufferId zeros = emitter_.allocate(in_master_dtype(largest), training().master_dtype, Role::Temporaries,
                                           "zero gradients of initialize_optimizer_states");
  emitter_.mark_scratch(zeros);
  emitter_.begin();
  emitter_.write(zeros);
  emitter_.compute("zero gradients");
  emitter_.release(zeros, Reason::PythonFrame);
  // create_reduce_and_remove_grad_hooks: a hook can only be put on a parameter that is whole.
  for (const Leaf& leaf : trained_) {
    Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
    gather({leaf.id});
    emitter_.mark_scratch(piece.full);
    release_full(piece);
  }
}

void Stage3Runtime::partition(const Leaf& leaf) {
  Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
  const BufferId whole = load_whole(leaf, "whole parameter");
  broadcast(whole);
  piece.own = emitter_.allocate(in_model_dtype(piece.part), dtype(), Role::Parameters, "parameter partition", leaf.id);
  emitter_.begin();
  emitter_.read(whole);
  emitter_.write(piece.own);
  emitter_.compute("partition parameter");
  emitter_.release(whole, Reason::LastUse);
}

// zero/utils.py, defragment: through the host, so that old and new never coexist on the device.
void Stage3Runtime::gather_partitions_in_one_buffer() {
  std::vector<BufferId> parts;
  for (const Leaf& leaf : trained_) {
    parts.push_back(std::exchange(pieces_[static_cast<std::size_t>(leaf.id)].own, kNoBuffer));
  }
  const BufferId staging = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Parameters,
                                             "staging of parameter partitions", kNone, false, Space::Pageable);
  emitter_.begin();
  read_all(parts);
  emitter_.write(staging);
  emitter_.compute("copy partitions to host");
  for (BufferId part : parts) emitter_.release(part, Reason::LastUse);
  flat_ = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Parameters, "parameter partitions");
  emitter_.begin();
  emitter_.read(staging);
  emitter_.write(flat_);
  emitter_.compute("copy partitions to device");
  emitter_.release(staging, Reason::LastUse);
}

// to(fp32) and then a clone, the cast before last being let go of by the next; nothing where parameters and master
// share their dtype.
void Stage3Runtime::create_masters() {
  if (training().master_dtype == dtype()) return;
  BufferId before = kNoBuffer;
  for (SubGroup& group : groups_) {
    const BufferId cast = create_master(group);
    if (before != kNoBuffer) emitter_.release(before, Reason::PythonFrame);
    before = cast;
  }
  if (before != kNoBuffer) emitter_.release(before, Reason::PythonFrame);
}

// The cast is still there.
BufferId Stage3Runtime::create_master(SubGroup& group) {
  const BufferId cast = emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Temporaries,
                                          "master weights before the clone");
  emitter_.begin();
  emitter_.read(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
  emitter_.write(cast);
  emitter_.compute("cast to master");
  group.master =
      emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Optimizer, "master weights");
  emitter_.begin();
  emitter_.read(cast);
  emitter_.write(group.master);
  emitter_.compute("clone master");
  return cast;
}

std::unique_ptr<TrainingRuntime> make_stage3_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                     Emitter& emitter) {
  return std::make_unique<Stage3Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
