// What dsplan says of a recorded memory snapshot: whether the allocator's rules explain it, and how far a prediction is
// from it. Made by `sim` and `cli`, printed by `cli`, written as JSON by `io`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"

namespace dsplan {

struct SnapshotDifference {
  std::optional<std::size_t> entry;  // Of the device's trace; absent: the final segments.
  std::string recorded;
  std::string predicted;
};

struct SnapshotSizes {
  Bytes allocated;
  Bytes requested;
  Bytes active;
  Bytes reserved;
  friend bool operator==(const SnapshotSizes&, const SnapshotSizes&) = default;
};

struct DeviceReplay {
  std::int64_t device = 0;
  std::size_t entries = 0;
  // How much was fed or compared before the first difference.
  std::int64_t allocations = 0;
  std::int64_t frees = 0;
  std::int64_t segment_steps = 0;  // segment_alloc, _free, _map and _unmap.
  std::int64_t ooms = 0;           // Recorded ones.
  // Times that everything cached was given back: empty_cache, or a cudaMalloc that failed. A trace tells neither.
  std::int64_t releases = 0;
  SnapshotSizes start;       // What there was before the first entry.
  SnapshotSizes end;         // By the allocator's rules, as the peaks.
  SnapshotSizes peaks;       // From the first entry on, each at its own time.
  std::size_t segments = 0;  // At the end, as a snapshot counts them; blocks likewise.
  std::size_t blocks = 0;
  std::optional<SnapshotDifference> difference;  // The first one; the replay stops there.
};

// A prediction beside a recording, by the same names.
struct SnapshotComparison {
  std::int64_t device = 0;
  SnapshotSizes recorded;  // Peaks.
  SnapshotSizes predicted;
  SnapshotSizes recorded_end;
  SnapshotSizes predicted_end;
  std::size_t recorded_segments = 0;  // At the end.
  std::size_t predicted_segments = 0;
  [[nodiscard]] bool equal() const {
    return recorded == predicted && recorded_end == predicted_end && recorded_segments == predicted_segments;
  }
};

}  // namespace dsplan
