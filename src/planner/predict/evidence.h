// What a prediction is drawn from. It is gathered once and const afterwards: sections.h reads it section by section,
// verdict.h comes last, predict.cpp puts them together.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "planner/lower/lower.h"
#include "planner/predict/allocation.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/time/estimate.h"
#include "sim/host_memory.h"
#include "sim/memory.h"
#include "sim/placement.h"
#include "sim/traffic.h"
#include "sim/window.h"

namespace dsplan {

// Whether a prediction says what memory is made of, buffer by buffer, what is advised, and its fingerprint.
[[nodiscard]] constexpr bool tells_what(Detail detail) { return detail == Detail::All || detail == Detail::Verdict; }

// Events of a schedule that is worth several threads.
inline constexpr std::size_t kWorthThreads = 10'000;

// Where nothing is wanted that retries, or that fails: the allocator under the verdict's limit goes along while the
// schedule is written, and ends that there. What fails mostly does in a backward, unless it asks for more than there
// is.
class WantedOnly {
 public:
  // `printed`: somebody asks what the framework prints.
  WantedOnly(const Job& job, const DeviceRoom& room, Wanted wanted, bool printed);
  WantedOnly(const WantedOnly&) = delete;
  WantedOnly& operator=(const WantedOnly&) = delete;

  // `other`, with this, which must outlive the lowering.
  [[nodiscard]] Until until(Until other);
  // Behind the lowering: those without a limit where it never mattered, else the one under it, if they are known.
  struct Known {
    std::optional<BothPlacements> without_limit;
    std::optional<Placement> limited;
  };
  [[nodiscard]] Known placements();

 private:
  bool begins(const Schedule& schedule);
  bool go_on(const Schedule& schedule);

  PlacementOptions within_;  // The limit, until a retry if nothing else is wanted.
  std::optional<PlacedAlong> along_;
  std::optional<PlacedAlong> other_;  // The other end, once that one has retried.
  std::size_t seen_ = 0;              // Events.
  bool begun_ = false;
};

// One schedule, and what its readers read off it: the meters in one walk, and the allocator, without a limit.
struct Readings {
  Readings(Schedule made, const Job& job, const DeviceRoom& room, Detail detail, WantedOnly::Known known = {});
  Readings(const Readings&) = delete;
  Readings& operator=(const Readings&) = delete;

  Schedule schedule;
  std::optional<Window> only;  // Peaks are those within it.
  MemoryMeter memory;
  TrafficMeter traffic;
  HostMeter host;
  PlacementOptions options;
  Detail detail;
  BothPlacements placements;
  BothEnds ends;
  // Of a fate alone: under the verdict's limits, where those matter.
  std::optional<Placement> limited;
  // Where frees wait for other streams and the machine's rates are known: estimated times, and the allocator by them,
  // which a screen has only where there is room without a limit.
  std::optional<EventTimes> times;
  std::optional<Placement> expected;
  std::optional<LongRun> later_steps;  // `long_run`, of everything that is told.

  // Beyond the two steps of the schedule; not with a planned arena, which does not change.
  [[nodiscard]] std::optional<LongRun> long_run(const Job& job, const DeviceRoom& room) const;
  // The same by estimated times, which are estimated if nobody has yet.
  [[nodiscard]] std::optional<LongRun> expected_run(const Job& job, const DeviceRoom& room) const;

  // The allocator fails under the verdict's limits.
  [[nodiscard]] bool fails() const { return limited && limited->failed_event; }

 private:
  void read(const Job& job, bool timed);
  void place_further(const Job& job, const DeviceRoom& room);
  [[nodiscard]] std::optional<LongRun> judged_run(const DeviceRoom& room, const PlacementOptions& how) const;
};

// What all ranks of a job share: neither the formulas nor the graph depend on the rank.
struct SharedEvidence {
  // `of_several`: of this model's jobs.
  SharedEvidence(const ModelSpec& model, const Job& job, Detail detail = Detail::All,
                 SharedShapes* of_several = nullptr);

  const ModelSpec& model;
  const Job& job;
  Detail detail;
  std::string fingerprint;
  Footprint formulas;
  DeviceRoom room;
  std::optional<std::string> unsupported;  // Why there is no schedule.
  std::shared_ptr<const Shapes> shapes;    // Else the graph.
  // Where there is a schedule. Of what ends early nobody asks it.
  [[nodiscard]] const TimeAnswer& time() const;
  // Not everything need be wanted.
  Wanted wanted = Wanted::Any;
  Until until;

 private:
  mutable std::once_flag timed_;
  mutable TimeAnswer time_;
};

// What the ranks of one node need together.
struct NodeMemory {
  std::int64_t ranks = 0;
  Bytes peak;
  Bytes nvme;
};

// Peaks of data-parallel ranks on their hosts, memory and files, of those that were simulated.
using HostPeaks = std::map<std::int64_t, std::pair<Bytes, Bytes>>;

struct Evidence {
  const SharedEvidence& shared;
  std::int64_t rank = 0;
  std::unique_ptr<const Readings> readings;  // Null: there is no schedule, and `shared.unsupported` says why.
  std::vector<TrafficRow> traffic;           // Of all phases.
  NodeMemory node;                           // That of the rank.
};

// Checks what schedule and formulas must agree on. Where ranks differ those of the rank's node are simulated too,
// unless they are among `known`, which grows. Throws Ended where it is not wanted.
[[nodiscard]] Evidence gather(const SharedEvidence& shared, std::int64_t rank, HostPeaks& known);

}  // namespace dsplan
