// What a graph says before anything runs: which gradients are part of the way from the loss to a leaf, whose contents
// somebody reads, and in which modules' backward there is something to do.
#pragma once

#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "planner/lower/autograd/recipes.h"

namespace dsplan {

// Whether a gradient of one of a node's outputs is wanted: it lies on a way from the loss, or an output, to a leaf.
[[nodiscard]] Indexed<NodeId, bool> wanted_nodes(const Graph& graph);

// A layer that this forward does not call: of a tower where rows have no pictures.
[[nodiscard]] inline bool is_skipped(const Region& region) {
  return region.arguments.empty() && region.keywords.empty();
}

class GraphFacts {
 public:
  // All references must outlive this.
  GraphFacts(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes);
  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] const RecipeBook& recipes() const { return recipes_; }

  // Whether a gradient of one of its outputs is wanted. What no path connects with the loss gets no gradient.
  [[nodiscard]] bool is_wanted(NodeId node) const { return wanted_[node]; }
  // A kernel reads what lies in the tensor's storage, forward or backward, or it is handed out. A view reads nothing.
  [[nodiscard]] bool is_read(TensorId tensor) const { return read_[graph_.tensor(tensor).storage]; }
  [[nodiscard]] bool is_parameter(TensorId tensor) const {
    return graph_.storage_of(tensor).parameter != kNone && graph_.tensor(tensor).producer == kNone;
  }
  // The logits and all that the root module makes of them; gradients of the head's own operands are not among them.
  [[nodiscard]] bool is_loss(NodeId node, bool backward) const {
    return head_ != kNone && (backward ? node > head_ : node >= head_);
  }

  // Of a module's backward: it has a beginning (a gradient of something made inside) ...
  [[nodiscard]] bool has_gradient(ModuleId module) const { return has_gradient_[static_cast<std::size_t>(module)]; }
  // ... and an end (a gradient of something that is handed in).
  [[nodiscard]] bool backward_ends(ModuleId module) const { return ends_[static_cast<std::size_t>(module)]; }
  [[nodiscard]] bool lies_in(ModuleId module, ModuleId outer) const { return model_.lies_in(module, outer); }
  // `module` where it is called, otherwise what is called around it: containers are never entered.
  [[nodiscard]] ModuleId called(ModuleId module) const;
  // The module that calls `module`.
  [[nodiscard]] ModuleId caller(ModuleId module) const { return called(parent(module)); }

 private:
  [[nodiscard]] ModuleId parent(ModuleId module) const { return model_.module_at(module).parent; }
  void find_head();
  void find_read();
  void find_beginnings();
  void find_ends();
  void find_passing();

  const ModelSpec& model_;
  const Graph& graph_;
  const RecipeBook& recipes_;
  Indexed<NodeId, bool> wanted_;
  Indexed<StorageId, bool> read_;
  std::vector<bool> called_;  // By module, as are the next.
  std::vector<bool> has_gradient_;
  std::vector<bool> ends_;
  NodeId head_ = kNone;  // The last operator outside the root module, where there is a loss.
};

}  // namespace dsplan
