// How a rule of the catalogue writes its recipe; for src/model/catalogue*.cpp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "core/graph.h"
#include "model/catalogue/catalogue.h"

namespace dsplan {

// What a row says of an operator that follows a common rule: which tensor backward needs, and how many tensors of the
// output's size and the gradient's dtype it makes on the way to the gradient.
enum class Keeps : std::uint8_t { Nothing, Input, Result };
struct Pattern {
  Keeps keeps = Keeps::Nothing;
  std::uint8_t temporaries = 0;
};

class Writer;
// Backward: the kernel that sums, whose blocks may meet in a staging buffer.
inline void reduced_kernel(Writer& w, const ReducedTensor& tensor);

// Writes a recipe. `in(i)` and `out(i)` are the node's tensors; `needs(i)` says whether backward must produce the
// gradient of input i (a frozen weight, an index or anything under no_grad does not).
class Writer {
 public:
  Writer(const Graph& graph, const Node& node, Recipe& recipe, Pattern pattern, const CatalogueOptions& options)
      : graph_(graph), node_(node), recipe_(recipe), pattern_(pattern), options_(options) {}

  [[nodiscard]] const CatalogueOptions& options() const { return options_; }
  [[nodiscard]] Pattern pattern() const { return pattern_; }
  [[nodiscard]] bool has_in(std::size_t i) const { return i < node_.input_count; }
  [[nodiscard]] Bytes bytes_in(std::size_t i) const { return graph_.bytes(graph_.input(node_, i)); }
  [[nodiscard]] Bytes bytes_out(std::size_t i = 0) const { return graph_.bytes(graph_.output(node_, i)); }

  [[nodiscard]] const Tensor& in(std::size_t i) const { return graph_.tensor(graph_.input(node_, i)); }
  [[nodiscard]] const Tensor& out(std::size_t i = 0) const { return graph_.tensor(graph_.output(node_, i)); }
  [[nodiscard]] bool needs(std::size_t i) const { return node_.requires_grad && in(i).requires_grad; }
  [[nodiscard]] const Node& node() const { return node_; }

  std::uint8_t slot(SlotKind kind, std::size_t index, Bytes bytes, DType dtype, Visibility visibility) {
    recipe_.slots.push_back({kind, visibility, dtype, static_cast<std::uint8_t>(index), bytes});
    return static_cast<std::uint8_t>(recipe_.slots.size() - 1);
  }

  // The by-product that is a clone of input 0.
  static constexpr std::uint8_t kClone = 15;

  // Forward. In place, the first output is the first input's storage.
  void output(std::size_t i = 0) {
    if (node_.in_place && i == 0) {
      recipe_.in_place = true;
      return;
    }
    forward(slot(SlotKind::Output, i, graph_.bytes(graph_.output(node_, i)), out(i).dtype, Visibility::Dispatch));
  }
  // `for_backward`: made where autograd will ask for it, and nowhere else.
  void extra(std::size_t i, Bytes bytes, DType dtype, Visibility visibility, bool for_backward = false) {
    forward(slot(SlotKind::Extra, i, bytes, dtype, visibility));
    recipe_.slots.back().for_backward = for_backward;
  }
  // A temporary of the forward; it dies with the operator unless it is dropped before.
  std::uint8_t forward_temporary(Bytes bytes, DType dtype, Visibility visibility = Visibility::Dispatch) {
    const std::uint8_t made = slot(SlotKind::Temporary, 0, bytes, dtype, visibility);
    forward(made);
    return made;
  }
  // Makes a slot: for the first time, or again once it was dropped.
  void forward(std::uint8_t made) { recipe_.forward.push_back({RecipeStep::Kind::Make, made}); }
  void forward_drop(std::uint8_t made) { recipe_.forward.push_back({RecipeStep::Kind::Drop, made}); }
  // The first outputs lie in the storages of the first inputs.
  void in_place(std::size_t outputs = 1) {
    recipe_.in_place = true;
    for (std::size_t i = 1; i < outputs; ++i) recipe_.shared_outputs |= std::uint64_t{1} << i;
  }
  void alias() { recipe_.alias = true; }
  // Takes memory of which only the library knows how much.
  void unknown(const char* what) { recipe_.unknown = what; }
  void kernel() { recipe_.forward.push_back({RecipeStep::Kind::Kernel, 0}); }
  void all_reduce(std::uint8_t made) { recipe_.forward.push_back({RecipeStep::Kind::AllReduce, made}); }

