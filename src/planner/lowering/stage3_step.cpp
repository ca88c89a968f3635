// ZeRO-3: overflow scan, norm and the update, one sub-group at a time.
#include "planner/lowering/stage3_runtime.h"

namespace dsplan {

void Stage3Runtime::step(bool first) {
  for (const Leaf& leaf : leaves_) release_full(pieces_[static_cast<std::size_t>(leaf.id)]);
  if (!trained_.empty()) {
    measure_gradients();
    for (SubGroup& group : groups_) update(group, first);
  }
  // Persistent parameters come back one by one, in place for the next step.
  for (const Leaf& leaf : leaves_) {
    if (pieces_[static_cast<std::size_t>(leaf.id)].persistent) gather({leaf.id});
  }
}

// fp16 scans the whole gradient buffer (a mask and an absolute copy); the norm takes one partition at a time.
void Stage3Runtime::measure_gradients() {
  const std::int64_t accumulate = bytes_per_element(training().grad_accum_dtype);
  if (dtype() == DType::Float16) {
    scratch(Bytes(checked_mul(partition_, accumulate + 1)), DType::UInt8, "overflow scan");
    control_all_reduce(Bytes(1), "overflow flag");
  }
  scratch(storage(Elements(largest_part_), DType::Float64), DType::Float64, "gradient norm");
  for (std::size_t i = 0; i < groups_.size(); ++i) control_all_reduce(Bytes(8), "gradient norm");
}

void Stage3Runtime::scratch(Bytes bytes, DType type, Label label) {
  const BufferId buffer = emitter_.allocate(bytes, type, Role::Temporaries, label);
  emitter_.mark_scratch(buffer);
  emitter_.begin();
  emitter_.read(gradients_);
  emitter_.write(buffer);
  emitter_.compute(label);
  emitter_.release(buffer, Reason::LastUse);
}

void Stage3Runtime::update(SubGroup& group, bool first) {
  const DType accumulate = training().grad_accum_dtype;
  const Bytes from = storage(Elements(group.offset), accumulate);
  const Bytes bytes = storage(Elements(group.elements), accumulate);
  BufferId gradient = kNoBuffer;  // kNoBuffer: the partition itself serves.
  if (group.end - group.begin > 1) {
    gradient = emitter_.allocate(bytes, accumulate, Role::Temporaries, "flat gradient");
    emitter_.begin();
    emitter_.read(gradients_, from, bytes);
    emitter_.write(gradient);
    emitter_.compute("flatten gradient");
  }
  if (accumulate != training().master_dtype) gradient = cast_gradient(group, gradient, from, bytes);
  if (first) create_flat_state(group.elements, group.state);
  emitter_.begin();
  if (group.master != kNoBuffer) {
    emitter_.read(group.master);
  } else {
    emitter_.read(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
  }
  if (gradient != kNoBuffer) {
    emitter_.read(gradient);
  } else {
    emitter_.read(gradients_, from, bytes);
  }
  read_all(group.state);
  if (group.master != kNoBuffer) {
    emitter_.write(group.master);
  } else {
    emitter_.write(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
  }
  write_all(group.state);
  emitter_.compute("optimizer update");
  if (group.master != kNoBuffer) {
    emitter_.begin();
    emitter_.read(group.master);
    emitter_.write(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
    emitter_.compute("copy master to partitions");
  }
  if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
}

BufferId Stage3Runtime::cast_gradient(const SubGroup& group, BufferId flat, Bytes from, Bytes bytes) {
  const BufferId cast = emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Temporaries,
                                          "gradient in master dtype");
  emitter_.begin();
  if (flat != kNoBuffer) {
    emitter_.read(flat);
  } else {
    emitter_.read(gradients_, from, bytes);
  }
  emitter_.write(cast);
  emitter_.compute("cast gradient");
  if (flat != kNoBuffer) emitter_.release(flat, Reason::LastUse);
  return cast;
}

}  // namespace dsplan
