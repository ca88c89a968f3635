// Runs of requests to the caching allocator, which it answers at once.
#include <algorithm>

#include "sim/allocator.h"

namespace dsplan {

// A block that is cut from the smallest one that suffices leaves a rest that is smaller still: it is the first to be
// found again, as long as it suffices. The same holds where blocks count with the holes behind them: the rest's reach
// shrinks as well. Where searches give free blocks their age, each has to be made.
std::size_t AllocatorRuns::allocate(std::span<const Bytes> requests, StreamIndex stream, std::span<BlockId> blocks) {
  const std::int64_t size = own_.round(requests.front().value());
  BlockId id = take(size, stream);
  if (id == kNullBlock) return 0;
  const Block cut = own_.blocks_[id];
  Block piece = cut;
  piece.size = size;
  piece.state = CachingAllocator::BlockState::Allocated;
  std::size_t served = 0;
  std::int64_t left = cut.size;
  while (served < requests.size() && left >= size && own_.round(requests[served].value()) == size) {
    left -= size;
    piece.next = left > 0 ? own_.new_block() : cut.next;
    piece.requested = requests[served].value();
    own_.now_.requested += piece.requested;
    own_.blocks_[id] = piece;
    piece.address += size;
    piece.previous = id;
    blocks[served++] = id;
    id = piece.next;
  }
  if (left > 0) {
    Block& rest = own_.blocks_[id];
    rest = cut;
    rest.address = piece.address;
    rest.size = left;
    rest.previous = piece.previous;
    own_.insert_free(id);
  }
  if (cut.next != CachingAllocator::kNone) own_.blocks_[cut.next].previous = left > 0 ? id : piece.previous;
  count(cut, size, cut.size - left);
  return served;
}

AllocatorRuns::Together AllocatorRuns::allocate_together(std::size_t most, StreamIndex stream) {
  const BlockId id = take(kMinBlock, stream);
  if (id == kNullBlock) return {};
  const Block cut = own_.blocks_[id];
  const std::size_t served = std::min(most, static_cast<std::size_t>(cut.size / kMinBlock));
  const std::int64_t taken = kMinBlock * static_cast<std::int64_t>(served);
  if (taken < cut.size) own_.insert_free(own_.split_after(id, taken));
  own_.blocks_[id].state = CachingAllocator::BlockState::Allocated;
  count(cut, kMinBlock, taken);
  return {id, served};
}

void AllocatorRuns::ask(BlockId block, Bytes requested) {
  own_.blocks_[block].requested = requested.value();
  own_.now_.requested += requested.value();
  own_.peak_.requested = std::max(own_.peak_.requested, own_.now_.requested);
}

// One by one each but the last would have left a free part of a segment.
void AllocatorRuns::release_together(const Together& together) {
  const Block& block = own_.blocks_[together.block];
  if (together.count > 1 && !block.expandable) {
    const std::int64_t parts = own_.now_.inactive_split + block.size - kMinBlock;
    own_.peak_.inactive_split = std::max(own_.peak_.inactive_split, parts);
  }
  own_.release(together.block);
}

// The free block of which requests of that size are cut, out of its list; kNullBlock: there is none for several.
BlockId AllocatorRuns::take(std::int64_t size, StreamIndex stream) {
  const bool ages = own_.limited_ && own_.config_.garbage_collection_threshold > 0;
  if (ages || size > kSmallSize) return kNullBlock;
  own_.ensure_stream(stream);
  if (own_.pending_events_ != 0 && (own_.events_ready_ || own_.any_complete_)) own_.process_events();
  FreeBlocks& free = own_.pool(stream, false).free;
  const FreeBlocks::Cursor cursor = smallest(free, size);
  if (!cursor.valid()) return kNullBlock;
  const BlockId id = free[cursor].block;
  free.erase(cursor);
  return id;
}

// Not valid where the allocator would choose another one, or would not split it to the last unit.
FreeBlocks::Cursor AllocatorRuns::smallest(const FreeBlocks& free, std::int64_t size) const {
  if (free.empty()) return {};
  const FreeBlocks::Cursor first = free.lower_bound(size);
  if (!first.valid() || own_.best_fit(free, size) != first) return {};
  const bool in_units = size % kMinBlock == 0 && free[first].size % kMinBlock == 0;
  return in_units ? first : FreeBlocks::Cursor{};
}

// `taken` of a free block, as it was, in pieces of `size`. The first piece leaves the rest of a whole segment, which
// the others shrink.
void AllocatorRuns::count(const Block& cut, std::int64_t size, std::int64_t taken) {
  auto& now = own_.now_;
  auto& peak = own_.peak_;
  if (!cut.expandable && cut.split()) {
    now.inactive_split -= taken;
  } else if (!cut.expandable && cut.size > size) {
    now.inactive_split += cut.size - size;
    peak.inactive_split = std::max(peak.inactive_split, now.inactive_split);
    now.inactive_split -= taken - size;
  }
  now.allocated += taken;
  now.active += taken;
  peak.allocated = std::max(peak.allocated, now.allocated);
  peak.active = std::max(peak.active, now.active);
  peak.requested = std::max(peak.requested, now.requested);
}

void AllocatorRuns::release(std::span<const BlockId> blocks) {
  while (!blocks.empty()) {
    const std::size_t together = neighbours(blocks);
    if (together > 1) unite(blocks.first(together));
    own_.release(blocks.front());
    blocks = blocks.subspan(together);
  }
}

// How many from the first on follow each other and wait for nobody; 1 where it stands alone.
std::size_t AllocatorRuns::neighbours(std::span<const BlockId> blocks) const {
  const auto plain = [&](BlockId id) {
    if (id >= own_.blocks_.size()) return false;
    const Block& block = own_.blocks_[id];
    return block.state == CachingAllocator::BlockState::Allocated && block.uses == CachingAllocator::kNone;
  };
  std::size_t count = 1;
  if (!plain(blocks.front())) return count;
  while (count < blocks.size() && own_.blocks_[blocks[count - 1]].next == blocks[count] && plain(blocks[count])) {
    ++count;
  }
  return count;
}

// Into the first, which is about to be released. One by one each but the last would have left a free part of a segment.
void AllocatorRuns::unite(std::span<const BlockId> blocks) {
  Block& first = own_.blocks_[blocks.front()];
  const Block last = own_.blocks_[blocks.back()];
  first.next = last.next;
  if (first.next != CachingAllocator::kNone) own_.blocks_[first.next].previous = blocks.front();
  for (const BlockId id : blocks.subspan(1)) {
    Block& gone = own_.blocks_[id];
    first.size += gone.size;
    first.requested += gone.requested;
    gone.state = CachingAllocator::BlockState::Free;
    own_.spare_blocks_.push_back(id);
  }
  if (first.expandable) return;
  own_.peak_.inactive_split = std::max(own_.peak_.inactive_split, own_.now_.inactive_split + first.size - last.size);
}

}  // namespace dsplan
