// What elementwise operators, and reductions over dimensions, make. The formulas are those of PyTorch's
// tools/autograd/derivatives.yaml; a value of a C++ expression that is a tensor of its own is a temporary here as well.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "exec/bodies/gelu_steps.h"
#include "exec/operators/maker.h"

namespace dsplan::exec::rules {
namespace {

enum class Keeps : std::uint8_t { Nothing, Input, Result };

// Operators of one tensor: what backward looks at, and how many tensors it takes on the way to the gradient.
struct Unary {
  Op op;
  Keeps keeps;
  std::size_t steps;
};
constexpr std::array kUnary = {
    Unary{Op::Tril, Keeps::Nothing, 0},      Unary{Op::MulScalar, Keeps::Nothing, 0},
    Unary{Op::DivScalar, Keeps::Nothing, 0}, Unary{Op::PowScalar, Keeps::Input, 2},
    Unary{Op::Neg, Keeps::Nothing, 0},       Unary{Op::Abs, Keeps::Input, 1},
    Unary{Op::Exp, Keeps::Result, 0},        Unary{Op::Log, Keeps::Input, 0},
    Unary{Op::Sqrt, Keeps::Result, 1},       Unary{Op::Rsqrt, Keeps::Result, 2},
    Unary{Op::Reciprocal, Keeps::Result, 2}, Unary{Op::Sin, Keeps::Input, 1},
    Unary{Op::Cos, Keeps::Input, 2},         Unary{Op::Tanh, Keeps::Result, 0},
    Unary{Op::Sigmoid, Keeps::Result, 0},    Unary{Op::Relu, Keeps::Result, 0},
    Unary{Op::Gelu, Keeps::Input, 0},        Unary{Op::Silu, Keeps::Input, 0},
};

const Unary* unary_row(Op op) {
  const auto* row = std::ranges::find(kUnary, op, &Unary::op);
  return row == kUnary.end() ? nullptr : row;
}

Described like(const Described& what, DType dtype) { return {dtype, laid_out_like(what.layout)}; }

// The common type of two tensors, of which one without dimensions counts only where it is of a higher kind.
DType promoted(const Described& a, const Described& b) {
  const auto kind = [](DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::Bool ? 0 : 1; };
  if (kind(a.dtype) != kind(b.dtype)) return kind(a.dtype) > kind(b.dtype) ? a.dtype : b.dtype;
  if ((a.layout.rank == 0) != (b.layout.rank == 0)) return a.layout.rank == 0 ? b.dtype : a.dtype;
  if (a.dtype == b.dtype) return a.dtype;
  if (is_half(a.dtype) && is_half(b.dtype)) return DType::Float32;
  return bytes_per_element(a.dtype) >= bytes_per_element(b.dtype) ? a.dtype : b.dtype;
}

std::vector<std::int64_t> broadcast(const Layout& a, const Layout& b) {
  const Layout& longer = a.rank >= b.rank ? a : b;
  const Layout& other = a.rank >= b.rank ? b : a;
  std::vector<std::int64_t> dims(longer.extents().begin(), longer.extents().end());
  for (std::size_t i = 0; i < other.rank; ++i) {
    std::int64_t& dim = dims[dims.size() - 1 - i];
    dim = dim == 1 ? other.dims[other.rank - 1U - i] : dim;
  }
  return dims;
}

Described combined(const Described& a, const Described& b, DType dtype) {
  const std::array layouts{a.layout, b.layout};
  return {dtype, elementwise_layout(broadcast(a.layout, b.layout), layouts)};
}

// A tensor for each step but the last.
bool takes_steps(const Node& node) { return node.op == Op::Gelu && node.number == bodies::kGeluFunction; }
void gelu_steps(Maker& m, std::size_t steps) {
  for (std::size_t i = 0; i + 1 < steps; ++i) {
    m.temporary(like(m.in(0), m.in(0).dtype));
    m.next();
  }
}

// A power may be of two tensors, at the graph's shape.
void unary_forward(Maker& m) {
  if (takes_steps(m.node())) gelu_steps(m, bodies::kGeluForward.size());
  m.output(0, m.has(1) ? Described{m.told().dtype, contiguous(m.told().shape)} : like(m.in(0), m.in(0).dtype));
}

void unary_backward(Maker& m) {
  if (!m.needs(0)) return;
  if (takes_steps(m.node())) {
    gelu_steps(m, bodies::kGeluBackward.size());
    return m.gradient(0, like(m.in(0), m.in(0).dtype));
  }
  const Unary& row = *unary_row(m.node().op);
  const Described& grad = m.gradient_of();
  for (std::size_t i = 0; i < row.steps; ++i) {
    m.temporary(like(grad, grad.dtype));
    m.next();
  }
  m.gradient(0, row.keeps == Keeps::Nothing ? like(grad, m.in(0).dtype) : combined(grad, m.in(0), m.in(0).dtype));
}

std::vector<Kept> unary_kept(const Graph&, const Node& node) {
  switch (unary_row(node.op)->keeps) {
    case Keeps::Nothing: return {};
    case Keeps::Input: return {{Kept::Kind::Input, 0}};
    case Keeps::Result: return {{Kept::Kind::Output, 0}};
  }
  return {};
}

// Of a tensor and a number, where the graph may ask for the first column alone.
void add_number(Maker& m) {
  const bool first_column = !m.in(0).layout.is(m.told().shape);
  m.output(0, first_column ? Described{m.in(0).dtype, contiguous(m.told().shape)} : like(m.in(0), m.in(0).dtype));
}

// to(dtype): the strides of a dense tensor stay. The graph may have put dimensions of one element around it.
void cast(Maker& m) {
  const Layout from = reshaped(m.in(0).layout, extents(m.told().shape)).value_or(contiguous(m.told().shape));
  m.output(0, {m.told().dtype, from.dense() ? from : contiguous_like(from)});
}

void cast_backward(Maker& m) {
  if (!m.needs(0)) return;
  const Layout& grad = m.gradient_of().layout;
  m.gradient(0, {m.in(0).dtype, grad.dense() ? grad : contiguous_like(grad)});
}

// Below: operators of two tensors. A gradient is made at the output's shape; when the function has returned, autograd
// brings those of other shape or dtype to their input's, in the order of the inputs (engine.cpp, validate_outputs).
// Leading dimensions of one element are summed over as well.
bool has_its_shape(const Maker& m, std::size_t i) {
  const Layout& grad = m.gradient_of().layout;
  return m.in(i).layout.elements() == grad.elements() && m.in(i).layout.rank >= grad.rank;
}

bool comes_as_is(const Maker& m, std::size_t i) {
  return has_its_shape(m, i) && m.in(i).dtype == m.gradient_of().dtype;
}

void at_output(Maker& m, std::size_t i, std::size_t other) {
  if (!m.needs(i)) return;
  const Described& grad = m.gradient_of();
  if (comes_as_is(m, i)) {
    m.gradient(i, combined(grad, m.in(other), grad.dtype));
  } else {
    m.temporary(combined(grad, m.in(other), grad.dtype));
  }
  m.next();
}

void sums(Maker& m, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!m.needs(i) || comes_as_is(m, i)) continue;
    if (has_its_shape(m, i)) {
      m.gradient(i, {m.in(i).dtype, contiguous_like(m.in(i).layout)});
      m.next();
    } else if (m.in(i).dtype != m.gradient_of().dtype) {  // First over what was broadcast, then to the input's dtype.
      m.temporary({m.gradient_of().dtype, contiguous_like(m.in(i).layout)});
      m.next();
      m.gradient(i, {m.in(i).dtype, contiguous_like(m.in(i).layout)});
      m.next();
    } else {
      m.summed_gradient(i);
    }
  }
}

