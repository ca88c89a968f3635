#include "sim/allocator.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace dsplan {

CachingAllocator::CachingAllocator(const AllocatorConfig& config, Bytes capacity, SegmentSource* source)
    : capacity_(capacity.value()), next_address_(kSegmentGranularity), source_(source) {
  given_addresses_ = source_ != nullptr && source_->gives_addresses();
  configure(config);
}

CachingAllocator::~CachingAllocator() {
  if (source_ == nullptr) return;
  for (const Segment& segment : segments_) {
    if (!segment.live) continue;
    if (segment.page == 0) {
      source_->free(segment.base, Bytes(segment.size));
      continue;
    }
    for (BlockId id = segment.first; id != kNone; id = blocks_[id].next) {
      const Block& block = blocks_[id];
      if (block.state == BlockState::Unmapped) continue;
      source_->unmap(segment.base, Bytes(block.address - segment.address), Bytes(block.size));
    }
    source_->unreserve(segment.base, Bytes(segment.size));
  }
}

CachingAllocator CachingAllocator::copy() const {
  DSPLAN_CHECK(source_ == nullptr, "two allocators would give the same segments back");
  return CachingAllocator(*this);
}

void CachingAllocator::configure(const AllocatorConfig& config) {
  config_ = config;
  any_division_ = std::any_of(config.roundup_power2_divisions.begin(), config.roundup_power2_divisions.end(),
                              [](std::int64_t divisions) { return divisions > 1; });
  if (config.memory_fraction && *config.memory_fraction < 1) set_memory_fraction(*config.memory_fraction);
}

void CachingAllocator::set_capacity(Bytes capacity) { capacity_ = capacity.value(); }

void CachingAllocator::set_memory_fraction(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) throw Refusal("memory fraction", "must lie in 0 to 1");
  // In double precision and cut, as PyTorch computes it; the guard keeps a huge capacity from overflowing.
  limited_ = true;
  const double allowed = fraction * static_cast<double>(capacity_);
  allowed_ = allowed >= 0x1p63 ? capacity_ : static_cast<std::int64_t>(allowed);
}

// R2. With an empty table this is one addition and one mask.
std::int64_t CachingAllocator::round(std::int64_t request) const {
  if (request < kMinBlock) return kMinBlock;
  if (any_division_) [[unlikely]]
    return round_to_division(request);
  return (request + (kMinBlock - 1)) & ~(kMinBlock - 1);
}

[[gnu::noinline]] std::int64_t CachingAllocator::round_to_division(std::int64_t request) const {
  const auto bits = static_cast<std::uint64_t>(request);
  const int log = static_cast<int>(std::bit_width(bits)) - 1;
  const std::int64_t divisions =
      config_.roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log - 20, 0, 15))];
  std::int64_t step = kMinBlock;
  if (divisions > 1 && request > kMinBlock * divisions) {
    if (std::has_single_bit(bits)) return request;
    step = (std::int64_t{1} << log) / divisions;
  }
  return (request + (step - 1)) & ~(step - 1);
}

// R4.
std::int64_t CachingAllocator::segment_size(std::int64_t size) const {
  if (size <= kSmallSize) return kSmallSegment;
  if (size < kMinLargeAlloc) return config_.large_segment_size.value();
  return (size + (kRoundLarge - 1)) & ~(kRoundLarge - 1);
}

[[gnu::noinline]] void CachingAllocator::add_streams(StreamIndex up_to) {
  DSPLAN_CHECK(up_to < kMostStreams, "streams are numbered densely from 0");
  streams_ = static_cast<StreamIndex>(up_to + 1U);
  events_.resize(streams_);
  pools_.resize(streams_ * 2U);
}

