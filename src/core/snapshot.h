// PyTorch's memory snapshot as values: what torch.cuda.memory._snapshot() returns (torch/csrc/cuda/Module.cpp and
// torch/cuda/memory.py). Read and written by `io`, replayed and made by `sim`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/allocator_config.h"
#include "core/units.h"

namespace dsplan {

using StackId = std::uint32_t;  // Index into Snapshot::stacks; 0 is the empty stack.

struct SnapshotFrame {
  std::string name;
  std::string file;
  std::int64_t line = 0;
  friend bool operator==(const SnapshotFrame&, const SnapshotFrame&) = default;
};

struct SnapshotBlock {
  enum class State : std::uint8_t { Allocated, PendingFree, Inactive };
  Bytes address;
  Bytes size;
  Bytes requested;  // 0 where inactive, or where the file is too old to say.
  State state = State::Inactive;
  StackId stack = 0;
  friend bool operator==(const SnapshotBlock&, const SnapshotBlock&) = default;
};
[[nodiscard]] std::string_view name(SnapshotBlock::State state);  // "active_allocated"

// A cudaMalloc, or one contiguous mapped stretch of an expandable range.
struct SnapshotSegment {
  std::int64_t device = 0;
  Bytes address;
  Bytes size;
  std::int64_t stream = 0;  // The stream's handle as a number; 0: the default one.
  bool large = false;
  bool expandable = false;
  StackId stack = 0;
  std::vector<SnapshotBlock> blocks;  // By address; they tile the segment.

  // Sums over the blocks, as the file repeats them.
  [[nodiscard]] Bytes allocated() const;  // Sizes of allocated blocks.
  [[nodiscard]] Bytes active() const;     // Those, and of blocks whose free waits.
  [[nodiscard]] Bytes requested() const;  // Requested bytes of active blocks.
  friend bool operator==(const SnapshotSegment&, const SnapshotSegment&) = default;
};

struct SnapshotEntry {
  enum class Action : std::uint8_t {
    Alloc,          // size: requested bytes, as for both frees.
    FreeRequested,  // The program let go.
    FreeCompleted,  // The block can be handed out again.
    SegmentAlloc,   // size: of the segment, or of the pages.
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    OutOfMemory,  // address: what the driver reports as free.
    Snapshot,     // A snapshot was taken.
    Other,        // An action of a later version that moves no memory; passed over.
  };
  Action action = Action::Other;
  Bytes address;
  Bytes size;
  std::int64_t stream = 0;
  std::int64_t time_us = 0;
  StackId stack = 0;
  friend bool operator==(const SnapshotEntry&, const SnapshotEntry&) = default;
};
[[nodiscard]] std::string_view name(SnapshotEntry::Action action);  // "segment_alloc"

struct Snapshot {
  std::vector<std::vector<SnapshotFrame>> stacks = {{}};  // Innermost frame first.
  std::vector<SnapshotSegment> segments;                  // By device, then by address.
  std::vector<std::vector<SnapshotEntry>> traces;         // By device, oldest entry first.
  std::string conf;                                       // PYTORCH_CUDA_ALLOC_CONF as set; may be empty.
  std::optional<AllocatorConfig> config;                  // What `allocator_settings` say; absent in old files.
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// What cannot be told apart from a number any more in JavaScript, where the public viewer reads addresses.
inline constexpr std::int64_t kLargestViewerNumber = std::int64_t{1} << 53;

// A PYTORCH_CUDA_ALLOC_CONF that says what `config` says, except roundup_power2_divisions, which a snapshot tells
// apart.
[[nodiscard]] std::string conf_text(const AllocatorConfig& config);

// What dsplan says of a recorded memory snapshot: whether the allocator's rules explain it, and how far a prediction is
// from it. Made by `sim` and `cli`, printed by `cli`, written as JSON by `report`.

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
