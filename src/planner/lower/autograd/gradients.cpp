#include "planner/lower/autograd/gradients.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

bool is_among(const std::vector<TensorId>& tensors, TensorId tensor) {
  return std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
}

std::size_t parameters_in(const Graph& graph) {
  ParameterId most = kNone;
  for (const Storage& storage : graph.storages) most = std::max(most, storage.parameter);
  return static_cast<std::size_t>(most + 1);
}

Gradient cloned(TapeContext& on, TensorId tensor, Gradient gradient) {
  const ParameterId parameter = on.graph.storage_of(tensor).parameter;
  const Role role = parameter == kNone ? Role::Temporaries : Role::Gradients;
  Gradient made{kNoBuffer, true};
  made.buffer =
      on.emitter.allocate(on.graph.bytes(tensor), on.graph.tensor(tensor).dtype, What{role, "gradient"}, parameter);
  on.emitter.begin();
  on.emitter.read(gradient.buffer);
  on.emitter.write(made.buffer);
  if (on.recording) made.value = on.recording->gradient({gradient.value}, made.buffer);
  on.emitter.compute(Body::CloneGradient, "clone");
  on.emitter.release(gradient.buffer, Reason::AutogradGraph);
  return made;
}

}  // namespace

Gradients::Gradients(TapeContext& on, const std::vector<Checkpoint>& checkpoints)
    : on_(on),
      graph_(on.graph),
      emitter_(on.emitter),
      held_(on.graph.tensors.size()),
      uses_(parameters_in(on.graph), 0),
      arrived_(uses_.size(), 0),
      nested_uses_(on.graph.tensors.size(), 0) {
  count_uses(checkpoints);
}

void Gradients::count_uses(const std::vector<Checkpoint>& checkpoints) {
  const auto count = [&](TensorId id) {
    if (!on_.facts.is_parameter(id) || !graph_.tensor(id).requires_grad) return;
    ++uses_[static_cast<std::size_t>(graph_.storage_of(id).parameter)];
  };
  for (TensorId output : graph_.outputs) count(output);
  Indexed<NodeId, bool> inside(graph_.nodes.size(), false);  // Of a reentrant checkpoint.
  for (const Checkpoint& checkpoint : checkpoints) {
    if (!checkpoint.reentrant) continue;
    // What it is given gets its gradient from the checkpoint's own node.
    for (TensorId argument : checkpoint.arguments) {
      if (is_among(checkpoint.externals, argument)) count(argument);
    }
    for (std::uint32_t at = checkpoint.begin; at < checkpoint.end; ++at) {
      const Instruction& instruction = graph_.program[at];
      if (instruction.kind == Instruction::Kind::Run) inside[instruction.node()] = true;
    }
  }
  for (const Instruction& instruction : graph_.program) {
    if (instruction.kind != Instruction::Kind::Run || inside[instruction.node()]) continue;
    if (!on_.facts.is_wanted(instruction.node())) continue;
    for (TensorId input : graph_.in(graph_.node(instruction.node()))) count(input);
  }
}

void Gradients::begin() { std::fill(arrived_.begin(), arrived_.end(), 0); }

bool Gradients::came_for_outputs_of(const Node& node) const {
  const std::span<const TensorId> out = graph_.out(node);
  return std::any_of(out.begin(), out.end(),
                     [&](TensorId id) { return held_[id].buffer != kNoBuffer || held_[id].empty; });
}

bool Gradients::is_leaf(TensorId tensor) const {
  return on_.facts.is_parameter(tensor) || (nested_ != nullptr && is_among(nested_->externals, tensor));
}

void Gradients::arrived(TensorId leaf) {
  if (nested_ == nullptr) {
    const auto parameter = static_cast<std::size_t>(graph_.storage_of(leaf).parameter);
    if (++arrived_[parameter] == uses_[parameter]) ready(leaf);  // A tied weight waits for its last use.
    return;
  }
  if (--nested_uses_[leaf] == 0) ready(leaf);
}

void Gradients::ready(TensorId leaf) {
  Gradient& slot = of(leaf);
  const bool given = nested_ != nullptr && is_among(nested_->arguments, leaf);
  const Gradient arrived = std::exchange(slot, {});
  if (on_.facts.is_parameter(leaf) && !given) {
    const ParameterId parameter = graph_.storage_of(leaf).parameter;
    const Gradient taken = on_.runtime.holds_gradient(parameter) ? arrived : take_or_clone(leaf, arrived);
    if (on_.recording) on_.recording->ready(parameter, taken.value);
    on_.runtime.gradient_ready(parameter, taken.buffer);
  } else {
    // `.grad` of a checkpoint's detached input, until its node returns it. It lies as the input does.
    const bool strided = nested_ != nullptr && is_among(nested_->strided, leaf);
    slot = strided ? cloned(on_, leaf, arrived) : take_or_clone(leaf, arrived);
  }
}

