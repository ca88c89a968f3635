// Who knows whose work to be behind him: a vector clock for each stream. Work is behind its own stream; an event that
// is recorded on a stream stands for all that is behind it there; who waits for the event knows the same. By this a
// wait that would tell nobody anything new is never written.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "core/schedule.h"
#include "sim/recorded_events.h"

namespace dsplan {

class HappensBefore {
 public:
  // One more piece of work is enqueued on `stream`.
  void work_on(StreamId stream) { ++behind_[stream][stream]; }

  // Whether what `waiter` is given next comes after all that `on` was given so far. The host (kHostSync) is behind
  // what all streams are behind: after a sync it enqueues on all of them.
  [[nodiscard]] bool is_behind(StreamId waiter, StreamId on) const { return knows(waiter, behind_[on]); }

  // Event `id` is recorded on `on`. Identities ascend.
  void record(ContentId id, StreamId on) { recorded_.push_back({id, behind_[on]}); }

  // `waiter` waits for a recorded event. False, and nothing changes, where it is behind it already.
  bool wait(StreamId waiter, ContentId id) {
    const auto event = find_recorded(recorded_, id, [](const Recorded& one) { return one.id; });
    if (knows(waiter, event->behind)) return false;
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      if (waiter == kHostSync || waiter == stream) join(behind_[stream], event->behind);
    }
    return true;
  }

 private:
  using Clock = std::array<std::uint32_t, kStreams>;  // How much of each stream's work.
  struct Recorded {
    ContentId id = kNone;
    Clock behind{};
  };

  static void join(Clock& clock, const Clock& with) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) clock[stream] = std::max(clock[stream], with[stream]);
  }
  [[nodiscard]] bool knows(StreamId waiter, const Clock& what) const {
    const auto knows_one = [&](const Clock& clock) {
      return std::equal(what.begin(), what.end(), clock.begin(), std::less_equal<>());
    };
    return waiter == kHostSync ? std::all_of(behind_.begin(), behind_.end(), knows_one) : knows_one(behind_[waiter]);
  }

  std::array<Clock, kStreams> behind_{};  // By stream; its own work included.
  std::vector<Recorded> recorded_;        // Ascending.
};

}  // namespace dsplan
