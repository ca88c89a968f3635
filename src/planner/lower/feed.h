// A schedule that another thread reads while it is written. What was written stays where it is, unless the vector that
// holds it moves: the writer says so, and nobody reads meanwhile. Of what the reader looks at nothing changes once it
// was published: events, accesses, prints, and of buffers their size, dtype and space.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>

#include "core/schedule.h"

namespace dsplan {

class Feed {
 public:
  // Events from the first to the one behind the last; `last`: the schedule has no more. It is whole then, and stands
  // still until this has returned.
  using Read = std::function<void(const Schedule& schedule, std::size_t begin, std::size_t end, bool last)>;

  // `at_once`: events that are published together.
  explicit Feed(std::size_t at_once = 2048) : at_once_(at_once), next_(at_once) {}

  // Whoever writes. `schedule` has no event yet.
  void begin(const Schedule& schedule) { schedule_ = &schedule; }
  void wrote(std::size_t events) {
    if (events >= next_) publish(events);
  }
  template <class Move>
  void moving(const Move& move) {
    const std::lock_guard<std::mutex> lock(reading_);
    move();
  }
  // There are no more events. Returns when all were read.
  void end(std::size_t events);
  // Nothing is read any more. Returns when nobody reads.
  void abandon();

  // Whoever reads, on a thread of its own: returns when everything was read, or the writer has given up.
  void follow(const Read& read);

 private:
  static constexpr std::size_t kAbandoned = ~std::size_t{0};

  void publish(std::size_t events);
  // Up to `events`, unless the writer has given up.
  bool read_some(const Read& read, std::size_t begin, std::size_t events, bool last);

  const Schedule* schedule_ = nullptr;
  std::size_t at_once_;
  std::size_t next_;
  std::atomic<std::size_t> published_{0};  // Twice the events, and one more where there are no others.
  std::atomic<bool> followed_{false};      // Nobody reads any more.
  std::mutex reading_;
};

}  // namespace dsplan
