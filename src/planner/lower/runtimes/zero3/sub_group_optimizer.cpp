#include "planner/lower/runtimes/zero3/sub_group_optimizer.h"

#include <utility>

#include "planner/lower/runtimes/flat_optimizer.h"

namespace dsplan {

SubGroupOptimizer::SubGroupOptimizer(const Training& training, const SubGroup& group, PartitionHome& home,
                                     Emitter& emitter)
    : training_(training), group_(group), home_(home), eager_(emitter) {}

// to(device, fp32) and a clone, wherever the optimizer is. Where that changes neither device nor dtype it is the
// partitions themselves: the branch that would take those as they are asks whether a torch.device equals a string,
// which it never does. The cast of the sub-group before is let go of before the clone.
void SubGroupOptimizer::create_master(const Part& weights, Variable& cast) {
  const bool crosses = (space() == Space::Device) == home_.away();
  Variable made;
  if (crosses || type() != group_.dtype) {
    made =
        eager_.empty(bytes(), type(),
                     {Role::Temporaries, "master weights before the clone", "zero/stage3.py, _create_fp32_partitions"},
                     kNone, space());
    eager_.copy_across(made, weights, "cast to master");
  }
  cast = std::move(made);
  master_ = eager_.clone(cast ? cast : weights,
                         {Role::Optimizer, "master weights", "zero/stage3.py, _create_fp32_partitions"}, "clone master",
                         kNone, space());
}

void SubGroupOptimizer::initialise(Variable&) {
  if (!group_.in_flat) home_.write(group_, master());
}

void SubGroupOptimizer::take_gradient(Bytes offset, Variable gradient) {
  eager_.copy(Part(gradient_.id(), offset, eager_.bytes_of(gradient)), gradient, "copy gradient to the optimizer");
}

Part SubGroupOptimizer::master() const { return {master_.id(), Bytes(0), bytes()}; }

std::vector<StateTensor> SubGroupOptimizer::states() const {
  return optimizer_state(training_.optimizer, Shape{group_.elements}, type(), false);
}

void SubGroupOptimizer::create_states() {
  for (const StateTensor& tensor : states()) {
    state_.push_back(eager_.empty(tensor.bytes, tensor.dtype,
                                  {Role::Optimizer, tensor.label, maker_of_states(training_)}, kNone, space()));
  }
  if (!state_.empty()) eager_.work().write(state_).run(Body::Clear, "create optimizer state");
}

void SubGroupOptimizer::update(const Part& gradient, Label work) {
  eager_.work()
      .read(master_)
      .read(gradient)
      .read(state_)
      .write(master_)
      .write(state_)
      .states(state_.size())
      .run(Body::Update, work);
}

void DeviceOptimizer::prepare() {
  Part gradient = gradients_.of(group_);
  if (group_.end - group_.begin > 1) {
    gradient_ =
        eager_.clone(gradient, {Role::Temporaries, "flat gradient", "zero/stage3.py, step"}, "flatten gradient");
    gradient = gradient_;
  }
  if (training_.grad_accum_dtype == type()) return;
  gradient_ = eager_.cast(gradient, type(), {Role::Temporaries, "gradient in master dtype", "zero/stage3.py, step"},
                          "cast gradient");
}

// unscale_and_clip_grads: the clip factor, with the loss scale, and the two steps of its inverse, each a tensor.
void DeviceOptimizer::unscale_and_clip() {
  if (training_.gradient_clipping <= 0) return;
  constexpr What kFactor{Role::Temporaries, "clip factor", "zero/stage3.py, unscale_and_clip_grads"};
  Variables factors;
  for (int step = 0; step < 4; ++step) {
    factors.append(eager_.scratch(Bytes(8), DType::Float64, kFactor));
    eager_.work().write(factors.ids().back()).run(Body::Nothing, kFactor.label);
  }
}

void DeviceOptimizer::step(bool first) {
  unscale_and_clip();
  if (first) create_states();
  Variable root;
  if (makes_root(training_.optimizer)) root = square_root(eager_, state_.back().id());
  update(gradient_ ? gradient_ : gradients_.of(group_), "optimizer update");
  root.reset();
  home_.write(group_, master());
}

void HostOptimizer::initialise(Variable& passing) {
  make_gradient(passing);
  gradient_.mark_scratch();
  SubGroupOptimizer::initialise(passing);
}

// The gradient that the optimizer on the host will be given. Zeros stay where this rank has nothing but padding. A
// pinned block of the sub-group before serves again, a pageable one goes when this is there.
void HostOptimizer::make_gradient(Variable& passing) {
  const bool pins = training_.zero.offload_optimizer.pin_memory;
  if (pins) passing.reset();
  gradient_ = eager_.empty_on_host(
      bytes(), type(),
      {Role::Gradients, "gradient in master dtype", "zero/stage3.py, _offload_grad_partition_at_boundary"}, pins);
  eager_.zero(gradient_, "zero gradients");
  passing.reset();
}

void HostOptimizer::step(bool first) {
  if (first) create_states();
  update(gradient_, "optimizer update on the host");
  home_.write(group_, master());
}

// A copy of the zeros that were made on the host, which the variable holds until the next sub-group's are there.
void BackupOptimizer::initialise(Variable& passing) {
  make_gradient(passing);
  passing = std::move(gradient_);
  gradient_ = eager_.clone(
      passing, {Role::Gradients, "gradient for the device's optimizer", "zero/stage3.py, initialize_optimizer_states"},
      "copy gradient to device");
  gradient_.mark_scratch();
  SubGroupOptimizer::initialise(passing);
}

void BackupOptimizer::step(bool first) {
  placeholder_.reset();
  if (first) create_states();
  Variable root;
  if (has_torch_backup(training_)) root = square_root(eager_, state_.back().id());
  update(gradient_, "optimizer update");
  root.reset();
  home_.write(group_, master());
}

void SwappedOptimizer::initialise(Variable& passing) {
  swapper_.swap_in(group_.number);
  SubGroupOptimizer::initialise(passing);
  swapper_.swap_out(group_.number);
}

void SwappedOptimizer::take_gradient(Bytes offset, Variable gradient) {
  const Bytes bytes = eager_.bytes_of(gradient);
  swapper_.gradients().collect(group_.number, {offset, bytes, std::move(gradient)});
}

void SwappedOptimizer::step(bool) {
  swapper_.swap_in(group_.number);
  swapper_.update(group_.number, states());
  home_.write(group_, master());
  swapper_.swap_out(group_.number);
}

}  // namespace dsplan
