// One rank's memory while a plan is carried out: device memory under one of three allocators, pinned and pageable host
// memory, files. It knows buffers by their number, and sizes by what is asked of it: not what a schedule says, but what
// the operators and the runtime really want. All counters are of that, and of what was really taken from the backend.
//
//   caching   PyTorch's allocator (sim/allocator.h) over segments of the backend, under a hard limit
//   planned   one block; each buffer at the offset that was planned for it. What lies beyond the block's end, or on a
//             buffer that is still there, is refused
//   plain     each buffer its own allocation of the backend, for sanitizers
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/allocator_config.h"
#include "core/job.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "exec/device.h"
#include "sim/allocator.h"

namespace dsplan::exec {

enum class AllocatorKind : std::uint8_t { Caching, Planned, Plain };
[[nodiscard]] std::string_view name(AllocatorKind kind);  // "caching"

struct MemoryOptions {
  AllocatorKind kind = AllocatorKind::Caching;
  // What may be taken of the device: what the caching allocator may reserve, the height of the arena, the sum of plain
  // buffers. Without one: all that the device has; of an arena, its planned height.
  std::optional<Bytes> limit;

  AllocatorConfig config;       // Caching only, like the next two.
  std::optional<Bytes> device;  // Of what a memory fraction is taken; absent: of the limit.
  StreamFrees stream_frees = StreamFrees::AtSync;
  UntoldUses untold;  // Of the schedule.

  Bytes height;                             // Planned only: PlannedArena::height and ::offsets.
  Indexed<BufferId, std::int64_t> offsets;  // In bytes; -1 for what is not on the device.

  // Memory that nobody holds is filled with kPattern and looked at when it is taken again or given back, as is what
  // lies between a buffer's end and its block's. New buffers read as NaN. Needs a device whose memory the host can read
  // and that does everything at once.
  bool patterns = false;
};
inline constexpr std::uint8_t kPattern = 0xff;

// What was asked for of the device, whatever was taken for it.
struct Demand {
  Bytes bytes;  // Held now,
  ByRole by_role;
  Bytes peak;  // and at the first moment at which they were most.
  ByRole peak_by_role;
  // Since the start, whatever was released meanwhile; nothing of no bytes is asked for, as under PyTorch.
  Bytes total;
  std::int64_t allocations = 0;

  void add(Role role, Bytes more);
  void subtract(Role role, Bytes less);
  void reset_peak();
};

struct HostCounters {
  Bytes pinned;            // Taken by PyTorch's pool: powers of two, never given back before the end.
  Bytes locked;            // Locked by DeepSpeed itself, to the byte.
  Bytes pinned_requested;  // Handed out of both.
  Bytes pageable;
  Bytes nvme;
  [[nodiscard]] Bytes memory() const { return pinned + locked + pageable; }
};
struct HostPeaks {
  HostCounters most;  // Each at its own moment.
  Bytes memory;       // All but files together.
};
// What the host holds for this rank.
struct HostUse {
  HostCounters now;
  HostPeaks peaks;
  ByRole by_role;         // Requested bytes, files included.
  Bytes requested_total;  // Since the start, files apart.

  void take_peaks();
};

class DeviceSpace;  // One of the three allocators; private to spaces.h.
class HostSpace;    // Pools and files; private to spaces.h.

class RankMemory {
 public:
  // Takes the whole arena at once, where there is one; throws RunFailure where the device does not have it.
  RankMemory(Device& device, MemoryOptions options);
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  // Throws RunFailure (DSPLAN_OUT_OF_MEMORY with what was asked for and what is missing; DSPLAN_IO for a file).
  void allocate(BufferId id, Bytes bytes, Role role, Space space, StreamId stream = 0);
  void release(BufferId id);
  // One piece of work, in program order: what other streams than its own do with a buffer holds its memory up.
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes);
  // Of streams and of the cache; others do nothing.
  void happens(const Event& event);

  // A buffer that is held.
  struct Held {
    void* memory = nullptr;       // nullptr for Nvme,
    dsplan_file* file = nullptr;  // which alone has this.
    Bytes bytes;                  // As it was asked for.
    Role role = Role::Temporaries;
    Space space = Space::Device;
    bool live = false;
  };
  [[nodiscard]] bool holds(BufferId id) const { return held_.has(id) && held_[id].live; }
  [[nodiscard]] const Held& at(BufferId id) const;
  [[nodiscard]] std::byte* pointer(BufferId id) const { return static_cast<std::byte*>(at(id).memory); }

  [[nodiscard]] const Demand& demand() const { return demand_; }
  [[nodiscard]] const HostUse& host() const { return host_; }
  // As the allocator counts (sim/allocator.h). `reserved` is what was taken from the backend. An arena is one segment,
  // its blocks are multiples of 512 bytes; plain buffers are all segments of their own, of their own size.
  [[nodiscard]] AllocatorStatistics device() const;
  [[nodiscard]] AllocatorStatistics device_peaks() const;
  void reset_peaks();  // Of the device, from now on.

  // Gives everything back, also what nobody released, and throws what went wrong with that; to be called before the
  // device is closed. Counters stay readable. The destructor does the same in silence (the device notes it).
  void finish();

 private:
  void give_back(Held& held, BufferId id);

  Device& device_;
  std::unique_ptr<DeviceSpace> space_;
  std::unique_ptr<HostSpace> host_space_;
  Indexed<BufferId, Held> held_;
  Demand demand_;
  HostUse host_;
  AllocatorStatistics last_;  // When `finish` was called.
  AllocatorStatistics last_peaks_;
};

}  // namespace dsplan::exec
