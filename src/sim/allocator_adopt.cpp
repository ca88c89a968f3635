// Segments that a recording began with.
#include <algorithm>

#include "core/error.h"
#include "sim/allocator.h"
#include "sim/allocator_constants.h"

namespace dsplan {

std::vector<BlockId> CachingAllocator::adopt(const AdoptedSegment& segment) {
  DSPLAN_CHECK(given_addresses_ && !segment.blocks.empty(), "adopted without an address, or empty");
  ensure_stream(segment.stream);
  Bytes total, mapped;
  for (const AdoptedBlock& block : segment.blocks) {
    total += block.size;
    if (block.state != BlockState::Unmapped) mapped += block.size;
  }
  const std::int64_t page = segment.large ? config_.large_segment_size.value() : kSmallSegment;
  void* const base = reinterpret_cast<void*>(static_cast<std::intptr_t>(segment.address.value()));
  const std::uint32_t id = new_segment(total.value(), segment.expandable ? page : 0, base);
  BlockId at = whole_segment(id, segment.stream, segment.large);
  std::vector<BlockId> ids;
  for (std::size_t i = 0; i < segment.blocks.size(); ++i) {
    const AdoptedBlock& from = segment.blocks[i];
    const BlockId rest = i + 1 < segment.blocks.size() ? split_after(at, from.size.value()) : kNone;
    Block& block = blocks_[at];
    block.state = from.state;
    if (from.state == BlockState::Free) {
      insert_free(at);
      if (!segment.expandable && block.split()) now_.inactive_split += block.size;
    } else if (from.state == BlockState::Unmapped) {
      insert_hole(at);
    } else {
      block.requested = from.requested.value();
      now_.allocated += block.size;
      now_.active += block.size;
      now_.requested += block.requested;
    }
    ids.push_back(at);
    at = rest;
  }
  now_.reserved += mapped.value();
  if (!segment.expandable) ++segment_count_;
  peak_ = now_;
  return ids;
}

}  // namespace dsplan
