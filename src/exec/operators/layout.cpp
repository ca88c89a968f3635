#include "exec/operators/layout.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace dsplan::exec {
namespace {

constexpr std::size_t kMost = DSPLAN_MOST_DIMS;

// Whether dimension `a` must lie outside dimension `b`: 1 yes, -1 no, 0 the operands do not say.
int lies_outside(std::span<const Layout> operands, std::span<const std::int64_t> dims, std::size_t a, std::size_t b) {
  for (const Layout& operand : operands) {
    const std::int64_t stride_a = operand.strides[a];
    const std::int64_t stride_b = operand.strides[b];
    if (stride_a == 0 || stride_b == 0) continue;  // Repeated elements have no order.
    if (stride_a < stride_b) return -1;
    if (stride_a > stride_b) return 1;
    if (dims[a] > dims[b]) return 1;
  }
  return 0;
}

Layout with_dims(std::span<const std::int64_t> dims) {
  DSPLAN_CHECK(dims.size() <= kMost, "too many dimensions");
  Layout layout;
  layout.rank = static_cast<std::uint8_t>(dims.size());
  std::copy(dims.begin(), dims.end(), layout.dims.begin());
  return layout;
}

}  // namespace

std::span<const std::int64_t> extents(const Shape& shape) { return {shape.dims.data(), shape.rank}; }

std::int64_t Layout::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t dim : extents()) count = checked_mul(count, dim);
  return count;
}

bool Layout::is(const Shape& shape) const { return std::ranges::equal(extents(), exec::extents(shape)); }

bool Layout::contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t i = rank; i-- > 0;) {
    if (dims[i] == 0) return true;
    if (dims[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= dims[i];
  }
  return true;
}

bool Layout::dense() const {
  // Each stride in turn must be found: the product of the dimensions that lie inside it.
  std::int64_t expected = 1;
  std::array<bool, kMost> found{};
  for (std::size_t placed = 0; placed < rank; ++placed) {
    std::size_t next = rank;
    for (std::size_t i = 0; i < rank; ++i) {
      if (!found[i] && (dims[i] == 1 || strides[i] == expected)) next = i;
      if (next == i && dims[i] == 1) break;
    }
    if (next == rank) return false;
    found[next] = true;
    expected *= dims[next];
  }
  return true;
}

Layout contiguous(std::span<const std::int64_t> dims) {
  Layout layout = with_dims(dims);
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    layout.strides[i] = stride;
    stride = checked_mul(stride, std::max<std::int64_t>(1, dims[i]));
  }
  return layout;
}

Layout contiguous(const Shape& shape) { return contiguous(extents(shape)); }
Layout contiguous_like(const Layout& like) { return contiguous(like.extents()); }

Layout broadcast_to(const Layout& from, std::span<const std::int64_t> dims) {
  DSPLAN_CHECK(from.rank <= dims.size(), "a tensor does not broadcast to fewer dimensions");
  Layout layout = with_dims(dims);
  const std::size_t missing = dims.size() - from.rank;
  for (std::size_t i = 0; i < from.rank; ++i) {
    const std::int64_t own = from.dims[i];
    DSPLAN_CHECK(own == dims[missing + i] || own == 1, "dimensions do not broadcast");
    layout.strides[missing + i] = own == dims[missing + i] ? from.strides[i] : 0;
  }
  return layout;
}

Layout elementwise_layout(std::span<const std::int64_t> dims, std::span<const Layout> operands) {
  std::vector<Layout> seen;
  bool plain = true;
  for (const Layout& operand : operands) {
    seen.push_back(broadcast_to(operand, dims));
    plain = plain && seen.back().contiguous();
  }
  if (plain) return contiguous(dims);
  // From the innermost on, sorted by insertion: comparisons may be undecided, and then the order stays.
  std::array<std::size_t, kMost> order{};
  for (std::size_t i = 0; i < dims.size(); ++i) order[i] = dims.size() - 1 - i;
  for (std::size_t i = 1; i < dims.size(); ++i) {
    std::size_t moving = i;
    for (std::size_t at = i; at-- > 0;) {
      const int verdict = lies_outside(seen, dims, order[at], order[moving]);
      if (verdict > 0) {
        std::swap(order[at], order[moving]);
        moving = at;
      } else if (verdict < 0) {
        break;
      }
    }
  }
  Layout layout = with_dims(dims);
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    layout.strides[order[i]] = stride;
    stride = checked_mul(stride, std::max<std::int64_t>(1, dims[order[i]]));
  }
  return layout;
}

Layout laid_out_like(const Layout& like) { return elementwise_layout(like.extents(), {&like, 1}); }

Layout beside_summed(const Layout& sum, std::size_t rank, std::size_t summed) {
  if (sum.rank + 1U != rank || summed >= rank) return sum;
  Layout whole = sum;
  for (std::size_t d = sum.rank; d > summed; --d) {
    whole.dims[d] = sum.dims[d - 1];
    whole.strides[d] = sum.strides[d - 1];
  }
  whole.dims[summed] = 1;
  whole.strides[summed] = 0;
  ++whole.rank;
  return whole;
}

std::optional<Layout> reshaped(const Layout& from, std::span<const std::int64_t> dims) {
  Layout to = with_dims(dims);
  if (from.elements() != to.elements()) return std::nullopt;
  if (from.elements() == 0 || from.rank == 0) return exec::contiguous(dims);
  // Runs of old dimensions that lie as one are cut into new ones, from the innermost on.
  std::size_t next = dims.size();  // New dimensions from here on have their stride.
  std::int64_t base = from.strides[from.rank - 1U];
  std::int64_t old_count = 1;
  std::int64_t new_count = 1;
  for (std::size_t at = from.rank; at-- > 0;) {
    old_count *= from.dims[at];
    const bool run_ends = at == 0 || (from.dims[at - 1] != 1 && from.strides[at - 1] != old_count * base);
    if (!run_ends) continue;
    while (next > 0 && (new_count < old_count || dims[next - 1] == 1)) {
      to.strides[next - 1] = new_count * base;
      new_count *= dims[next - 1];
      --next;
    }
    if (new_count != old_count) return std::nullopt;
    if (at > 0) {
      base = from.strides[at - 1];
      old_count = 1;
      new_count = 1;
    }
  }
  return next == 0 ? std::optional(to) : std::nullopt;
}

Bytes Described::bytes() const { return storage(Elements(layout.elements()), dtype); }

dsplan_tensor tensor_at(void* data, const Described& what) {
  dsplan_tensor tensor{};
  tensor.data = data;
  tensor.dtype = static_cast<std::int32_t>(what.dtype);
  tensor.rank = what.layout.rank;
  for (std::size_t d = 0; d < what.layout.rank; ++d) {
    tensor.dims[d] = what.layout.dims[d];
    tensor.strides[d] = what.layout.strides[d];
  }
  return tensor;
}

}  // namespace dsplan::exec
