// How a rule of the catalogue writes its recipe; for src/model/catalogue*.cpp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/graph.h"
#include "model/catalogue.h"

namespace dsplan {

// Writes a recipe. `in(i)` and `out(i)` are the node's tensors; `needs(i)` says whether backward must produce the
// gradient of input i (a frozen weight, an index or anything under no_grad does not).
class Writer {
 public:
  Writer(const Graph& graph, const Node& node, Recipe& recipe) : graph_(graph), node_(node), recipe_(recipe) {}

  [[nodiscard]] const Tensor& in(std::size_t i) const { return graph_.tensor(graph_.input(node_, i)); }
  [[nodiscard]] const Tensor& out(std::size_t i = 0) const { return graph_.tensor(graph_.output(node_, i)); }
  [[nodiscard]] bool needs(std::size_t i) const { return node_.requires_grad && in(i).requires_grad; }
  [[nodiscard]] const Node& node() const { return node_; }

  std::uint8_t slot(SlotKind kind, std::size_t index, Bytes bytes, DType dtype, Visibility visibility) {
    recipe_.slots.push_back({kind, visibility, dtype, static_cast<std::uint8_t>(index), bytes});
    return static_cast<std::uint8_t>(recipe_.slots.size() - 1);
  }

  // Forward. In place, the first output is the first input's storage.
  void output(std::size_t i = 0) {
    if (node_.in_place && i == 0) {
      recipe_.in_place = true;
      return;
    }
    forward(slot(SlotKind::Output, i, graph_.bytes(graph_.output(node_, i)), out(i).dtype, Visibility::Dispatch));
  }
  void extra(std::size_t i, Bytes bytes, DType dtype, Visibility visibility) {
    forward(slot(SlotKind::Extra, i, bytes, dtype, visibility));
  }
  // A temporary of the forward; it dies with the operator unless it is dropped before.
  std::uint8_t forward_temporary(Bytes bytes, DType dtype, Visibility visibility = Visibility::Dispatch) {
    const std::uint8_t made = slot(SlotKind::Temporary, 0, bytes, dtype, visibility);
    forward(made);
    return made;
  }
  void forward_drop(std::uint8_t made) { recipe_.forward.push_back({RecipeStep::Kind::Drop, made}); }
  void in_place() { recipe_.in_place = true; }
  void alias() { recipe_.alias = true; }
  void kernel() { recipe_.forward.push_back({RecipeStep::Kind::Kernel, 0}); }

  // Saving; `condition` is the needs-grad rule.
  void save_input(std::size_t i, const char* name, bool condition = true) {
    if (condition) recipe_.saved.push_back({Saved::Kind::Input, static_cast<std::uint8_t>(i), name});
  }
  void save_output(std::size_t i, const char* name) {
    recipe_.saved.push_back({Saved::Kind::Output, static_cast<std::uint8_t>(i), name});
    recipe_.saves_after_kernel = true;
  }
  void save_extra(std::size_t i, const char* name) {
    recipe_.saved.push_back({Saved::Kind::Extra, static_cast<std::uint8_t>(i), name});
    recipe_.saves_after_kernel = true;
  }

  // Backward.
  void pass(std::size_t i) {
    if (needs(i)) recipe_.passes |= std::uint64_t{1} << i;
  }
  void passes_part() { recipe_.passes_part = true; }
  void seen_through_view(std::size_t i) { recipe_.seen_through_view |= std::uint64_t{1} << i; }
  void leaves_reversed() { recipe_.leaves_reversed = true; }
  // A temporary and the kernel that fills it; returns its slot.
  std::uint8_t temporary(Bytes bytes, DType dtype, Visibility visibility = Visibility::Dispatch) {
    const std::uint8_t made = allocate_temporary(bytes, dtype, visibility);
    backward_kernel();
    return made;
  }
  std::uint8_t allocate_temporary(Bytes bytes, DType dtype, Visibility visibility) {
    const std::uint8_t made = slot(SlotKind::Temporary, 0, bytes, dtype, visibility);
    recipe_.backward.push_back({RecipeStep::Kind::Make, made});
    return made;
  }
  void drop(std::uint8_t made) { recipe_.backward.push_back({RecipeStep::Kind::Drop, made}); }
  void allocate_gradient(std::size_t i) {
    recipe_.backward.push_back(
        {RecipeStep::Kind::Make,
         slot(SlotKind::Gradient, i, graph_.bytes(graph_.input(node_, i)), in(i).dtype, Visibility::Dispatch)});
  }
  void backward_kernel() { recipe_.backward.push_back({RecipeStep::Kind::Kernel, 0}); }
  void function_returns() { recipe_.backward.push_back({RecipeStep::Kind::Return, 0}); }
  void saves_after_kernel() { recipe_.saves_after_kernel = true; }
  void gradient(std::size_t i) {
    if (!needs(i)) return;
    allocate_gradient(i);
    backward_kernel();
  }

  // The gradients of broadcasting operators: each is computed at the output's shape; the engine's validation sums
  // those that were broadcast afterwards (torch/csrc/autograd/engine.cpp, validate_outputs), when all exist.
  void broadcast_gradients(std::initializer_list<std::size_t> inputs) {
    std::array<std::uint8_t, Node::kMostInputs> full{};
    for (std::size_t i : inputs) {
      if (!needs(i)) continue;
      if (is_broadcast(i)) {
        full[i] = temporary(storage(out().shape.elements(), out().dtype), out().dtype);
      } else {
        gradient(i);
      }
    }
    function_returns();
    for (std::size_t i : inputs) {
      if (!needs(i) || !is_broadcast(i)) continue;
      gradient(i);
      drop(full[i]);
    }
  }
  // The gradient arrives at the output's shape and dtype and has to be brought to the input's.
  [[nodiscard]] bool is_broadcast(std::size_t i) const {
    return in(i).shape.elements() != out().shape.elements() || in(i).dtype != out().dtype;
  }

 private:
  void forward(std::uint8_t made) { recipe_.forward.push_back({RecipeStep::Kind::Make, made}); }

  const Graph& graph_;
  const Node& node_;
  Recipe& recipe_;
};

}  // namespace dsplan
