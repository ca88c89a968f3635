#include "planner/lower/autograd/storages.h"

namespace dsplan {

Storages::Storages(const GraphFacts& facts, Emitter& emitter, TrainingRuntime& runtime,
                   const std::vector<BufferId>& module_buffers)
    : facts_(facts),
      emitter_(emitter),
      runtime_(runtime),
      buffers_(facts.graph().storages.size(), kNoBuffer),
      saved_(facts.recipes().saved_count(), kNoBuffer) {
  use(module_buffers);
}

void Storages::use(const std::vector<BufferId>& module_buffers) {
  const Indexed<StorageId, Storage>& storages = facts_.graph().storages;
  for (const StorageId id : storages.ids()) {
    if (storages[id].buffer != kNone) buffers_[id] = module_buffers[static_cast<std::size_t>(storages[id].buffer)];
  }
}

void Storages::read(TensorId tensor) {
  const ParameterId parameter = facts_.graph().storage_of(tensor).parameter;
  if (parameter == kNone) return emitter_.read(of(tensor));
  const ParameterPlace place = runtime_.place(parameter);
  emitter_.read(place.buffer, place.offset, place.bytes);
}

void Storages::write(TensorId tensor) {
  const ParameterId parameter = facts_.graph().storage_of(tensor).parameter;
  emitter_.write(parameter == kNone ? of(tensor) : runtime_.place(parameter).buffer);
}

void Storages::release_saved(NodeId node) {
  std::size_t index = facts_.recipes().saved_index(node);
  for (std::size_t count = facts_.recipes().saved(node).size(); count > 0; --count, ++index) {
    if (saved_[index] == kNoBuffer) continue;
    emitter_.release(saved_[index], Reason::AutogradGraph);
    saved_[index] = kNoBuffer;
  }
}

// Of a parameter: what it lies in now, where the runtime moves it.
BufferId Storages::memory_of(TensorId tensor) {
  const ParameterId parameter = facts_.graph().storage_of(tensor).parameter;
  if (parameter == kNone) return of(tensor);
  return runtime_.moves_parameters() ? runtime_.place(parameter).buffer : kNoBuffer;
}

void Storages::hold_attributes(NodeId node, bool within) {
  const std::uint64_t holds = facts_.recipes().entry(node).holds;
  const Graph& graph = facts_.graph();
  for (std::size_t i = 0; holds >> i != 0; ++i) {
    if ((holds >> i & 1U) == 0) continue;
    const BufferId buffer = memory_of(graph.input(graph.node(node), i));
    if (buffer == kNoBuffer) continue;
    emitter_.retain(buffer);
    (within ? within_ : leaves_).push_back(buffer);
  }
}

void Storages::release_attributes_within() {
  for (BufferId buffer : within_) emitter_.release(buffer, Reason::AutogradGraph);
  within_.clear();
}

void Storages::hold_leaves(NodeId producer) {
  for (TensorId leaf : facts_.graph().leaves) {
    if (facts_.graph().tensor(leaf).producer != producer) continue;
    leaves_.push_back(of(leaf));
    emitter_.retain(leaves_.back());
  }
}

void Storages::replace_leaf(BufferId before, BufferId with) {
  for (BufferId& leaf : leaves_) {
    if (leaf != before) continue;
    leaf = with;
    emitter_.retain(with);
    emitter_.release(before, Reason::AutogradGraph);
  }
}

void Storages::release_leaves() {
  for (BufferId buffer : leaves_) emitter_.release(buffer, Reason::AutogradGraph);
  leaves_.clear();
}

}  // namespace dsplan
