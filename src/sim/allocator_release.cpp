// How the allocator gives memory back: frees that wait for other streams, and cached segments.
#include <algorithm>

#include "core/error.h"
#include "sim/allocator.h"

namespace dsplan {

// R13. Repeats and the block's own stream mean nothing.
void CachingAllocator::record_stream(BlockId id, StreamIndex stream) {
  if (id == kNullBlock) return;
  DSPLAN_CHECK(id < blocks_.size() && blocks_[id].state == BlockState::Allocated, "recorded a block that is not held");
  ensure_stream(stream);
  Block& block = blocks_[id];
  if (stream == block.stream) return;
  for (std::uint32_t use = block.uses; use != kNone; use = uses_[use].next) {
    if (uses_[use].stream == stream) return;
  }
  std::uint32_t use = 0;
  if (spare_uses_.empty()) {
    use = static_cast<std::uint32_t>(uses_.size());
    uses_.emplace_back();
  } else {
    use = spare_uses_.back();
    spare_uses_.pop_back();
  }
  uses_[use] = {stream, block.uses};
  block.uses = use;
}

// One event for each stream that used the block.
[[gnu::noinline]] void CachingAllocator::wait_for_uses(BlockId id) {
  Block& block = blocks_[id];
  block.state = BlockState::AwaitingFree;
  for (std::uint32_t use = block.uses; use != kNone; use = uses_[use].next) {
    events_[uses_[use].stream].waiting.push_back(id);
    spare_uses_.push_back(use);
    ++block.events;
    ++pending_events_;
  }
  block.uses = kNone;
}

void CachingAllocator::complete_uses(StreamIndex stream) {
  if (stream < streams_) complete_uses(stream, events_[stream].waiting.size());
}

void CachingAllocator::complete_uses(StreamIndex stream, std::size_t count) {
  if (stream >= streams_) return;
  EventQueue& queue = events_[stream];
  queue.complete = std::min(queue.complete + count, queue.waiting.size());
  any_complete_ = any_complete_ || queue.complete > 0;
}

// R14. Each stream's events complete in order.
[[gnu::noinline]] void CachingAllocator::process_events() {
  any_complete_ = false;
  for (EventQueue& queue : events_) {
    std::size_t ready = events_ready_ ? queue.waiting.size() : queue.complete;
    queue.complete = 0;
    for (; ready > 0; --ready) {
      const BlockId block = queue.waiting.front();
      queue.waiting.pop_front();
      complete_event(block);
    }
  }
}

void CachingAllocator::complete_event(BlockId id) {
  --pending_events_;
  if (--blocks_[id].events == 0) free_block(id);
}

void CachingAllocator::empty_cache() { release_all_cached(); }

// R16.
void CachingAllocator::release_all_cached() {
  for (EventQueue& queue : events_) {
    while (!queue.waiting.empty()) {
      const BlockId block = queue.waiting.front();
      queue.waiting.pop_front();
      complete_event(block);
    }
    queue.complete = 0;
  }
  any_complete_ = false;
  // Gathered first, since giving back changes the lists.
  std::vector<BlockId> cached;
  for (Pool& each : pools_) {
    cached.clear();
    each.free.for_each([&](const FreeBlocks::Entry& entry) { cached.push_back(entry.block); });
    for (BlockId id : cached) {
      if (blocks_[id].expandable) {
        const BlockId hole = unmap_block(id);
        if (hole != kNone && !blocks_[hole].split()) release_range(hole);
      } else if (!blocks_[id].split()) {
        release_segment(id);
      }
    }
  }
}

// R17. The smallest segment that suffices, or else the large ones from the largest down.
bool CachingAllocator::release_oversize(StreamIndex stream, bool large, std::int64_t size) {
  const std::int64_t limit = config_.max_split_size.value();
  if (limit == AllocatorConfig::kNoSplitLimit) return false;
  const std::int64_t wanted = std::max(size, limit);
  const FreeBlocks& free = pool(stream, large).free;
  if (free.empty()) return false;
  const FreeBlocks::Cursor fits = free.lower_bound(wanted);
  if (fits.valid() && !blocks_[free[fits].block].expandable) {
    release_segment(free[fits].block);
    return true;
  }
  std::vector<BlockId> below;
  free.for_each([&](const FreeBlocks::Entry& entry) {
    if (entry.size >= limit && entry.size < wanted) below.push_back(entry.block);
  });
  std::int64_t released = 0;
  for (auto at = below.rbegin(); at != below.rend() && released < wanted; ++at) {
    if (blocks_[*at].expandable) continue;
    released += blocks_[*at].size;
    release_segment(*at);
  }
  return released >= wanted;
}

// R18. Ages are doubles and their sum is kept up as PyTorch keeps it, because the comparison decides.
void CachingAllocator::collect_garbage() {
  const auto threshold =
      static_cast<std::int64_t>(config_.garbage_collection_threshold * static_cast<double>(allowed_));
  if (now_.reserved <= threshold) return;
  const std::int64_t target = now_.reserved - threshold;
  std::vector<BlockId> whole;
  double total_age = 0;
  const auto age = [&](BlockId id) { return static_cast<double>(searches_[1] - blocks_[id].searches); };
  for (std::size_t at = 1; at < pools_.size(); at += 2) {
    pools_[at].free.for_each([&](const FreeBlocks::Entry& entry) {
      if (blocks_[entry.block].split()) return;
      whole.push_back(entry.block);
      total_age += age(entry.block);
    });
  }
  std::int64_t reclaimed = 0;
  bool freed = true;
  while (reclaimed < target && freed && !whole.empty()) {
    const double threshold_age = total_age / static_cast<double>(whole.size());
    const std::size_t before = whole.size();
    std::erase_if(whole, [&](BlockId id) {
      if (blocks_[id].expandable || age(id) < threshold_age) return false;
      reclaimed += blocks_[id].size;
      total_age -= age(id);
      release_segment(id);
      return true;
    });
    freed = whole.size() < before;
  }
}

// Gives a whole, free, not expandable segment back.
void CachingAllocator::release_segment(BlockId id) {
  const Block& block = blocks_[id];
  // PyTorch's own rule would hand a part of a segment to cudaFree, which fails, after max_split_size was changed in
  // mid-run.
  if (block.split()) {
    throw Refusal("allocator", "max_split_size_mb changed while a larger block was split; PyTorch fails here");
  }
  pool(block).free.erase(block.size, block.address);
  if (source_ != nullptr) source_->free(segments_[block.segment].base, Bytes(block.size));
  now_.reserved -= block.size;
  --segment_count_;
  segments_[block.segment].live = false;
  spare_segments_.push_back(block.segment);
  spare_blocks_.push_back(id);
}

}  // namespace dsplan
