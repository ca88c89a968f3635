// What a log's messages about memory mean in a predicted schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/oom_log.h"
#include "core/prediction.h"
#include "core/units.h"

namespace dsplan {

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
[[nodiscard]] std::string_view name(Remedy::Outcome outcome);  // "fits"

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
