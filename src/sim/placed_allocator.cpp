#include "sim/placed_allocator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"

namespace dsplan {

void PrintLog::take_peaks() {
  const AllocatorStatistics now = allocator_.statistics();
  most_allocated_ = std::max(most_allocated_, now.allocated);
  most_reserved_ = std::max(most_reserved_, now.reserved);
}

void PrintLog::print(std::vector<PlacementPrint>& prints) {
  const AllocatorStatistics now = allocator_.statistics();
  prints.push_back({now.allocated, now.reserved, most_allocated_, most_reserved_});
  most_allocated_ = now.allocated;
  most_reserved_ = now.reserved;
}

namespace {

PlacementPeaks peaks_of(const CachingAllocator& allocator, std::size_t reserved_at) {
  const AllocatorStatistics most = allocator.peaks();
  return {most.requested, most.allocated, most.active, most.reserved, reserved_at};
}

}  // namespace

PlacedAllocator::PlacedAllocator(const Schedule& schedule, const PlacementOptions& options, bool growing)
    : schedule_(schedule),
      allocator_(options.config, options.device),
      clock_(options.times != nullptr ? std::make_unique<StreamClock>(*options.times) : nullptr),
      streams_(allocator_, options.frees, schedule.untold, clock_.get()),
      prints_(schedule, allocator_, growing),
      blocks_(schedule.buffers.size(), kNullBlock),
      until_retry_(options.until_retry),
      at_once_(options.times == nullptr && options.frees == StreamFrees::Immediate) {
  allocator_.set_capacity(options.limit);
}

inline std::optional<BlockId> PlacedAllocator::ask(std::size_t at, Bytes size, StreamId stream) {
  const std::optional<BlockId> block = allocator_.allocate(size, stream);
  if (allocator_.retries() != retries_) [[unlikely]] {
    retries_ = allocator_.retries();
    if (clock_) clock_->wait_for_all();
    streams_.retried();
    if (!result_.first_retry) result_.first_retry = at;
  }
  if (!block) [[unlikely]] {
    result_.failed_event = at;
    result_.failed_request = size;
    const Bytes needed = allocator_.segment_for(size);
    result_.missing = needed > allocator_.left() ? needed - allocator_.left() : Bytes(0);
    return block;
  }
  prints_.grown();
  if (allocator_.reserved() > most_reserved_) {
    most_reserved_ = allocator_.reserved();
    reserved_at_ = at;
  }
  return block;
}

// As many at once as one free block has room for; else the next one by itself.
void PlacedRuns::allocate_pieces(std::size_t at, BufferId id, StreamId stream) {
  const Pieces& pieces = own_.schedule_.pieces_of(id);
  std::vector<AllocatorRuns::Together> made;
  for (std::size_t k = 0; k < pieces.count && !own_.stopped();) {
    AllocatorRuns::Together some = AllocatorRuns(own_.allocator_).allocate_together(pieces.count - k, stream);
    const Bytes requested = pieces.bytes(k + std::max<std::size_t>(some.count, 1)) - pieces.bytes(k);
    if (some.count > 0) {
      AllocatorRuns(own_.allocator_).ask(some.block, requested);
      own_.prints_.grown();
    } else if (const std::optional<BlockId> block = own_.ask(at, requested, stream)) {
      some = {*block, 1};
    }
    made.push_back(some);
    k += some.count;
  }
  own_.blocks_[id] = made.front().block;
  own_.in_pieces_.push_back({id, std::move(made)});
}

void PlacedRuns::release_pieces(BufferId id) {
  const auto found = std::find_if(own_.in_pieces_.begin(), own_.in_pieces_.end(),
                                  [id](const PlacedAllocator::InPieces& one) { return one.buffer == id; });
  for (const AllocatorRuns::Together& some : found->blocks) AllocatorRuns(own_.allocator_).release_together(some);
  own_.in_pieces_.erase(found);
  own_.blocks_[id] = kNullBlock;
}

void PlacedAllocator::allocate(std::size_t at, BufferId id, StreamId stream) {
  const Buffer& buffer = schedule_.buffers[id];
  prints_.before(at, result_.prints);
  if (buffer.in_pieces) [[unlikely]]
    return PlacedRuns(*this).allocate_pieces(at, id, stream);
  if (const std::optional<BlockId> block = ask(at, buffer.size, stream)) blocks_[id] = *block;
}

void PlacedAllocator::release(std::size_t at, BufferId id, StreamSet waits_for) {
  prints_.before(at, result_.prints);
  if (!in_pieces_.empty() && schedule_.buffers[id].in_pieces) [[unlikely]] {
    DSPLAN_CHECK(waits_for == 0, "pieces that another stream uses");
    return PlacedRuns(*this).release_pieces(id);
  }
  if (waits_for != 0) {
    result_.waited = true;
    awaited_.push_back({allocator_.address(blocks_[id]), id});
  }
  allocator_.release(blocks_[id]);
  blocks_[id] = kNullBlock;
}

void PlacedRuns::allocate(std::size_t at, BufferId first, std::size_t count, StreamId stream) {
  std::vector<Bytes>& sizes = own_.sizes_;
  sizes.clear();
  for (std::size_t k = 0; k < count; ++k) sizes.push_back(own_.schedule_.buffers[BufferId(first.index() + k)].size);
  for (std::size_t k = 0; k < count && !own_.stopped();) {
    const BufferId id(first.index() + k);
    own_.prints_.before(at + k, own_.result_.prints);
    const std::size_t most = std::min(count - k, own_.prints_.events_before_next(at + k, own_.result_.prints));
    const std::size_t served =
        AllocatorRuns(own_.allocator_)
            .allocate(std::span(sizes).subspan(k, most), stream, std::span(&own_.blocks_[id], most));
    if (served > 0) {
      own_.prints_.grown();
    } else {
      own_.allocate(at + k, id, stream);
    }
    k += std::max<std::size_t>(served, 1);
  }
}

void PlacedRuns::release(std::size_t at, BufferId first, std::size_t count) {
  for (std::size_t k = 0; k < count;) {
    own_.prints_.before(at + k, own_.result_.prints);
    const std::size_t some = std::min(count - k, own_.prints_.events_before_next(at + k, own_.result_.prints));
    const std::span<BlockId> blocks(&own_.blocks_[BufferId(first.index() + k)], some);
    AllocatorRuns(own_.allocator_).release(blocks);
    std::fill(blocks.begin(), blocks.end(), kNullBlock);
    k += some;
  }
}

void PlacedAllocator::mark(std::size_t at, const Mark& event) {
  prints_.before(at, result_.prints);
  const PlacementPeaks since = peaks_of(allocator_, reserved_at_);
  if (event.moment != Moment::StretchBegins) {
    PlacementPeaks& stretch = result_.by_stretch[static_cast<std::size_t>(event.stretch)];
    stretch.requested = std::max(stretch.requested, since.requested);
    stretch.allocated = std::max(stretch.allocated, since.allocated);
    stretch.active = std::max(stretch.active, since.active);
    if (since.reserved > stretch.reserved) {
      stretch.reserved = since.reserved;
      stretch.reserved_at = since.reserved_at;
    }
    saved_ = saved_ || event.stretch == Stretch::Save;
  }
  allocator_.reset_peaks();
  most_reserved_ = allocator_.reserved();
  reserved_at_ = at;
  const AllocatorStatistics now = allocator_.statistics();
  result_.marks.push_back({at, now.requested, now.allocated, now.active, now.reserved, since});
  const bool known = second_step_.left != nullptr || (result_.waited && !at_once_);
  if (event.stretch != Stretch::SecondStep || known) return;
  if (event.moment == Moment::StretchBegins) second_step_.before = shape();
  if (event.moment != Moment::StretchEnds) return;
  second_step_.after = shape();
  second_step_.left.reset(new SecondStep::Left{allocator_.copy(), blocks_});
}

void PlacedAllocator::empty_cache(std::size_t at) {
  prints_.before(at, result_.prints);
  if (clock_) clock_->wait_for_all();
  streams_.empty_cache();
}

void PlacedAllocator::inherit(BufferId gone, BufferId heir) {
  blocks_[gone] = std::exchange(blocks_[heir], kNullBlock);
}

Placement PlacedAllocator::finish() {
  result_.retries = allocator_.retries();
  // What lies behind the last stretch, or a schedule without marks. Behind saving there is nothing.
  if (!saved_) result_.peak = peaks_of(allocator_, reserved_at_);
  for (auto at = result_.by_stretch.rbegin(); at != result_.by_stretch.rend(); ++at) {
    if (at == result_.by_stretch.rend() - 1 - static_cast<std::ptrdiff_t>(Stretch::Save)) continue;
    result_.peak.requested = std::max(result_.peak.requested, at->requested);
    result_.peak.allocated = std::max(result_.peak.allocated, at->allocated);
    result_.peak.active = std::max(result_.peak.active, at->active);
    if (at->reserved < result_.peak.reserved) continue;
    result_.peak.reserved = at->reserved;
    result_.peak.reserved_at = at->reserved_at;
  }
  return result_;
}

AllocatorShape PlacedAllocator::shape() const {
  std::vector<BufferId> held;
  for (const BufferId id : blocks_.ids()) {
    if (blocks_[id] != kNullBlock) held.push_back(id);
  }
  return shape_of(allocator_, blocks_, held);
}

AllocatorShape shape_of(const CachingAllocator& allocator, const Indexed<BufferId, BlockId>& blocks,
                        std::span<const BufferId> held) {
  std::vector<std::pair<Bytes, BufferId>> by_address;
  by_address.reserve(held.size());
  for (const BufferId id : held) by_address.emplace_back(allocator.address(blocks[id]), id);
  std::sort(by_address.begin(), by_address.end());
  AllocatorShape shape;
  std::optional<std::uint32_t> segment;
  auto next = by_address.begin();
  for (const CachingAllocator::BlockView& view : allocator.blocks()) {
    const bool begins = segment != view.segment;
    segment = view.segment;
    const bool awaits = view.state == CachingAllocator::BlockState::AwaitingFree;
    const auto state = awaits ? CachingAllocator::BlockState::Free : view.state;
    const bool free = state == CachingAllocator::BlockState::Free;
    if (free && !begins && shape.back().state == state) {
      shape.back().size += view.size;
      continue;
    }
    ShapedBlock& block = shape.emplace_back();
    block.size = view.size;
    block.stream = view.stream;
    block.state = state;
    block.large = view.large;
    block.begins = begins;
    if (state == CachingAllocator::BlockState::Allocated) block.buffer = (next++)->second;
  }
  return shape;
}

AllocatorState PlacedAllocator::state() const {
  AllocatorState state;
  state.statistics = allocator_.statistics();
  std::map<Bytes, BufferId> waiting;
  for (const Awaited& one : awaited_) waiting[one.address] = one.buffer;  // The latest at an address.
  std::map<Bytes, BufferId> held;
  for (const BufferId id : blocks_.ids()) {
    if (blocks_[id] != kNullBlock) held[allocator_.address(blocks_[id])] = id;
  }
  for (const CachingAllocator::BlockView& view : allocator_.blocks()) {
    AllocatorState::Block block{view, std::nullopt};
    if (view.state == CachingAllocator::BlockState::Allocated) block.buffer = held.at(view.address);
    if (view.state == CachingAllocator::BlockState::AwaitingFree) block.buffer = waiting.at(view.address);
    state.blocks.push_back(block);
  }
  return state;
}

}  // namespace dsplan
