// Real schedules through the executor's memory, nothing computed: what was predicted for them is what it counts, under
// both allocators, with and without a limit.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "exec/host/host_backend.h"
#include "lowered.h"
#include "planner/predict/allocation.h"
#include "replayed.h"
#include "sim/host_memory.h"
#include "sim/memory.h"
#include "sim/placement.h"

using namespace dsplan;
using namespace dsplan::exec;
using replayed::replay_on_memory;
using replayed::Replayed;

namespace {

void check_caching(const Schedule& schedule, const AllocatorConfig& config, std::optional<Bytes> limit,
                   const dsplan_backend& backend) {
  PlacementOptions options;
  options.config = config;
  MemoryOptions memory;
  memory.config = config;
  memory.untold = schedule.untold;
  if (limit) {
    options.limit = options.device = *limit;
    memory.limit = memory.device = *limit;
  }
  const Placement predicted = place(schedule, options);
  const Replayed measured = replay_on_memory(schedule, memory, backend);
  REQUIRE(measured.marks.size() == predicted.marks.size());
  for (std::size_t at = 0; at < predicted.marks.size(); ++at) {
    CAPTURE(predicted.marks[at].event);
    REQUIRE(measured.marks[at].now.allocated == predicted.marks[at].allocated);
    REQUIRE(measured.marks[at].now.active == predicted.marks[at].active);
    REQUIRE(measured.marks[at].now.reserved == predicted.marks[at].reserved);
  }
  CHECK(measured.retries == predicted.retries);
  CHECK(measured.failed_event == predicted.failed_event);
}

}  // namespace

TEST_CASE("what is predicted for real schedules is what the executor's memory counts") {
  HostBackend host;
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  int plans = 0;
  for (int stage = -1; stage <= 3; ++stage) {
    for (const lowered::Case& one : lowered::variants(stage, stage < 0 ? 1 : 2, layers)) {
      INFO(one.name);
      for (const Schedule& schedule : lowered::all_ranks(model, one.job)) {
        ++plans;
        check_caching(schedule, {}, std::nullopt, host.table());
        const Bytes peak = place(schedule, {}).peak.reserved;
        if (plans % 5 == 0) {
          AllocatorConfig expandable;
          expandable.expandable_segments = true;
          check_caching(schedule, expandable, std::nullopt, host.table());
          check_caching(schedule, {}, peak, host.table());
          check_caching(schedule, {}, peak - Bytes(2 * kMebibyte), host.table());
        }
        MemoryMeter meter(schedule);
        HostMeter host_meter(schedule);
        replay(schedule, meter, host_meter);
        MemoryOptions planned;
        planned.kind = AllocatorKind::Planned;
        const PlannedArena arena = plan_arena(schedule, peak);
        planned.height = arena.height;
        planned.offsets = arena.offsets;
        planned.patterns = plans % 7 == 0;
        const Replayed exact = replay_on_memory(schedule, planned, host.table());
        REQUIRE_FALSE(exact.failed_event);
        CHECK(exact.peak_requested == meter.peak_requested());
        CHECK(exact.peak_by_role == meter.peak_by_role());
        CHECK(exact.peaks.reserved == arena.height);
        CHECK(exact.host.most.pinned + exact.host.most.locked == host_meter.pinned());
        CHECK(exact.host.most.pageable == host_meter.pageable_peak());
        CHECK(exact.host.memory == host_meter.peak());
        planned.limit = arena.height - Bytes(kBlockBytes);
        CHECK(replay_on_memory(schedule, planned, host.table()).failed_event.has_value());
      }
    }
  }
  CHECK(plans > 200);
  CHECK(host.left_behind() == 0);
}
