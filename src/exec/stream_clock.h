// The time that work takes on a device which only enqueues it: between pairs of events, added up once it has happened.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/device.h"

namespace dsplan::exec {

class StreamClock {
 public:
  explicit StreamClock(Device& device) : device_(device) {}
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  // Around what is enqueued on one stream, in turns.
  void begin(StreamId stream);
  void end(StreamId stream);
  // Adds what is between the pairs so far; all of it must have happened.
  void settle();
  [[nodiscard]] std::int64_t nanoseconds() const { return nanoseconds_; }

 private:
  struct Pair {
    dsplan_event* begin = nullptr;
    dsplan_event* end = nullptr;
  };

  Device& device_;
  std::vector<Pair> pairs_;  // The first `used_` have been recorded.
  std::size_t used_ = 0;
  std::int64_t nanoseconds_ = 0;
};

}  // namespace dsplan::exec
