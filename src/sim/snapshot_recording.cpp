#include "sim/snapshot_recording.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/format.h"
#include "sim/allocator.h"

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

namespace {

Bytes address_of(void* base) { return Bytes(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(base))); }
void* pointer_to(Bytes address) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(address.value())); }

bool gives_back(const SnapshotEntry& entry) {
  return entry.action == SnapshotEntry::Action::SegmentFree || entry.action == SnapshotEntry::Action::SegmentUnmap;
}

}  // namespace

std::string in_words(const SnapshotEntry& entry) {
  if (entry.action == SnapshotEntry::Action::OutOfMemory) {
    return formatted("oom: {} bytes asked for", grouped(entry.size.value()));
  }
  return formatted("{} of {} bytes at 0x{:x}", name(entry.action), grouped(entry.size.value()), entry.address.value());
}

void RecordedDriver::expect(std::size_t begin, std::size_t end) {
  pending_.clear();
  for (std::size_t at = begin; at < end; ++at) {
    const Action action = trace_[at].action;
    if (action != Action::Snapshot && action != Action::Other) pending_.push_back(at);
  }
  next_ = 0;
  end_ = pending_.size();
  end_entry_ = end;
}

std::optional<std::size_t> RecordedDriver::left() const {
  return next_ < end_ ? std::optional(pending_[next_]) : std::nullopt;
}

std::size_t RecordedDriver::given_back_first() const {
  std::size_t count = 0;
  while (next_ + count < end_ && gives_back(trace_[pending_[next_ + count]])) ++count;
  return count;
}

void RecordedDriver::differ(std::size_t entry, std::string recorded, std::string predicted) {
  if (!difference_) difference_ = SnapshotDifference{entry, std::move(recorded), std::move(predicted)};
}

const SnapshotEntry* RecordedDriver::next() { return next_ < end_ ? &trace_[pending_[next_]] : nullptr; }

void* RecordedDriver::allocate(Bytes size) {
  if (closed_ || difference_) return nullptr;
  const SnapshotEntry* entry = next();
  if (entry != nullptr && gives_back(*entry)) return nullptr;  // The device had no more, and memory was given back.
  if (entry != nullptr && entry->action == Action::SegmentAlloc && entry->size == size) {
    ++next_;
    ++matched_;
    return pointer_to(entry->address);
  }
  if (entry == nullptr && end_entry_ < trace_.size() && trace_[end_entry_].action == Action::OutOfMemory)
    return nullptr;
  differ(here(), entry == nullptr ? "no new segment" : in_words(*entry),
         formatted("segment_alloc of {} bytes", grouped(size.value())));
  return nullptr;
}

// Within one run the order is not compared: it follows addresses, and pools that a trace does not name.
void RecordedDriver::give_back(Action action, Bytes address, Bytes size) {
  if (closed_ || difference_) return;
  for (std::size_t at = next_; at < end_ && gives_back(trace_[pending_[at]]); ++at) {
    const SnapshotEntry& entry = trace_[pending_[at]];
    if (entry.action != action || entry.address != address || entry.size != size) continue;
    std::swap(pending_[next_], pending_[at]);
    ++next_;
    ++matched_;
    return;
  }
  const SnapshotEntry* entry = next();
  differ(here(), entry == nullptr ? "nothing more is given back" : in_words(*entry),
         in_words({action, address, size, 0, 0, 0}));
}

void RecordedDriver::free(void* segment, Bytes size) { give_back(Action::SegmentFree, address_of(segment), size); }

// The base of a range is not recorded: its first page is.
void* RecordedDriver::reserve(Bytes) {
  const SnapshotEntry* entry = next();
  if (!closed_ && entry != nullptr && entry->action == Action::SegmentMap) return pointer_to(entry->address);
  // Nothing will be mapped there.
  return pointer_to(Bytes(std::int64_t{1} << 52));
}

bool RecordedDriver::map(void* range, Bytes offset, Bytes size) {
  if (closed_ || difference_) return false;
  const SnapshotEntry* entry = next();
  const Bytes address = address_of(range) + offset;
  if (entry != nullptr && gives_back(*entry)) return false;
  if (entry != nullptr && entry->action == Action::SegmentMap && entry->address == address && entry->size == size) {
    ++next_;
    ++matched_;
    return true;
  }
  if (entry == nullptr && end_entry_ < trace_.size() && trace_[end_entry_].action == Action::OutOfMemory) return false;
  differ(here(), entry == nullptr ? "no more pages" : in_words(*entry),
         in_words({Action::SegmentMap, address, size, 0, 0, 0}));
  return false;
}

void RecordedDriver::unmap(void* range, Bytes offset, Bytes size) {
  give_back(Action::SegmentUnmap, address_of(range) + offset, size);
}

}  // namespace dsplan
