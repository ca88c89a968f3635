// A log's messages about memory against a predicted schedule: which events they may be about, what is alive then, and
// which changes would avoid an out-of-memory error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/allocator_config.h"
#include "core/explanation.h"
#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"

namespace dsplan {

// For each message the events whose request, allocated and reserved bytes print as it says (at most kMostCandidates),
// or the nearest one. An out-of-memory message is compared at the moment of the failing request: the request is not
// part of `allocated`, and everything cached has been given back. A see_memory_usage line is compared where
// DeepSpeed prints under that title, and under any other title at the loop's marks; peaks count since the print or mark
// before, while DeepSpeed's count since the last line that it did print, so they only inform.
inline constexpr std::size_t kMostCandidates = 3;
[[nodiscard]] std::vector<LogFinding> find_in_schedule(const std::vector<LogMessage>& messages,
                                                       const Schedule& schedule, const ModelSpec& model,
                                                       const AllocatorConfig& config);

// What an out-of-memory message says that the caching allocator may reserve: reserved + free, at most what a memory
// fraction allows; nullopt if it does not say.
[[nodiscard]] std::optional<Bytes> limit_in(const LogMessage& message);

// One run under `limit`, through flushes and retries.
struct Change {
  std::string text;
  Job job;
  AllocatorConfig config;
};
[[nodiscard]] Remedy judge(const Change& change, const ModelSpec& model, std::int64_t rank, Bytes limit);

}  // namespace dsplan
