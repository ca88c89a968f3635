#include "sim/snapshot_segments.h"

namespace dsplan {

std::vector<SnapshotSegment> segments_of(const CachingAllocator& allocator, const std::vector<std::int64_t>& streams) {
  using State = CachingAllocator::BlockState;
  std::vector<SnapshotSegment> segments;
  const std::vector<CachingAllocator::BlockView> blocks = allocator.blocks();
  for (std::size_t at = 0; at < blocks.size(); ++at) {
    const CachingAllocator::BlockView& block = blocks[at];
    if (block.state == State::Unmapped) continue;
    const bool goes_on = at > 0 && blocks[at - 1].segment == block.segment && blocks[at - 1].state != State::Unmapped;
    if (!goes_on) {
      SnapshotSegment segment;
      segment.address = block.address;
      segment.stream = streams[block.stream];
      segment.large = block.large;
      segment.expandable = block.expandable;
      segments.push_back(std::move(segment));
    }
    const SnapshotBlock::State state = block.state == State::Free        ? SnapshotBlock::State::Inactive
                                       : block.state == State::Allocated ? SnapshotBlock::State::Allocated
                                                                         : SnapshotBlock::State::PendingFree;
    segments.back().size += block.size;
    segments.back().blocks.push_back({block.address, block.size, block.requested, state, 0});
  }
  return segments;
}

}  // namespace dsplan
