// Whether a rank fits: the last of a prediction's parts, from its evidence and its other sections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/predict/evidence.h"

namespace dsplan {

struct Judgement {
  Verdict verdict = Verdict::Unknown;
  std::string reason;
  std::int64_t retries = 0;  // By --stream-frees; likewise where frees that wait for another stream end at once.
  std::int64_t retries_low = 0;
};

// Under the caching allocator: by replay under the limit, through flushes and retries, in every phase.
[[nodiscard]] Judgement judge(const Readings& readings, const ModelSpec& model, const Job& job, const DeviceRoom& room);

// Of a rank, with its arena if it has one. A host or a disk that is too small refutes the job too; one of unknown size
// leaves the verdict of a job that keeps something there unknown, unless something else refutes it. Without a schedule
// the states alone can still refute it.
[[nodiscard]] Judgement judge(const Evidence& evidence, const std::optional<PlannedArena>& arena,
                              const HostMemory& host);

// What the rank takes on its host and in files, with their own verdicts against Job::host_memory and Job::nvme_memory,
// which are of one node.
[[nodiscard]] HostMemory host_of(const Evidence& evidence);
[[nodiscard]] HostMemory host_of(const HostMeter& meter, const NodeMemory& node, const Job& job);

// Fits with retries, whenever frees end that wait for other streams: that is not known, and the end without retries is
// as good as the other.
[[nodiscard]] inline bool surely_retries(const Prediction& p) {
  return p.verdict == Verdict::FitsWithRetries && p.retries_low > 0;
}

}  // namespace dsplan
