// The two halves of a prediction that a schedule alone decides: its peak, and whether it fits.
#pragma once

#include <optional>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "planner/predict/fragmentation.h"
#include "sim/host_memory.h"
#include "sim/memory.h"
#include "sim/placement.h"
#include "sim/window.h"

namespace dsplan {

// What the allocator may have: the capacity without what lies beside it. PyTorch takes a memory fraction of the whole.
// nullopt without a capacity.
[[nodiscard]] std::optional<VerdictLimit> verdict_limit(const Prediction& p);

// What a process takes beside its allocator: a CUDA context, uncalibrated where nothing is known, and NCCL's own
// memory, by formula where it was not measured: one communicator for each kind of group that has several ranks.
[[nodiscard]] Bytes context_of(const Job& job);
[[nodiscard]] Bytes communicators_of(const Job& job);

// The job's allocator, without its memory fraction, which is a limit too.
[[nodiscard]] PlacementOptions without_limit(const Job& job);

// p.verdict with its reason, by replay under the limit, through flushes and retries, in every phase. `unlimited`: both
// ends without a limit.
void judge(const Schedule& schedule, const ModelSpec& model, const Job& job, const BothPlacements& unlimited,
           Prediction& p);

// What the ranks of one node need together.
struct NodeMemory {
  std::int64_t ranks = 0;
  Bytes peak;
  Bytes nvme;
};

// p.host, and its own verdicts against Job::host_memory and Job::nvme_memory, which are of one node.
void add_host(const HostMeter& meter, const NodeMemory& node, const Job& job, Prediction& p);

// Fits with retries, whenever frees end that wait for other streams: that is not known, and the end without retries is
// as good as the other.
[[nodiscard]] inline bool surely_retries(const Prediction& p) {
  return p.verdict == Verdict::FitsWithRetries && p.retries_low > 0;
}

// Makes the verdicts of p.host part of p.verdict: a host or a disk that is too small refutes the job; one of unknown
// size leaves the verdict of a job that keeps something there unknown, unless something else refutes it.
void judge_host(const Job& job, Prediction& p);

// Both ends of what waiting frees can do. Where none waits they are one.
struct BothEnds {
  PlacementPeaks high;
  PlacementPeaks low;
};

// Of the whole schedule, or of one window.
[[nodiscard]] PlacementPeaks peaks_of(const Schedule& schedule, const Placement& placement,
                                      const std::optional<Window>& only);
[[nodiscard]] BothEnds ends_of(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options,
                               const std::optional<Window>& only);

// The phases as the allocator saw them: blocks handed out, blocks that wait, segments. `phases` are the meter's.
[[nodiscard]] std::vector<Phase> with_allocator(std::vector<Phase> phases, const Schedule& schedule,
                                                const Placement& placement);

// Of a phase that part alone, all its micro-batches together, with the marks between which it lies.
[[nodiscard]] Phase part_of(const Phase& phase, StepPart part);

// The first micro-batch of the first step, in which ZeRO-3 records the order in which modules ask for parameters: a
// phase of its own, of marks that the first step has too.
[[nodiscard]] std::optional<Phase> recording_micro_batch(const std::vector<Phase>& phases);

// p.peak: when it is, what is alive, and what the allocator and the process make of it. Reads p.context and
// p.communicators.
void add_peak(const Schedule& schedule, const ModelSpec& model, const Job& job, const MemoryMeter& meter,
              const BothEnds& ends, Prediction& p);

}  // namespace dsplan
