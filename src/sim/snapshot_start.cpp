#include "sim/snapshot_start.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/format.h"
#include "sim/allocator_constants.h"

namespace dsplan {
namespace {

using Action = SnapshotEntry::Action;

class Undo {
 public:
  Undo(const Snapshot& snapshot, std::int64_t device, const std::string& path)
      : config_(snapshot.config.value_or(AllocatorConfig{})), rules_(config_), device_(device), path_(path) {
    for (const SnapshotSegment& segment : snapshot.segments) {
      if (segment.device == device) take(segment);
    }
  }

  RecordedState run(const std::vector<SnapshotEntry>& trace) {
    for (at_ = trace.size(); at_-- > 0;) undo(trace[at_]);
    absorb_slack();
    return std::move(state_);
  }

 private:
  void take(const SnapshotSegment& segment) {
    state_.segments[segment.address.value()] = {segment.size, segment.stream, segment.large, segment.expandable};
    for (const SnapshotBlock& block : segment.blocks) {
      if (block.state == SnapshotBlock::State::Inactive) continue;
      state_.live[block.address.value()] = {block.size, block.requested};
    }
  }

  [[noreturn]] void contradiction(const SnapshotEntry& entry, const std::string& why) const {
    throw Refusal(path_,
                  formatted("device {}, entry {} ({} of {} bytes at 0x{:x}) contradicts what follows: {}", device_, at_,
                            name(entry.action), entry.size.value(), entry.address.value(), why),
                  "was the history switched off in between, or recorded without some actions?");
  }

  void undo(const SnapshotEntry& entry) {
    switch (entry.action) {
      case Action::Alloc: undo_alloc(entry); return;
      case Action::FreeCompleted: undo_free(entry); return;
      case Action::SegmentAlloc: undo_segment_alloc(entry); return;
      case Action::SegmentFree: add_segment(entry, false); return;
      case Action::SegmentMap: undo_map(entry); return;
      case Action::SegmentUnmap: add_segment(entry, true); return;
      case Action::FreeRequested:
      case Action::OutOfMemory:
      case Action::Snapshot:
      case Action::Other: return;
    }
  }

  void undo_alloc(const SnapshotEntry& entry) {
    const auto at = state_.live.find(entry.address.value());
    if (at == state_.live.end()) contradiction(entry, "nothing is there afterwards");
    if (at->second.requested != entry.size) {
      contradiction(entry, formatted("{} bytes are there afterwards", at->second.requested.value()));
    }
    state_.live.erase(at);
  }

  // The segment that holds `address`, or the end.
  [[nodiscard]] auto segment_at(std::int64_t address) {
    auto at = state_.segments.upper_bound(address);
    if (at == state_.segments.begin()) return state_.segments.end();
    --at;
    return address < at->first + at->second.size.value() ? at : state_.segments.end();
  }

  // The first live block at or behind `address`, or `end`.
  [[nodiscard]] std::int64_t next_live(std::int64_t address, std::int64_t end) const {
    const auto at = state_.live.lower_bound(address);
    return at == state_.live.end() ? end : std::min(at->first, end);
  }

  [[nodiscard]] bool overlaps_live(std::int64_t begin, std::int64_t end) const {
    auto at = state_.live.lower_bound(end);
    if (at == state_.live.begin()) return false;
    --at;
    return at->first + at->second.size.value() > begin;
  }

  void undo_free(const SnapshotEntry& entry) {
    const std::int64_t address = entry.address.value();
    const auto segment = segment_at(address);
    if (segment == state_.segments.end()) contradiction(entry, "no segment is there");
    const std::int64_t end = segment->first + segment->second.size.value();
    const std::int64_t room = next_live(address, end) - address;
    if (entry.size <= Bytes(0) || entry.size.value() > room || overlaps_live(address, address + 1)) {
      contradiction(entry, "the place is taken");
    }
    const std::int64_t size = rules_.rounded(entry.size).value();
    // Memory that came from a segment which is gone later: its pool shows in what it held.
    segment->second.large = size > kSmallSize;
    const bool fine = size <= kSmallSize || segment->second.expandable;
    const bool split =
        fine ? room - size >= kMinBlock : size < config_.max_split_size.value() && room - size > kSmallSize;
    state_.live[address] = {Bytes(split ? size : room), entry.size};
  }

