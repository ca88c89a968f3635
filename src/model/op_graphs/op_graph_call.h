// One operator of an op-graph while it is being written: its inputs, its attributes, and the ways to refuse it. For
// src/model/op_graphs/op_graph*.cpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/document.h"
#include "core/op_graph.h"
#include "model/op_graphs/op_graph_writer.h"

namespace dsplan {

// Thrown when a fault has been added: the operator is given up, its outputs are unknown, and reading goes on.
struct OpFault {};

using Tensors = std::vector<TensorId>;

class OpCall {
 public:
  OpCall(OpGraphWriter& writer, const OpGraphOp& said, Tensors inputs, const Value& keys, const Document& document,
         Diagnostics& diagnostics)
      : w(writer),
        op(said),
        in(std::move(inputs)),
        attributes(document, keys, diagnostics),
        document_(document),
        diagnostics_(diagnostics) {}

  OpGraphWriter& w;
  const OpGraphOp& op;
  Tensors in;
  ObjectReader attributes;

  [[noreturn]] void refuse(std::string message, std::string hint = {}) {
    refuse_at(op.op.offset, std::move(message), std::move(hint));
  }
  [[noreturn]] void refuse_input(std::size_t i, std::string message, std::string hint = {}) {
    refuse_at(op.inputs[i].offset, std::move(message), std::move(hint));
  }
  [[noreturn]] void refuse_key(std::string_view key, std::string message, std::string hint = {}) {
    const Value* value = attributes.value().find(key);
    refuse_at(value == nullptr ? op.op.offset : value->offset, std::move(message), std::move(hint));
  }
  [[noreturn]] void not_modelled(const std::string& what) { refuse(what + " is not modelled yet"); }

  [[nodiscard]] const Shape& shape(std::size_t i) const { return w.shape(in[i]); }
  [[nodiscard]] DType dtype(std::size_t i) const { return w.dtype(in[i]); }
  // Refuses unless input i has a floating-point dtype.
  void floating(std::size_t i);
  void integer(std::size_t i);
  void same_dtype(std::size_t a, std::size_t b);

  // Attributes. A faulty or, where it is required, a missing one refuses the operator.
  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t least, std::int64_t most,
                                   std::optional<std::int64_t> fallback);
  [[nodiscard]] double number(std::string_view key, std::optional<double> fallback);
  [[nodiscard]] bool flag(std::string_view key, bool fallback);
  [[nodiscard]] std::string choice(std::string_view key, std::initializer_list<std::string_view> choices,
                                   std::string_view fallback);
  [[nodiscard]] std::vector<std::int64_t> wholes(std::string_view key);
  // A dimension of a tensor with `rank` dimensions, negative ones counted from the end.
  [[nodiscard]] std::size_t dimension(std::string_view key, std::size_t rank, std::optional<std::int64_t> fallback);
  // One or several, or all where the key is absent; refuses repeated ones.
  [[nodiscard]] std::vector<bool> dimensions(std::string_view key, std::size_t rank);
  [[nodiscard]] std::optional<DType> dtype_named(std::string_view key);
  void shape_in_bounds(const Shape& shape) { (void)storage(shape.elements(), DType::Float64); }

 private:
  [[noreturn]] void refuse_at(std::size_t offset, std::string message, std::string hint);
  // Whether reading an attribute added a fault: then the operator is given up.
  void give_up_if(std::size_t faults_before);

  const Document& document_;
  Diagnostics& diagnostics_;
};

// torch.result_type for tensors: the category first, then the width; a scalar tensor does not widen its own category.
[[nodiscard]] DType promoted(const Tensor& a, const Tensor& b);
// Nothing where the shapes do not broadcast.
[[nodiscard]] std::optional<Shape> broadcast(const Shape& a, const Shape& b);

