// Whether a rank fits: the last of a prediction's parts, from its evidence and its other sections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  std::optional<std::int64_t> retries_expected;  // By estimated times.
  // As Prediction has them.
  std::optional<Bytes> needed;
  std::optional<Bytes> shortfall;
  std::string failure;
  std::vector<Doubt> doubts;
};

// Under the caching allocator: by replay under the limit, through flushes and retries, in every phase. `doubts` are
// those of the most that it reserves without a limit. What fits with less to spare than they sum to is tight; so is
// what retries, and would fail with so much less. A reserve by wish counts as spare.
[[nodiscard]] Judgement judge(const Readings& readings, const ModelSpec& model, const Job& job, const DeviceRoom& room,
                              std::vector<Doubt> doubts);
// The most that the allocator reserves in any phase without a limit.
[[nodiscard]] Bytes most_reserved(const Readings& readings);

// Of a rank, with its arena if it has one. A host or a disk that is too small refutes the job too; one of unknown size
// leaves the device's verdict alone, and has an unknown one of its own (HostMemory). Without a schedule the states
// alone can still refute the job.
[[nodiscard]] Judgement judge(const Evidence& evidence, const std::optional<PlannedArena>& arena,
                              const HostMemory& host);

// What the rank takes on its host and in files, with their own verdicts against Job::host_memory and Job::nvme_memory,
// which are of one node.
[[nodiscard]] HostMemory host_of(const Evidence& evidence);
[[nodiscard]] HostMemory host_of(const HostMeter& meter, const NodeMemory& node, const Job& job);

// Fits with retries: whenever frees end that wait for other streams, or where they are expected to end. When they do is
// not known; where nobody can estimate it, the end without retries is as good as the other.
[[nodiscard]] bool surely_retries(const Prediction& p);

// What the process takes where such frees end at once. Absent: nothing was simulated.
[[nodiscard]] std::optional<Bytes> least_process(const Prediction& p);

}  // namespace dsplan
