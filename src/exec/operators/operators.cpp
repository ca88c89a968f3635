#include "exec/operators/operators.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/format.h"
#include "exec/attributes.h"
#include "exec/bodies/gelu_steps.h"
#include "exec/operators/maker.h"
#include "exec/operators/views.h"

namespace dsplan::exec {
namespace {

rules::Rules rules_of(Op op) {
  for (const auto family : {rules::elementwise, rules::products, rules::others, rules::selection, rules::parallel}) {
    const rules::Rules found = family(op);
    if (found.forward != nullptr) return found;
  }
  return {};
}

// A clone reads any view; everything else reads what the graph says.
bool reads_any_layout(Op op) { return op == Op::Contiguous || op == Op::View || op == Op::Detach; }

void check_inputs(const Call& call) {
  DSPLAN_CHECK(call.inputs.size() == call.node.input_count, place_of(call.graph, call.node) + " misses inputs");
  if (reads_any_layout(call.node.op)) return;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    DSPLAN_CHECK(
        call.inputs[i].layout.is(call.graph.tensor(call.graph.input(call.node, i)).shape),
        formatted("{} reads input {} through a view that has to be copied first", place_of(call.graph, call.node), i));
  }
}

[[noreturn]] void no_view(const Call& call) {
  throw InternalError(place_of(call.graph, call.node) + ": no strides can show this view of what it is given");
}

OffsetLayout stepped(const Call& call, const Layout& from) {
  const std::span<const ViewStep> steps = call.graph.steps(call.node);
  if (steps.empty()) {
    // What is no view at all is only allowed where the next operator copies it: then the steps say so.
    const std::optional<Layout> to = reshaped(from, extents(call.graph.tensor(call.graph.output(call.node)).shape));
    if (!to) no_view(call);
    return {0, *to};
  }
  const std::optional<OffsetLayout> seen = apply_steps(from, steps);
  if (!seen) no_view(call);
  return *seen;
}

std::vector<Viewed> split_views(const Call& call) {
  std::vector<Viewed> views;
  std::int64_t start = 0;
  const auto axis = static_cast<std::size_t>(call.node.axis);
  for (const TensorId out : call.graph.out(call.node)) {
    const std::int64_t length = call.graph.tensor(out).shape.dims[axis];
    const OffsetLayout part = narrowed(call.inputs[0].layout, axis, start, length);
    views.push_back({part.offset, {call.inputs[0].dtype, part.layout}});
    start += length;
  }
  return views;
}

// One of the parts that stand beside each other in a dimension of their own.
Viewed stacked_part(const Call& call, std::size_t input, const Described& gradient) {
  const auto axis = static_cast<std::size_t>(call.node.axis);
  Layout part;
  for (std::size_t d = 0; d < gradient.layout.rank; ++d) {
    if (d == axis) continue;
    part.dims[part.rank] = gradient.layout.dims[d];
    part.strides[part.rank++] = gradient.layout.strides[d];
  }
  if (!std::ranges::equal(part.extents(), call.inputs[input].layout.extents())) no_view(call);
  return {static_cast<std::int64_t>(input) * gradient.layout.strides[axis], {gradient.dtype, part}};
}

Viewed joined_part(const Call& call, std::size_t input, const Described& gradient) {
  const auto axis = static_cast<std::size_t>(call.node.axis);
  std::int64_t start = 0;
  for (std::size_t i = 0; i < input; ++i) start += call.inputs[i].layout.dims[axis];
  const OffsetLayout part = narrowed(gradient.layout, axis, start, call.inputs[input].layout.dims[axis]);
  if (!std::ranges::equal(part.layout.extents(), call.inputs[input].layout.extents())) no_view(call);
  return {part.offset, {gradient.dtype, part.layout}};
}

// What an index picks: of the first dimensions, as its tensors broadcast, or each with each; then what is left of the
// dimensions.
bool picks_rows(const Graph& graph, const Node& node) {
  const Shape& from = graph.tensor(graph.input(node, 0)).shape;
  const Shape& picked = graph.tensor(graph.output(node)).shape;
  if (node.axis > 0) {  // Along one dimension, by one line of indices.
    Shape part = from;
    part.dims[static_cast<std::size_t>(node.axis)] = picked.dims[static_cast<std::size_t>(node.axis)];
    return node.input_count == 2 && static_cast<std::size_t>(node.axis) < from.rank && part == picked &&
           graph.tensor(graph.input(node, 1)).shape.rank == 1;
  }
  const std::size_t indexed = node.input_count - 1U;
  if (indexed > DSPLAN_MOST_INDICES || indexed > from.rank || from.rank - indexed > picked.rank) return false;
  std::int64_t columns = 1;
  for (std::size_t d = indexed; d < from.rank; ++d) {
    columns *= from.dims[d];
    if (picked.dims[picked.rank - from.rank + d] != from.dims[d]) return false;
  }
  std::int64_t longest = 1;
  std::int64_t each = 1;
  for (std::size_t i = 1; i <= indexed; ++i) {
    const std::int64_t count = graph.tensor(graph.input(node, i)).shape.elements().value();
    longest = std::max(longest, count);
    each *= count;
  }
  const std::int64_t made = picked.elements().value();
  return made == longest * columns || made == each * columns;
}

// Of patches that lie beside each other and fill the picture, which itself takes no gradient.
bool cuts_into_patches(const Graph& graph, const Node& node) {
  const Tensor& picture = graph.tensor(graph.input(node, 0));
  const Shape& patch = graph.tensor(graph.input(node, 1)).shape;
  const Shape& made = graph.tensor(graph.output(node)).shape;
  const bool fills = picture.shape.rank == 4 && picture.shape.dims[1] == patch.dims[1] &&
                     picture.shape.dims[2] == made.dims[2] * patch.dims[2] &&
                     picture.shape.dims[3] == made.dims[3] * patch.dims[3];
  return fills && !picture.requires_grad;
}

std::optional<std::string> operands_without_kernel(const Graph& graph, const Node& node) {
  if (node.op == Op::Index && !picks_rows(graph, node)) {
    return "an index of another dimension than the first ones has no kernel";
  }
  const Shape& made = graph.tensor(graph.output(node)).shape;
  for (std::size_t i = 1; node.op == Op::Where && i < node.input_count; ++i) {
    const Tensor& choice = graph.tensor(graph.input(node, i));
    if (choice.requires_grad && choice.shape != made)
      return "the gradient of a choice that was broadcast has no kernel";
  }
  if (node.op == Op::Clamp && node.bounds == Node::kBothBounds && node.number <= 0) {
    return "bounds that the graph does not say have no kernel";
  }
  const bool last = static_cast<std::size_t>(node.axis) + 1U == made.rank;
  if (node.op == Op::Scatter && !last) return "a scatter over another dimension than the last has no kernel";
  if (node.op == Op::Max && node.output_count != 2) return "the largest element of all has no kernel";
  if (node.op == Op::PowScalar && node.input_count > 1 && node.requires_grad) {
    return "the gradient of a power of two tensors has no kernel";
  }
  if (node.op == Op::Bmm && node.input_count > 2 && graph.tensor(graph.input(node, 2)).requires_grad) {
    return "the gradient of what is added to a product has no kernel";
  }
  if (node.op == Op::Conv2d && !cuts_into_patches(graph, node)) {
    return "a convolution of other steps than its patches has no kernel";
  }
  return std::nullopt;
}

}  // namespace

