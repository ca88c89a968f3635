#include "sim/allocation_log.h"

#include <algorithm>

namespace dsplan {
namespace {

class Logger : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit> {
 public:
  Logger(const Schedule& schedule, const AllocatorConfig& config, std::size_t until)
      : schedule_(schedule), allocator_(config), until_(until), blocks_(schedule.buffers.size(), kNullBlock) {}

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (at >= until_ || buffer.space != Space::Device) return;
    print_before(at);
    log_.allocations.push_back({at, buffer.size, allocator_.statistics().allocated});
    // Only a request beyond all reason fails here.
    blocks_[event.buffer] = allocator_.allocate(buffer.size, event.stream).value_or(kNullBlock);
    const AllocatorStatistics now = allocator_.statistics();
    most_allocated_ = std::max(most_allocated_, now.allocated);
    most_reserved_ = std::max(most_reserved_, now.reserved);
  }
  void on(std::size_t at, const Release& event) {
    if (at >= until_) return;
    print_before(at);
    allocator_.release(blocks_[event.buffer]);
  }
  void on(std::size_t at, const Mark&) {
    if (at >= until_) return;
    print_before(at);
    const AllocatorStatistics now = allocator_.statistics();
    const AllocatorStatistics peaks = allocator_.peaks();
    log_.marks.push_back({at, now.allocated, now.reserved, peaks.allocated, peaks.reserved});
    allocator_.reset_peaks();
  }

  [[nodiscard]] AllocationLog finish() { return std::move(log_); }
  [[nodiscard]] Bytes emptied() {
    allocator_.empty_cache();
    return allocator_.statistics().reserved;
  }

 private:
  void print_before(std::size_t at) {
    while (log_.prints.size() < schedule_.prints.size() && schedule_.prints[log_.prints.size()].event <= at) {
      const AllocatorStatistics now = allocator_.statistics();
      log_.prints.push_back(
          {schedule_.prints[log_.prints.size()].event, now.allocated, now.reserved, most_allocated_, most_reserved_});
      most_allocated_ = now.allocated;
      most_reserved_ = now.reserved;
    }
  }

  const Schedule& schedule_;
  CachingAllocator allocator_;
  std::size_t until_;
  Indexed<BufferId, BlockId> blocks_;
  AllocationLog log_;
  Bytes most_allocated_;  // Since the print before.
  Bytes most_reserved_;
};

}  // namespace

AllocationLog allocation_log(const Schedule& schedule, const AllocatorConfig& config) {
  Logger logger(schedule, config, schedule.events.size());
  replay(schedule, logger);
  return logger.finish();
}

Bytes reserved_when_emptied(const Schedule& schedule, const AllocatorConfig& config, std::size_t event) {
  Logger logger(schedule, config, event);
  replay(schedule, logger);
  return logger.emptied();
}

}  // namespace dsplan
