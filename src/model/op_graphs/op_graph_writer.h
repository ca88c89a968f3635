// Writes the nodes of an op-graph. Shapes and dtypes are the caller's; what is tracked here is where each tensor lies:
// strides decide whether a view is one, and whether a product copies its operand. For
// src/model/op_graphs/op_graph*.cpp.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/model.h"

namespace dsplan {

// In elements; dimensions beyond the rank are 0. An expanded dimension has stride 0.
using Strides = std::array<std::int64_t, Shape::kMostDims>;

[[nodiscard]] Strides contiguous_strides(const Shape& shape);
[[nodiscard]] bool is_contiguous(const Shape& shape, const Strides& strides);
// Every element of the storage range once, in any order of dimensions.
[[nodiscard]] bool is_dense(const Shape& shape, const Strides& strides);
// The strides with which `from` is seen as `to` without a copy (aten/src/ATen/TensorUtils.cpp, computeStride_impl);
// false where that takes one. Both have the same number of elements.
[[nodiscard]] bool view_strides(const Shape& from, const Strides& strides, const Shape& to, Strides& result);

class OpGraphWriter {
 public:
  explicit OpGraphWriter(ModelSpec& model) : model_(model) {}

  // A tensor of the file: a parameter of the root module.
  TensorId leaf(const std::string& name, const Shape& shape, DType dtype, bool requires_grad);

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] Graph& graph() { return graph_; }
  [[nodiscard]] const Tensor& tensor(TensorId id) const { return graph_.tensor(id); }
  [[nodiscard]] const Shape& shape(TensorId id) const { return tensor(id).shape; }
  [[nodiscard]] DType dtype(TensorId id) const { return tensor(id).dtype; }
  [[nodiscard]] const Strides& strides(TensorId id) const { return strides_[id]; }
  [[nodiscard]] bool is_leaf(TensorId id) const { return tensor(id).producer == kNone; }
  // Of the leaf's own storage: it is never let go of.
  [[nodiscard]] bool lies_in_leaf(TensorId id) const { return graph_.storage_of(id).parameter != kNone; }
  // Of another tensor's storage.
  [[nodiscard]] bool is_view(TensorId id) const { return view_[id]; }

  // One output, contiguous unless `like` says which of the inputs' layouts it takes. Checked arithmetic: a Refusal
  // without a place where the bytes do not fit in 63 bits.
  TensorId make(Op op, const Shape& shape, DType dtype, std::span<const TensorId> inputs, bool differentiable = true);
  TensorId make(Op op, const Shape& shape, DType dtype, std::initializer_list<TensorId> inputs,
                bool differentiable = true) {
    return make(op, shape, dtype, std::span<const TensorId>(inputs.begin(), inputs.size()), differentiable);
  }
  // Elementwise on `x`: the result lies as x does, if x is dense.
  TensorId unary(Op op, TensorId x, double number = 0);
  // The output is input 0's storage, written anew.
  TensorId in_place(Op op, std::span<const TensorId> inputs);
  // Several views of x from one call, or one.
  std::vector<TensorId> views(Op op, TensorId x, std::span<const Shape> shapes, std::span<const Strides> strides);
  TensorId view(Op op, TensorId x, const Shape& to, const Strides& strides);
  // Adds a further output to the latest node, which must not have run.
  NodeId begin(Op op, std::span<const TensorId> inputs, bool differentiable = true);
  TensorId add_output(NodeId node, const Shape& shape, DType dtype, bool differentiable = true);
  // `view`: as PyTorch sees it; what an in-place operator or a custom function returns is none.
  TensorId add_alias(NodeId node, TensorId of, bool requires_grad, bool view = true);
  void run(NodeId node) { graph_.program.push_back({Instruction::Kind::Run, node}); }
  [[nodiscard]] Node& latest() { return graph_.nodes.back(); }
  void set_layout(TensorId id, const Strides& strides) { strides_[id] = strides; }

  // x, or a contiguous copy of it: then the caller drops it. clone() and contiguous() of PyTorch.
  TensorId copied(TensorId x);
  TensorId cast(TensorId x, DType to);  // Also where nothing changes: then x itself.

  // Python lets go of these; leaves are passed over.
  void drop(TensorId id);
  // If it is not `unless`.
  void drop_if_other(TensorId id, TensorId unless) {
    if (id != unless) drop(id);
  }

  void enter(ModuleId module);
  void exit();
  [[nodiscard]] ModuleId module() const { return stack_.empty() ? 0 : stack_.back(); }

  void set_grad_enabled(bool enabled) { grad_enabled_ = enabled; }
  [[nodiscard]] bool grad_enabled() const { return grad_enabled_; }

 private:
  TensorId add_tensor(const Shape& shape, DType dtype, StorageId storage, bool requires_grad, NodeId producer,
                      const Strides& strides, bool view);

  ModelSpec& model_;
  Graph graph_;
  Indexed<TensorId, Strides> strides_;
  Indexed<TensorId, bool> view_;
  std::vector<ModuleId> stack_;
  bool grad_enabled_ = true;
};

}  // namespace dsplan