void binary_forward(Maker& m) {
  if (m.node().in_place) return;
  m.output(0, combined(m.in(0), m.in(1), promoted(m.in(0), m.in(1))));
}

void add_backward(Maker& m) { sums(m, 2); }

// Of one tensor: neighbours along the last dimension, or less a number, seen at the graph's shape.
void sub_forward(Maker& m) {
  if (m.has(1)) return binary_forward(m);
  m.output(0, {m.in(0).dtype, contiguous(m.told().shape)});
}

void sub_backward(Maker& m) {
  if (m.needs(1) && comes_as_is(m, 1)) {
    m.gradient(1, like(m.gradient_of(), m.in(1).dtype));
    m.next();
  } else if (m.needs(1)) {
    m.temporary(like(m.gradient_of(), m.gradient_of().dtype));
    m.next();
  }
  sums(m, 2);
}

void mul_backward(Maker& m) {
  at_output(m, 1, 0);
  at_output(m, 0, 1);
  sums(m, 2);
}

std::vector<Kept> mul_kept(const Graph& graph, const Node& node) {
  std::vector<Kept> kept;
  for (const std::uint8_t i : {std::uint8_t{1}, std::uint8_t{0}}) {
    if (graph.tensor(graph.input(node, 1U - i)).requires_grad) kept.push_back({Kept::Kind::Input, i});
  }
  return kept;
}

