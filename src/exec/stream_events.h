// The events that a schedule records on streams and waits for, on a device. Nothing
// where every call has done its work when it returns.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/schedule.h"
#include "exec/device.h"
#include "sim/stream_waits.h"

namespace dsplan::exec {

class StreamEvents {
 public:
  StreamEvents(Device& device, const Schedule& schedule);
  ~StreamEvents();
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  void record(const RecordEvent& event);
  void wait(const WaitEvent& event);

 private:
  struct Recorded {
    dsplan_event* event = nullptr;
    std::int32_t waits = 0;  // To come; then the event is recorded anew.
  };

  Device& device_;
  std::unordered_map<ContentId, Recorded> recorded_;  // Of those that somebody waits for.
  std::vector<dsplan_event*> free_;
};

// Places of an arena go from buffer to buffer, whichever streams use them: a stream that is given a place waits for the
// streams that used what lay there. For devices that only enqueue.
class PlaceOrder {
 public:
  explicit PlaceOrder(Device& device) : device_(device) {}
  ~PlaceOrder();
  PlaceOrder(const PlaceOrder&) = delete;
  PlaceOrder& operator=(const PlaceOrder&) = delete;

  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes);
  // Before `stream` is given [begin, end).
  void take(Bytes begin, Bytes end, StreamId stream);
  // `id` lay at [begin, end) and goes.
  void leave(BufferId id, Bytes begin, Bytes end);

 private:
  struct Place {
    Bytes end;
    StreamSet users = 0;
  };

  Device& device_;
  std::vector<StreamSet> users_;   // By buffer.
  std::map<Bytes, Place> places_;  // Left, by their beginning; disjoint.
  std::vector<dsplan_event*> events_;
};

// The time that work takes on a device which only enqueues it: between pairs of events, added up once it has happened.
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