[[gnu::flatten]] std::optional<BlockId> CachingAllocator::allocate(Bytes request, StreamIndex stream) {
  const std::int64_t bytes = request.value();
  if (bytes <= 0) [[unlikely]] {
    DSPLAN_CHECK(bytes == 0, "a request of negative size");
    return kNullBlock;
  }
  if (bytes > kLargestRequest) [[unlikely]] {
    ++ooms_;
    return std::nullopt;
  }
  ensure_stream(stream);
  if (pending_events_ != 0 && (events_ready_ || any_complete_)) process_events();
  const std::int64_t size = round(bytes);
  const bool large = size > kSmallSize;
  BlockId block = take_free(stream, large, size);
  if (block == kNone) {
    block = obtain(stream, large, size);
    if (block == kNone) {
      ++ooms_;
      return std::nullopt;
    }
  }
  place(block, size, bytes);
  return block;
}

// R5, with the candidate taken out of the free blocks.
BlockId CachingAllocator::take_free(StreamIndex stream, bool large, std::int64_t size) {
  if (limited_ && config_.garbage_collection_threshold > 0) ++searches_[large ? 1 : 0];
  FreeBlocks& free = pool(stream, large).free;
  if (free.empty()) return kNone;
  const FreeBlocks::Cursor cursor = best_fit(free, size);
  if (!cursor.valid()) return kNone;
  const BlockId block = free[cursor].block;
  free.erase(cursor);
  return block;
}

FreeBlocks::Cursor CachingAllocator::best_fit(const FreeBlocks& free, std::int64_t size) const {
  FreeBlocks::Cursor cursor = free.lower_bound(size);
  if (!cursor.valid()) return cursor;
  if (blocks_[free[cursor].block].expandable) {
    cursor = best_expandable(free, cursor);
    if (!cursor.valid()) return cursor;
  }
  const std::int64_t limit = config_.max_split_size.value();
  const std::int64_t found = free[cursor].size;
  if (size < limit) return found >= limit ? FreeBlocks::Cursor{} : cursor;
  return found - size >= config_.max_non_split_rounding.value() ? FreeBlocks::Cursor{} : cursor;
}

// An expandable block counts with the hole behind it: the first local minimum wins. With the option switched off,
// expandable blocks are passed over.
[[gnu::noinline]] FreeBlocks::Cursor CachingAllocator::best_expandable(const FreeBlocks& free,
                                                                       FreeBlocks::Cursor cursor) const {
  if (!config_.expandable_segments) {
    do {
      cursor = free.next(cursor);
    } while (cursor.valid() && blocks_[free[cursor].block].expandable);
    return cursor;
  }
  const auto reach = [&](FreeBlocks::Cursor at) {
    const Block& block = blocks_[free[at].block];
    const bool hole = block.next != kNone && blocks_[block.next].state == BlockState::Unmapped;
    return block.size + (hole ? blocks_[block.next].size : 0);
  };
  FreeBlocks::Cursor next = free.next(cursor);
  while (blocks_[free[cursor].block].expandable && next.valid() && reach(next) < reach(cursor)) {
    cursor = next;
    next = free.next(next);
  }
  return cursor;
}

// The steps after a failed search, cheapest first.
[[gnu::noinline]] BlockId CachingAllocator::obtain(StreamIndex stream, bool large, std::int64_t size) {
  if (limited_ && config_.garbage_collection_threshold > 0) collect_garbage();
  BlockId block = new_memory(stream, large, size);
  if (block == kNone && release_oversize(stream, large, size)) block = new_memory(stream, large, size);
  if (block == kNone) {
    release_all_cached();
    ++retries_;
    block = new_memory(stream, large, size);
  }
  return block;
}

// R6. The limit is held against the segment even where only pages would be mapped.
BlockId CachingAllocator::new_memory(StreamIndex stream, bool large, std::int64_t size) {
  const std::int64_t bytes = segment_size(size);
  if (limited_ && bytes > allowed_ - now_.reserved) return kNone;
  if (config_.expandable_segments) return take_expandable(stream, large, size);
  if (bytes > capacity_ - now_.reserved) return kNone;
  void* base = nullptr;
  if (source_ != nullptr) {
    base = source_->allocate(Bytes(bytes));
    if (base == nullptr) return kNone;
  }
  now_.reserved += bytes;
  peak_.reserved = std::max(peak_.reserved, now_.reserved);
  ++segment_count_;
  return whole_segment(new_segment(bytes, 0, base), stream, large);
}

