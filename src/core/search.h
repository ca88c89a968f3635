// A search over configurations: the space it walks, what is known of each candidate, and its answer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/inputs.h"
#include "core/job.h"
#include "core/prediction.h"
#include "core/units.h"

namespace dsplan {

// What a candidate chooses. Accumulation follows from the global batch where one is given.
enum class Axis : std::uint8_t { Gpus, ZeroStage, Offload, TensorParallel, Loss, ReduceBucket, MicroBatch, Checkpoint };
inline constexpr std::size_t kAxes = 8;
[[nodiscard]] std::string_view name(Axis axis);  // "gpus", "zero_stage", ..., as in a space file

// The axis of that name, if there is one; with the names of all.
[[nodiscard]] std::optional<Axis> axis_named(std::string_view text);
[[nodiscard]] std::vector<std::string_view> axis_names();

struct AxisValues {
  std::vector<std::string> values;  // As a space file writes them; of equals the first is chosen.
  Origin origin = Origin::Assumed;  // Given: pinned by an option or a file, or listed. Assumed: dsplan's own list.
  std::string reason;               // Where it was given, or by which rule it was made.
  bool pinned = false;              // One value, because the user's own configuration has it.
};

struct SearchSpace {
  std::array<AxisValues, kAxes> axes;
  std::optional<std::int64_t> global_batch;      // Rows per optimizer step of all ranks; absent: accumulation is fixed.
  std::int64_t grad_accum = 1;                   // Without a global batch.
  std::optional<std::int64_t> assumed_per_node;  // GPUs of a node, where nothing says so and ranks are sought.

  [[nodiscard]] AxisValues& operator[](Axis axis) { return axes[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] const AxisValues& operator[](Axis axis) const { return axes[static_cast<std::size_t>(axis)]; }
};

// One axis as a space file or --vary lists it.
struct ListedAxis {
  Axis axis = Axis::Gpus;
  std::vector<Setting<std::string>> values;
  Place place;
};
struct ListedSpace {
  std::vector<ListedAxis> axes;
  Setting<std::int64_t> global_batch;
};

enum class Objective : std::uint8_t { TokensPerSecond, Gpus, MicroBatch, Seq, Layers };
[[nodiscard]] std::string_view name(Objective objective);  // "tokens_per_second", "gpus", "micro_batch", ...

// How it ended with a candidate.
enum class Fate : std::uint8_t {
  Fits,
  Tight,  // With less to spare than the prediction may be off; chosen where nothing else fits.
  FitsWithRetries,
  DoesNotFit,  // By full simulation.
  Bounded,     // A lower bound of its memory alone is too much: not simulated.
  Unknown,     // No verdict can be given.
  Refused,     // The configuration itself is impossible; `reason` says why.
  Slower,      // Not simulated, as a faster one fits.
};
[[nodiscard]] constexpr bool fits(Fate fate) { return fate <= Fate::FitsWithRetries; }
[[nodiscard]] std::string_view name(Fate fate);  // "fits", "fits_with_retries", "does_not_fit", "too_large", ...

using Settings = std::array<std::string, kAxes>;

struct PlanRow {
  Settings settings;  // By Axis; `checkpoint` as it was resolved.
  std::int64_t world = 0;
  std::int64_t dp = 0;
  std::int64_t grad_accum = 0;
  std::int64_t seq = 0;
  Fate fate = Fate::Slower;
  std::string reason;
  std::optional<StepTime> time;
  std::optional<Bytes> least;    // Lower bound of the worst rank's process; absent where nobody had to know.
  std::optional<Bytes> process;  // The worst rank's, by full simulation.
  std::optional<Bytes> missing;  // To fit: of the bound where it was not simulated.
  std::optional<Bytes> host;     // Per node.
  std::optional<Bytes> nvme;     // Files, per node.
  std::optional<Bytes> wire;     // What one rank sends in a step.

  [[nodiscard]] double tokens_per_second() const { return time ? time->tokens_per_second : 0; }
};

// A plan that differs from another one in one setting or two.
struct PlanChange {
  std::vector<Axis> axes;
  PlanRow row;
  double speed = 0;  // Its tokens per second and GPU over those of the plan that it differs from.
};

struct SearchCounts {
  std::int64_t candidates = 0;  // All combinations, recompute plans that `auto` stands for included.
  std::int64_t refused = 0;     // Impossible combinations.
  std::int64_t bounded = 0;     // Their memory's lower bound is too much.
  std::int64_t slower = 0;      // Never simulated, as a faster one fits.
  std::int64_t simulated = 0;

  SearchCounts& operator+=(const SearchCounts& other) {
    candidates += other.candidates;
    refused += other.refused;
    bounded += other.bounded;
    slower += other.slower;
    simulated += other.simulated;
    return *this;
  }
};

// Why combinations were impossible, with how many.
struct RefusalCount {
  std::string why;
  std::int64_t count = 0;
};

struct PlanAnswer {
  std::string model;
  SearchSpace space;
  Objective objective = Objective::TokensPerSecond;
  std::optional<Bytes> budget;
  Bytes limit;  // What the process may take: capacity without reserve, or the budget.
  SearchCounts counts;
  std::vector<RefusalCount> refusals;  // Most frequent first.
  bool complete = true;                // False: interrupted, or out of time.
  std::optional<std::int64_t> found;   // Objective other than speed: the count that was found.
  std::optional<PlanRow> chosen;
  std::optional<Job> job;                 // The chosen one's.
  std::optional<Prediction> prediction;   // Likewise, by full simulation.
  std::optional<PlanRow> tight;           // Faster, and leaves less than the prediction may be too low.
  std::vector<PlanRow> next;              // The fastest after the chosen one that fit, each with other states.
  std::vector<PlanChange> neighbours;     // Of the chosen one: one setting changed, fastest first.
  std::vector<PlanRow> front;             // --pareto: memory, time and traffic.
  std::optional<PlanRow> nearest;         // Nothing fits: what misses least.
  std::vector<PlanChange> remedies;       // Nothing fits: pins released, that do; least speed lost first.
  std::vector<FittingChange> offers;      // Nothing fits: other ways to train that do; what a search does not choose.
  std::vector<std::string> assumed;       // What the search took for granted: "nodes of 8 GPUs (--gpus-per-node)".
  std::vector<std::string> not_searched;  // What the space leaves out, with the reason: "offload (no --host-memory)".
  std::string states;                     // Nothing fits, as the states alone are too much: which, and what would do.
  std::vector<Advice> advice;             // Settings of the chosen plan that do nothing or harm.
};

}  // namespace dsplan
