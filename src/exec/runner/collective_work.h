// Collectives of a rank's schedule, and how long the rank stood still for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "exec/runner/launcher.h"
#include "exec/transport/transport.h"

namespace dsplan::exec {

// Time that nothing hides, waiting for other ranks included. Where every call has done its work when it returns, that
// is the time of calls; on a device that only enqueues, it is the time between pairs of events on the compute stream,
// known once they have happened.
class ExposedTime {
 public:
  explicit ExposedTime(Device& device) : device_(device) {}

  // Calls `work`, which enqueues on `stream`.
  template <class Work>
  void around(StreamId stream, Work&& work) {
    if (device_.synchronous()) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      const auto took = std::chrono::steady_clock::now() - begin;
      nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
      return;
    }
    if (stream == kComputeStream) begin_pair();
    work();
    if (stream == kComputeStream) pairs_[used_++].end.record(kComputeStream);
  }
  // All that was enqueued has happened.
  void settle();
  [[nodiscard]] std::int64_t nanoseconds() const { return nanoseconds_; }

 private:
  struct Pair {
    DeviceEvent begin;
    DeviceEvent end;
  };
  void begin_pair();

  Device& device_;
  std::vector<Pair> pairs_;  // The first `used_` have been recorded.
  std::size_t used_ = 0;
  std::int64_t nanoseconds_ = 0;
};

// A flag of one byte: any rank's counts.
[[nodiscard]] bool is_flag(const Communicate& event);

class CollectiveWork {
 public:
  // All must outlive this.
  CollectiveWork(Device& device, Launcher& launcher, Communicators& communicators, ExposedTime& exposed)
      : device_(device), launcher_(launcher), communicators_(communicators), exposed_(exposed) {}

  void run(std::size_t at, const Communicate& event, const Task& task);

  // Every collective so far, with what it really sent, and the event at which it was called.
  struct Sent {
    std::size_t event = 0;
    CallRecord record;
  };
  [[nodiscard]] const std::vector<Sent>& sent() const { return sent_; }

 private:
  [[nodiscard]] Piece joined(const std::vector<Piece>& parts, const Piece& place);

  Device& device_;
  Launcher& launcher_;
  Communicators& communicators_;
  ExposedTime& exposed_;
  std::vector<Sent> sent_;
};

}  // namespace dsplan::exec