// R7 to R9.
void CachingAllocator::place(BlockId id, std::int64_t size, std::int64_t request) {
  const bool was_split = blocks_[id].split();
  const std::int64_t rest = blocks_[id].size - size;
  const bool fine = !blocks_[id].large || config_.expandable_segments;
  const bool split = fine ? rest >= kMinBlock : size < config_.max_split_size.value() && rest > kSmallSize;
  if (split) insert_free(split_after(id, size));

  Block& block = blocks_[id];
  if (!block.expandable) {
    if (was_split)
      now_.inactive_split -= block.size;
    else if (split)
      now_.inactive_split += rest;
    peak_.inactive_split = std::max(peak_.inactive_split, now_.inactive_split);
  }
  block.state = BlockState::Allocated;
  block.requested = request;
  now_.allocated += block.size;
  now_.active += block.size;
  now_.requested += request;
  peak_.allocated = std::max(peak_.allocated, now_.allocated);
  peak_.active = std::max(peak_.active, now_.active);
  peak_.requested = std::max(peak_.requested, now_.requested);
}

// R11.
[[gnu::flatten]] void CachingAllocator::release(BlockId id) {
  if (id == kNullBlock) return;
  DSPLAN_CHECK(id < blocks_.size() && blocks_[id].state == BlockState::Allocated, "released twice, or never allocated");
  now_.allocated -= blocks_[id].size;
  if (blocks_[id].uses != kNone) [[unlikely]] {
    wait_for_uses(id);
    return;
  }
  free_block(id);
}

// R12.
void CachingAllocator::free_block(BlockId id) {
  Block& block = blocks_[id];
  now_.active -= block.size;
  now_.requested -= block.requested;
  block.requested = 0;
  block.state = BlockState::Free;
  const std::int64_t before = block.size;
  const bool expandable = block.expandable;
  const BlockId merged = merge(id);
  insert_free(merged);
  if (expandable) return;
  // The neighbours that were swallowed leave the sum; the result joins it if it is still a part of a segment.
  const Block& result = blocks_[merged];
  now_.inactive_split -= result.size - before;
  if (result.split()) now_.inactive_split += result.size;
  peak_.inactive_split = std::max(peak_.inactive_split, now_.inactive_split);
}

void CachingAllocator::insert_free(BlockId id) {
  Block& block = blocks_[id];
  block.searches = searches_[block.large ? 1 : 0];
  pool(block).free.insert(block.size, block.address, id);
}

// Unites a block that is in no list with those neighbours that are in its own state, free or unmapped, taking them
// out of their list. The lowest of them survives.
BlockId CachingAllocator::merge(BlockId id) {
  const BlockState state = blocks_[id].state;
  Pool& home = pool(blocks_[id]);
  const auto swallow = [&](BlockId neighbour) {
    if (neighbour == kNone || blocks_[neighbour].state != state) return false;
    if (state == BlockState::Free)
      home.free.erase(blocks_[neighbour].size, blocks_[neighbour].address);
    else
      erase_hole(neighbour);
    return true;
  };
  const BlockId previous = blocks_[id].previous;
  if (swallow(previous)) id = join(previous, id);
  const BlockId next = blocks_[id].next;
  if (swallow(next)) id = join(id, next);
  return id;
}

BlockId CachingAllocator::join(BlockId left, BlockId right) {
  Block& low = blocks_[left];
  const Block& high = blocks_[right];
  low.size += high.size;
  low.next = high.next;
  if (low.next != kNone) blocks_[low.next].previous = left;
  spare_blocks_.push_back(right);
  return left;
}

