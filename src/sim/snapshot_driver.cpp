#include "sim/snapshot_driver.h"

#include "core/format.h"

namespace dsplan {
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
