// How a tensor lies in memory: dtype, dimensions and strides, in elements. Follows PyTorch: what an elementwise
// operator makes keeps the order of dimensions of a dense input; products and reshapes that copy are contiguous.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/model.h"
#include "core/units.h"
#include "exec/backend.h"

namespace dsplan::exec {

struct Layout {
  std::uint8_t rank = 0;
  std::array<std::int64_t, DSPLAN_MOST_DIMS> dims{};
  std::array<std::int64_t, DSPLAN_MOST_DIMS> strides{};

  [[nodiscard]] std::span<const std::int64_t> extents() const { return {dims.data(), rank}; }
  [[nodiscard]] bool is(const Shape& shape) const;  // Has these dimensions.
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] bool contiguous() const;
  // Without holes and without overlaps: a permutation of a contiguous layout.
  [[nodiscard]] bool dense() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};
[[nodiscard]] std::span<const std::int64_t> extents(const Shape& shape);
[[nodiscard]] Layout contiguous(std::span<const std::int64_t> dims);
[[nodiscard]] Layout contiguous(const Shape& shape);
[[nodiscard]] Layout contiguous_like(const Layout& like);
// What an elementwise operator makes of these operands, which broadcast to `dims`: contiguous where all of them are,
// else dense, its dimensions in the order of the operands' strides; the first operand that can tell two dimensions
// apart decides (ATen's TensorIterator, reorder_dimensions). With one operand this is what empty_like makes.
[[nodiscard]] Layout elementwise_layout(std::span<const std::int64_t> dims, std::span<const Layout> operands);
[[nodiscard]] Layout laid_out_like(const Layout& like);
// Seen at `dims`, to which it broadcasts: repeated elements have stride 0. The dimensions must allow it.
[[nodiscard]] Layout broadcast_to(const Layout& from, std::span<const std::int64_t> dims);
// What is left of a sum over one dimension, `summed` of `rank`, with that dimension beside the others, of one element;
// as it is, where the sum has as many dimensions, or others were summed.
[[nodiscard]] Layout beside_summed(const Layout& sum, std::size_t rank, std::size_t summed);
// What reshape makes without a copy (ATen's computeStride); nullopt where it has to copy.
[[nodiscard]] std::optional<Layout> reshaped(const Layout& from, std::span<const std::int64_t> dims);

// A tensor without its data.
struct Described {
  DType dtype = DType::Float32;
  Layout layout;
  [[nodiscard]] Bytes bytes() const;  // Of the storage that a dense tensor of this description fills.
};

// Such a tensor at `data`, as kernels take it.
[[nodiscard]] dsplan_tensor tensor_at(void* data, const Described& what);

// A view: where it begins, in elements from the first of what it is a view of, and how it lies there.
struct Viewed {
  std::int64_t offset = 0;
  Described what;
};

}  // namespace dsplan::exec
