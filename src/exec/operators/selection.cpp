// What operators make that pick, place, order and count elements, and products of groups of rows.
#include "core/error.h"
#include "exec/operators/maker.h"

namespace dsplan::exec::rules {
namespace {

Described input_again(const Maker& m, std::size_t i = 0) { return {m.in(i).dtype, contiguous_like(m.in(i).layout)}; }

// At the graph's shape: indices and flags say nothing of it.
void told_output(Maker& m) { m.output(0, {m.told().dtype, contiguous(m.told().shape)}); }

void gradient_of_input(Maker& m) {
  if (m.needs(0)) m.gradient(0, input_again(m));
}

void selected(Maker& m) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    m.output(i, {m.told(i).dtype, contiguous(m.told(i).shape)});
  }
}
std::vector<Kept> places_kept(const Graph&, const Node&) { return {{Kept::Kind::Output, 1}}; }

// A GPU counts first where each came from.
void sorted(Maker& m) {
  selected(m);
  m.temporary({DType::Int64, contiguous(m.told(1).shape)});
  const Bytes cubs = row_sort_scratch(m.in(0).layout.elements(), m.call().device);
  if (cubs > Bytes(0)) m.temporary(dense(DType::UInt8, {cubs.value()}));
}

// A GPU adds rows in the order of their places: those as numbers, sorted, with where each came from.
void index_backward(Maker& m) {
  gradient_of_input(m);
  const Described& places = m.in(1);
  if (!m.needs(0) || m.has(2) || places.dtype != DType::Int64 || places.layout.rank != 1) return;
  m.next();
  for (int i = 0; i < 4; ++i) m.temporary({DType::Int64, contiguous_like(places.layout)});
  const Bytes cubs = rows_in_order_scratch(places.layout.elements(), m.dim(0, 0), m.call().device);
  m.temporary(dense(DType::UInt8, {cubs.value()}));
}

std::vector<Kept> all_indices_kept(const Graph&, const Node& node) {
  std::vector<Kept> kept;
  for (std::uint8_t i = 1; i < node.input_count; ++i) kept.push_back({Kept::Kind::Input, i});
  return kept;
}

// The input is kept for its shape.
std::vector<Kept> gather_kept(const Graph&, const Node&) { return {{Kept::Kind::Input, 0}, {Kept::Kind::Input, 1}}; }

void scatter_backward(Maker& m) {
  if (m.needs(0)) {
    m.gradient(0, input_again(m));
    m.next();
  }
  if (m.has(2) && m.needs(2)) m.gradient(2, input_again(m, 2));
}
std::vector<Kept> scatter_kept(const Graph&, const Node&) { return {{Kept::Kind::Input, 1}}; }

// The whole gradient, a clone of the part's, and zeros that take the part's place.
void copy_into_backward(Maker& m) {
  const Described whole = input_again(m);
  const Described part{m.in(0).dtype, contiguous_like(m.in(1).layout)};
  m.needs(0) ? m.gradient(0, whole) : m.temporary(whole);
  m.next();
  if (m.needs(1) && m.in(1).dtype != m.in(0).dtype) {
    m.temporary(part);
    m.next();
  }
  m.needs(1) ? m.gradient(1, input_again(m, 1)) : m.temporary(part);
  m.next();
  if (m.needs(0)) m.temporary(input_again(m, 1));
}

// From Hopper on one kernel takes memory for all groups.
void group_scratch(Maker& m) {
  const auto scratch = grouped_scratch(m.in(0).dtype, m.in(2).layout.elements(), m.call().device);
  if (!scratch) return;
  m.temporary(dense(DType::UInt8, {scratch->arguments.value()}));
  m.temporary(dense(DType::UInt8, {scratch->maps.value()}));
}

void grouped(Maker& m) {
  const std::int64_t features = m.dim(1, m.node().number == 1 ? 2 : 1);
  m.output(0, dense(m.in(0).dtype, {m.dim(0, 0), features}));
  group_scratch(m);
}

void grouped_backward(Maker& m) {
  for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
    if (!m.needs(i)) continue;
    m.gradient(i, input_again(m, i));
    group_scratch(m);
    m.next();
  }
}

std::vector<Kept> grouped_kept(const Graph& graph, const Node& node) {
  std::vector<Kept> kept;
  if (graph.tensor(graph.input(node, 1)).requires_grad) kept.push_back({Kept::Kind::Input, 0});
  if (graph.tensor(graph.input(node, 0)).requires_grad) kept.push_back({Kept::Kind::Input, 1});
  kept.push_back({Kept::Kind::Input, 2});
  return kept;
}

// polar(ones, angles).
void polar(Maker& m) {
  m.temporary(input_again(m));
  m.next();
  told_output(m);
}

// The conjugate of the other is a tensor of its own.
void complex_backward(Maker& m) {
  if (!m.needs(0)) return;
  m.temporary(input_again(m, 1));
  m.next();
  m.gradient(0, input_again(m));
}
std::vector<Kept> complex_kept(const Graph& graph, const Node& node) {
  if (!graph.tensor(graph.input(node, 0)).requires_grad) return {};
  return {{Kept::Kind::Input, 1}};
}

}  // namespace

Rules selection(Op op) {
  switch (op) {
    case Op::Expand: return {makes_nothing, gradient_of_input, nothing};
    case Op::Stack: return {told_output, no_gradient, nothing};
    case Op::RepeatInterleave:
    case Op::FloorDivScalar:
    case Op::IndexPut:
    case Op::Histogram: return {told_output, nullptr, nothing};
    case Op::Polar: return {polar, nullptr, nothing};
    case Op::ComplexMul: return {told_output, complex_backward, complex_kept};
    case Op::Sort: return {sorted, nullptr, nothing};
    case Op::TopK:
    case Op::Max: return {selected, gradient_of_input, places_kept};
    case Op::Index: return {told_output, index_backward, all_indices_kept};
    case Op::Gather: return {told_output, gradient_of_input, gather_kept};
    case Op::Scatter: return {makes_nothing, scatter_backward, scatter_kept};
    case Op::CopyInto: return {makes_nothing, copy_into_backward, nothing};
    case Op::GroupedMatmul: return {grouped, grouped_backward, grouped_kept};
    default: return {};
  }
}

}  // namespace dsplan::exec::rules
