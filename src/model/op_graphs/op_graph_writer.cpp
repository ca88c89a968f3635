#include "model/op_graphs/op_graph_writer.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan {

Strides contiguous_strides(const Shape& shape) {
  Strides strides{};
  std::int64_t next = 1;
  for (std::size_t i = shape.rank; i-- > 0;) {
    strides[i] = next;
    next = checked_mul(next, shape.dims[i]);
  }
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t next = 1;
  for (std::size_t i = shape.rank; i-- > 0;) {
    if (shape.dims[i] == 1) continue;
    if (strides[i] != next) return false;
    next *= shape.dims[i];
  }
  return true;
}

bool is_dense(const Shape& shape, const Strides& strides) {
  std::array<std::size_t, Shape::kMostDims> order{};  // By stride; six at most are sorted as they are put in.
  std::size_t count = 0;
  for (std::size_t i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] == 1) continue;
    std::size_t at = count++;
    for (; at > 0 && strides[order[at - 1]] > strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t next = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (strides[order[i]] != next) return false;
    next *= shape.dims[order[i]];
  }
  return true;
}

bool view_strides(const Shape& from, const Strides& strides, const Shape& to, Strides& result) {
  result = {};
  if (from.rank == 0) {
    std::fill(result.begin(), result.begin() + to.rank, 1);
    return true;
  }
  std::size_t at = to.rank;
  std::int64_t chunk_base = strides[from.rank - 1U];
  std::int64_t in_chunk = 1;  // Elements of the run of dimensions that lie one behind the other.
  std::int64_t in_view = 1;
  for (std::size_t i = from.rank; i-- > 0;) {
    in_chunk *= from.dims[i];
    const bool ends = i == 0 || (from.dims[i - 1] != 1 && strides[i - 1] != in_chunk * chunk_base);
    if (!ends) continue;
    while (at > 0 && (in_view < in_chunk || to.dims[at - 1] == 1)) {
      result[at - 1] = in_view * chunk_base;
      in_view *= to.dims[at - 1];
      --at;
    }
    if (in_view != in_chunk) return false;
    if (i > 0) {
      chunk_base = strides[i - 1];
      in_chunk = in_view = 1;
    }
  }
  return at == 0;
}

TensorId OpGraphWriter::leaf(const std::string& name, const Shape& shape, DType dtype, bool requires_grad) {
  Parameter parameter;
  parameter.name = name;
  parameter.shape = shape;
  parameter.trainable = requires_grad;
  model_.parameters.push_back(std::move(parameter));
  const auto id = static_cast<ParameterId>(model_.parameters.size() - 1);
  graph_.storages.push({storage(shape.elements(), dtype), id, kNone});
  return add_tensor(shape, dtype, graph_.storages.last(), requires_grad, kNone, contiguous_strides(shape), false);
}

TensorId OpGraphWriter::add_tensor(const Shape& shape, DType dtype, StorageId storage, bool requires_grad,
                                   NodeId producer, const Strides& strides, bool view) {
  strides_.push(strides);
  view_.push(view);
  return graph_.tensors.push({shape, dtype, storage, requires_grad, producer});
}

NodeId OpGraphWriter::begin(Op op, std::span<const TensorId> inputs, bool differentiable) {
  DSPLAN_CHECK(inputs.size() <= Node::kMostInputs, "too many inputs");
  Node node;
  node.op = op;
  node.module = module();
  node.grad_enabled = grad_enabled_;
  node.first_operand = static_cast<std::uint32_t>(graph_.operands.size());
  for (TensorId input : inputs) {
    graph_.operands.push_back(input);
    ++node.input_count;
    node.requires_grad = node.requires_grad || (differentiable && grad_enabled_ && tensor(input).requires_grad);
  }
  return graph_.nodes.push(node);
}

TensorId OpGraphWriter::add_output(NodeId node, const Shape& shape, DType dtype, bool differentiable) {
  graph_.storages.push({storage(shape.elements(), dtype), kNone, kNone});
  const TensorId out =
      add_tensor(shape, dtype, graph_.storages.last(), differentiable && graph_.node(node).requires_grad, node,
                 contiguous_strides(shape), false);
  graph_.operands.push_back(out);
  ++graph_.nodes.back().output_count;
  return out;
}

TensorId OpGraphWriter::add_alias(NodeId node, TensorId of, bool requires_grad, bool view) {
  const Tensor base = tensor(of);
  const Strides layout = strides(of);
  const TensorId out = add_tensor(base.shape, base.dtype, base.storage, requires_grad, node, layout, view);
  graph_.operands.push_back(out);
  ++graph_.nodes.back().output_count;
  return out;
}

TensorId OpGraphWriter::make(Op op, const Shape& shape, DType dtype, std::span<const TensorId> inputs,
                             bool differentiable) {
  const NodeId node = begin(op, inputs, differentiable);
  const TensorId out = add_output(node, shape, dtype);
  run(node);
  return out;
}

TensorId OpGraphWriter::unary(Op op, TensorId x, double number) {
  const TensorId out = make(op, shape(x), dtype(x), {x});
  latest().number = number;
  if (is_dense(shape(x), strides(x))) set_layout(out, strides(x));
  return out;
}

TensorId OpGraphWriter::in_place(Op op, std::span<const TensorId> inputs) {
  const NodeId node = begin(op, inputs);
  latest().in_place = true;
  const bool requires_grad = graph_.node(node).requires_grad;
  const bool view = is_view(inputs[0]);
  const TensorId out = add_alias(node, inputs[0], requires_grad, view);
  run(node);
  return out;
}

std::vector<TensorId> OpGraphWriter::views(Op op, TensorId x, std::span<const Shape> shapes,
                                           std::span<const Strides> strides) {
  const NodeId node = begin(op, std::span<const TensorId>(&x, 1));
  std::vector<TensorId> made;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Tensor base = tensor(x);
    made.push_back(
        add_tensor(shapes[i], base.dtype, base.storage, graph_.node(node).requires_grad, node, strides[i], true));
    graph_.operands.push_back(made.back());
    ++graph_.nodes.back().output_count;
  }
  run(node);
  return made;
}

TensorId OpGraphWriter::view(Op op, TensorId x, const Shape& to, const Strides& strides) {
  return views(op, x, std::span<const Shape>(&to, 1), std::span<const Strides>(&strides, 1)).front();
}

TensorId OpGraphWriter::copied(TensorId x) { return make(Op::Contiguous, shape(x), dtype(x), {x}); }

TensorId OpGraphWriter::cast(TensorId x, DType to) {
  if (dtype(x) == to) return x;
  const bool floating = [&] {
    switch (to) {
      case DType::Float64:
      case DType::Float32:
      case DType::Float16:
      case DType::BFloat16: return true;
      default: return false;
    }
  }();
  const TensorId out = make(Op::Cast, shape(x), to, {x}, floating);
  if (is_dense(shape(x), strides(x))) set_layout(out, strides(x));
  return out;
}

void OpGraphWriter::drop(TensorId id) {
  if (lies_in_leaf(id)) return;
  graph_.program.push_back({Instruction::Kind::Drop, id});
}

void OpGraphWriter::enter(ModuleId module) {
  stack_.push_back(module);
  graph_.program.push_back({Instruction::Kind::Enter, module});
}

void OpGraphWriter::exit() {
  graph_.program.push_back({Instruction::Kind::Exit, stack_.back()});
  stack_.pop_back();
}

}  // namespace dsplan
