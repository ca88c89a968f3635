// What views, joins, copies, softmax, norms and losses make.
#include <vector>

#include "core/error.h"
#include "exec/operators/maker.h"

namespace dsplan::exec::rules {
namespace {

Described like_input(const Maker& m, std::size_t i = 0) {
  // What has to be copied next may have other dimensions than the graph's tensor; gradients never have.
  return {m.in(i).dtype, contiguous_like(m.in(i).layout)};
}

// A gradient that is copied on its way back lies as its input would, contiguous.
void view_backward(Maker& m) {
  if (m.node().gradient_copied && m.needs(0)) m.gradient(0, like_input(m));
}

void slice_backward(Maker& m) {
  if (m.needs(0)) m.gradient(0, like_input(m));
}

// One cat of the outputs' gradients; zeros stand for those that no one will send.
void split_backward(Maker& m) {
  if (!m.needs(0)) return;
  for (std::size_t i = 0; i < m.node().output_count; ++i) {
    if ((m.node().undefined_outputs >> i & 1U) == 0) continue;
    m.temporary({m.told(i).dtype, contiguous(m.told(i).shape)});
    m.next();
  }
  m.gradient(0, like_input(m));
}

// A clone, or what stands behind the first column; a view that no strides can say is copied into the graph's shape.
void copy(Maker& m) { m.output(0, {m.in(0).dtype, contiguous(m.told().shape)}); }

// Operands that have one row where others have more are repeated.
void cat(Maker& m) {
  Layout result = m.in(0).layout;
  const auto axis = static_cast<std::size_t>(m.node().axis);
  for (std::size_t i = 1; m.has(i); ++i) {
    for (std::size_t d = 0; d < result.rank; ++d) {
      if (d == axis) {
        result.dims[d] += m.dim(i, d);
      } else if (result.dims[d] == 1) {
        result.dims[d] = m.dim(i, d);
      }
    }
  }
  m.output(0, {m.in(0).dtype, contiguous_like(result)});
}

void pad(Maker& m) { m.output(0, {m.in(0).dtype, contiguous(m.told().shape)}); }
void pad_backward(Maker& m) {
  if (m.needs(0)) m.gradient(0, like_input(m));
}

// scaled_dot_product_attention's own: rows of nothing but minus infinity give zeros. A plain softmax, flags, their
// conjunction by row, a number, each a tensor and a kernel; the last kernel writes the number into the softmax.
void safe_softmax(Maker& m) {
  const Described plain = like_input(m);
  Layout rows = m.in(0).layout;
  rows.dims[rows.rank - 1U] = 1;
  const Described flags{DType::Bool, plain.layout};
  const Described by_row{DType::Bool, contiguous_like(rows)};
  m.output(0, plain);
  m.next();
  for (const Described& step : {flags, by_row}) {
    m.temporary(step);
    m.next();
  }
  m.temporary({plain.dtype, contiguous(Shape{})});
}

// Only half precision is widened while it is read; everything else is cast first.
bool casts_first(const Maker& m) { return m.in(0).dtype != m.told().dtype && m.in(0).dtype != DType::Float16; }

void softmax(Maker& m) {
  if (m.node().safe) return safe_softmax(m);
  const Described result{m.told().dtype, contiguous_like(m.in(0).layout)};
  if (casts_first(m)) {
    m.temporary(result);
    m.next();
  }
  m.output(0, result);
}

// A GPU's kernel of the softmax reads the product of gradient and result, which is made after what it writes.
void softmax_backward(Maker& m) {
  if (!m.needs(0)) return;
  const Described wide{m.told().dtype, contiguous_like(m.in(0).layout)};
  const bool casts = !m.node().safe && casts_first(m);
  if (casts) {
    m.temporary(wide);
  } else {
    m.gradient(0, like_input(m));
  }
  if (m.node().op == Op::Softmax) m.temporary(wide);  // A GPU's kernel reads the product of gradient and result.
  if (!casts) return;
  m.next();
  m.gradient(0, like_input(m));
}

std::vector<Kept> result_kept(const Graph&, const Node&) { return {{Kept::Kind::Output, 0}}; }

// Mean and reciprocal deviation of each row stay for backward.
void layer_norm(Maker& m) {
  const Described result = like_input(m);
  const std::int64_t width = m.dim(0, m.in(0).layout.rank - 1U);
  const Described statistics = dense(accumulating(m.in(0).dtype), {m.in(0).layout.elements() / width});
  if (m.node().by_head) m.temporary(result);  // What does not lie row by row is copied.
  m.output(0, result);
  m.extra(0, statistics);
  m.extra(1, statistics);
}

void layer_norm_backward(Maker& m) {
  if (m.node().by_head) m.temporary(like_input(m));
  for (std::size_t i = 0; m.has(i); ++i) {
    if (m.needs(i)) m.gradient(i, like_input(m, i));
  }
}

std::vector<Kept> layer_norm_kept(const Graph&, const Node& node) {
  std::vector<Kept> kept{{Kept::Kind::Input, 0}};
  if (node.input_count > 1) kept.push_back({Kept::Kind::Input, 1});
  kept.push_back({Kept::Kind::Extra, 0});
  kept.push_back({Kept::Kind::Extra, 1});
  if (node.input_count > 2) kept.push_back({Kept::Kind::Input, 2});
  return kept;
}

// The loss, and the weight of the labels that count.
void nll_loss(Maker& m) {
  m.output(0, dense(m.in(0).dtype, {}));
  m.extra(0, dense(m.in(0).dtype, {}));
}

void nll_loss_backward(Maker& m) {
  if (m.needs(0)) m.gradient(0, like_input(m));
}

std::vector<Kept> nll_loss_kept(const Graph&, const Node&) {
  return {{Kept::Kind::Input, 0}, {Kept::Kind::Input, 1}, {Kept::Kind::Extra, 0}};
}

}  // namespace

Rules others(Op op) {
  switch (op) {
    case Op::Input: return {makes_nothing, no_gradient, nothing};
    case Op::View: return {makes_nothing, view_backward, nothing};
    case Op::Detach: return {makes_nothing, no_gradient, nothing};
    case Op::Slice: return {makes_nothing, slice_backward, nothing};
    case Op::Split: return {makes_nothing, split_backward, nothing};
    case Op::Contiguous: return {copy, no_gradient, nothing};
    case Op::Cat: return {cat, no_gradient, nothing};
    case Op::Pad: return {pad, pad_backward, nothing};
    case Op::Softmax:
    case Op::LogSoftmax: return {softmax, softmax_backward, result_kept};
    case Op::LayerNorm: return {layer_norm, layer_norm_backward, layer_norm_kept};
    case Op::NllLoss: return {nll_loss, nll_loss_backward, nll_loss_kept};
    default: return {};
  }
}

}  // namespace dsplan::exec::rules
