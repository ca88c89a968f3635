// Streams and events of a device on which nothing runs: when is work complete?
//
// DSPLAN_DRY_EVENTS says it:
//   done      as soon as it is issued (a device that is never behind)
//   pending   not before the host waits for it (a device that is always behind)
//   N         when N more launches have gone to its stream, as if the host were so far ahead
//   timed     when its estimated duration has passed on a clock that advances with each call of the host
// The clock of `timed` counts calls, not seconds, so that a run can be repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace dsplan::dry {

using Nanoseconds = std::uint64_t;

struct Graph;
struct Stream;

// Work up to a point of a stream is complete.
struct Wait {
  Stream* on;
  std::uint64_t at;     // Once the waiting stream has come so far,
  std::uint64_t up_to;  // so has the other.
};

struct Stream {
  std::uint64_t id = 0;
  int device = 0;
  int priority = 0;
  std::uint64_t done_up_to = 0;
  std::uint64_t last_work = 0;  // Not counted where all is done as soon as it is issued.
  std::vector<Wait> waits;
  std::vector<std::uint64_t> recent;  // Tickets of the last N launches.
  std::uint64_t launches = 0;
  Nanoseconds ready = 0;     // timed: when its last work ends.
  Graph* capture = nullptr;  // It records this one.
};

struct Event {
  Stream* on = nullptr;
  std::uint64_t at = 0;
  Nanoseconds ready = 0;
  Nanoseconds recorded = 0;  // For the time between two events.
};

enum class Completion : std::uint8_t { Done, Pending, Ahead, Timed };

class Streams {
 public:
  explicit Streams(Completion when, std::size_t ahead) : when_(when), ahead_(ahead) {}

  Stream* create(int device, int priority);
  // What a handle of the runtime's means: 0, 1 and 2 are the device's own stream.
  Stream* of(void* handle, int device);

  void launch(Stream* stream, Nanoseconds duration);
  void record(Event& event, Stream* stream);
  void order(Stream* later, const Event& earlier);
  [[nodiscard]] bool done(const Event& event);
  [[nodiscard]] bool done(Stream* stream);
  void wait(const Event& event);
  void wait(Stream* stream);
  void wait_for_all(int device);
  [[nodiscard]] Nanoseconds now();

 private:
  void finish(Stream* stream, std::uint64_t up_to);
  void host_call();
  void host_waits(Nanoseconds until);

  std::mutex lock_;
  Completion when_;
  std::size_t ahead_;
  std::uint64_t ticket_ = 1;
  std::uint64_t next_id_ = 1;
  Nanoseconds host_ = 0;
  std::vector<Stream*> own_;  // One for each device.
  std::vector<Stream*> all_;
};
[[nodiscard]] Streams& streams();

// The device that this thread has chosen.
[[nodiscard]] int& current_device();

}  // namespace dsplan::dry