// -grad * ((self / other) / other), then grad / other.
void div_backward(Maker& m) {
  if (m.needs(1)) {
    for (int i = 0; i < 3; ++i) {
      m.temporary(combined(m.gradient_of(), m.in(1), m.gradient_of().dtype));
      m.next();
    }
    at_output(m, 1, 0);
  }
  at_output(m, 0, 1);
  sums(m, 2);
}

// What is divided in place is cloned first, where backward will ask for it.
void div_forward(Maker& m) {
  if (!m.node().in_place) return binary_forward(m);
  if (m.needs(1)) m.extra(kClone, like(m.in(0), m.in(0).dtype));
}

std::vector<Kept> div_kept(const Graph& graph, const Node& node) {
  std::vector<Kept> kept{{Kept::Kind::Input, 1}};
  if (!graph.tensor(graph.input(node, 1)).requires_grad) return kept;
  kept.push_back(node.in_place ? Kept{Kept::Kind::Extra, kClone} : Kept{Kept::Kind::Input, 0});
  return kept;
}

// where(flags, first, third) of three; of two flags their conjunction, of a tensor and flags the node's number where
// they are set. At the graph's shape, to which the batch is expanded.
void masked_fill(Maker& m) { m.output(0, {m.in(0).dtype, contiguous(m.told().shape)}); }

void masked_fill_backward(Maker& m) {
  if (m.needs(0)) m.gradient(0, {m.in(0).dtype, contiguous_like(m.gradient_of().layout)});
}

std::vector<Kept> second_input(const Graph&, const Node&) { return {{Kept::Kind::Input, 1}}; }

// where(condition, gradient, 0) for both choices, the later one first; the zero is a tensor.
void where(Maker& m) { m.output(0, {m.told().dtype, contiguous(m.told().shape)}); }

void where_backward(Maker& m) {
  for (const std::size_t i : {std::size_t{2}, std::size_t{1}}) {
    if (!m.needs(i)) continue;
    const Described& grad = m.gradient_of();
    m.temporary({grad.dtype, contiguous(Shape{})});
    m.next();
    m.gradient(i, {grad.dtype, contiguous_like(grad.layout)});
    m.next();
  }
}

std::vector<Kept> condition_kept(const Graph&, const Node&) { return {{Kept::Kind::Input, 0}}; }

// where(within, gradient, 0): the zero is a tensor, and a mask for each bound, the second joined to the first.
void clamp(Maker& m) { m.output(0, like(m.in(0), m.in(0).dtype)); }

void clamp_backward(Maker& m) {
  if (!m.needs(0)) return;
  const Described& grad = m.gradient_of();
  m.temporary({grad.dtype, contiguous(Shape{})});
  m.next();
  for (int i = m.node().bounds == Node::kBothBounds ? 2 : 1; i > 0; --i) {
    m.temporary(like(m.in(0), DType::Bool));
    m.next();
  }
  m.gradient(0, combined(grad, m.in(0), m.in(0).dtype));
}

