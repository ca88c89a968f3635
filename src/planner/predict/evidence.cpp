#include "planner/predict/evidence.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/machine/in_parallel.h"
#include "model/quantized.h"
#include "planner/fsdp/fsdp_facts.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/predict.h"
#include "planner/time/event_times.h"
#include "planner/time/rates.h"
#include "planner/zero/zero_facts.h"
#include "sim/long_run.h"

namespace dsplan {

namespace {

// By estimated times: where something may wait for another stream, and the machine's rates are known.
bool is_timed(const Schedule& schedule, const Job& job) {
  return schedule.several_streams && job.hardware && Rates::missing(job).empty();
}

}  // namespace

// As far as the limit is not reached the allocator fares under it as without one. What other limits decide is left
// open, and so is what the worst of several ranks does.
WantedOnly::WantedOnly(const Job& job, const DeviceRoom& room, Wanted wanted, bool printed)
    : within_(without_limit(job)) {
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  const bool others = job.allocator.memory_fraction || job.allocator.expandable_segments;
  if (wanted == Wanted::Any || !limit || others || job.placement != PlacementKind::Caching) return;
  if (wanted == Wanted::IfFits && ranks_differ(job.training, job.parallelism)) return;
  within_.limit = limit->limit;
  within_.until_retry = wanted == Wanted::IfClean;
  along_.emplace(within_, printed);
}

Until WantedOnly::until(Until other) {
  if (along_) other.still_wanted = [this](const Schedule& schedule) { return go_on(schedule); };
  return other;
}

// At the first backward, where retries matter, at once.
bool WantedOnly::begins(const Schedule& schedule) {
  for (; !begun_ && seen_ < schedule.events.size(); ++seen_) {
    const Mark* mark = std::get_if<Mark>(&schedule.events[seen_]);
    begun_ = within_.until_retry || (mark != nullptr && mark->moment == Moment::BackwardBegins);
  }
  return begun_;
}

// A retry is sure where both ends of what waiting frees can do have it.
bool WantedOnly::go_on(const Schedule& schedule) {
  if (!begins(schedule)) return true;
  along_->go_on(schedule);
  if (!along_->stopped()) return true;
  if (!within_.until_retry || !along_->waited() || within_.frees != StreamFrees::AtSync) return false;
  if (!other_) other_.emplace(other_end(within_));
  other_->go_on(schedule);
  return !other_->stopped();
}

WantedOnly::Known WantedOnly::placements() {
  if (!begun_ || along_->stopped()) return {};
  BothPlacements made = along_->finish();
  if (made.asked.retries > 0) return {std::nullopt, std::move(made.asked)};
  return {std::move(made), std::nullopt};
}

// The meters and the estimates go on beside the first placement, the others beside each other.
Readings::Readings(Schedule made, const Job& job, const DeviceRoom& room, Detail how, WantedOnly::Known known)
    : schedule(std::move(made)),
      only(window_named(job.phase)),
      memory(schedule, only),
      host(schedule),
      options(without_limit(job)),
      detail(how),
      limited(std::move(known.limited)) {
  const bool worth = schedule.events.size() > kWorthThreads;
  const bool timed = (detail == Detail::All || detail == Detail::Screen) && is_timed(schedule, job);
  Beside reading([&] { read(job, timed); }, worth && !known.without_limit);
  placements = known.without_limit ? std::move(*known.without_limit) : place_asked(schedule, options);
  reading.wait();
  if (!placements.asked.waited) times.reset();
  place_further(job, room);
  ends = ends_of(schedule, placements, options, only);
}

void Readings::read(const Job& job, bool timed) {
  replay(schedule, memory, traffic, host);
  if (timed) times = event_times(schedule, job, Rates::of(job));
}

// What a verdict rests on: where the allocator has no room without a limit, how it fares under one, and the other end
// of what waiting frees can do. A screen has the latter from the judge, and no expected size of what retries or fails.
void Readings::place_further(const Job& job, const DeviceRoom& room) {
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  const bool ample = limit && most_reserved(placements.asked) <= limit->limit && !job.allocator.memory_fraction;
  const bool fraction = job.allocator.memory_fraction.value_or(1) < 1;
  const bool asks = limit && (fraction || placements.asked.peak.reserved > limit->limit);  // The judge, and by replay.
  if (asks && job.placement == PlacementKind::Caching) {
    if (detail == Detail::Screen) return;
    const bool fate = detail == Detail::Fate || detail == Detail::Change || detail == Detail::ChangeEnds;
    if (fate && !limited) limited = place_again(schedule, placements, under_limit(job, room));
    if (fails()) return;
  }
  Beside by_clock(
      [&] {
        if (!times) return;
        PlacementOptions timed = options;
        timed.times = &*times;
        expected = place_again(schedule, placements, timed);
      },
      detail == Detail::All && schedule.events.size() > kWorthThreads);
  const bool both = detail == Detail::Verdict || detail == Detail::Fate;
  if (detail == Detail::All || (both && !ample)) place_other(schedule, options, placements);
  if (detail == Detail::All) later_steps = long_run(job, room);
  by_clock.wait();
}

namespace {

// Whether further steps repeat the second.
bool goes_on(const Job& job) { return job.placement == PlacementKind::Caching && job.training.seq_list.empty(); }

}  // namespace

std::optional<LongRun> Readings::long_run(const Job& job, const DeviceRoom& room) const {
  if (!goes_on(job)) return std::nullopt;
  return judged_run(room, under_limit(job, room));
}

std::optional<LongRun> Readings::expected_run(const Job& job, const DeviceRoom& room) const {
  if (!goes_on(job) || !placements.asked.waited || !is_timed(schedule, job)) return std::nullopt;
  const EventTimes estimated = times ? EventTimes() : event_times(schedule, job, Rates::of(job));
  PlacementOptions by_clock = under_limit(job, room);
  by_clock.times = times ? &*times : &estimated;
  return judged_run(room, by_clock);
}

std::optional<LongRun> Readings::judged_run(const DeviceRoom& room, const PlacementOptions& how) const {
  std::optional<LongRun> run = dsplan::long_run(schedule, placements, how);
  if (run && !verdict_limit(room)) run->verdict = Verdict::Unknown;
  return run;
}

SharedEvidence::SharedEvidence(const ModelSpec& of, const Job& resolved, Detail how, SharedShapes* of_several)
    : model(of),
      job(resolved),
      detail(how),
      fingerprint(tells_what(how) ? dsplan::fingerprint(of, resolved) : std::string()),
      formulas(footprint(of, resolved)),
      room(device_room(resolved)),
      unsupported(dsplan::unsupported(of, resolved)) {
  DSPLAN_CHECK(job.training.checkpoint.text != "auto", "a recompute plan that nobody has chosen");
  until.peaks_alone = !tells_what(how);
  if (unsupported) return;
  shapes = of_several != nullptr ? of_several->of(job) : std::make_shared<const Shapes>(build_shapes(model, job));
}

const TimeAnswer& SharedEvidence::time() const {
  std::call_once(timed_, [this] {
    if (shapes != nullptr) time_ = time_of(model, job, *shapes);
  });
  return time_;
}

namespace {

// Whether outputs that a loop's variable holds keep more than logits: what is bound to checkpoints (masks and tables of
// each family's own, packed weights that ZeRO-3 has gathered), a leaf with its gradient, and what functions of packed
// weights hold. The class that offloads activations holds the node that asked it last. For those there is no formula.
bool keeps_the_graph(const ModelSpec& model, const Training& training) {
  if (training.activation_offloading != ActivationOffloading::None) return true;
  const bool checkpoints = !training.checkpoint.groups.empty() || !training.checkpoint.modules.empty();
  return holds_loss(training.loop) && (checkpoints || packing_of(model));
}

// What a bug's report has to say.
std::string differing(const ByRole& scheduled, const ByRole& formula) {
  std::string text = "persistent bytes by schedule and by formula differ:";
  for (std::size_t at = 0; at < kRoles; ++at) {
    const Role role = static_cast<Role>(at);
    if (scheduled[role] == formula[role]) continue;
    text += formatted(" {} {} and {}", name(role), scheduled[role].value(), formula[role].value());
  }
  return text;
}

// `rank`: a data-parallel one.
void check_derivations(const SharedEvidence& shared, std::int64_t rank, const Readings& readings) {
  ByRole persistent = footprints_differ(shared.job.training) ? footprint(shared.model, shared.job, rank).persistent
                                                             : shared.formulas.persistent;
  for (const Role role : {Role::Activations, Role::Temporaries, Role::RuntimeBuffers}) {
    if (!keeps_the_graph(shared.model, shared.job.training)) break;
    const Bytes scheduled = readings.memory.by_role()[role];
    DSPLAN_CHECK(scheduled >= persistent[role], "what outputs keep by schedule is less than by formula");
    persistent[role] = scheduled;
  }
  DSPLAN_CHECK(readings.memory.by_role() == persistent, differing(readings.memory.by_role(), persistent));
  DSPLAN_CHECK(rank != 0 || readings.host.nvme_peak() == nvme_footprint(shared.model, shared.job, rank).files,
               "files by schedule and by formula differ");
  const std::string checkpoint = checkpoint_fault(shared.model, shared.job, readings.schedule);
  DSPLAN_CHECK(checkpoint.empty(), "what checkpoints take by schedule and by formula differs: " + checkpoint);
}

// Of a data-parallel rank; what nobody asked for yet is simulated.
const std::pair<Bytes, Bytes>& host_peaks(const SharedEvidence& shared, std::int64_t data_rank, HostPeaks& known) {
  const auto seen = known.find(data_rank);
  if (seen != known.end()) return seen->second;
  const Schedule schedule = lower(shared.model, shared.job, *shared.shapes, data_rank);
  HostMeter meter(schedule);
  replay(schedule, meter);
  return known.emplace(data_rank, std::pair(meter.peak(), meter.nvme_peak())).first->second;
}

// Ranks whose shards are alike train alike: where nothing of it stays pinned on the host, only how they load differs.
void add_loading(const SharedEvidence& shared, std::int64_t data_rank, std::int64_t seen, const HostMeter& own,
                 HostPeaks& known) {
  if (known.contains(data_rank) || offloads(shared.job.training)) return;
  if (!same_shards(shared.model, shared.job, data_rank, seen)) return;
  const Schedule init = lower_init(shared.model, shared.job, *shared.shapes, data_rank);
  HostMeter meter(init);
  replay(init, meter);
  const Bytes training = meter.left_by_init() + own.peak_above_init();
  known.emplace(data_rank, std::pair(std::max(meter.peak(), training), meter.nvme_peak()));
}

// Of fully_shard's data-parallel ranks: with as large shards they do the same, unless one loads for the others.
bool trains_alike(const SharedEvidence& shared, std::int64_t rank, std::int64_t other) {
  const Training& training = shared.job.training;
  return is_fsdp(training.runtime) && training.model_init != ModelInit::Rank0 &&
         same_shards(shared.model, shared.job, rank, other);
}

// All ranks of `rank`'s node. Where ranks differ each of them is simulated, once.
NodeMemory node_of(const SharedEvidence& shared, std::int64_t rank, const HostMeter& own, HostPeaks& known) {
  const Parallelism& parallel = shared.job.parallelism;
  const Training& training = shared.job.training;
  // A last node need not be full: what is judged is one that is.
  const std::int64_t ranks = std::min(parallel.world, parallel.gpus_per_node);
  known.emplace(rank % parallel.dp, std::pair(own.peak(), own.nvme_peak()));
  if (training.model_init == ModelInit::Rank0 && ranks > 1) {  // The first rank of each node loads the model.
    for (const std::int64_t other : {0, 1}) add_loading(shared, other, rank % parallel.dp, own, known);
    return {ranks, host_peaks(shared, 0, known).first + host_peaks(shared, 1, known).first * (ranks - 1), Bytes(0)};
  }
  if (!ranks_differ(training, parallel) || !offloads_optimizer(training)) {
    return {ranks, own.peak() * ranks, own.nvme_peak() * ranks};
  }
  const std::int64_t first = rank / parallel.gpus_per_node * parallel.gpus_per_node;
  const std::int64_t end = std::min(parallel.world, first + parallel.gpus_per_node);
  NodeMemory node{end - first, Bytes(0), Bytes(0)};
  for (std::int64_t other = first; other < end; ++other) {
    if (trains_alike(shared, rank % parallel.dp, other % parallel.dp)) {
      known.emplace(other % parallel.dp, std::pair(own.peak(), own.nvme_peak()));
    }
    const auto& [peak, files] = host_peaks(shared, other % parallel.dp, known);
    node.peak += peak;
    node.nvme += files;
  }
  return node;
}

Schedule schedule_of(const SharedEvidence& shared, std::int64_t data_rank, const Until& until) {
  std::optional<Schedule> made = lower_within(shared.model, shared.job, *shared.shapes, data_rank, until);
  if (!made) throw Ended{};
  return std::move(*made);
}

}  // namespace

Evidence gather(const SharedEvidence& shared, std::int64_t rank, HostPeaks& known) {
  if (shared.unsupported) return {shared, rank, nullptr, {}, {}};
  const Job& job = shared.job;
  WantedOnly only(job, shared.room, shared.wanted, !shared.until.peaks_alone);
  Schedule schedule = schedule_of(shared, job.parallelism.data_rank(rank), only.until(shared.until));
  auto readings =
      std::make_unique<const Readings>(std::move(schedule), job, shared.room, shared.detail, only.placements());
  check_derivations(shared, rank, *readings);
  std::vector<TrafficRow> traffic =
      readings->traffic.rows(job.parallelism.dp, readings->schedule.dp_inside, job.parallelism.tp);
  const std::vector<TrafficRow> sent = scattered_rows(shared.model, job, job.parallelism.data_rank(rank));
  const auto later =
      std::find_if(traffic.begin(), traffic.end(), [](const TrafficRow& row) { return row.phase != Pass::Setup; });
  traffic.insert(later, sent.begin(), sent.end());
  const NodeMemory node = node_of(shared, rank, readings->host, known);
  return {shared, rank, std::move(readings), std::move(traffic), node};
}

}  // namespace dsplan
