// Op-graphs: elementwise operators.
#include "model/op_graphs/op_graph_call.h"

#include "core/format.h"

namespace dsplan::op_graph_rules {
namespace {

// On one tensor, in place or not.
TensorId on_one(OpCall& call, Op op, double number = 0) {
  if (!call.op.in_place) return call.w.unary(op, call.in[0], number);
  const TensorId out = call.w.in_place(op, {call.in.data(), 1});
  call.w.latest().number = number;
  return out;
}

// The layout that TensorIterator gives the result: that of the operands if they all lie alike, else contiguous.
void lie_as(OpCall& call, TensorId out, TensorId x) {
  const bool same = call.w.shape(out) == call.w.shape(x) && is_dense(call.w.shape(x), call.w.strides(x));
  if (same) call.w.set_layout(out, call.w.strides(x));
}

}  // namespace

Tensors unary(OpCall& call, Op op) {
  if (op == Op::Neg || op == Op::Abs) {
    if (call.dtype(0) == DType::Bool) call.refuse_input(0, formatted("{} does not take booleans", call.op.op.text));
  } else {
    call.floating(0);
  }
  double number = 0;
  if (op == Op::Gelu) (void)call.choice("approximate", {"none", "tanh"}, "none");
  if (op == Op::LeakyRelu) number = call.number("negative_slope", 0.01);
  if (op == Op::Elu) number = call.number("alpha", 1.0);
  if (op == Op::Softplus) (void)call.number("beta", 1.0);
  if (op == Op::Softplus) (void)call.number("threshold", 20.0);
  return {on_one(call, op, number)};
}

Tensors with_number(OpCall& call, Op op) {
  if (op == Op::DivScalar) call.floating(0);
  return {on_one(call, op, call.number("value", 1.0))};
}

// number / x and number - x. Tensor.__rtruediv__ is a Python function: reciprocal(), then the product with the number;
// its frame holds the argument until both are done, as the caller's variable does here.
Tensors reversed(OpCall& call, Op op) {
  (void)call.number("value", 1.0);
  if (op == Op::Reciprocal) {
    call.floating(0);
    const TensorId inverse = call.w.unary(Op::Reciprocal, call.in[0]);
    const TensorId out = call.w.unary(Op::MulScalar, inverse);
    call.w.drop(inverse);
    return {out};
  }
  // rsub: the difference is one kernel, the gradient is negated.
  return {call.w.unary(Op::Neg, call.in[0])};
}

Tensors power(OpCall& call, Op op) {
  call.floating(0);
  return {on_one(call, op, call.number("exponent", std::nullopt))};
}

Tensors clamp(OpCall& call, Op op) {
  const bool lower = call.attributes.has("min");
  const bool upper = call.attributes.has("max");
  (void)call.number("min", 0);
  (void)call.number("max", 0);
  if (!lower && !upper) call.refuse("clamp needs \"min\", \"max\" or both");
  const TensorId out = on_one(call, op);
  call.w.latest().bounds = static_cast<std::uint8_t>((lower ? Node::kLowerBound : 0) | (upper ? Node::kUpperBound : 0));
  return {out};
}

namespace {

Shape common_shape(OpCall& call, std::size_t a, std::size_t b) {
  const std::optional<Shape> shape = broadcast(call.shape(a), call.shape(b));
  if (shape) return *shape;
  call.refuse_input(b, formatted("shapes {} and {} do not broadcast", call.shape(a).text(), call.shape(b).text()));
}

DType common_dtype(OpCall& call, Op op) {
  const DType dtype = promoted(call.w.tensor(call.in[0]), call.w.tensor(call.in[1]));
  if (op == Op::Div && !is_floating(dtype)) return DType::Float32;
  if (op == Op::Sub && dtype == DType::Bool) call.refuse("sub does not take booleans");
  return dtype;
}

// What PyTorch refuses of x.op_(other).
void check_in_place(OpCall& call, const Shape& result, DType dtype) {
  if (result != call.shape(0)) {
    call.refuse_input(
        0, formatted("output with shape {} doesn't match the broadcast shape {}", call.shape(0).text(), result.text()));
  }
  if (is_floating(dtype) && !is_floating(call.dtype(0))) {
    call.refuse_input(
        0, formatted("result type {} can't be cast to the desired output type {}", name(dtype), name(call.dtype(0))));
  }
}

}  // namespace

Tensors binary(OpCall& call, Op op) {
  const Shape result = common_shape(call, 0, 1);
  const DType dtype = common_dtype(call, op);
  if (call.op.in_place) {
    check_in_place(call, result, dtype);
    return {call.w.in_place(op, call.in)};
  }
  const TensorId out = call.w.make(op, result, dtype, call.in, is_floating(dtype));
  if (call.shape(0) == call.shape(1) && call.w.strides(call.in[0]) == call.w.strides(call.in[1])) {
    lie_as(call, out, call.in[0]);
  }
  return {out};
}

Tensors comparison(OpCall& call, Op op) {
  return {call.w.make(op, common_shape(call, 0, 1), DType::Bool, call.in, false)};
}

Tensors where(OpCall& call, Op op) {
  if (call.dtype(0) != DType::Bool) call.refuse_input(0, "where takes a condition of bool");
  const std::optional<Shape> choices = broadcast(call.shape(1), call.shape(2));
  const std::optional<Shape> result = choices ? broadcast(*choices, call.shape(0)) : std::nullopt;
  if (!result) {
    call.refuse(formatted("shapes {}, {} and {} do not broadcast", call.shape(0).text(), call.shape(1).text(),
                          call.shape(2).text()));
  }
  const DType dtype = promoted(call.w.tensor(call.in[1]), call.w.tensor(call.in[2]));
  return {call.w.make(op, *result, dtype, call.in, is_floating(dtype))};
}

Tensors masked_fill(OpCall& call, Op op) {
  if (call.dtype(1) != DType::Bool) call.refuse_input(1, "masked_fill takes a mask of bool");
  (void)call.number("value", 0.0);
  const Shape result = common_shape(call, 0, 1);
  if (!call.op.in_place) return {call.w.make(op, result, call.dtype(0), call.in)};
  check_in_place(call, result, call.dtype(0));
  return {call.w.in_place(Op::MaskedFillInPlace, call.in)};
}

Tensors prelu(OpCall& call, Op op) {
  call.floating(0);
  call.same_dtype(0, 1);
  const std::int64_t weights = call.shape(1).elements().value();
  const std::int64_t channels = call.shape(0).rank > 1 ? call.shape(0).dims[1] : 1;
  if (weights != 1 && weights != channels) {
    call.refuse_input(1, formatted("{} weights for {} channels", weights, channels));
  }
  return {call.w.make(op, call.shape(0), call.dtype(0), call.in)};
}

Tensors addcmul(OpCall& call, Op op) {
  call.floating(0);
  const std::optional<Shape> product = broadcast(call.shape(1), call.shape(2));
  const std::optional<Shape> result = product ? broadcast(*product, call.shape(0)) : std::nullopt;
  if (!result) call.refuse("the shapes do not broadcast");
  (void)call.number("value", 1.0);
  return {call.w.make(op, *result, call.dtype(0), call.in)};
}

// p = 0 or evaluation: the input itself. native_dropout on CUDA for 0 < p < 1.
Tensors dropout(OpCall& call, Op op) {
  call.floating(0);
  const double p = call.number("p", 0.5);
  if (p < 0 || p > 1) {
    call.refuse_key("p", formatted("dropout probability has to be between 0 and 1, but got {}", p));
  }
  const bool training = call.flag("training", true);
  if (p == 0 || !training) return {call.in[0]};
  if (p == 1) call.not_modelled("dropout with p = 1");
  return {on_one(call, op, p)};
}

Tensors to(OpCall& call, Op) {
  const std::optional<DType> dtype = call.dtype_named("dtype");
  if (!dtype) call.refuse("to needs \"dtype\"");
  return {call.w.cast(call.in[0], *dtype)};
}

Tensors glu(OpCall& call, Op op) {
  call.floating(0);
  Shape shape = call.shape(0);
  const std::size_t dim = call.dimension("dim", shape.rank, -1);
  if (shape.rank == 0 || shape.dims[dim] % 2 != 0) {
    call.refuse_input(0, formatted("glu halves dimension {} of {}", dim, shape.text()));
  }
  shape.dims[dim] /= 2;
  const TensorId out = call.w.make(op, shape, call.dtype(0), call.in);
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

}  // namespace dsplan::op_graph_rules