  // Saving; `condition` is the needs-grad rule. An input that the operator is about to overwrite is cloned, and the
  // clone is kept (torchgen's VariableType: `self.clone()` in place): call this before output().
  void save_input(std::size_t i, const char* name, bool condition = true) {
    if (!condition || !node_.requires_grad) return;
    if (i == 0 && node_.in_place) {
      extra(kClone, bytes_in(0), in(0).dtype, Visibility::Dispatch, true);
      kernel();
      recipe_.saved.push_back({Saved::Kind::Extra, kClone, name});
      return;
    }
    recipe_.saved.push_back({Saved::Kind::Input, static_cast<std::uint8_t>(i), name});
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
  // `own`: the gradient of output i, written over and seen through a view.
  void pass(std::size_t i, bool own = false) {
    if (!needs(i)) return;
    // Cast to another dtype, no element at all is a tensor of its own.
    const bool empty = !own && in(i).dtype != out().dtype && bytes_in(i) == Bytes(0);
    (empty ? recipe_.comes_empty : recipe_.passes) |= std::uint64_t{1} << i;
    if (own) recipe_.passes_own = true;
    if (own) seen_through_view(i);
  }
  // The gradient of input i is by-product or output i as it was saved. `own`: it is written over input i itself, which
  // was saved, and seen through a view.
  void hand_out(std::size_t i, bool own = false) {
    if (!needs(i)) return;
    (own ? recipe_.overwrites : recipe_.hands_out) |= std::uint64_t{1} << i;
    if (own) seen_through_view(i);
  }
  // As an attribute of a Python function's context, and not by save_for_backward.
  void hold(std::size_t i, bool always = false) {
    if (always || needs(i)) recipe_.holds |= std::uint64_t{1} << i;
  }
  void passes_part() { recipe_.passes_part = true; }
  void seen_through_view(std::size_t i) { recipe_.seen_through_view |= std::uint64_t{1} << i; }
  void leaves_reversed() { recipe_.leaves_reversed = true; }
  void leaves_first() { recipe_.leaves_first = true; }
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
  // Or makes it (again).
  void drop(std::uint8_t made, RecipeStep::Kind kind = RecipeStep::Kind::Drop) {
    recipe_.backward.push_back({kind, made});
  }
  // `inside`: in a tensor of that many bytes, of which it is a part with gaps.
  void allocate_gradient(std::size_t i, std::optional<Bytes> inside = {}) {
    const Bytes bytes = inside.value_or(graph_.bytes(graph_.input(node_, i)));
    recipe_.backward.push_back(
        {RecipeStep::Kind::Make, slot(SlotKind::Gradient, i, bytes, in(i).dtype, Visibility::Dispatch)});
    if (inside) recipe_.not_whole |= std::uint64_t{1} << i;
  }
  void backward_all_reduce(std::uint8_t made) { recipe_.backward.push_back({RecipeStep::Kind::AllReduce, made}); }
  void backward_kernel() { recipe_.backward.push_back({RecipeStep::Kind::Kernel, 0}); }
  void function_returns() { recipe_.backward.push_back({RecipeStep::Kind::Return, 0}); }
  void saves_after_kernel() { recipe_.saves_after_kernel = true; }
  void gradient(std::size_t i) {
    if (!needs(i)) return;
    allocate_gradient(i);
    backward_kernel();
  }

  // The gradient of input i is the sum of what arrives over the dimensions along which the input was repeated.
  void summed_gradient(std::size_t i) {
    if (!needs(i)) return;
    allocate_gradient(i);
    const auto dims = [](const Shape& shape) { return std::span<const std::int64_t>(shape.dims.data(), shape.rank); };
    reduced_kernel(*this, summed_to(dims(out().shape), dims(in(i).shape)));
  }

  // A temporary of the output's shape, in the dtype of the gradient that arrives unless another is given.
  std::uint8_t full_temporary(std::optional<DType> dtype = {}) {
    return temporary(storage(out().shape.elements(), dtype.value_or(out().dtype)), dtype.value_or(out().dtype));
  }
  // A number that becomes a tensor on the device.
  std::uint8_t scalar_temporary() { return temporary(storage(Elements(1), out().dtype), out().dtype); }

  // The gradients of broadcasting operators: each is computed at the output's shape; the engine's validation sums
  // those that were broadcast afterwards, in the inputs' order (torch/csrc/autograd/engine.cpp, validate_outputs), when
  // all exist. `inputs` are in the order in which the function computes them.
  void broadcast_gradients(std::initializer_list<std::size_t> inputs) {
    for (std::size_t i : inputs) gradient_at_output(i);
    sum_broadcast();
  }
  void gradient_at_output(std::size_t i) {
    if (!needs(i)) return;
    if (is_broadcast(i)) {
      full_[i] = full_temporary();
    } else {
      gradient(i);
    }
  }
  void sum_broadcast() {
    function_returns();
    for (std::size_t i = 0; i < node_.input_count; ++i) {
      if (!needs(i) || !is_broadcast(i)) continue;
      // First over what was broadcast, then to the input's dtype.
      if (in(i).dtype != out().dtype && is_broadcast(i, true)) {
        const std::uint8_t sum = temporary(storage(in(i).shape.elements(), out().dtype), out().dtype);
        if (full_[i] != kNoSlot) drop(full_[i]);
        full_[i] = sum;
        gradient(i);
      } else {
        summed_gradient(i);
      }
      // sum_to (ExpandUtils.h) keeps the dimensions in the sum, and takes the leading ones away by a view.
      if (in(i).shape.rank < out().shape.rank) seen_through_view(i);
      if (full_[i] != kNoSlot) drop(full_[i]);
    }
  }
  // The gradient arrives at the output's shape and dtype and has to be brought to the input's.
  // Leading dimensions are summed over even where they are all of one element (ExpandUtils.h, sum_to).
  [[nodiscard]] bool is_broadcast(std::size_t i, bool whatever_dtype = false) const {
    const bool summed = in(i).shape.elements() != out().shape.elements() || in(i).shape.rank < out().shape.rank;
    return summed || (!whatever_dtype && in(i).dtype != out().dtype);
  }

 private:
  const Graph& graph_;
  const Node& node_;
  Recipe& recipe_;
  Pattern pattern_;
  const CatalogueOptions& options_;
  // By input: what stands at the output's shape and has still to be summed. Only operators with few inputs broadcast.
  static constexpr std::uint8_t kNoSlot = 255;
  std::array<std::uint8_t, 4> full_{kNoSlot, kNoSlot, kNoSlot, kNoSlot};
};

inline void reduced_kernel(Writer& w, const ReducedTensor& tensor) {
  const ReductionScratch scratch = reduction_scratch(tensor, w.options().device);
  if (scratch.staging == Bytes(0)) return w.backward_kernel();
  const std::uint8_t staging = w.allocate_temporary(scratch.staging, DType::UInt8, Visibility::Kernel);
  const std::uint8_t semaphores = w.allocate_temporary(scratch.semaphores, DType::Int32, Visibility::Kernel);
  w.backward_kernel();
  w.drop(semaphores);
  w.drop(staging);
}

// The same in forward. `accumulator`: what a thread reduces in.
inline void forward_reduced_kernel(Writer& w, const ReducedTensor& tensor, Bytes accumulator = Bytes(4)) {
  const ReductionScratch scratch = reduction_scratch(tensor, w.options().device, accumulator);
  if (scratch.staging == Bytes(0)) return w.kernel();
  const std::uint8_t staging = w.forward_temporary(scratch.staging, DType::UInt8, Visibility::Kernel);
  const std::uint8_t semaphores = w.forward_temporary(scratch.semaphores, DType::Int32, Visibility::Kernel);
  w.kernel();
  w.forward_drop(semaphores);
  w.forward_drop(staging);
}

}  // namespace dsplan
