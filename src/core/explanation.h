// What a training log says of memory (PyTorch's out-of-memory message, DeepSpeed's see_memory_usage lines), and what
// that means in a predicted schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/prediction.h"
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

// An event of the schedule that the message may be about.
struct LogCandidate {
  std::size_t event = 0;
  std::string moment;    // In words.
  Bytes request;         // OutOfMemory: what is asked for. 0 for a mark.
  Bytes allocated;       // At this moment, the request not included.
  Bytes reserved;        // OutOfMemory: after everything cached was given back, as PyTorch does before it gives up.
  Bytes peak_allocated;  // MemoryUsage: since the mark before, as the next.
  Bytes peak_reserved;
  bool prints_the_same = false;    // Each size that the message and the prediction share.
  std::vector<std::string> apart;  // Those that do not: "allocated 70.10 GiB, predicted 68.32 GiB".
  std::vector<LiveBuffer> live;    // What is alive then, largest first.
};

struct LogFinding {
  LogMessage message;
  bool matches = false;                  // The first candidate prints the same.
  std::vector<LogCandidate> candidates;  // Nearest first; where none matches, the nearest alone.
};

// One change that may avoid the failure.
struct Remedy {
  std::string change;  // "--micro-batch 2 --grad-accum 8"
  enum class Outcome : std::uint8_t { Fits, FitsWithRetries, DoesNotFit, NotModelled };
  Outcome outcome = Outcome::NotModelled;
  std::optional<Bytes> reserved;  // Its peak without a limit.
  std::string note;               // Where it still fails, or why nobody can say.
};
[[nodiscard]] constexpr std::string_view name(Remedy::Outcome outcome) {
  switch (outcome) {
    case Remedy::Outcome::Fits: return "fits";
    case Remedy::Outcome::FitsWithRetries: return "fits_with_retries";
    case Remedy::Outcome::DoesNotFit: return "does_not_fit";
    case Remedy::Outcome::NotModelled: return "not_modelled";
  }
  return "?";
}

struct Explanation {
  std::string fingerprint;
  std::string model;
  std::int64_t rank = 0;
  std::vector<LogFinding> findings;
  std::optional<Bytes> limit;  // What the caching allocator may reserve, by the log or by the job.
  std::string limit_from;
  std::vector<Remedy> remedies;  // The first is the run as it is.
};

}  // namespace dsplan
