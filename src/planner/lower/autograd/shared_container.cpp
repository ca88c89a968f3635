#include "planner/lower/autograd/shared_container.h"

#include <algorithm>
#include <utility>

namespace dsplan {

void SharedContainer::release() {
  --holders_;
  empty();
}

void SharedContainer::put(TensorId tensor, bool recomputing) {
  std::vector<BufferId> held{on_.storages.of(tensor)};
  if (recomputing) hold_graph(tensor, held);
  for (const BufferId buffer : held) on_.emitter.retain(buffer);
  const auto known = std::find_if(items_.begin(), items_.end(), [&](const Item& one) { return one.tensor == tensor; });
  if (known == items_.end()) {
    items_.push_back({tensor, std::move(held)});
    return;
  }
  for (const BufferId buffer : std::exchange(known->buffers, std::move(held))) {
    on_.emitter.release(buffer, Reason::CheckpointFrame);
  }
}

// What nodes of the same checkpoint have saved on the way to the tensor.
void SharedContainer::hold_graph(TensorId tensor, std::vector<BufferId>& held) const {
  const Graph& graph = on_.graph;
  const NodeId producer = graph.tensor(tensor).producer;
  std::vector<NodeId> left{producer};
  std::vector<NodeId> seen;
  while (!left.empty()) {
    const NodeId id = left.back();
    left.pop_back();
    if (id == kNone || checkpoint_of_[id] != checkpoint_of_[producer] || !graph.node(id).requires_grad) continue;
    if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
    seen.push_back(id);
    for (std::size_t k = 0; k < on_.recipes.saved(id).size(); ++k) {
      const BufferId buffer = on_.storages.saved(on_.recipes.saved_index(id) + k);
      if (buffer != kNoBuffer) held.push_back(buffer);
    }
    for (const TensorId input : graph.in(graph.node(id))) left.push_back(graph.tensor(input).producer);
  }
}

void SharedContainer::let_go(TensorId tensor) {
  if (items_.empty()) return;
  for (Item& one : items_) one.named = one.named && one.tensor != tensor;
  empty();
}

// It goes with the last that holds it: the forward's frame, or a function.
void SharedContainer::empty() {
  if (holders_ > 0) return;
  for (const Item& one : items_) {
    if (one.named) continue;
    for (const BufferId buffer : one.buffers) on_.emitter.release(buffer, Reason::CheckpointFrame);
  }
  std::erase_if(items_, [](const Item& one) { return !one.named; });
}

}  // namespace dsplan
