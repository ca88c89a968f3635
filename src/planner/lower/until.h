// Where a schedule is no longer wanted: lowering ends there, and nothing of it is left.
#pragma once

#include <atomic>
#include <optional>

#include "core/units.h"

namespace dsplan {

struct Until {
  // What may live on the device at once, saving the model left out.
  std::optional<Bytes> room;
  // Set by another thread that has what makes this one needless; nullptr: nobody can.
  const std::atomic<bool>* unwanted = nullptr;

  // Whether it can be reached at all.
  [[nodiscard]] bool given() const { return room || unwanted != nullptr; }
  [[nodiscard]] bool reached(Bytes live) const {
    return (room && live > *room) || (unwanted != nullptr && unwanted->load(std::memory_order_relaxed));
  }
};

// Thrown there.
struct Ended {};

}  // namespace dsplan
