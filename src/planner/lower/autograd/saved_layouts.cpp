#include "planner/lower/autograd/saved_layouts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

namespace dsplan {
namespace {

using Strides = std::array<std::int64_t, Shape::kMostDims>;

struct Strided {
  Shape shape;
  Strides strides{};
  std::int64_t offset = 0;
};

Strided in_order(const Shape& shape, std::span<const std::size_t> inner_first) {
  Strided made{shape};
  std::int64_t stride = 1;
  for (const std::size_t dim : inner_first) {
    made.strides[dim] = stride;
    stride *= std::max<std::int64_t>(1, shape.dims[dim]);
  }
  return made;
}

std::vector<std::size_t> inner_first(const Shape& shape) {
  std::vector<std::size_t> order;
  for (std::size_t dim = shape.rank; dim-- > 0;) order.push_back(dim);
  return order;
}

Strided row_by_row(const Shape& shape) { return in_order(shape, inner_first(shape)); }

bool is_contiguous(const Strided& tensor) {
  const Strided plain = row_by_row(tensor.shape);
  for (std::size_t dim = 0; dim < tensor.shape.rank; ++dim) {
    if (tensor.shape.dims[dim] != 1 && tensor.strides[dim] != plain.strides[dim]) return false;
  }
  return true;
}

// at::detail::computeStride: runs of old dimensions that lie as one are cut into new ones, from the innermost on.
// What is no view at all is copied.
Strided reshaped(const Strided& from, const Shape& to) {
  Strided made = row_by_row(to);
  if (is_contiguous(from)) {
    made.offset = from.offset;
    return made;
  }
  std::size_t next = to.rank;
  std::int64_t base = from.strides[from.shape.rank - 1U];
  std::int64_t old_count = 1;
  std::int64_t new_count = 1;
  for (std::size_t at = from.shape.rank; at-- > 0;) {
    old_count *= from.shape.dims[at];
    const bool goes_on = at > 0 && (from.shape.dims[at - 1] == 1 || from.strides[at - 1] == old_count * base);
    if (goes_on) continue;
    while (next > 0 && (new_count < old_count || to.dims[next - 1] == 1)) {
      made.strides[--next] = new_count * base;
      new_count *= to.dims[next];
    }
    if (new_count != old_count) return row_by_row(to);
    if (at > 0) base = from.strides[at - 1];
    old_count = new_count = 1;
  }
  made.offset = from.offset;
  return made;
}

Strided broadcast(const Strided& from, const Shape& to) {
  Strided made{to};
  made.offset = from.offset;
  const std::size_t missing = static_cast<std::size_t>(to.rank) - std::min(from.shape.rank, to.rank);
  for (std::size_t dim = missing; dim < to.rank; ++dim) {
    const std::int64_t own = from.shape.dims[dim - missing];
    made.strides[dim] = own == to.dims[dim] && own != 1 ? from.strides[dim - missing] : 0;
  }
  return made;
}

// TensorIterator's reorder_dimensions: whether `a` must lie outside `b`: 1 yes, -1 no, 0 the operands do not say.
int lies_outside(std::span<const Strided> operands, std::size_t a, std::size_t b) {
  for (const Strided& one : operands) {
    if (one.strides[a] == 0 || one.strides[b] == 0) continue;
    if (one.strides[a] != one.strides[b]) return one.strides[a] < one.strides[b] ? -1 : 1;
    if (one.shape.dims[a] > one.shape.dims[b]) return 1;
  }
  return 0;
}

Strided elementwise(const Shape& shape, std::span<const Strided> operands) {
  std::vector<std::size_t> order = inner_first(shape);
  for (std::size_t i = 1; i < order.size(); ++i) {
    std::size_t moving = i;
    for (std::size_t at = i; at-- > 0;) {
      const int verdict = lies_outside(operands, order[at], order[moving]);
      if (verdict < 0) break;
      if (verdict == 0) continue;
      std::swap(order[at], order[moving]);
      moving = at;
    }
  }
  return in_order(shape, order);
}

Strided stepped(Strided seen, std::span<const ViewStep> steps) {
  for (const ViewStep& step : steps) {
    const auto a = static_cast<std::size_t>(step.a);
    const auto b = static_cast<std::size_t>(step.b);
    switch (step.kind) {
      case ViewStep::Kind::Reshape: seen = reshaped(seen, step.shape); break;
      case ViewStep::Kind::Swap:
        std::swap(seen.shape.dims[a], seen.shape.dims[b]);
        std::swap(seen.strides[a], seen.strides[b]);
        break;
      case ViewStep::Kind::Narrow:
        seen.offset += step.start * seen.strides[a];
        seen.shape.dims[a] = step.length;
        break;
      case ViewStep::Kind::Repeat:
        seen.shape.dims[a] = step.length;
        seen.strides[a] = 0;
        break;
    }
  }
  return seen;
}

bool keeps_order(Op op) {
  switch (op) {
    case Op::Cast:
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Div:
    case Op::Maximum:
    case Op::Minimum:
    case Op::Where:
    case Op::MaskedFill:
    case Op::AddScalar:
    case Op::SubScalar:
    case Op::MulScalar:
    case Op::DivScalar:
    case Op::PowScalar:
    case Op::Clamp:
    case Op::Neg:
    case Op::Exp:
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Tanh:
    case Op::Sigmoid:
    case Op::Relu:
    case Op::Gelu:
    case Op::Silu:
    case Op::Dropout: return true;
    default: return false;
  }
}

class Layouts {
 public:
  explicit Layouts(const Graph& graph) : graph_(graph), lie_(graph.tensors.size()) {
    for (const TensorId id : lie_.ids()) lie_[id] = row_by_row(graph.tensor(id).shape);
    for (const Instruction& one : graph.program) {
      if (one.kind == Instruction::Kind::Run) follow(graph.node(one.node()));
    }
  }

