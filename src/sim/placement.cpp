#include "sim/placement.h"

namespace dsplan {
namespace {

class Placer : public Ignores<Compute, Communicate, Enter, Exit, Mark> {
 public:
  Placer(const Schedule& schedule, const AllocatorConfig& config, Bytes capacity)
      : schedule_(schedule),
        allocator_(config, capacity),
        capacity_(capacity),
        blocks_(schedule.buffers.size(), kNullBlock) {}

  using Ignores<Compute, Communicate, Enter, Exit, Mark>::on;
  void on(std::size_t at, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (result_.failed_event || buffer.space != Space::Device) return;
    const std::optional<BlockId> block = allocator_.allocate(buffer.size, event.stream);
    if (block) {
      blocks_[event.buffer] = *block;
      return;
    }
    result_.failed_event = at;
    result_.failed_request = buffer.size;
    const Bytes left = capacity_ - allocator_.statistics().reserved;
    result_.missing = buffer.size > left ? buffer.size - left : Bytes(0);
  }
  void on(std::size_t, const Release& event) {
    if (result_.failed_event || blocks_[event.buffer] == kNullBlock) return;
    allocator_.release(blocks_[event.buffer]);
  }

  [[nodiscard]] Placement finish() {
    const AllocatorStatistics peaks = allocator_.peaks();
    result_.peak_allocated = peaks.allocated;
    result_.peak_reserved = peaks.reserved;
    result_.retries = peaks.retries;
    return result_;
  }

 private:
  const Schedule& schedule_;
  CachingAllocator allocator_;
  Bytes capacity_;
  std::vector<BlockId> blocks_;
  Placement result_;
};

}  // namespace

Placement place(const Schedule& schedule, const AllocatorConfig& config, Bytes capacity) {
  Placer placer(schedule, config, capacity);
  replay(schedule, placer);
  return placer.finish();
}

}  // namespace dsplan
