// What buffers hold: one content, or several that lie side by side in pieces. A flat buffer of a large model has
// thousands of pieces, so that they are kept in order and found by bisection.
#pragma once

#include <algorithm>
#include <vector>

#include "core/schedule.h"

namespace dsplan {

class Contents {
 public:
  struct Piece {
    ContentId content = kNone;
    Bytes offset;
    Bytes bytes;
  };

  // What one buffer holds; small, because every buffer of a schedule has one.
  struct Held {
    std::int32_t pieces = -1;  // Which list of Contents, once there is more than one content.
    Piece whole;               // The single content otherwise; content kNone: nothing yet.
  };

  // `each(piece)` for all that `held` names, in the order of their offsets.
  template <class Each>
  void read(const Held& held, Each&& each) const {
    if (held.pieces < 0) return each(held.whole);
    for (const Piece& piece : lists_[static_cast<std::size_t>(held.pieces)]) each(piece);
  }

  // For what lies in [offset, offset + bytes), cut to that.
  template <class Each>
  void read(const Held& held, Bytes offset, Bytes bytes, Each&& each) const {
    if (held.pieces < 0) return each(Piece{held.whole.content, offset, bytes});
    const std::vector<Piece>& list = lists_[static_cast<std::size_t>(held.pieces)];
    const Bytes end = offset + bytes;
    auto piece =
        std::partition_point(list.begin(), list.end(), [&](const Piece& p) { return p.offset + p.bytes <= offset; });
    for (; piece != list.end() && piece->offset < end; ++piece) {
      const Bytes from = std::max(offset, piece->offset);
      each(Piece{piece->content, from, std::min(end, piece->offset + piece->bytes) - from});
    }
  }

  // `made` replaces what it overlaps. `all`: it fills the buffer.
  void write(Held& held, const Piece& made, bool all) {
    if (!all) return insert(list_of(held), made);
    if (held.pieces >= 0) lists_[static_cast<std::size_t>(held.pieces)].assign(1, made);
    held.whole = made;
  }

 private:
  std::vector<Piece>& list_of(Held& held);
  static void insert(std::vector<Piece>& list, const Piece& made);

  std::vector<std::vector<Piece>> lists_;
};

}  // namespace dsplan