std::vector<Kept> input_kept(const Graph&, const Node&) { return {{Kept::Kind::Input, 0}}; }

void compared(Maker& m) { m.output(0, {DType::Bool, contiguous(m.told().shape)}); }

// Reductions. Their results are contiguous whatever they are made of. Flags are brought to int64 first.
void sum(Maker& m) {
  const DType dtype = is_floating(m.in(0).dtype) ? m.in(0).dtype : DType::Int64;
  m.output(0, {dtype, contiguous(m.told().shape)});
  if (m.in(0).dtype == DType::Bool) m.temporary(like(m.in(0), dtype));
}

void mean(Maker& m) { m.output(0, {m.in(0).dtype, contiguous(m.told().shape)}); }

void mean_backward(Maker& m) {
  if (!m.needs(0)) return;
  const Layout expanded = broadcast_to(m.gradient_of().layout, m.in(0).layout.extents());
  m.gradient(0, {m.in(0).dtype, elementwise_layout(m.in(0).layout.extents(), {&expanded, 1})});
}

// Integers and flags are brought to int64 first.
void cumulative_sum(Maker& m) {
  const bool asked = m.told().dtype == DType::Int32;  // dtype=torch.int32.
  const DType dtype = is_floating(m.in(0).dtype) ? m.in(0).dtype : asked ? DType::Int32 : DType::Int64;
  m.output(0, {dtype, contiguous_like(m.in(0).layout)});
  if (m.in(0).dtype != dtype) m.extra(0, {dtype, contiguous_like(m.in(0).layout)});
  // Along one row a GPU asks cub.
  const Shape& sums = m.told().shape;
  const bool one_row = sums.rank > 0 && sums.elements().value() == sums.dims[sums.rank - 1U];
  if (!one_row || m.call().device.capability <= 0) return;
  const Bytes cubs = row_scan_scratch(sums.elements().value(), storage(Elements(1), dtype));
  m.temporary(dense(DType::UInt8, {cubs.value()}));
}

void arange(Maker& m) { m.output(0, {m.told().dtype, contiguous(m.told().shape)}); }

// A mask of one byte for each element, then the result.
void dropout(Maker& m) {
  m.extra(0, like(m.in(0), DType::Bool));
  m.output(0, like(m.in(0), m.in(0).dtype));
}

void dropout_backward(Maker& m) {
  if (m.needs(0)) m.gradient(0, {m.in(0).dtype, contiguous_like(m.gradient_of().layout)});
}

std::vector<Kept> first_extra(const Graph&, const Node&) { return {{Kept::Kind::Extra, 0}}; }

}  // namespace

Rules elementwise(Op op) {
  if (unary_row(op) != nullptr) return {unary_forward, unary_backward, unary_kept};
  switch (op) {
    case Op::AddScalar:
    case Op::SubScalar: return {add_number, no_gradient, nothing};
    case Op::Cast: return {cast, cast_backward, nothing};
    case Op::Add: return {binary_forward, add_backward, nothing};
    case Op::Sub: return {sub_forward, sub_backward, nothing};
    case Op::Mul: return {binary_forward, mul_backward, mul_kept};
    case Op::Div: return {div_forward, div_backward, div_kept};
    case Op::Minimum: return {binary_forward, nullptr, nothing};
    case Op::Where: return {where, where_backward, condition_kept};
    case Op::Clamp: return {clamp, clamp_backward, input_kept};
    case Op::MaskedFill: return {masked_fill, masked_fill_backward, second_input};
    case Op::NotEqual:
    case Op::Equal:
    case Op::GreaterEqual:
    case Op::All: return {compared, no_gradient, nothing};
    case Op::SumDim: return {sum, no_gradient, nothing};
    case Op::MeanLast: return {mean, mean_backward, nothing};
    case Op::CumSum: return {cumulative_sum, nullptr, nothing};
    case Op::Arange: return {arange, no_gradient, nothing};
    case Op::Dropout: return {dropout, dropout_backward, first_extra};
    default: return {};
  }
}

}  // namespace dsplan::exec::rules
