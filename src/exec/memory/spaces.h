// What stands behind RankMemory; private to its own files.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "exec/memory/memory.h"

namespace dsplan::exec {

// Device memory under one allocator.
class DeviceSpace {
 public:
  virtual ~DeviceSpace() = default;
  // Throws RunFailure.
  [[nodiscard]] virtual void* allocate(BufferId id, Bytes bytes, StreamId stream) = 0;
  virtual void release(BufferId id) = 0;
  virtual void work(StreamId, std::span<const Access>, std::span<const Access>) {}
  virtual void record_event(const RecordEvent&) {}
  virtual void wait_event(const WaitEvent&) {}
  virtual void empty_cache() {}
  [[nodiscard]] virtual AllocatorStatistics statistics() const = 0;
  [[nodiscard]] virtual AllocatorStatistics peaks() const = 0;
  virtual void reset_peaks() = 0;
  // Everything has been released. Throws where memory that nobody held was written to.
  virtual void finish() {}
};
[[nodiscard]] std::unique_ptr<DeviceSpace> make_device_space(Device& device, MemoryOptions options);
[[nodiscard]] std::unique_ptr<DeviceSpace> make_caching_space(Device& device, const MemoryOptions& options);
[[nodiscard]] std::unique_ptr<DeviceSpace> make_planned_space(Device& device, MemoryOptions options);
[[nodiscard]] std::unique_ptr<DeviceSpace> make_plain_space(Device& device, const MemoryOptions& options);

// What an allocator's books say where it has nothing to give.
struct Shortage {
  Bytes needed{};  // Of the device, for what was asked.
  Bytes left{};    // Until the limit.
  Bytes taken{};
  Bytes limit{};
};
[[noreturn]] void out_of_memory(Device& device, BufferId id, Bytes requested, const Shortage& shortage);
// What may be taken of the device.
[[nodiscard]] Bytes limit_of(const Device& device, const MemoryOptions& options);

// Sums for the two allocators that keep no books of their own.
class OwnBooks {
 public:
  void add(Bytes requested, Bytes block) {
    now_.requested += requested;
    now_.allocated += block;
    now_.active += block;
    most_.requested = std::max(most_.requested, now_.requested);
    most_.allocated = std::max(most_.allocated, now_.allocated);
    most_.active = std::max(most_.active, now_.active);
  }
  void subtract(Bytes requested, Bytes block) {
    now_.requested -= requested;
    now_.allocated -= block;
    now_.active -= block;
  }
  void take(Bytes reserved) {
    now_.reserved += reserved;
    ++now_.segments;
    most_.reserved = std::max(most_.reserved, now_.reserved);
  }
  void give_back(Bytes reserved) {
    now_.reserved -= reserved;
    --now_.segments;
  }
  void refuse() { ++now_.ooms; }
  [[nodiscard]] const AllocatorStatistics& now() const { return now_; }
  [[nodiscard]] AllocatorStatistics most() const {
    AllocatorStatistics most = most_;
    most.segments = now_.segments;
    most.ooms = now_.ooms;
    return most;
  }
  void reset_peaks() { most_ = now_; }

 private:
  AllocatorStatistics now_;
  AllocatorStatistics most_;
};

// Blocks of pinned memory by PyTorch's rules (sim/host_memory.h: powers of two, the same size is taken again), memory
// as it is asked for, and a file for each buffer.
class HostSpace {
 public:
  HostSpace(Device& device, HostCounters& counters) : device_(device), counters_(counters) {}
  ~HostSpace() { finish(); }
  HostSpace(const HostSpace&) = delete;
  HostSpace& operator=(const HostSpace&) = delete;

  [[nodiscard]] void* take_pinned(Bytes bytes);
  void return_pinned(void* memory, Bytes bytes) noexcept;
  [[nodiscard]] void* take_locked(Bytes bytes);
  void return_locked(void* memory, Bytes bytes) noexcept;
  [[nodiscard]] void* take_pageable(Bytes bytes);
  void return_pageable(void* memory, Bytes bytes) noexcept;
  [[nodiscard]] dsplan_file* make_file(BufferId id, Bytes bytes);
  void drop_file(dsplan_file* file, Bytes bytes) noexcept;
  // Empties the pool.
  void finish() noexcept;

 private:
  Device& device_;
  HostCounters& counters_;
  std::map<Bytes, std::vector<void*>> free_blocks_;  // By their size.
  std::int64_t blocks_ = 0;                          // Of the pool, handed out or not.
};

// Memory that nobody holds, kept at kPattern. Without `on` it does nothing.
class Patterns {
 public:
  Patterns(const Device& device, bool on);
  [[nodiscard]] bool on() const { return on_; }
  void fill(void* memory, Bytes bytes) const;
  // Throws InternalError where a byte differs: `what` says whose memory it is.
  void check(const void* memory, Bytes bytes, const char* what, BufferId id) const;

 private:
  bool on_;
};

}  // namespace dsplan::exec