std::string place_of(const Graph& graph, const Node& node) {
  return formatted("node {} ({})", &node - graph.nodes.data(), name(node.op));
}

const Described& Maker::gradient_of(std::size_t i) const {
  DSPLAN_CHECK(i < call_.gradients.size() && call_.gradients[i].has_value(),
               place_of(call_.graph, call_.node) + " runs backward without a gradient");
  return *call_.gradients[i];
}

std::optional<std::string> cannot_run(const Graph& graph, const Node& node) {
  const rules::Rules rules = rules_of(node.op);
  if (rules.forward == nullptr || (node.requires_grad && rules.backward == nullptr)) {
    return formatted("the operator {} has no kernels{}", name(node.op), rules.forward == nullptr ? "" : " backward");
  }
  if (node.op == Op::Attention && node.attention != AttentionKernel::Flash &&
      node.attention != AttentionKernel::MemoryEfficient) {
    return "cuDNN's attention is cuDNN's own";
  }
  if (node.op == Op::Attention && node.input_count > 3 && graph.tensor(graph.input(node, 3)).requires_grad) {
    return "the gradient of attention's bias has no kernel";
  }
  const auto width = [&](std::size_t i) { return graph.tensor(graph.input(node, i)).shape.dims[3]; };
  if (node.op == Op::Attention && node.attention == AttentionKernel::Flash && width(0) != width(2)) {
    return "flash attention with values of another width has no kernel";
  }
  if (node.op == Op::Cat && graph.tensor(graph.input(node, 0)).dtype != graph.tensor(graph.input(node, 1)).dtype) {
    return "a join of two dtypes has no kernel";
  }
  if (const auto operands = operands_without_kernel(graph, node)) return operands;
  if (node.op == Op::Gelu && node.number != 0 && node.number != 1 && node.number != bodies::kGeluFunction) {
    return "the activation that the graph writes as gelu is another one";
  }
  if (node.op == Op::Log && node.number != 0) return "the logarithm of one plus a number has no kernel";
  const bool sums = node.op == Op::SumDim || node.op == Op::MeanLast;
  if (sums && graph.tensor(graph.input(node, 0)).shape.rank < graph.tensor(graph.output(node)).shape.rank) {
    return formatted("the operator {} to more dimensions", name(node.op));
  }
  const bool overwrites = node.op == Op::Add || node.op == Op::AllReduce || node.op == Op::MaskedFillInPlace ||
                          node.op == Op::ParallelCrossEntropy || node.op == Op::Div || node.op == Op::Scatter ||
                          node.op == Op::CopyInto;
  if (node.in_place && !overwrites) return formatted("{} in place has no kernel", name(node.op));
  return std::nullopt;
}

