// One run: all ranks of a plan, each in its thread, on one backend; or one rank of it, the others being other
// processes. What they measured, whatever way it ended.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/calibration.h"
#include "core/receipt.h"
#include "exec/measure.h"
#include "exec/memory/memory.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/runner/rank_plan.h"
#include "exec/runner/runner.h"

namespace dsplan::exec {

struct RunOptions {
  RunSettings settings;
  const dsplan_backend* backend = nullptr;
  std::string directory;              // Of files that stand for NVMe; empty: none can be made.
  std::vector<MemoryOptions> memory;  // By rank; one for all: the same for each.
  // Once it is true, ranks leave at their next mark (the beginning or end of a pass); what was measured stays.
  const std::atomic<bool>* stop = nullptr;
  std::vector<Observer> observers;  // By rank; one for all; empty: nobody looks.
  int ordinal = 0;                  // Of the device, among those of its kind.
};

struct RankRun {
  RankFigures figures;  // As far as the rank came.
  bool computed = true;  // Else the device stands in for one and computes nothing: none of the next three is there.
  std::vector<double> losses;
  std::vector<PhaseTime> times;
  std::vector<OptimizerStep::Taken> steps;  // Of fp16 only.
  // What the communicators' library took of the device when they were made: how far its free memory went down. Absent:
  // nobody knows. Never among what the plan allocates.
  std::optional<Bytes> communicators;
};

struct RunResult {
  std::vector<RankRun> ranks;
  Receipt::Outcome outcome = Receipt::Outcome::Ran;
  bool interrupted = false;
  bool unavailable = false;  // A device, its driver, a library or another process was not there.
  int failed = -1;           // The rank of the first failure.
  // How far the largest resident set of the process, all ranks together, exceeds what it was before; -1: not known.
  std::int64_t resident_growth = -1;
  std::vector<ProcessMoment> process;  // As far as all ranks came.
  std::string message;                 // Of the first failure, with rank, event and call.
  std::optional<std::size_t> parted;   // The event at which prediction and measurement part.
  // Connections to ranks that were not of this run, and were dropped; of ranks that are processes.
  std::optional<std::int64_t> strangers;
};

// `plans`: of ranks 0, 1, ...; those that share layers are neighbours. Refuses (Refusal) what cannot be executed before
// anything starts; every other way to end is a result.
[[nodiscard]] RunResult run(const std::vector<RankPlan>& plans, const RunOptions& options);

// This process's rank of a run whose other ranks are the other processes of `rendezvous`; `plan` is of that rank, and
// `transport` carries its collectives. Rank 0 gets what all of them measured, as far as their processes came; the
// others what they measured themselves. The message is of the first failure of any rank.
[[nodiscard]] RunResult run_process(const RankPlan& plan, const RunOptions& options, Rendezvous& rendezvous,
                                    Transport& transport);

}  // namespace dsplan::exec
