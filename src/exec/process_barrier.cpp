#include "exec/process_barrier.h"

#include <chrono>
#include <utility>

namespace dsplan::exec {

void ProcessBarrier::at(const std::string& moment, Device& device, Bytes reserved) {
  if (!device.synchronous()) device.synchronize();
  std::unique_lock lock(mutex_);
  reserved_ += reserved;
  const std::size_t passed = passed_;
  if (++here_ < ranks_) {
    const auto all_here = [&] { return passed_ != passed || transport_.first_failure().has_value(); };
    while (!all_here_.wait_for(lock, std::chrono::milliseconds(50), all_here)) {
    }
    return;
  }
  const dsplan_usage usage = device.usage();
  ProcessMoment& now = moments_.emplace_back();
  now.name = moment;
  now.reserved = std::exchange(reserved_, Bytes(0));
  if (usage.process_bytes >= 0) now.process = Bytes(usage.process_bytes);
  // A host's counter is of one rank alone.
  if (!device.host_readable() && usage.device_total >= 0 && usage.device_free >= 0) {
    now.device_used = Bytes(usage.device_total - usage.device_free);
  }
  here_ = 0;
  ++passed_;
  all_here_.notify_all();
}

}  // namespace dsplan::exec
