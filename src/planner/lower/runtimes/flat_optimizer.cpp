#include "planner/lower/runtimes/flat_optimizer.h"

#include <utility>

#include "planner/lower/runtimes/optimizer_state.h"

namespace dsplan {

Variables make_states(Eager& eager, const Training& training, std::int64_t elements, Space space) {
  Variables states;
  for (const StateTensor& tensor : optimizer_state(training.optimizer, Shape{elements}, training.master_dtype, false)) {
    states.append(
        eager.empty(tensor.bytes, tensor.dtype, {Role::Optimizer, tensor.label, state_source(training)}, kNone, space));
  }
  if (!states.empty()) eager.zero(states, "create optimizer state");
  return states;
}

void FlatOptimizer::create_master(const Part& parameters, What clone, Label work) {
  const Variable copy = eager_.clone(parameters, clone, work);
  master_ = eager_.cast(copy, training_.master_dtype, {Role::Optimizer, "master weights", source_}, "cast to master");
}

void FlatOptimizer::clone_master(const Part& parameters, Label work) {
  master_ = eager_.clone(parameters, {Role::Optimizer, "master weights", source_}, work);
}

void FlatOptimizer::create_states(Space space) {
  const Emitter& emitter = eager_.emitter();
  const std::int64_t elements = emitter.size(master()).value() / bytes_per_element(emitter.dtype(master()));
  states_ = make_states(eager_, training_, elements, space);
}

Work FlatOptimizer::update(const Part& gradient) {
  Work work = eager_.work();
  work.read(master_).read(gradient).read(states_).write(master_).write(states_);
  return work;
}

bool makes_root(const Optimizer& optimizer) {
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  return adam && optimizer.implementation == Implementation::Foreach;
}

Variable square_root(Eager& eager, BufferId exp_avg_sq) {
  constexpr What kRoot{Role::Temporaries, "square root of exp_avg_sq", "torch/optim/adam.py, _multi_tensor_adam"};
  Variable root = eager.scratch(eager.emitter().size(exp_avg_sq), eager.emitter().dtype(exp_avg_sq), kRoot);
  // The update does the arithmetic.
  eager.work().read(exp_avg_sq).write(root).run(Body::Clear, kRoot.label);
  return root;
}

void FlatOptimizer::step(const Part& gradient, std::vector<ByteRange> reads) {
  Variable root;
  if (makes_root(training_.optimizer)) root = square_root(eager_, states_.ids().back());
  Work work = update(gradient);
  if (!reads.empty()) work.really_reads(std::move(reads));
  work.states(states_.size()).run(Body::Update, "optimizer update");
}

void FlatOptimizer::dummy_step(const Part& zeros) { update(zeros).run(Body::Nothing, "dummy optimizer step"); }

void FlatOptimizer::copy_master_to(const Part& parameters) {
  eager_.copy(parameters, master_, "copy master to parameters");
}

}  // namespace dsplan
