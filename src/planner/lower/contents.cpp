#include "planner/lower/contents.h"

#include <array>
#include <iterator>

namespace dsplan {

std::vector<Contents::Piece>& Contents::list_of(Held& held) {
  if (held.pieces < 0) {
    held.pieces = static_cast<std::int32_t>(lists_.size());
    lists_.emplace_back();
    if (held.whole.content != kNone) lists_.back().push_back(held.whole);
  }
  return lists_[static_cast<std::size_t>(held.pieces)];
}

// Pieces are in order and do not overlap. A bucket is filled from left to right, and a flat tensor written again in
// the same pieces: both are found by bisection and cost no copy.
void Contents::insert(std::vector<Piece>& list, const Piece& made) {
  const Bytes offset = made.offset;
  const auto touched =
      std::partition_point(list.begin(), list.end(), [&](const Piece& p) { return p.offset + p.bytes <= offset; });
  if (touched == list.end()) {
    list.push_back(made);
    return;
  }
  if (touched->offset == offset && touched->bytes == made.bytes) {
    *touched = made;
    return;
  }
  // What is overwritten in part keeps its identity outside the new piece.
  const Bytes end = offset + made.bytes;
  const auto beyond = std::partition_point(touched, list.end(), [&](const Piece& p) { return p.offset < end; });
  std::array<Piece, 3> parts;
  std::ptrdiff_t count = 0;
  if (touched != beyond && touched->offset < offset) {
    parts[static_cast<std::size_t>(count++)] = {touched->content, touched->offset, offset - touched->offset};
  }
  parts[static_cast<std::size_t>(count++)] = made;
  if (touched != beyond) {
    const Piece& last = *std::prev(beyond);
    const Bytes last_end = last.offset + last.bytes;
    if (last_end > end) parts[static_cast<std::size_t>(count++)] = {last.content, end, last_end - end};
  }
  const std::ptrdiff_t replaced = std::min(count, beyond - touched);
  const auto rest = std::copy(parts.begin(), parts.begin() + replaced, touched);
  if (rest != beyond) {
    list.erase(rest, beyond);
  } else {
    list.insert(rest, parts.begin() + replaced, parts.begin() + count);
  }
}

}  // namespace dsplan
