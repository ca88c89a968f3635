// What a training log says of memory: PyTorch's out-of-memory message and DeepSpeed's see_memory_usage lines, as
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"

namespace dsplan {

// A size as a log prints it: every byte count from `low` to `high` prints as `text`.
struct PrintedSize {
  Bytes low;
  Bytes high;
  std::string text;  // "2.00 GiB"
  [[nodiscard]] bool holds(Bytes bytes) const { return low <= bytes && bytes <= high; }
  [[nodiscard]] Bytes middle() const { return low + div_floor(high - low, 2); }
  // How far `bytes` is from printing the same; 0 where it does.
  [[nodiscard]] Bytes distance(Bytes bytes) const {
    if (bytes < low) return low - bytes;
    return bytes > high ? bytes - high : Bytes(0);
  }
};

struct LogMessage {
  enum class Kind : std::uint8_t { OutOfMemory, MemoryUsage };
  Kind kind = Kind::OutOfMemory;
  std::size_t line = 0;    // Of the log, from 1.
  std::int64_t times = 1;  // The same message of several ranks counts once.
  std::string title;       // MemoryUsage: the line before, "After initializing ZeRO optimizer".

  std::optional<PrintedSize> request;      // OutOfMemory only, as all down to `allowed`.
  std::optional<PrintedSize> capacity;     // Of the device.
  std::optional<PrintedSize> free;         // Of the device, as the driver says.
  std::optional<PrintedSize> process;      // What this process holds, CUDA context and all.
  std::optional<PrintedSize> unallocated;  // Reserved and not allocated.
  std::optional<PrintedSize> pools;        // Allocated in private pools.
  std::optional<PrintedSize> allowed;      // By set_per_process_memory_fraction.

  std::optional<PrintedSize> allocated;
  std::optional<PrintedSize> reserved;

  std::optional<PrintedSize> peak_allocated;  // MemoryUsage: since the last such line.
  std::optional<PrintedSize> peak_reserved;
};

}  // namespace dsplan
