// The state in which a recording began, found by undoing its trace from the final segments: a history that wrapped
// around, or that was switched on late, begins in the middle of a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/snapshot.h"
#include "sim/allocator.h"

namespace dsplan {

struct RecordedBlock {  // Handed out, whether or not its free already waits.
  Bytes size;
  Bytes requested;
};
struct RecordedSegment {  // A cudaMalloc, or a contiguous mapped stretch.
  Bytes size;
  std::int64_t stream = 0;
  bool large = false;
  bool expandable = false;
};
struct RecordedState {
  std::map<std::int64_t, RecordedBlock> live;        // By address.
  std::map<std::int64_t, RecordedSegment> segments;  // By address.
};

// Sizes of blocks that were freed on the way are computed by the allocator's rules R2 and R7. Refuses, under `path`, a
// trace that its own final segments contradict, with the number of the entry: parts of the history are missing then
// (it was switched off in between, or written without some actions).
[[nodiscard]] RecordedState state_before(const Snapshot& snapshot, std::int64_t device, const std::string& path);

// The driver as a recording shows it: it grants what was granted then, refuses what was refused, and notices where the
// allocator does something else. For sim/snapshot_replay.cpp.

class RecordedDriver : public SegmentSource {
 public:
  explicit RecordedDriver(const std::vector<SnapshotEntry>& trace) : trace_(trace) {}

  // The recorded dealings that belong to the next request: entries [begin, end), of which all are segment steps.
  void expect(std::size_t begin, std::size_t end);
  // Those that the allocator has not done yet: the number of the first, if any.
  [[nodiscard]] std::optional<std::size_t> left() const;
  // How many of those give memory back before anything else happens.
  [[nodiscard]] std::size_t given_back_first() const;
  [[nodiscard]] std::int64_t matched() const { return matched_; }
  [[nodiscard]] const std::optional<SnapshotDifference>& difference() const { return difference_; }
  void differ(std::size_t entry, std::string recorded, std::string predicted);
  // From here on nothing is compared.
  void close() { closed_ = true; }

  [[nodiscard]] bool gives_addresses() const override { return true; }
  [[nodiscard]] void* allocate(Bytes size) override;
  void free(void* segment, Bytes size) override;
  [[nodiscard]] void* reserve(Bytes size) override;
  void unreserve(void*, Bytes) override {}
  [[nodiscard]] bool map(void* range, Bytes offset, Bytes size) override;
  void unmap(void* range, Bytes offset, Bytes size) override;

 private:
  using Action = SnapshotEntry::Action;
  [[nodiscard]] const SnapshotEntry* next();
  void give_back(Action action, Bytes address, Bytes size);
  [[nodiscard]] std::size_t here() const { return next_ < end_ ? pending_[next_] : end_entry_; }

  const std::vector<SnapshotEntry>& trace_;
  std::vector<std::size_t> pending_;  // Numbers of entries; those before next_ are done.
  std::size_t next_ = 0;
  std::size_t end_ = 0;
  std::size_t end_entry_ = 0;  // The request itself.
  std::int64_t matched_ = 0;
  std::optional<SnapshotDifference> difference_;
  bool closed_ = false;
};

// "segment_alloc of 2,097,152 bytes at 0x7f0000000000"
[[nodiscard]] std::string in_words(const SnapshotEntry& entry);

}  // namespace dsplan