std::vector<Kept> keeps(const Graph& graph, const Node& node) {
  if (!node.requires_grad) return {};
  return rules_of(node.op).kept(graph, node);
}

std::vector<Made> forward_makes(const Call& call) {
  check_inputs(call);
  Maker maker(call);
  rules_of(call.node.op).forward(maker);
  return maker.take();
}

void Maker::summed_gradient(std::size_t i) {
  gradient(i, {in(i).dtype, contiguous_like(in(i).layout)});
  reduced(*this, summed_to(gradient_of().layout.extents(), in(i).layout.extents()));
  next();
}

void reduced(Maker& m, const ReducedTensor& tensor) {
  const ReductionScratch scratch = reduction_scratch(tensor, m.call().device);
  if (scratch.staging == Bytes(0)) return;
  m.temporary(dense(DType::UInt8, {scratch.staging.value()}));
  m.temporary(dense(DType::Int32, {scratch.semaphores.value() / 4}));
}

std::vector<Made> backward_makes(const Call& call) {
  if (!call.node.requires_grad) return {};
  Maker maker(call);
  rules_of(call.node.op).backward(maker);
  return maker.take();
}

std::vector<Viewed> forward_view(const Call& call) {
  check_inputs(call);
  if (call.node.op == Op::Split) return split_views(call);
  if (call.node.in_place || call.node.op == Op::Detach) return {{0, call.inputs[0]}};
  if (call.node.op == Op::Expand) {
    const Shape& to = call.graph.tensor(call.graph.output(call.node)).shape;
    return {{0, {call.inputs[0].dtype, broadcast_to(call.inputs[0].layout, extents(to))}}};
  }
  const OffsetLayout seen = stepped(call, call.inputs[0].layout);
  return {{seen.offset, {call.inputs[0].dtype, seen.layout}}};
}

Viewed backward_view(const Call& call, std::size_t input, const Described& gradient) {
  if (call.node.op == Op::Cat) return joined_part(call, input, gradient);
  if (call.node.op == Op::Stack) return stacked_part(call, input, gradient);
  const Shape& shape = call.graph.tensor(call.graph.input(call.node, input)).shape;
  const auto seen_as = [&](const std::optional<Layout>& layout) -> Viewed {
    if (!layout) no_view(call);
    return {0, {gradient.dtype, *layout}};
  };
  switch (call.node.op) {
    case Op::View: {
      const std::span<const ViewStep> steps = call.graph.steps(call.node);
      if (!steps.empty()) return seen_as(undo_steps(gradient.layout, extents(shape), steps));
      return seen_as(reshaped(gradient.layout, extents(shape)));
    }
    case Op::SumDim: {
      const Layout whole = beside_summed(gradient.layout, shape.rank, static_cast<std::size_t>(call.node.number));
      return seen_as(broadcast_to(whole, extents(shape)));
    }
    case Op::Contiguous:
    case Op::AllReduce:
    case Op::CopyToParallel:
    case Op::Add:
    case Op::Sub:
    case Op::AddScalar:
    case Op::SubScalar: return seen_as(reshaped(gradient.layout, extents(shape)));
    default: no_view(call);
  }
}