// Cuts `block` to `size`; the new block behind it has the rest and the same state, and is in no list yet.
BlockId CachingAllocator::split_after(BlockId id, std::int64_t size) {
  const BlockId rest = new_block();
  Block& front = blocks_[id];
  Block& back = blocks_[rest];
  back = front;
  back.address += size;
  back.size -= size;
  back.previous = id;
  front.size = size;
  front.next = rest;
  if (back.next != kNone) blocks_[back.next].previous = rest;
  return rest;
}

BlockId CachingAllocator::new_block() {
  if (!spare_blocks_.empty()) [[likely]] {
    const BlockId id = spare_blocks_.back();
    spare_blocks_.pop_back();
    return id;
  }
  blocks_.emplace_back();
  return static_cast<BlockId>(blocks_.size() - 1);
}

std::uint32_t CachingAllocator::new_segment(std::int64_t size, std::int64_t page, void* base) {
  std::uint32_t id = 0;
  if (spare_segments_.empty()) {
    id = static_cast<std::uint32_t>(segments_.size());
    segments_.emplace_back();
  } else {
    id = spare_segments_.back();
    spare_segments_.pop_back();
  }
  if (given_addresses_) {
    segments_[id] = {static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(base)), size, page, kNone, base, true};
    return id;
  }
  segments_[id] = {next_address_, size, page, kNone, base, true};
  next_address_ = checked_add(next_address_, round_up(Bytes(size), kSegmentGranularity).value());
  return id;
}

// The one block that fills a new segment; in no list yet.
BlockId CachingAllocator::whole_segment(std::uint32_t segment, StreamIndex stream, bool large) {
  const BlockId id = new_block();
  Block& block = blocks_[id];
  block = Block{};
  block.address = segments_[segment].address;
  block.size = segments_[segment].size;
  block.segment = segment;
  block.stream = stream;
  block.large = large;
  block.expandable = segments_[segment].page != 0;
  segments_[segment].first = id;
  return id;
}

void* CachingAllocator::pointer(BlockId id) const {
  const Block& block = blocks_[id];
  const Segment& segment = segments_[block.segment];
  return segment.base == nullptr ? nullptr : static_cast<char*>(segment.base) + (block.address - segment.address);
}

namespace {

AllocatorStatistics labelled(const auto& totals, std::int64_t segments, std::int64_t retries, std::int64_t ooms) {
  return {Bytes(totals.allocated),
          Bytes(totals.requested),
          Bytes(totals.active),
          Bytes(totals.reserved),
          Bytes(totals.inactive_split),
          segments,
          retries,
          ooms};
}

}  // namespace

Bytes CachingAllocator::left() const {
  const std::int64_t most = limited_ ? std::min(capacity_, allowed_) : capacity_;
  return Bytes(std::max<std::int64_t>(0, most - now_.reserved));
}

Bytes CachingAllocator::segment_for(Bytes request) const {
  const std::int64_t size = round(request.value());
  if (!config_.expandable_segments) return Bytes(segment_size(size));
  return round_up(Bytes(size), size > kSmallSize ? config_.large_segment_size.value() : kSmallSegment);
}

AllocatorStatistics CachingAllocator::statistics() const { return labelled(now_, segment_count_, retries_, ooms_); }
AllocatorStatistics CachingAllocator::peaks() const { return labelled(peak_, segment_count_, retries_, ooms_); }
void CachingAllocator::reset_peaks() { peak_ = now_; }

std::vector<CachingAllocator::BlockView> CachingAllocator::blocks() const {
  std::vector<BlockView> views;
  for (std::size_t at = 0; at < segments_.size(); ++at) {
    if (!segments_[at].live) continue;
    for (BlockId id = segments_[at].first; id != kNone; id = blocks_[id].next) {
      const Block& block = blocks_[id];
      views.push_back({Bytes(block.address), Bytes(block.size), Bytes(block.requested), block.segment, block.stream,
                       block.state, block.large, block.expandable});
    }
  }
  std::sort(views.begin(), views.end(), [](const BlockView& a, const BlockView& b) { return a.address < b.address; });
  return views;
}

// Segments that a recording began with.

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
