// Two derivations of the same bytes: the schedule, event by event, and closed formulas that share no code with it.
#include <doctest/doctest.h>
#include <algorithm>
#include <random>

#include "core/format.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/live_buffers.h"
#include "random_jobs.h"
#include "sim/memory.h"
#include "sim/placement.h"
#include "sim/traffic.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

Bytes payload_of(const std::vector<TrafficRow>& rows, Collective collective, Pass phase, DType dtype,
                 Group group = Group::DataParallel) {
  Bytes sum;
  for (const TrafficRow& row : rows) {
    if (row.group == group && row.collective == collective && row.phase == phase && row.dtype == dtype &&
        row.kind == TrafficKind::Data) {
      sum += row.payload;
    }
  }
  return sum;
}

// No parameter is gathered more often than it is asked for, and each that goes between micro-batches once or more.
void check_bounds(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& measured,
                  const std::vector<TrafficRow>& derived) {
  const auto gathered = [&](const std::vector<TrafficRow>& rows) {
    return payload_of(rows, Collective::AllGather, Pass::Forward, job.training.dtype) +
           payload_of(rows, Collective::AllGather, Pass::Backward, job.training.dtype);
  };
  CHECK(gathered(measured) <= gathered(derived));
  const Zero& zero = job.training.zero;
  if (zero.model_persistence_threshold != Elements(INT64_MAX)) return;
  Bytes once;
  for (const Parameter& parameter : model.parameters) {
    const Elements size = local_shape(model, parameter, job.parallelism.tp).elements();
    if (parameter.tied_to != kNone || size <= zero.param_persistence_threshold) continue;
    once += storage(round_up(size, job.parallelism.dp), job.training.dtype);
  }
  if (job.parallelism.dp > 1) CHECK(gathered(measured) >= once * job.training.grad_accum);
}

void check_traffic(const ModelSpec& model, const Job& job, const std::vector<TrafficRow>& measured) {
  const std::vector<TrafficRow> derived = traffic_formulas(model, job);
  // Which modules a backward pass enters depends on where gradients flow; the formula for ZeRO-3's gathers is stated
  // for models without frozen parameters.
  const bool frozen_gathers = job.training.zero.stage == 3 && !job.training.freeze.empty();
  // What is fetched ahead or kept has no closed form, only bounds.
  const Zero& zero = job.training.zero;
  const bool traced = job.training.runtime == Runtime::DeepSpeed && zero.stage == 3 &&
                      (zero.prefetch_bucket_size > Elements(0) || zero.max_reuse_distance > Elements(0));
  if (traced) check_bounds(model, job, measured, derived);
  for (const TrafficRow& row : derived) {
    if (frozen_gathers && row.collective == Collective::AllGather && row.phase == Pass::Backward) continue;
    if (traced && row.collective == Collective::AllGather && row.phase != Pass::Step) continue;
    INFO(name(row.collective), " ", name(row.phase), " ", name(row.dtype));
    CHECK(payload_of(measured, row.collective, row.phase, row.dtype, row.group).value() ==
          payload_of(derived, row.collective, row.phase, row.dtype, row.group).value());
  }
  for (const TrafficRow& row : measured) {
    if (row.phase == Pass::Setup || row.kind == TrafficKind::Control) continue;
    INFO(name(row.collective), " ", name(row.phase), " ", name(row.dtype));
    CHECK(payload_of(derived, row.collective, row.phase, row.dtype, row.group) > Bytes(0));
    const bool tensor = row.group == Group::TensorParallel;
    CHECK(row.wire == wire_bytes(row.collective, row.payload, tensor ? job.parallelism.tp : job.parallelism.dp));
  }
}

// Beyond the formulas, with outputs that a loop's variable holds: what is bound to checkpoints, and a leaf's gradient.
bool may_keep_more(const Job& job, Role role) {
  const bool held = holds_loss(job.training.loop) && !job.training.checkpoint.groups.empty();
  return held && (role == Role::Activations || role == Role::Temporaries);
}