Described sum_of_gradients(const Described& first, const Described& second) {
  const std::array layouts{first.layout, second.layout};
  return {first.dtype, elementwise_layout(first.layout.extents(), layouts)};
}

Described clone_of_gradient(const Described& gradient) { return {gradient.dtype, contiguous_like(gradient.layout)}; }

namespace {

// Which slots a call makes depends on shapes and dtypes, not on how anything lies: as if all of it were contiguous.
std::vector<std::int64_t> slots_of(const Graph& graph, const Node& node, const DeviceThreads& device, bool backward) {
  const auto described = [&](TensorId id) {
    return Described{graph.tensor(id).dtype, contiguous(graph.tensor(id).shape)};
  };
  std::vector<Described> inputs;
  std::vector<std::optional<Described>> gradients;
  for (const TensorId id : graph.in(node)) inputs.push_back(described(id));
  for (const TensorId id : graph.out(node)) gradients.emplace_back(described(id));
  const Call call{graph, node, inputs, gradients, {}, device};
  std::vector<std::int64_t> slots;
  for (const Made& made : backward ? backward_makes(call) : forward_makes(call)) {
    slots.push_back(DSPLAN_SLOT(static_cast<std::int64_t>(made.kind), made.index));
  }
  return slots;
}

}  // namespace

Attributes attributes_of(const Graph& graph, const Node& node, const DeviceThreads& device) {
  std::int64_t needs = 0;
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if (node.requires_grad && graph.tensor(graph.input(node, i)).requires_grad) needs |= std::int64_t{1} << i;
  }
  std::int64_t flags = 0;
  const auto flag = [&flags](bool set, int bit) { flags |= set ? bit : 0; };
  flag(node.in_place, DSPLAN_FLAG_IN_PLACE);
  flag(node.safe, DSPLAN_FLAG_SAFE);
  flag(node.filled, DSPLAN_FLAG_FILLED);
  flag(node.full_attention, DSPLAN_FLAG_FULL_ATTENTION);
  flag(node.gradient_copied, DSPLAN_FLAG_GRADIENT_COPIED);
  flag(node.requires_grad, DSPLAN_FLAG_REQUIRES_GRAD);
  flag(node.by_head && (node.attention == AttentionKernel::Flash || node.op == Op::Embedding), DSPLAN_FLAG_BY_HEAD);
  const bool runs = !cannot_run(graph, node);
  const std::vector<Kept> kept = runs ? keeps(graph, node) : std::vector<Kept>{};
  const std::vector<std::int64_t> forward = runs ? slots_of(graph, node, device, false) : std::vector<std::int64_t>{};
  const std::vector<std::int64_t> backward = runs ? slots_of(graph, node, device, true) : std::vector<std::int64_t>{};
  const std::span<const ViewStep> steps = graph.steps(node);
  Attributes attributes;
  attributes.integers = {node.input_count,
                         node.output_count,
                         needs,
                         flags,
                         static_cast<std::int64_t>(node.product),
                         static_cast<std::int64_t>(node.reduction),
                         node.axis,
                         static_cast<std::int64_t>(node.attention),
                         node.padding,
                         node.bounds,
                         static_cast<std::int64_t>(kept.size()),
                         static_cast<std::int64_t>(forward.size()),
                         static_cast<std::int64_t>(backward.size()),
                         static_cast<std::int64_t>(steps.size())};
  for (const Kept& one : kept)
    attributes.integers.push_back(DSPLAN_KEPT(static_cast<std::int64_t>(one.kind), one.index));
  attributes.integers.insert(attributes.integers.end(), forward.begin(), forward.end());
  attributes.integers.insert(attributes.integers.end(), backward.begin(), backward.end());
  for (const ViewStep& step : steps) {
    attributes.integers.insert(attributes.integers.end(), {static_cast<std::int64_t>(step.kind), step.a, step.b,
                                                           step.start, step.length, step.shape.rank});
    attributes.integers.insert(attributes.integers.end(), step.shape.dims.begin(), step.shape.dims.end());
  }
  attributes.numbers = {node.number, node.scale};
  return attributes;
}

}  // namespace dsplan::exec
