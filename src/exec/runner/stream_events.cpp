#include "exec/runner/stream_events.h"

#include <utility>

namespace dsplan::exec {

StreamEvents::StreamEvents(Device& device, const Schedule& schedule) : device_(device) {
  if (device.synchronous()) return;
  for (const Event& event : schedule.events) {
    if (const auto* wait = std::get_if<WaitEvent>(&event)) ++recorded_[wait->recorded].waits;
  }
}

void StreamEvents::record(const RecordEvent& event) {
  const auto found = recorded_.find(event.id);
  if (found == recorded_.end()) return;
  if (free_.empty()) free_.emplace_back(device_);
  found->second.event = std::move(free_.back());
  free_.pop_back();
  found->second.event.record(event.stream);
}

// A stream waits for what the event was when it was told to: the event may be recorded anew at once.
void StreamEvents::wait(const WaitEvent& event) {
  const auto found = recorded_.find(event.recorded);
  if (found == recorded_.end()) return;
  if (event.waiter == kHostSync) {
    found->second.event.synchronize();
  } else {
    device_.wait(event.waiter, found->second.event);
  }
  if (--found->second.waits > 0) return;
  free_.push_back(std::move(found->second.event));
  recorded_.erase(found);
}

}  // namespace dsplan::exec