// A row of the table of operators.
struct OpGraphRow {
  std::string_view name;
  Op op = Op::Input;  // Input: written out of several operators, or none of its own.
  std::uint8_t least = 1;
  std::uint8_t most = 1;
  Tensors (*rule)(OpCall& call, Op op) = nullptr;
  bool in_place = false;  // PyTorch has the form that ends in an underscore, or `inplace=True`.
};
// Null where there is none.
[[nodiscard]] const OpGraphRow* find_op_graph_row(std::string_view name);
[[nodiscard]] std::vector<std::string_view> op_graph_operators();

namespace op_graph_rules {

// op_graph_elementwise.cpp
Tensors unary(OpCall& call, Op op);
Tensors with_number(OpCall& call, Op op);
Tensors reversed(OpCall& call, Op op);
Tensors power(OpCall& call, Op op);
Tensors clamp(OpCall& call, Op op);
Tensors binary(OpCall& call, Op op);
Tensors comparison(OpCall& call, Op op);
Tensors where(OpCall& call, Op op);
Tensors masked_fill(OpCall& call, Op op);
Tensors prelu(OpCall& call, Op op);
Tensors addcmul(OpCall& call, Op op);
Tensors dropout(OpCall& call, Op op);
Tensors to(OpCall& call, Op op);
Tensors glu(OpCall& call, Op op);

// op_graph_shapes.cpp
Tensors view(OpCall& call, Op op);
Tensors reshape(OpCall& call, Op op);
Tensors flatten(OpCall& call, Op op);
Tensors transpose(OpCall& call, Op op);
Tensors permute(OpCall& call, Op op);
Tensors squeeze(OpCall& call, Op op);
Tensors unsqueeze(OpCall& call, Op op);
Tensors expand(OpCall& call, Op op);
Tensors slice(OpCall& call, Op op);
Tensors select(OpCall& call, Op op);
Tensors split(OpCall& call, Op op);
Tensors chunk(OpCall& call, Op op);
Tensors unbind(OpCall& call, Op op);
Tensors contiguous(OpCall& call, Op op);
Tensors clone(OpCall& call, Op op);
Tensors detach(OpCall& call, Op op);
Tensors cat(OpCall& call, Op op);
Tensors stack(OpCall& call, Op op);
Tensors pad(OpCall& call, Op op);
Tensors repeat(OpCall& call, Op op);
Tensors repeat_interleave(OpCall& call, Op op);
Tensors same_shape_copy(OpCall& call, Op op);

// op_graph_products.cpp
Tensors linear(OpCall& call, Op op);
Tensors addmm(OpCall& call, Op op);
Tensors mm(OpCall& call, Op op);
Tensors bmm(OpCall& call, Op op);
Tensors matmul(OpCall& call, Op op);
Tensors grouped_mm(OpCall& call, Op op);
Tensors attention(OpCall& call, Op op);

// op_graph_images.cpp
Tensors conv2d(OpCall& call, Op op);
Tensors max_pool2d(OpCall& call, Op op);
Tensors interpolate(OpCall& call, Op op);
Tensors unfold(OpCall& call, Op op);

// op_graph_reductions.cpp
Tensors reduce(OpCall& call, Op op);
Tensors extremum(OpCall& call, Op op);
Tensors scan(OpCall& call, Op op);
Tensors top_k(OpCall& call, Op op);
Tensors sort(OpCall& call, Op op);
Tensors embedding(OpCall& call, Op op);
Tensors index_select(OpCall& call, Op op);
Tensors gather(OpCall& call, Op op);
Tensors scatter(OpCall& call, Op op);

// op_graph_norms.cpp
// softmax or log_softmax of x, computed in `to`.
TensorId softmax_of(OpCall& call, Op op, TensorId x, std::size_t dim, DType to);
Tensors softmax(OpCall& call, Op op);
Tensors layer_norm(OpCall& call, Op op);
Tensors rms_norm(OpCall& call, Op op);
Tensors group_norm(OpCall& call, Op op);
Tensors loss(OpCall& call, Op op);
Tensors nll_loss(OpCall& call, Op op);
Tensors cross_entropy(OpCall& call, Op op);
Tensors batch_norm(OpCall& call, Op op);
Tensors fused_linear_cross_entropy(OpCall& call, Op op);

}  // namespace op_graph_rules

}  // namespace dsplan
