// Finds the memory messages in a training log.
//
// PyTorch's "CUDA out of memory. Tried to allocate ..." in the wordings of all versions (c10/cuda/
// CUDACachingAllocator.cpp): 1.x with "(GPU 0; ... total capacity; ... already allocated; ... free; ... reserved in
// total by PyTorch)" or "... cached", 2.x with "GPU 0 has a total capacity of ... of which ... is free", with and
// without other processes, "Including non-PyTorch memory", "... allowed", private pools; on ROCm as well. Its sizes
// have two decimals and the units bytes, KiB, MiB, GiB (powers of 1024).
//
// DeepSpeed's see_memory_usage (deepspeed/runtime/utils.py): "MA 15.0 GB  Max_MA 15.2 GB  CA 15.3 GB  Max_CA 16 GB".
// These GB are GiB, rounded to two decimals, the last one to a whole number.
//
// Wrapped lines and log prefixes are passed over; a message that repeats another one, size by size, counts with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/explanation.h"

namespace dsplan {

// In the log's order. Refuses, under `path`, a log that holds none of these.
[[nodiscard]] std::vector<LogMessage> read_oom_log(const std::string& path, std::string_view text);

}  // namespace dsplan
