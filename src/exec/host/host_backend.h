// The host as a device: what it calls device memory are segments mapped from the operating system, its streams do
// everything at once, its events are real timestamps. It needs nothing but the machine that dsplan runs on.
//
// Pinned memory is mapped like any other and not locked: no device copies from it here, and the kernel's limit on
// locked memory (8 MiB by default) would refuse most plans. What is freed goes back to the system at once, so that the
// resident set follows.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/units.h"
#include "exec/backend.h"

namespace dsplan::exec {

// Carries out one kernel; throws what it refuses.
using HostKernels = void (*)(const dsplan_launch& what);

struct HostOptions {
  HostKernels kernels = nullptr;  // nullptr: `launch` is not supported.
  // What each rank's device has; 0: all the memory of the machine. More is refused, as a device would refuse it.
  Bytes device_memory;
  // Memory from the heap instead of whole pages, so that sanitizers see each byte beyond a buffer.
  bool heap = false;
};

// Holds the table; it must outlive every device that is opened through it.
class HostBackend {
 public:
  explicit HostBackend(const HostOptions& options = {});
  HostBackend(const HostBackend&) = delete;
  HostBackend& operator=(const HostBackend&) = delete;

  [[nodiscard]] const dsplan_backend& table() const { return table_; }
  [[nodiscard]] const HostOptions& options() const { return options_; }

  // What devices did not give back themselves before they were closed, over all of them: allocations, ranges, files.
  [[nodiscard]] std::int64_t left_behind() const { return left_behind_.load(); }
  void add_left_behind(std::int64_t count) { left_behind_ += count; }

 private:
  HostOptions options_;
  dsplan_backend table_{};
  std::atomic<std::int64_t> left_behind_{0};
};

// The resident set of this process, from the kernel's books; -1 where they cannot be read.
[[nodiscard]] std::int64_t resident_bytes();
// The largest that it has been since the process began.
[[nodiscard]] std::int64_t most_resident_bytes();

// target[e] = pieces[0][e] + pieces[1][e] + ... as `combine` of the table has it; false: no such dtype or reduction.
[[nodiscard]] bool combine_pieces(dsplan_reduction how, DType dtype, void* target, const void* const* pieces,
                                  std::size_t piece_count, std::int64_t elements);

}  // namespace dsplan::exec
