// Logs of real DeepSpeed with an optimizer or parameters off the device, as far as they are comparable.
#pragma once

#include <doctest/doctest.h>

#include "deepspeed_log.h"
#include "sim/host_memory.h"

namespace deepspeed_log {

// On DeepSpeed's CPU accelerator pinning does nothing, and a copy between host and device is the tensor itself.
inline Schedule on_one_device(Schedule schedule) {
  const std::set<std::string> hidden = {"tensor before it is pinned",      "staging of a copy",
                                        "partition on the device",         "gradient partition back on the device",
                                        "staging of parameter partitions", "tensor of a barrier"};
  std::erase_if(schedule.events, [&](const Event& event) {
    const auto* made = std::get_if<Allocate>(&event);
    const auto* freed = std::get_if<Release>(&event);
    if (made == nullptr && freed == nullptr) return false;
    const Buffer& buffer = schedule.buffers[made != nullptr ? made->buffer : freed->buffer];
    return buffer.space == Space::Nvme || hidden.contains(buffer.label);
  });
  return schedule;
}

inline bool moves_file(const std::string& line) { return line.starts_with("read ") || line.starts_with("write "); }

// What the wrapper makes, reads and writes when it is constructed, from its first flag on. Frees are left out:
// defragmenting on one device is not what it is between two.
inline Lines made_by_wrapper(const Lines& all) {
  const auto end = std::find(all.begin(), all.end(), "# forward 0.0");
  Lines lines;
  std::copy_if(std::find(all.begin(), end, "alloc 1 bool"), end, std::back_inserter(lines),
               [](const std::string& line) {
                 return moves_file(line) || (line.starts_with("all") && !line.ends_with("int64"));
               });
  return lines;
}

// Without initialisation, and without the lists of integers that the ranks compare: a schedule has them before its
// mark.
inline Lines training_of(const Lines& all) {
  Lines lines(std::find(all.begin(), all.end(), "# forward 0.0"), all.end());
  std::erase_if(lines,
                [](const std::string& line) { return line.ends_with("int64") || line.starts_with("broadcast"); });
  return lines;
}

// What is made, gathered and reduced, from the wrapper's construction to the end of training, in more than `least`
// lines.
inline void check_same(const Lines& theirs, const Lines& ours, std::size_t least = 400) {
  const std::string init = first_difference(made_by_wrapper(theirs), made_by_wrapper(ours));
  CHECK(made_by_wrapper(ours).size() > 20);
  CHECK_MESSAGE(init.empty(), init);
  const std::string difference = first_difference(training_of(theirs), training_of(ours));
  CHECK_MESSAGE(difference.empty(), difference);
  CHECK(training_of(ours).size() > least);
}

inline HostMeter host_of(const Schedule& schedule) {
  HostMeter meter(schedule);
  replay(schedule, meter);
  return meter;
}

}  // namespace deepspeed_log
