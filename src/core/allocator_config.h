// PYTORCH_CUDA_ALLOC_CONF as a value. Source: PyTorch 2.6 c10/cuda/CUDAAllocatorConfig.cpp, and for the keys that came
// later c10/core/AllocatorConfig.cpp. Which version knows which key was read in the strings of the released libraries
// 2.8.0, 2.9.1, 2.10.0 and 2.11.0; what 2.11.0 accepts and rejects was asked of it (tests/allocator_input_test.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/training.h"
#include "core/units.h"

namespace dsplan {

inline constexpr std::int64_t kMebibyte = 1024 * 1024;

struct AllocatorConfig {
  static constexpr std::int64_t kNoSplitLimit = std::numeric_limits<std::int64_t>::max();

  Bytes max_split_size{kNoSplitLimit};
  Bytes max_non_split_rounding{20 * kMebibyte};
  Bytes large_segment_size{20 * kMebibyte};  // A key since PyTorch 2.11; before that a constant.
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

// What a conf string says beside the values: keys that are read and move no byte on the device.
struct ConfReading {
  std::vector<std::string> without_effect;  // "pinned_use_background_threads"; in order, each once.
};

// Applies `text` to `config` as setting it at run time does: max_split_size, the garbage-collection threshold and the
// divisions start from their defaults, the other keys keep their values. On a fault `config` is untouched.
//
// `torch`: the rules of that version; nullopt: the keys of all versions, and the bounds of 2.6 (a recorded trace does
// not say its version). Faults are what PyTorch rejects, keys that `torch` does not know yet, and three things that it
// accepts but that cannot be meant: digits followed by other characters and negative sizes (it would read them as other
// numbers), and backend:cudaMallocAsync (another allocator, not modelled). Keys that move no device byte (pinned_*,
// release_lock_on_cudamalloc, ...) are checked and otherwise ignored.
[[nodiscard]] std::optional<ConfFault> apply_allocator_conf(std::string_view text, AllocatorConfig& config,
                                                            std::optional<Version> torch = std::nullopt,
                                                            ConfReading* reading = nullptr);

// The same from the defaults; refuses a fault under the name `where` ("--alloc-conf").
[[nodiscard]] AllocatorConfig parse_allocator_conf(std::string_view text, const std::string& where,
                                                   std::optional<Version> torch = std::nullopt);

// A conf as people paste it: "PYTORCH_CUDA_ALLOC_CONF=..." or "PYTORCH_ALLOC_CONF=..." before the keys. Returns where
// the keys begin. A fault: PYTORCH_ALLOC_CONF before PyTorch 2.10, whose CUDA allocator does not read it (2.9 reads it
// for other devices only), and any other variable.
struct ConfPrefix {
  std::size_t length = 0;
  std::optional<ConfFault> fault;
};
[[nodiscard]] ConfPrefix conf_variable(std::string_view text, const Version& torch);

// The values in a fixed order, for fingerprints: two confs of the same text behave alike.
[[nodiscard]] std::string canonical(const AllocatorConfig& config);

}  // namespace dsplan