void check_invariants(const Schedule& schedule, const ModelSpec& model, const MemoryMeter& meter,
                      const ByRole& persistent) {
  CHECK(meter.peak_requested() >= persistent.total());
  CHECK(meter.peak_by_role().total() == meter.peak_requested());
  CHECK(meter.peak_allocated() >= meter.peak_requested());
  Bytes survivors;
  for (BufferId id : schedule.survivors) {
    if (schedule.buffers[id].space == Space::Device) survivors += schedule.buffers[id].size;
  }
  CHECK(survivors == persistent.total());
  // The second step ends as it began, and what it holds for backward is what it adds.
  const Phase& steady = meter.phases().back();
  CHECK(steady.marks.front().requested == steady.marks.back().requested);
  const auto before = std::find_if(steady.marks.begin(), steady.marks.end(),
                                   [](const PhaseMark& mark) { return mark.name == "before backward"; });
  if (std::count_if(schedule.events.begin(), schedule.events.end(), [](const Event& e) {
        const auto* mark = std::get_if<Mark>(&e);
        return mark != nullptr && mark->moment == Moment::MicroBatchBegins;
      }) == 2) {
    CHECK(held_for_backward(schedule, model).by_role.total() == before->requested - persistent.total());
  }
  const Placement placement = place(schedule, {});
  CHECK(placement.peak.reserved >= placement.peak.allocated);
  CHECK(placement.peak.allocated >= meter.peak_allocated());
}

}  // namespace

TEST_CASE("schedule and formulas agree over random models, stages, worlds, accumulation and segmentations") {
  for (std::uint32_t seed = 1; seed <= 400; ++seed) {
    Dice dice(seed);
    const ModelSpec model = build_model(parse_json("config.json", random_config(dice)), "random");
    const Job job = random_job(dice, model);
    if (unsupported(model, job)) continue;
    INFO("seed ", seed, ": ", tell(model, job));
    const Graph graph = build_graph(model, graph_options(model, job));
    const RecipeBook recipes(graph);
    const std::int64_t rank = dice.from(0, job.parallelism.dp - 1);
    const Schedule schedule = lower(model, job, graph, recipes, rank);
    MemoryMeter meter(schedule);
    TrafficMeter traffic;
    replay(schedule, meter, traffic);
    const Footprint formulas = footprint(model, job);
    ByRole persistent = formulas.persistent;
    for (std::size_t role = 0; role < kRoles; ++role) {
      INFO(name(static_cast<Role>(role)));
      const Bytes kept = meter.by_role().bytes[role];
      if (may_keep_more(job, static_cast<Role>(role)) && kept > persistent.bytes[role]) persistent.bytes[role] = kept;
      CHECK(kept.value() == persistent.bytes[role].value());
    }
    check_traffic(model, job, traffic.rows(job.parallelism.dp, 1, job.parallelism.tp));
    check_invariants(schedule, model, meter, persistent);
  }
}

TEST_CASE("wire bytes are the ring's, floored per row") {
  CHECK(wire_bytes(Collective::AllReduce, Bytes(16'060'522'496), 8) == Bytes(28'105'914'368));
  CHECK(wire_bytes(Collective::AllGather, Bytes(16'060'522'496), 8) == Bytes(14'052'957'184));
  CHECK(wire_bytes(Collective::AllReduce, Bytes(44), 4) == Bytes(66));  // The tiny example: 24 + 20.
  CHECK(wire_bytes(Collective::AllGather, Bytes(48), 4) == Bytes(36));
  CHECK(wire_bytes(Collective::ReduceScatter, Bytes(10), 3) == Bytes(6));
  CHECK(wire_bytes(Collective::Broadcast, Bytes(10), 3) == Bytes(10));
  CHECK(wire_bytes(Collective::AllReduce, Bytes(10), 1) == Bytes(0));
}