  void undo_segment_alloc(const SnapshotEntry& entry) {
    const auto at = state_.segments.find(entry.address.value());
    if (at == state_.segments.end() || at->second.size != entry.size || at->second.expandable) {
      contradiction(entry, "no such segment is there afterwards");
    }
    if (overlaps_live(at->first, at->first + entry.size.value())) contradiction(entry, "it is in use before");
    state_.segments.erase(at);
  }

  void add_segment(const SnapshotEntry& entry, bool expandable) {
    const std::int64_t begin = entry.address.value();
    const std::int64_t end = checked_add(begin, entry.size.value());
    auto next = state_.segments.lower_bound(begin);
    const bool taken = next != state_.segments.end() && next->first < end;
    if (entry.size <= Bytes(0) || taken || segment_at(begin) != state_.segments.end()) {
      contradiction(entry, "other memory is there afterwards");
    }
    // Until a block shows it: the small pool's segments are the only ones of this size.
    const bool large =
        expandable ? entry.size.value() % config_.large_segment_size.value() == 0 : entry.size.value() != kSmallSegment;
    RecordedSegment made{entry.size, entry.stream, large, expandable};
    if (!expandable) {
      state_.segments[begin] = made;
      return;
    }
    // Mapped stretches that touch are one.
    const auto joins = [&](const RecordedSegment& other) { return other.expandable && other.stream == entry.stream; };
    std::int64_t start = begin;
    if (next != state_.segments.end() && next->first == end && joins(next->second)) {
      made.size += next->second.size;
      made.large = next->second.large;
      next = state_.segments.erase(next);
    }
    if (next != state_.segments.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.size.value() == begin && joins(before->second)) {
        start = before->first;
        made.size += before->second.size;
        made.large = before->second.large;
      }
    }
    state_.segments[start] = made;
  }

  void undo_map(const SnapshotEntry& entry) {
    const std::int64_t begin = entry.address.value();
    const std::int64_t end = checked_add(begin, entry.size.value());
    const auto at = segment_at(begin);
    if (at == state_.segments.end() || !at->second.expandable || at->first + at->second.size.value() < end ||
        entry.size <= Bytes(0)) {
      contradiction(entry, "no such pages are there afterwards");
    }
    if (overlaps_live(begin, end)) contradiction(entry, "the pages are in use before");
    const std::int64_t first = at->first;
    const RecordedSegment whole = at->second;
    state_.segments.erase(at);
    const auto keep = [&](std::int64_t from, std::int64_t to) {
      if (from == to) return;
      RecordedSegment part = whole;
      part.size = Bytes(to - from);
      state_.segments[from] = part;
    };
    keep(first, begin);
    keep(end, first + whole.size.value());
  }

  // In the large pool nothing as small as a rest that is not split off is ever free by itself: such a gap belongs to
  // the block before it, which took the place whole.
  void absorb_slack() {
    for (auto at = state_.live.begin(); at != state_.live.end(); ++at) {
      const auto segment = segment_at(at->first);
      if (segment == state_.segments.end() || !segment->second.large || segment->second.expandable) continue;
      const std::int64_t end = segment->first + segment->second.size.value();
      const std::int64_t room = next_live(at->first + 1, end) - at->first;
      if (room - at->second.size.value() <= kSmallSize) at->second.size = Bytes(room);
    }
  }

  AllocatorConfig config_;
  CachingAllocator rules_;  // For its rounding.
  std::int64_t device_;
  const std::string& path_;
  RecordedState state_;
  std::size_t at_ = 0;
};

}  // namespace

RecordedState state_before(const Snapshot& snapshot, std::int64_t device, const std::string& path) {
  static const std::vector<SnapshotEntry> kNothing;
  const auto index = static_cast<std::size_t>(device);
  return Undo(snapshot, device, path).run(index < snapshot.traces.size() ? snapshot.traces[index] : kNothing);
}

}  // namespace dsplan
