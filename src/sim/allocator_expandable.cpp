// Expandable segments, E1 to E8: one range of addresses per pool and stream, mapped page by page. Stretches without
// memory are blocks too, in the state Unmapped ("holes").
#include <algorithm>

#include "core/error.h"
#include "sim/allocator.h"

namespace dsplan {

void CachingAllocator::insert_hole(BlockId id) {
  std::vector<Hole>& holes = pool(blocks_[id]).holes;
  const std::int64_t address = blocks_[id].address;
  const auto at = std::partition_point(holes.begin(), holes.end(), [=](const Hole& h) { return h.address < address; });
  holes.insert(at, {address, id});
}

void CachingAllocator::erase_hole(BlockId id) {
  std::vector<Hole>& holes = pool(blocks_[id]).holes;
  const std::int64_t address = blocks_[id].address;
  holes.erase(std::partition_point(holes.begin(), holes.end(), [=](const Hole& h) { return h.address < address; }));
}

// E2 and E3: maps what is missing behind a free block or a hole until `size` bytes are there.
BlockId CachingAllocator::take_expandable(StreamIndex stream, bool large, std::int64_t size) {
  BlockId candidate = find_expandable(stream, large, size);
  // More than a whole range, hence more than the device: PyTorch finds out when it maps.
  if (segments_[blocks_[candidate].segment].size < size) return kNone;
  if (blocks_[candidate].state == BlockState::Unmapped) {
    candidate = map_block(candidate, std::min(blocks_[candidate].size, size));
    if (candidate == kNone) return kNone;
  }
  while (blocks_[candidate].size < size) {
    const BlockId hole = blocks_[candidate].next;
    const std::int64_t missing = size - blocks_[candidate].size;
    candidate = map_block(hole, std::min(missing, blocks_[hole].size));
    if (candidate == kNone) return kNone;
  }
  pool(stream, large).free.erase(blocks_[candidate].size, blocks_[candidate].address);
  return candidate;
}

// The first place, by address, where neighbouring free and unmapped blocks add up to `size`; else a new range.
BlockId CachingAllocator::find_expandable(StreamIndex stream, bool large, std::int64_t size) {
  const auto usable = [&](BlockId id) {
    return id != kNone && (blocks_[id].state == BlockState::Free || blocks_[id].state == BlockState::Unmapped);
  };
  for (const Hole& hole : pool(stream, large).holes) {
    const BlockId previous = blocks_[hole.block].previous;
    const BlockId start = usable(previous) ? previous : hole.block;
    std::int64_t bytes = 0;
    for (BlockId id = start; bytes < size && usable(id); id = blocks_[id].next) bytes += blocks_[id].size;
    if (bytes >= size) return start;
  }
  return new_range(stream, large);
}

// E1.
BlockId CachingAllocator::new_range(StreamIndex stream, bool large) {
  const std::int64_t page = large ? config_.large_segment_size.value() : kSmallSegment;
  const std::int64_t device = std::min(capacity_, kLargestDevice);
  const std::int64_t size = round_up(Bytes(device + device / 8), page).value();
  void* base = nullptr;
  if (source_ != nullptr) {
    base = source_->reserve(Bytes(size));
    DSPLAN_CHECK(base != nullptr, "no address range for an expandable segment");
  }
  const BlockId id = whole_segment(new_segment(size, page, base), stream, large);
  blocks_[id].state = BlockState::Unmapped;
  insert_hole(id);
  return id;
}

// Maps the pages of the first `size` bytes of a hole, all or none; unites them with free neighbours. Returns the
// free block that holds them, or kNone where the device has no more.
BlockId CachingAllocator::map_block(BlockId id, std::int64_t size) {
  const Segment& segment = segments_[blocks_[id].segment];
  const std::int64_t bytes = round_up(Bytes(size), segment.page).value();
  if (bytes > capacity_ - now_.reserved) return kNone;
  const std::int64_t offset = blocks_[id].address - segment.address;
  if (source_ != nullptr && !source_->map(segment.base, Bytes(offset), Bytes(bytes))) return kNone;
  erase_hole(id);
  if (bytes < blocks_[id].size) insert_hole(split_after(id, bytes));
  blocks_[id].state = BlockState::Free;
  const BlockId merged = merge(id);
  insert_free(merged);
  now_.reserved += bytes;
  peak_.reserved = std::max(peak_.reserved, now_.reserved);
  return merged;
}

// E5: gives back the whole pages inside a free block; the ends stay free. Returns the hole, or kNone where there is
// no whole page.
BlockId CachingAllocator::unmap_block(BlockId id) {
  const Segment& segment = segments_[blocks_[id].segment];
  const std::int64_t start = blocks_[id].address - segment.address;
  const std::int64_t begin = round_up(Bytes(start), segment.page).value();
  const std::int64_t end = (start + blocks_[id].size) / segment.page * segment.page;
  if (begin >= end) return kNone;
  pool(blocks_[id]).free.erase(blocks_[id].size, blocks_[id].address);
  if (begin > start) {
    const BlockId rest = split_after(id, begin - start);
    insert_free(id);
    id = rest;
  }
  if (blocks_[id].size > end - begin) insert_free(split_after(id, end - begin));
  if (source_ != nullptr) source_->unmap(segment.base, Bytes(begin), Bytes(end - begin));
  blocks_[id].state = BlockState::Unmapped;
  const BlockId merged = merge(id);
  insert_hole(merged);
  now_.reserved -= end - begin;
  return merged;
}

// A range without a mapped page is given up.
void CachingAllocator::release_range(BlockId id) {
  erase_hole(id);
  const std::uint32_t segment = blocks_[id].segment;
  if (source_ != nullptr) source_->unreserve(segments_[segment].base, Bytes(segments_[segment].size));
  segments_[segment].live = false;
  spare_segments_.push_back(segment);
  spare_blocks_.push_back(id);
}

}  // namespace dsplan
