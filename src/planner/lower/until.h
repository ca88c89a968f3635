// How much is wanted of a schedule, and where it is no longer wanted: lowering ends there, and nothing of it is left.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "core/schedule.h"
#include "core/units.h"

namespace dsplan {

struct Until {
  // Peaks alone are read off it, no single event: what is made together may be one buffer (Schedule::pieces), and
  // nobody asks what the framework prints.
  bool peaks_alone = false;
  // What may live on the device at once, saving the model left out.
  std::optional<Bytes> room;
  // Set by another thread that has what makes this one needless; nullptr: nobody can.
  const std::atomic<bool>* unwanted = nullptr;
  // Whether what is written so far is wanted: asked every few thousand events, while those are still in the caches, and
  // behind the last one. Empty: nobody looks.
  std::function<bool(const Schedule&)> still_wanted = {};

  // Whether it can be reached at all.
  [[nodiscard]] bool given() const { return room || unwanted != nullptr || still_wanted; }
  [[nodiscard]] bool reached(Bytes live, const Schedule& written) {
    if (room && live > *room) return true;
    if (unwanted != nullptr && unwanted->load(std::memory_order_relaxed)) return true;
    if (!still_wanted || written.events.size() < next_look_) return false;
    next_look_ = written.events.size() + kLook;
    return !still_wanted(written);
  }

 private:
  static constexpr std::size_t kLook = 2048;  // Events.
  std::size_t next_look_ = kLook;
};

// Thrown there.
struct Ended {};

}  // namespace dsplan
