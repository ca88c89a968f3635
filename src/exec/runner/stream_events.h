// The events that a schedule records on streams and waits for, on a device. Nothing
// where every call has done its work when it returns.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/schedule.h"
#include "exec/device.h"

namespace dsplan::exec {

class StreamEvents {
 public:
  StreamEvents(Device& device, const Schedule& schedule);

  void record(const RecordEvent& event);
  void wait(const WaitEvent& event);

 private:
  struct Recorded {
    DeviceEvent event;
    std::int32_t waits = 0;  // To come; then the event is recorded anew.
  };

  Device& device_;
  std::unordered_map<ContentId, Recorded> recorded_;  // Of those that somebody waits for.
  std::vector<DeviceEvent> free_;
};

}  // namespace dsplan::exec
