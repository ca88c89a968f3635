// PYTORCH_CUDA_ALLOC_CONF as a value. Source: PyTorch 2.6 c10/cuda/CUDAAllocatorConfig.cpp, and for the keys that came
// later c10/core/AllocatorConfig.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/units.h"

namespace dsplan {

inline constexpr std::int64_t kMebibyte = 1024 * 1024;

struct AllocatorConfig {
  static constexpr std::int64_t kNoSplitLimit = std::numeric_limits<std::int64_t>::max();

  Bytes max_split_size{kNoSplitLimit};
  Bytes max_non_split_rounding{20 * kMebibyte};
  Bytes large_segment_size{20 * kMebibyte};  // PyTorch 2.12 and later; before that the default is a constant.
  double garbage_collection_threshold = 0;   // 0: off.
  // By power of two of the request: entry 0 below 2 MiB, entry 1 from 2 MiB, ..., entry 15 from 32 GiB. 0 or 1: off.
  std::array<std::int64_t, 16> roundup_power2_divisions{};
  bool expandable_segments = false;
  std::optional<double> memory_fraction;  // per_process_memory_fraction, PyTorch 2.10 and later.

  friend bool operator==(const AllocatorConfig&, const AllocatorConfig&) = default;
};

// One fault of a conf string, at a byte offset in it.
struct ConfFault {
  std::size_t offset = 0;
  std::string message;
  std::string hint;
};

// Applies `text` to `config` as setting it at run time does: max_split_size, the garbage-collection threshold and the
// divisions start from their defaults, the other keys keep their values. On a fault `config` is untouched.
//
// Faults are what PyTorch rejects, and three things that it accepts but that cannot be meant: digits followed by
// other characters and negative sizes (it would read them as other numbers), and backend:cudaMallocAsync (another
// allocator, not modelled). Keys that move no device byte (pinned_*, release_lock_on_cudamalloc, ...) are checked
// and otherwise ignored.
[[nodiscard]] std::optional<ConfFault> apply_allocator_conf(std::string_view text, AllocatorConfig& config);

// The same from the defaults; refuses a fault under the name `where` ("--alloc-conf").
[[nodiscard]] AllocatorConfig parse_allocator_conf(std::string_view text, const std::string& where);

}  // namespace dsplan
