// What products, lookups and attention make.
#include <array>

#include "core/cudnn/convolution_scratch.h"
#include "core/error.h"
#include "exec/operators/maker.h"

namespace dsplan::exec::rules {
namespace {

constexpr std::int64_t rounded(std::int64_t value, std::int64_t multiple) { return round_up(value, multiple); }

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

// DeepSpeed's own function keeps its input and its bias in any case.
std::vector<Kept> linear_kept(const Graph& graph, const Node& node) {
  const bool function = node.product == Product::Function;
  std::vector<Kept> kept;
  if (wants(graph, node, 1) || function) kept.push_back({Kept::Kind::Input, 0});
  if (wants(graph, node, 0)) kept.push_back({Kept::Kind::Input, 1});
  if (function && node.input_count == 3) kept.push_back({Kept::Kind::Input, 2});
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

// baddbmm: the third and `number` times the product of the others. A factor of one is not multiplied; the first
// factor's gradient comes first.
void stacked_product(Maker& m) {
  Layout result = m.in(0).layout;
  result.dims[2] = m.dim(1, 2);
  m.output(0, {m.in(0).dtype, contiguous_like(result)});
}

void stacked_product_backward(Maker& m) {
  if (!m.has(2)) return matmul_backward(m);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (!m.needs(i)) continue;
    if (m.node().number != 1) {
      m.temporary({m.in(i).dtype, contiguous_like(m.in(i).layout)});
      m.next();
    }
    contiguous_gradient(m, i);
  }
}

// Patches side by side; one kernel makes all gradients. A GPU's take what cuDNN takes.
void workspace(Maker& m, ConvolutionKernel kernel) {
  const auto shape = [&](std::size_t i) { return m.call().graph.tensor(m.call().graph.input(m.node(), i)).shape; };
  const std::optional<Bytes> bytes = convolution_workspace(kernel, m.in(1).dtype, shape(0), shape(1), m.told().shape,
                                                           m.call().device, static_cast<std::int64_t>(m.node().number));
  if (bytes && *bytes > Bytes(0)) m.temporary(dense(DType::UInt8, {bytes->value()}));
}

void convolution(Maker& m) {
  m.output(0, {m.in(0).dtype, contiguous(m.told().shape)});
  workspace(m, ConvolutionKernel::Forward);
}

void convolution_backward(Maker& m) {
  const auto gradient = [&](std::size_t i) {
    if (m.has(i) && m.needs(i)) m.gradient(i, {m.in(i).dtype, contiguous_like(m.in(i).layout)});
    return m.has(i) && m.needs(i);
  };
  const bool copied = m.node().by_head && (m.needs(0) || m.needs(1));
  if (copied) m.temporary({m.told().dtype, contiguous(m.told().shape)});
  if (gradient(0)) workspace(m, ConvolutionKernel::InputGradient);
  if (gradient(1)) workspace(m, ConvolutionKernel::WeightGradient);
  if (!gradient(2)) return;
  const std::int64_t channels = m.told().shape.dims[1];
  const std::int64_t summed = m.told().shape.elements().value() / channels;
  const bool beside = m.node().by_head || summed == m.told().shape.dims[0];
  reduced(m, {channels, summed, beside ? channels : 0});
}

std::vector<Kept> convolution_kept(const Graph&, const Node&) {
  return {{Kept::Kind::Input, 0}, {Kept::Kind::Input, 1}};
}

void embedding(Maker& m) {
  Layout result = m.in(1).layout;
  result.dims[result.rank++] = m.dim(0, 1);
  m.output(0, {m.in(0).dtype, contiguous_like(result)});
}

// A gradient that lies otherwise is copied. Many indices are sorted first: sorted ones, where each came from, and what
// is counted. Then sums of parts of rows.
void embedding_gradient(Maker& m) {
  if (!m.needs(0)) return;
  if (m.node().by_head) {
    m.temporary({m.in(0).dtype, contiguous_like(m.gradient_of().layout)});
    m.next();
  }
  const EmbeddingBackward made =
      embedding_backward(m.in(1).layout.elements(), m.dim(0, 0), m.dim(0, 1), m.call().device);
  const auto hold = [&](Bytes bytes, DType dtype = DType::Int64) {
    if (bytes > Bytes(0)) m.temporary(dense(dtype, {bytes.value() / bytes_per_element(dtype)}));
  };
  const bool sorts = made.sorted > Bytes(0);
  if (sorts) {
    for (int i = 0; i < 3; ++i) hold(made.sorted);
    hold(made.sort, DType::UInt8);
    m.next();
  }
  m.gradient(0, {m.in(0).dtype, contiguous_like(m.in(0).layout)});
  if (!sorts) return;
  for (const Bytes bytes : {made.sorted, Bytes(8), made.sorted}) hold(bytes);
  hold(made.unique, DType::UInt8);
  for (const Bytes bytes : {made.segments, made.segments}) hold(bytes);
  hold(made.scan, DType::UInt8);
  for (const Bytes bytes : {Bytes(8), made.parts}) hold(bytes);
  hold(made.sums, DType::Float32);
}

std::vector<Kept> indices_kept(const Graph&, const Node&) { return {{Kept::Kind::Input, 1}}; }

// Attention. Queries [B, H, S, D]; keys and values may have fewer heads.
AttentionSizes sizes_of(const Maker& m) {
  return {m.dim(0, 0), m.dim(0, 1), m.dim(1, 1), m.dim(0, 2), m.dim(1, 2), m.dim(0, 3), m.dim(2, 3)};
}

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
bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }
Described floats_of(Bytes bytes) { return dense(DType::Float32, {bytes.value() / 4}); }

// Flash lays its output out as the query. Without dropout it may divide the keys, and works on parts; with dropout it
// makes its random state twice and keeps the second.
void flash(Maker& m) {
  const AttentionSizes s = sizes_of(m);
  const bool dropout = m.node().number > 0;
  m.output(0, {m.in(0).dtype, laid_out_like(m.in(0).layout)});
  m.extra(0, dense(accumulating(m.in(0).dtype), {s.batch, s.heads, s.queries}));
  const FlashParts parts = dropout ? FlashParts{} : flash_parts(s, m.call().device);
  if (parts.output > Bytes(0)) {
    m.temporary(floats_of(parts.log_sum_exp));
    m.temporary(floats_of(parts.output));
  }
  const Described random = dense(DType::Int64, {2});
  if (dropout) m.temporary(random);
  if (!dropout) m.extra(1, random);
  m.extra(2, dense(DType::Int64, {1}));
  if (dropout) m.extra(1, random);
}

// The memory-efficient kernel lays its output out by token in any case, and makes the log-sum-exp only where somebody
// will ask for it, in rows of a multiple of 32. Its random state stays on the host.
void attention(Maker& m) {
  if (is_flash(m.node())) return flash(m);
  const AttentionSizes s = sizes_of(m);
  Described out = m.in(0);
  out.layout.dims[3] = s.value_width();
  m.output(0, by_token(out));
  const DType sums = accumulating(m.in(0).dtype);
  if (m.node().requires_grad) m.extra(0, dense(sums, {s.batch, s.heads, rounded(s.queries, 32)}));
}

void gradient_or_temporary(Maker& m, std::size_t i, const Described& what) {
  if (m.needs(i)) {
    m.gradient(i, what);
  } else {
    m.temporary(what);
  }
}

// One kernel makes all three gradients, whether they are asked for or not. Flash wants gradient and output token by
// token, and copies what lies head by head. It works on sums of rows padded to 128, on a gradient of the query that is
// accumulated in fp32 with rows and width padded, and with grouped heads on gradients of keys and values for each of
// the query's heads.
void flash_backward(Maker& m) {
  const AttentionSizes s = sizes_of(m);
  const DType sums = accumulating(m.in(0).dtype);
  if (m.node().by_head && m.node().padding > 0) m.temporary(by_token(m.in(0)));  // Of a part's gradient.
  if (m.node().by_head) m.temporary(by_token(m.in(0)));
  for (const std::size_t i : {0U, 1U, 2U}) {
    gradient_or_temporary(m, i, Described{m.in(i).dtype, laid_out_like(m.in(i).layout)});
  }
  const std::int64_t rows = rounded(s.queries, 128);
  m.temporary(dense(sums, {s.batch, s.heads, rows}));
  m.temporary(dense(sums, {s.batch, rows, s.heads, rounded(s.width, s.width > 128 ? 64 : 32)}));
  if (s.kv_heads == s.heads) return;
  m.temporary(dense(m.in(1).dtype, {s.batch, s.keys, s.heads, s.width}));
  m.temporary(dense(m.in(1).dtype, {s.batch, s.keys, s.heads, s.width}));
}

// The memory-efficient kernel sums gradient times output by row in half precision; otherwise that is a product, a sum,
// and a copy head by head. It accumulates the queries' gradient by blocks.
void attention_backward(Maker& m) {
  if (is_flash(m.node())) return flash_backward(m);
  const AttentionSizes s = sizes_of(m);
  const DType sums = accumulating(m.in(0).dtype);
  for (const std::size_t i : {0U, 1U, 2U}) gradient_or_temporary(m, i, by_token(m.in(i)));
  const Described rows = dense(sums, {s.batch, s.heads, s.queries});
  const bool half = is_half(m.in(0).dtype);
  if (!half) {
    m.temporary(dense(sums, {s.batch, s.heads, s.queries, s.value_width()}));
    m.next();
  }
  m.temporary(rows);
  if (!half) m.next();
  if (!half && s.heads > 1 && s.queries > 1) {
    m.temporary(rows);
    m.next();
  }
  const Bytes workspace = efficient_backward_workspace(s, half, m.call().device);
  if (workspace > Bytes(0)) m.temporary(dense(DType::UInt8, {workspace.value()}));
}

std::vector<Kept> attention_kept(const Graph&, const Node& node) {
  std::vector<Kept> kept;
  if (node.input_count > 3) kept.push_back({Kept::Kind::Input, 3});
  for (const std::uint8_t i : {std::uint8_t{1}, std::uint8_t{0}, std::uint8_t{2}}) {
    kept.push_back({Kept::Kind::Input, i});
  }
  kept.push_back({Kept::Kind::Extra, 0});
  kept.push_back({Kept::Kind::Output, 0});
  if (!is_flash(node)) return kept;
  for (const std::uint8_t i : {std::uint8_t{1}, std::uint8_t{2}}) kept.push_back({Kept::Kind::Extra, i});
  return kept;
}

}  // namespace

Rules products(Op op) {
  switch (op) {
    case Op::Linear: return {linear, linear_backward, linear_kept};
    case Op::Matmul: return {matmul, matmul_backward, factors_kept};
    case Op::Bmm: return {stacked_product, stacked_product_backward, factors_kept};
    case Op::Conv2d: return {convolution, convolution_backward, convolution_kept};
    case Op::Embedding: return {embedding, embedding_gradient, indices_kept};
    case Op::Attention: return {attention, attention_backward, attention_kept};
    default: return {};
  }
}

}  // namespace dsplan::exec::rules
