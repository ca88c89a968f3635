// A host that enqueues work, and streams that carry it out, with estimated durations: what is complete, and when? The
// host runs ahead as far as the launch queue and its own waits let it. Knows nothing of the allocator, nor of what the
// work is; durations come from whoever can estimate them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/schedule.h"
#include "sim/recorded_events.h"

namespace dsplan {

// In seconds.
struct EventTimes {
  std::vector<float> work;  // By event: how long it takes on its stream; 0 for what is no work.
  double host = 0;          // What the host needs for each piece of work that it enqueues.
};

class StreamClock {
 public:
  // `times` must outlive this.
  explicit StreamClock(const EventTimes& times) : times_(times), queue_(kLaunchQueue, 0.0) {}

  void work(std::size_t at, StreamId stream) {
    double& oldest = queue_[launches_++ % kLaunchQueue];  // A full queue holds the host up.
    host_ = std::max(host_ + times_.host, oldest);
    ready_[stream] = std::max(ready_[stream], host_) + static_cast<double>(times_.work[at]);
    oldest = ready_[stream];
  }
  void record_event(const RecordEvent& event) { recorded_.emplace_back(event.id, ready_[event.stream]); }
  void wait_event(const WaitEvent& event) {
    const auto found = find_recorded(recorded_, event.recorded, [](const auto& one) { return one.first; });
    if (found == recorded_.end()) return;
    double& waiter = event.waiter == kHostSync ? host_ : ready_[event.waiter];
    waiter = std::max(waiter, found->second);
  }
  // A step is enqueued once more: `first` and the events behind it are recorded anew.
  void forget_from(ContentId first) {
    std::erase_if(recorded_, [first](const auto& one) { return one.first >= first; });
  }
  // torch.cuda.synchronize.
  void wait_for_all() { host_ = std::max(host_, *std::max_element(ready_.begin(), ready_.end())); }

  // How far each stream is ahead of the host, in whole nanoseconds: what the next work finds.
  using Leads = std::array<std::int64_t, kStreams>;
  [[nodiscard]] Leads leads() const {
    Leads leads{};
    for (std::size_t at = 0; at < leads.size(); ++at)
      leads[at] = std::llround((std::max(ready_[at], host_) - host_) * 1e9);
    return leads;
  }
  // When all that `stream` was given is done; the time that the host has.
  [[nodiscard]] double ready(StreamId stream) const { return ready_[stream]; }
  [[nodiscard]] double now() const { return host_; }

 private:
  static constexpr std::size_t kLaunchQueue = 1024;  // Of CUDA's, about: more makes a launch wait.

  const EventTimes& times_;
  double host_ = 0;
  std::array<double, kStreams> ready_{};
  std::vector<std::pair<ContentId, double>> recorded_;  // Ascending.
  std::vector<double> queue_;                           // When the last launches end, by their number.
  std::size_t launches_ = 0;
};

}  // namespace dsplan
