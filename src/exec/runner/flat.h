// Sequences of elements that lie in several stretches of memory, walked side by side; single numbers in them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/schedule.h"
#include "core/units.h"
#include "exec/backend.h"
#include "exec/operators/layout.h"

namespace dsplan::exec {

// `data` == nullptr: zeros.
struct Piece {
  std::byte* data = nullptr;
  DType dtype = DType::Float32;
  std::int64_t elements = 0;
  Space space = Space::Device;

  [[nodiscard]] Piece part(std::int64_t from, std::int64_t count) const {
    std::byte* begin = data == nullptr ? nullptr : data + from * bytes_per_element(dtype);
    return {begin, dtype, count, space};
  }
};
[[nodiscard]] inline bool same_stretch(const Piece& a, const Piece& b) {
  return a.data == b.data && a.elements == b.elements && a.dtype == b.dtype;
}
[[nodiscard]] inline bool is_among(const Piece& piece, std::span<const Piece> pieces) {
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& each) { return same_stretch(each, piece); });
}
// The same elements without the first `count`, cut to `length`.
[[nodiscard]] std::vector<Piece> stretch(std::span<const Piece> pieces, std::int64_t from, std::int64_t length);

// Calls f(from, to) for stretches of equal length that cover all of `to`; where `from` ends early, with zeros.
// InternalError where it is longer.
template <class F>
void side_by_side(std::span<const Piece> from, std::span<const Piece> to, F&& f) {
  std::size_t at = 0;
  std::int64_t used = 0;
  for (const Piece& target : to) {
    for (std::int64_t done = 0; done < target.elements;) {
      while (at < from.size() && used == from[at].elements) {
        ++at;
        used = 0;
      }
      const bool over = at == from.size();
      const std::int64_t left = target.elements - done;
      const std::int64_t count = over ? left : std::min(left, from[at].elements - used);
      f(over ? Piece{nullptr, target.dtype, count, target.space} : from[at].part(used, count),
        target.part(done, count));
      done += count;
      used += over ? 0 : count;
    }
  }
  while (at < from.size() && used == from[at].elements) {
    ++at;
    used = 0;
  }
  DSPLAN_CHECK(at == from.size(), "flat work reads more than it writes");
}

// A one-dimensional tensor over a piece.
[[nodiscard]] dsplan_tensor tensor_of(const Piece& piece);

// A number in any floating dtype; rounded to the nearest, ties to even. InternalError for another dtype.
void encode_float(double value, DType dtype, std::byte* to);
[[nodiscard]] double decode_float(const std::byte* from, DType dtype);
[[nodiscard]] std::vector<std::byte> encoded(std::span<const double> values, DType dtype);

}  // namespace dsplan::exec
