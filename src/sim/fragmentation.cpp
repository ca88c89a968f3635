#include "sim/fragmentation.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

using BlockState = CachingAllocator::BlockState;

// The whole pages inside [from, to), both relative to the start of the range.
Bytes whole_pages(Bytes from, Bytes to, std::int64_t page) {
  const std::int64_t first = round_up(from, page).value();
  const std::int64_t last = to.value() / page * page;
  return Bytes(std::max<std::int64_t>(0, last - first));
}

class Collector {
 public:
  Collector(const AllocatorState& state, const AllocatorConfig& config) : state_(state), config_(config) {}

  FragmentationMap run() {
    for (std::size_t at = 0; at < state_.blocks.size(); ++at) add(at);
    close();
    FragmentationMap& map = map_;
    map.reserved = map.requested + map.slack + map.awaiting + map.inactive_split + map.cached;
    DSPLAN_CHECK(map.reserved == state_.statistics.reserved, "the blocks do not add up to what is reserved");
    std::stable_sort(map.segments.begin(), map.segments.end(),
                     [](const SegmentInUse& a, const SegmentInUse& b) { return a.free > b.free; });
    return std::move(map_);
  }

 private:
  void add(std::size_t at) {
    const CachingAllocator::BlockView& view = state_.blocks[at].view;
    if (at == 0 || view.segment != segment_) {
      close();
      segment_ = view.segment;
      base_ = view.address;
    }
    if (view.state == BlockState::Unmapped) return close();
    if (open_.size == Bytes(0)) open_.address = view.address;
    open_.size += view.size;
    if (view.state == BlockState::Free) {
      free(view);
    } else {
      open_.blocks.push_back(at);
      hold(view);
    }
  }

  void hold(const CachingAllocator::BlockView& view) {
    if (view.state == BlockState::AwaitingFree) {
      map_.awaiting += view.size;
      return;
    }
    map_.requested += view.requested;
    map_.slack += view.size - view.requested;
  }

  void free(const CachingAllocator::BlockView& view) {
    Bytes whole;
    if (view.expandable) {
      const std::int64_t page = view.large ? config_.large_segment_size.value() : kSmallSegment;
      const Bytes from = view.address - base_;
      whole = whole_pages(from, from + view.size, page);
    }
    cached_ += whole;
    open_.free += view.size - whole;
  }

  // A stretch ends: free bytes within one that holds nothing can all be given back.
  void close() {
    map_.cached += cached_;
    if (open_.blocks.empty()) {
      map_.cached += open_.free;
    } else if (open_.free > Bytes(0)) {
      map_.inactive_split += open_.free;
      std::stable_sort(open_.blocks.begin(), open_.blocks.end(), [&](std::size_t a, std::size_t b) {
        return state_.blocks[a].view.size > state_.blocks[b].view.size;
      });
      map_.segments.push_back(std::move(open_));
    }
    open_ = {};
    cached_ = Bytes(0);
  }

  const AllocatorState& state_;
  const AllocatorConfig& config_;
  FragmentationMap map_;
  std::uint32_t segment_ = 0;
  Bytes base_;  // Of the segment or range.
  SegmentInUse open_;
  Bytes cached_;  // Whole pages of the open stretch.
};

}  // namespace

FragmentationMap fragmentation_of(const AllocatorState& state, const AllocatorConfig& config) {
  return Collector(state, config).run();
}

}  // namespace dsplan