Gradient Gradients::take_or_clone(TensorId tensor, Gradient gradient) {
  if (gradient.stretch || (gradient.whole && emitter_.references(gradient.buffer) == 1)) {
    return {gradient.buffer, true, false, false, gradient.value};
  }
  return cloned(on_, tensor, gradient);
}

// InputBuffer::add: in place where nobody else can see it.
void Gradients::accumulate_into(Gradient& held, TensorId tensor, Gradient gradient) {
  if (held.buffer == kNoBuffer) {
    held = gradient;
    return;
  }
  if (gradient.empty) return;
  const bool in_place = held.whole && !held.view && emitter_.references(held.buffer) == 1;
  const ParameterId parameter = graph_.storage_of(tensor).parameter;
  const StreamId stream = parameter == kNone ? kComputeStream : on_.runtime.sums_gradients_on;
  if (stream != kComputeStream) emitter_.wait_stream(stream, kComputeStream);
  const OnStream on(emitter_, stream);
  Gradient sum{held.buffer, true};
  if (!in_place) {
    const Role role = parameter == kNone ? Role::Temporaries : Role::Gradients;  // A tied weight's becomes its `.grad`.
    sum.buffer = emitter_.allocate(
        graph_.bytes(tensor), graph_.tensor(tensor).dtype,
        What{role, "sum of gradients", "torch/csrc/autograd/input_buffer.cpp, InputBuffer::add"}, parameter);
  }
  if (on_.facts.is_loss(graph_.tensor(tensor).producer, false)) emitter_.mark_of_loss(sum.buffer);
  emitter_.begin();
  emitter_.read(held.buffer);
  if (gradient.buffer != held.buffer) emitter_.read(gradient.buffer);
  emitter_.write(sum.buffer);
  if (on_.recording) sum.value = on_.recording->gradient({held.value, gradient.value}, sum.buffer);
  emitter_.compute(Body::AddGradients, "add");
  if (!in_place) emitter_.release(held.buffer, Reason::AutogradGraph);
  emitter_.release(gradient.buffer, Reason::AutogradGraph);
  held = sum;
}

ModuleId Gradients::left_through(const Node& node, TensorId input) const {
  const Tensor& tensor = graph_.tensor(input);
  const ModuleId module = node.module == kNone ? kNone : on_.runtime.wraps_input(node.module);
  if (module == kNone || tensor.producer == kNone) return kNone;
  // What the module's own children make has not come in from outside.
  return on_.facts.lies_in(graph_.node(tensor.producer).module, module) ? kNone : module;
}

void Gradients::accumulate_in(ModuleId module, TensorId input, Gradient gradient) {
  auto pending = std::find_if(pending_.begin(), pending_.end(),
                              [&](const Pending& one) { return one.tensor == input && one.module == module; });
  if (pending == pending_.end()) pending = pending_.insert(pending, Pending{input, module, {}, 0});
  ++pending->count;
  accumulate_into(pending->gradient, input, gradient);
}

void Gradients::leave_module(ModuleId module) {
  for (const Pending& pending : pending_) {
    if (pending.module != module) continue;
    accumulate(pending.tensor, pending.gradient);
    if (!is_leaf(pending.tensor)) continue;
    for (std::int32_t k = 0; k < pending.count; ++k) arrived(pending.tensor);
  }
  std::erase_if(pending_, [module](const Pending& pending) { return pending.module == module; });
}

void Gradients::begin_nested(Checkpoint& checkpoint) {
  for (TensorId external : checkpoint.externals) {
    // What came for a result is the first that the leaf receives within.
    const bool returned = is_among(checkpoint.returned, external);
    checkpoint.outer.push_back(returned ? Gradient{} : std::exchange(of(external), {}));
  }
  count_nested_uses(checkpoint);
  nested_ = &checkpoint;
}

void Gradients::count_nested_uses(const Checkpoint& checkpoint) {
  for (TensorId external : checkpoint.externals) nested_uses_[external] = 0;
  for (std::uint32_t at = checkpoint.begin; at < checkpoint.end; ++at) {
    if (graph_.program[at].kind != Instruction::Kind::Run) continue;
    const NodeId id = graph_.program[at].node();
    if (!on_.facts.is_wanted(id)) continue;
    for (TensorId input : graph_.in(graph_.node(id))) ++nested_uses_[input];
  }
}

void Gradients::end_nested(Checkpoint& checkpoint) {
  nested_ = nullptr;
  for (std::size_t at = 0; at < checkpoint.externals.size(); ++at) {
    const TensorId external = checkpoint.externals[at];
    const Gradient made = std::exchange(of(external), checkpoint.outer[at]);
    if (made.buffer == kNoBuffer) continue;
    accumulate(external, made);
    if (on_.facts.is_parameter(external)) arrived(external);
  }
  checkpoint.outer.clear();
}

}  // namespace dsplan
