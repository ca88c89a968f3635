#include "sim/placer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace dsplan {

void Placer::print() {
  const AllocatorStatistics now = allocator_.statistics();
  result_.prints.push_back({now.allocated, now.reserved, most_allocated_since_print_, most_reserved_since_print_});
  most_allocated_since_print_ = now.allocated;
  most_reserved_since_print_ = now.reserved;
}

void Placer::allocate(std::size_t at, BufferId id, StreamId stream) {
  const Bytes size = schedule_.buffers[id].size;
  print_before(at);
  const std::optional<BlockId> block = allocator_.allocate(size, stream);
  if (allocator_.retries() != retries_) note_retry(at);
  if (!block) return fail(at, size);
  blocks_[id] = *block;
  if (!schedule_.prints.empty()) {
    const AllocatorStatistics now = allocator_.statistics();
    most_allocated_since_print_ = std::max(most_allocated_since_print_, now.allocated);
    most_reserved_since_print_ = std::max(most_reserved_since_print_, now.reserved);
  }
  if (allocator_.reserved() > most_reserved_) {
    most_reserved_ = allocator_.reserved();
    reserved_at_ = at;
  }
}

void Placer::release(std::size_t at, BufferId id, StreamSet waits_for) {
  print_before(at);
  if (waits_for != 0) {
    result_.waited = true;
    awaited_.push_back({allocator_.address(blocks_[id]), id});
  }
  allocator_.release(blocks_[id]);
  blocks_[id] = kNullBlock;
}

void Placer::mark(std::size_t at, const Mark& event) {
  print_before(at);
  const PlacementPeaks since = peaks();
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
  if (event.stretch == Stretch::SecondStep && after_.empty()) note_shape(event);
}

void Placer::note_shape(const Mark& event) {
  if (event.moment == Moment::StretchBegins) before_ = shape();
  if (event.moment == Moment::StretchEnds) after_ = shape();
}

void Placer::repeat(std::span<const AllocatorRequest> requests) {
  for (const AllocatorRequest& request : requests) {
    if (stopped_) return;
    if (clock_) catch_up(request.event);
    switch (request.what) {
      case AllocatorRequest::What::Allocate:
        if (clock_) streams_.complete();
        allocate(request.event, request.buffer, request.stream);
        break;
      case AllocatorRequest::What::Complete:
        if (at_sync_) streams_.complete(request.stream, request.count);
        break;
      case AllocatorRequest::What::Release:
        streams_.releasing(blocks_[request.buffer], request.waits_for);
        release(request.event, request.buffer, request.waits_for);
        break;
      case AllocatorRequest::What::EmptyCache:
        print_before(request.event);
        if (clock_) clock_->wait_for_all();
        streams_.empty_cache();
        break;
      case AllocatorRequest::What::Mark: mark(request.event, std::get<Mark>(schedule_.events[request.event])); break;
    }
  }
}

void Placer::note_completed(std::size_t at) {
  const AllocatorStreams::Completed completed = streams_.take_completed();
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    for (std::uint32_t left = completed[stream]; left > 0;) {
      const std::uint32_t some = std::min<std::uint32_t>(left, std::numeric_limits<std::uint8_t>::max());
      note({static_cast<std::uint32_t>(at), kNoBuffer, AllocatorRequest::What::Complete, stream, 0,
            static_cast<std::uint8_t>(some)});
      left -= some;
    }
  }
}

void Placer::catch_up(std::size_t event) {
  for (; caught_up_ < event; ++caught_up_) {
    const Event& passed = schedule_.events[caught_up_];
    if (const auto* compute = std::get_if<Compute>(&passed)) {
      clock_->work(caught_up_, compute->stream);
    } else if (const auto* sent = std::get_if<Communicate>(&passed)) {
      clock_->work(caught_up_, sent->stream);
    } else if (const auto* recorded = std::get_if<RecordEvent>(&passed)) {
      clock_->record_event(*recorded);
    } else if (const auto* waited = std::get_if<WaitEvent>(&passed)) {
      clock_->wait_event(*waited);
    }
  }
}

void Placer::note_retry(std::size_t at) {
  retries_ = allocator_.retries();
  if (clock_) clock_->wait_for_all();
  streams_.retried();
  if (!result_.first_retry) result_.first_retry = at;
}

void Placer::fail(std::size_t at, Bytes request) {
  stopped_ = true;
  result_.failed_event = at;
  result_.failed_request = request;
  const Bytes needed = allocator_.segment_for(request);
  result_.missing = needed > allocator_.left() ? needed - allocator_.left() : Bytes(0);
}

PlacementPeaks Placer::peaks() const {
  const AllocatorStatistics most = allocator_.peaks();
  return {most.requested, most.allocated, most.active, most.reserved, reserved_at_};
}

Placement Placer::finish() {
  result_.retries = allocator_.retries();
  // What lies behind the last stretch, or a schedule without marks. Behind saving there is nothing.
  if (!saved_) result_.peak = peaks();
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

AllocatorShape Placer::shape() const {
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
    ShapedBlock& block = shape.emplace_back();
    block.size = view.size;
    block.stream = view.stream;
    block.state = view.state;
    block.large = view.large;
    block.begins = segment != view.segment;
    if (view.state == CachingAllocator::BlockState::Allocated) block.buffer = (next++)->second;
    segment = view.segment;
  }
  return shape;
}

AllocatorState Placer::state() const {
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