  [[nodiscard]] const Strided& of(TensorId id) const { return lie_[id]; }

 private:
  void follow(const Node& node) {
    if (node.output_count == 0) return;
    const TensorId out = graph_.output(node);
    const Shape& shape = graph_.tensor(out).shape;
    if (node.in_place || node.op == Op::Detach) {
      lie_[out] = lie_[graph_.input(node, 0)];
    } else if (node.op == Op::View || node.op == Op::Slice) {
      const std::span<const ViewStep> steps = graph_.steps(node);
      const Strided& from = lie_[graph_.input(node, 0)];
      lie_[out] = steps.empty() ? reshaped(from, shape) : stepped(from, steps);
    } else if (node.op == Op::Expand) {
      lie_[out] = broadcast(lie_[graph_.input(node, 0)], shape);
    } else if (node.op == Op::Split) {
      split(node);
    } else if (node.op == Op::Attention && !node.by_head) {
      constexpr std::array<std::size_t, 4> kByToken{3, 1, 2, 0};
      lie_[out] = in_order(shape, kByToken);
    } else if (keeps_order(node.op)) {
      std::vector<Strided> operands;
      for (const TensorId in : graph_.in(node)) operands.push_back(broadcast(lie_[in], shape));
      lie_[out] = elementwise(shape, operands);
    }
  }

  void split(const Node& node) {
    Strided part = lie_[graph_.input(node, 0)];
    const auto axis = static_cast<std::size_t>(node.axis);
    for (const TensorId out : graph_.out(node)) {
      part.shape = graph_.tensor(out).shape;
      lie_[out] = part;
      part.offset += part.shape.dims[axis] * part.strides[axis];
    }
  }

  const Graph& graph_;
  Indexed<TensorId, Strided> lie_;
};

}  // namespace

Indexed<TensorId, SavedLayout> saved_layouts(const Graph& graph) {
  const Layouts layouts(graph);
  Indexed<TensorId, SavedLayout> made(graph.tensors.size());
  for (const TensorId id : made.ids()) {
    const Strided& one = layouts.of(id);
    SavedLayout& layout = made[id];
    layout.offset = one.offset;
    layout.contiguous = is_contiguous(one);
    for (std::size_t dim = 0; dim < one.shape.rank; ++dim) layout.repeated |= one.strides[dim] == 0;
  }
  return made;
}

}  // namespace dsplan
