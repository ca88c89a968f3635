// What products, lookups and attention make.
#include <array>

#include "core/error.h"
#include "exec/operators/maker.h"

namespace dsplan::exec::rules {
namespace {

constexpr std::int64_t rounded(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool wants(const Graph& graph, const Node& node, std::size_t i) {
  return graph.tensor(graph.input(node, i)).requires_grad;
}

void linear(Maker& m) {
  Layout result = m.in(0).layout;
  result.dims[result.rank - 1U] = m.dim(1, m.node().product == Product::Direct ? 1 : 0);
  m.output(0, {m.in(0).dtype, contiguous_like(result)});
}

void contiguous_gradient(Maker& m, std::size_t i) {
  if (!m.needs(i)) return;
  m.gradient(i, {m.in(i).dtype, contiguous_like(m.in(i).layout)});
  m.next();
}

// addmm gives the input's gradient first, mm the weight's; DeepSpeed's own function the input's in any case. The bias
// is summed last.
void linear_backward(Maker& m) {
  const bool input_first = m.has(2) || m.node().product == Product::Function;
  contiguous_gradient(m, input_first ? 0 : 1);
  contiguous_gradient(m, input_first ? 1 : 0);
  if (m.has(2) && m.needs(2)) m.summed_gradient(2);
}

std::vector<Kept> factors_kept(const Graph& graph, const Node& node) {
  std::vector<Kept> kept;
  if (wants(graph, node, 1)) kept.push_back({Kept::Kind::Input, 0});
  if (wants(graph, node, 0)) kept.push_back({Kept::Kind::Input, 1});
  return kept;
}

// Batches of matrices; or the outer product of a vector with rows, [F] x [.., 1, S] -> [.., F, S].
void matmul(Maker& m) {
  Layout result = m.in(0).layout.rank == 1 ? m.in(1).layout : m.in(0).layout;
  const std::uint8_t rank = result.rank;
  if (m.in(0).layout.rank == 1) {
    result.dims[rank - 2U] = m.dim(0, 0);
  } else {
    result.dims[rank - 1U] = m.dim(1, m.in(1).layout.rank - 1U);
  }
  m.output(0, {m.in(0).dtype, contiguous_like(result)});
}

void matmul_backward(Maker& m) {
  contiguous_gradient(m, 1);
  contiguous_gradient(m, 0);
}

void embedding(Maker& m) {
  Layout result = m.in(1).layout;
  result.dims[result.rank++] = m.dim(0, 1);
  m.output(0, {m.in(0).dtype, contiguous_like(result)});
}

// Many indices are sorted first: sorted ones, and where each came from.
constexpr std::int64_t kMostUnsorted = 3072;

void embedding_backward(Maker& m) {
  if (!m.needs(0)) return;
  const std::int64_t indices = m.in(1).layout.elements();
  if (indices > kMostUnsorted) {
    m.temporary(dense(DType::Int64, {indices}));
    m.temporary(dense(DType::Int64, {indices}));
    m.next();
  }
  m.gradient(0, {m.in(0).dtype, contiguous_like(m.in(0).layout)});
}

std::vector<Kept> indices_kept(const Graph&, const Node&) { return {{Kept::Kind::Input, 1}}; }

// Attention. Queries [B, H, S, D]; keys and values may have fewer heads.
struct Sizes {
  std::int64_t batch, heads, queries, keys, width;
};
Sizes sizes_of(const Maker& m) { return {m.dim(0, 0), m.dim(0, 1), m.dim(0, 2), m.dim(1, 2), m.dim(0, 3)}; }

// [B, S, H, D] in memory, seen as [B, H, S, D].
Described by_token(const Described& like) {
  const Layout& from = like.layout;
  const std::array dims{from.dims[0], from.dims[2], from.dims[1], from.dims[3]};
  Layout layout = contiguous(dims);
  std::swap(layout.dims[1], layout.dims[2]);
  std::swap(layout.strides[1], layout.strides[2]);
  return {like.dtype, layout};
}

bool is_flash(const Node& node) { return node.attention == AttentionKernel::Flash; }

// Flash lays its output out as the query; the memory-efficient kernel by token in any case, and it makes the
// log-sum-exp only where somebody will ask for it, in rows of a multiple of 32.
void attention(Maker& m) {
  const Sizes s = sizes_of(m);
  const DType sums = accumulating(m.in(0).dtype);
  if (is_flash(m.node())) {
    m.output(0, {m.in(0).dtype, laid_out_like(m.in(0).layout)});
    m.extra(0, dense(sums, {s.batch, s.heads, s.queries}));
    m.extra(1, dense(DType::Int64, {2}));
    m.extra(2, dense(DType::Int64, {1}));
    if (m.node().number > 0) m.temporary(dense(DType::Int64, {2}));  // Dropout makes the first once more.
    return;
  }
  m.output(0, by_token(m.in(0)));
  if (m.node().requires_grad) m.extra(0, dense(sums, {s.batch, s.heads, rounded(s.queries, 32)}));
  m.extra(1, dense(DType::Int64, {1}));
  m.extra(2, dense(DType::Int64, {1}));
}

void gradient_or_temporary(Maker& m, std::size_t i, const Described& what) {
  if (m.needs(i)) {
    m.gradient(i, what);
  } else {
    m.temporary(what);
  }
}

// One kernel makes all three gradients, whether they are asked for or not. Flash works on sums of rows padded to 128,
// on a gradient of the query that is accumulated in fp32 with rows and width padded, and with grouped heads on
// gradients of keys and values for each of the query's heads.
void attention_backward(Maker& m) {
  const Sizes s = sizes_of(m);
  const DType sums = accumulating(m.in(0).dtype);
  const bool flash = is_flash(m.node());
  for (const std::size_t i : {0U, 1U, 2U}) {
    gradient_or_temporary(m, i, flash ? Described{m.in(i).dtype, laid_out_like(m.in(i).layout)} : by_token(m.in(i)));
  }
  if (!flash) {
    m.temporary(dense(sums, {s.batch, s.heads, rounded(s.queries, 32)}));
    return;
  }
  const std::int64_t rows = rounded(s.queries, 128);
  m.temporary(dense(sums, {s.batch, s.heads, rows}));
  m.temporary(dense(sums, {s.batch, rows, s.heads, rounded(s.width, s.width > 128 ? 64 : 32)}));
  if (m.dim(1, 1) == s.heads) return;
  m.temporary(dense(m.in(1).dtype, {s.batch, s.keys, s.heads, s.width}));
  m.temporary(dense(m.in(1).dtype, {s.batch, s.keys, s.heads, s.width}));
}

std::vector<Kept> attention_kept(const Graph&, const Node& node) {
  std::vector<Kept> kept;
  for (std::uint8_t i = 0; i < node.input_count; ++i) kept.push_back({Kept::Kind::Input, i});
  kept.push_back({Kept::Kind::Output, 0});
  for (const std::uint8_t i : {std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{2}}) {
    kept.push_back({Kept::Kind::Extra, i});
  }
  return kept;
}

}  // namespace

Rules products(Op op) {
  switch (op) {
    case Op::Linear: return {linear, linear_backward, factors_kept};
    case Op::Matmul: return {matmul, matmul_backward, factors_kept};
    case Op::Embedding: return {embedding, embedding_backward, indices_kept};
    case Op::Attention: return {attention, attention_backward, attention_kept};
    default: return {};
  }
}

}  // namespace dsplan::exec::rules
