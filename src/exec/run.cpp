#include "exec/run.h"

#include "core/error.h"
#include "exec/host/host_backend.h"
#include "exec/packed_run.h"
#include "exec/ranks.h"
#include "exec/transport/threads.h"
#include "exec/transport/transport.h"

namespace dsplan::exec {
namespace {

constexpr const char* kInterrupted = "interrupted";

// Keeps the scope's event up to date, ahead of the runner.
class Follow : public Ignores<> {
 public:
  Follow(RankScope& scope, const std::atomic<bool>* stop) : scope_(scope), stop_(stop) {}
  template <class E>
  void on(std::size_t at, const E&) {
    scope_.event = at;
    if (!std::is_same_v<E, Mark> || stop_ == nullptr || !stop_->load()) return;
    Failure failure;
    failure.status = DSPLAN_ABORTED;
    failure.call = kInterrupted;
    failure.text = "asked to stop";
    throw RunFailure(failure);
  }

 private:
  RankScope& scope_;
  const std::atomic<bool>* stop_;
};

bool has_replicas(const Schedule& schedule) {
  return std::any_of(schedule.events.begin(), schedule.events.end(), [](const Event& event) {
    const auto* sent = std::get_if<Communicate>(&event);
    return sent != nullptr && sent->group == Group::Replicas;
  });
}

void form_groups(const Schedule& schedule, Transport& transport, Device& device, Communicators& communicators) {
  if (schedule.dp > 1) communicators.add(Group::DataParallel, transport.connect(Group::DataParallel, device));
  if (schedule.tp > 1) communicators.add(Group::TensorParallel, transport.connect(Group::TensorParallel, device));
  if (schedule.dp_inside > 1) {
    communicators.add(Group::DataParallelInside, transport.connect(Group::DataParallelInside, device));
    communicators.add(Group::DataParallelBetween, transport.connect(Group::DataParallelBetween, device));
  }
  if (has_replicas(schedule)) communicators.add(Group::Replicas, transport.connect(Group::Replicas, device));
}

Group group_named(const std::string& text) {
  Group group = Group::DataParallel;
  while (name(group) != text) group = static_cast<Group>(static_cast<int>(group) + 1);
  return group;
}

// Ranks form a group of each kind that the schedule has. Ranks that share layers are neighbours.
void divide(const Schedule& schedule, Transport& transport) {
  const auto dp = static_cast<int>(schedule.dp);
  const auto tp = static_cast<int>(schedule.tp);
  std::vector<std::vector<int>> replicas(static_cast<std::size_t>(tp));
  std::vector<std::vector<int>> sharing(static_cast<std::size_t>(dp));
  for (int rank = 0; rank < dp * tp; ++rank) {
    replicas[static_cast<std::size_t>(rank % tp)].push_back(rank);
    sharing[static_cast<std::size_t>(rank / tp)].push_back(rank);
  }
  if (dp > 1) transport.divide(Group::DataParallel, replicas);
  if (tp > 1) transport.divide(Group::TensorParallel, std::move(sharing));
  if (schedule.dp_inside <= 1) return;
  DSPLAN_CHECK(tp == 1, "groups inside the data-parallel one, whose ranks share layers");
  std::vector<std::vector<int>> inside;
  for (int rank = 0; rank < dp; ++rank) {
    if (rank % schedule.dp_inside == 0) inside.emplace_back();
    inside.back().push_back(rank);
  }
  transport.divide(Group::DataParallelInside, std::move(inside));
  transport.divide(Group::DataParallelBetween, std::move(replicas));
  if (!has_replicas(schedule)) return;
  std::vector<std::vector<int>> same(static_cast<std::size_t>(schedule.dp_inside));
  for (int rank = 0; rank < dp; ++rank) same[static_cast<std::size_t>(rank % schedule.dp_inside)].push_back(rank);
  transport.divide(Group::Replicas, std::move(same));
}

// Carries one rank out and closes its device; what was measured is in `into` whatever way it ends (by throwing).
// `still`: where ranks share a process, they wait for each other when devices are open and at the end.
void run_rank(const RankPlan& plan, const RunOptions& options, Transport& transport, RankScope& scope, RankRun& into,
              ProcessBarrier* still = nullptr) {
  // One for all, or one for each.
  const auto own = [&](const auto& list) -> const auto& {
    return list[list.size() == 1 ? 0 : static_cast<std::size_t>(scope.rank)];
  };
  Device device(*options.backend, {scope.rank, options.ordinal, options.directory});
  {
    Communicators communicators;
    form_groups(plan.schedule, transport, device, communicators);
    into.communicators = transport.communicator_bytes();
    if (still != nullptr) still->at("opened", device, Bytes(0));
    RankMemory memory(device, own(options.memory));
    MemoryMeter meter(plan.schedule);
    const Observer nobody;
    const Text text;
    Runner runner(plan, options.settings, meter, device, memory, communicators, text,
                  options.observers.empty() ? nobody : own(options.observers));
    Measurer measurer(plan.schedule, device, memory, runner);
    Follow follow(scope, options.stop);
    const auto keep = [&] {
      into.figures = measurer.figures();
      into.figures.rank = scope.rank;
      into.computed = computes(device.info());
      if (!into.computed) return;
      into.losses = runner.losses();
      into.times = measurer.times();
      into.steps = runner.steps();
    };
    try {
      replay(plan.schedule, follow, meter, runner, measurer);
    } catch (...) {
      keep();
      throw;
    }
    keep();
    if (still != nullptr) still->at("end", device, memory.device().reserved);
    memory.finish();
  }
  device.close();
}

// What each rank sent stands for its share of what all sent: around a ring each of them sends the same, but which rank
// ends a chain, or whose part a remainder falls into, is the transport's choice. Broadcast and reduce have one rank
// that sends nothing. `ranks`: all of them.
void share_wire(const Schedule& schedule, std::vector<RankRun>& ranks) {
  const auto world = static_cast<std::int64_t>(ranks.size());
  if (world < 2) return;
  for (TrafficFigure& row : *ranks.front().figures.communication) {
    std::int64_t sum = 0;
    std::vector<TrafficFigure*> rows;
    for (RankRun& rank : ranks) {
      for (TrafficFigure& other : *rank.figures.communication) {
        const bool same = other.collective == row.collective && other.group == row.group && other.phase == row.phase &&
                          other.dtype == row.dtype && other.kind == row.kind;
        if (!same || !other.wire) continue;
        sum += other.wire->value();
        rows.push_back(&other);
      }
    }
    const bool one_ends = row.collective == "broadcast" || row.collective == "reduce";
    const std::int64_t groups = world / schedule.ranks_of(group_named(row.group));
    for (TrafficFigure* other : rows) other->wire = Bytes(sum / (one_ends ? world - groups : world));
  }
}

// How the first failure ends a run: its outcome, message, and whether it was one of a machine.
void tell(const Failure& first, RunResult& result) {
  result.outcome = first.status == DSPLAN_OUT_OF_MEMORY ? Receipt::Outcome::OutOfMemory : Receipt::Outcome::Error;
  result.message = describe(first);
  result.interrupted = first.call == kInterrupted;
  result.unavailable = first.status == DSPLAN_UNAVAILABLE || first.status == DSPLAN_TIMEOUT;
  result.failed = first.rank;
}

void tell_all(const RanksOutcome& outcome, RunResult& result) {
  if (!outcome.first) return;
  tell(*outcome.first, result);
  try {
    outcome.rethrow_if_failed();
  } catch (const Parted& parted) {
    result.parted = parted.event();
    result.message = parted.what();
  } catch (const RunFailure&) {
  }  // A Refusal, or an InternalError, goes on.
}

// Of all that are still there, in the order of ranks.
void take_reports(const std::vector<std::optional<Blob>>& blobs, RunResult& result) {
  result.ranks.clear();
  result.strangers = 0;
  for (const std::optional<Blob>& blob : blobs) {
    if (!blob) continue;
    auto report = unpacked<Report>(*blob);
    *result.strangers += report.strangers;
    result.ranks.push_back(std::move(report.run));
    if (!report.parted || result.parted) continue;
    result.parted = report.parted;
    result.message = report.parted_text;
  }
}

}  // namespace

RunResult run(const std::vector<RankPlan>& plans, const RunOptions& options) {
  DSPLAN_CHECK(!plans.empty() && options.backend != nullptr && !options.memory.empty(), "a run of nothing");
  RunResult result;
  result.ranks.resize(plans.size());
  ThreadTransport transport(static_cast<int>(plans.size()));
  divide(plans.front().schedule, transport);
  ProcessBarrier still(static_cast<int>(plans.size()), transport);
  const std::int64_t before = resident_bytes();
  const RanksOutcome outcome = run_ranks(static_cast<int>(plans.size()), transport, [&](RankScope& scope) {
    const auto rank = static_cast<std::size_t>(scope.rank);
    run_rank(plans[rank], options, transport, scope, result.ranks[rank], &still);
  });
  const std::int64_t most = most_resident_bytes();
  if (before >= 0 && most >= before) result.resident_growth = most - before;
  result.process = still.moments();
  tell_all(outcome, result);
  if (result.outcome == Receipt::Outcome::Ran) share_wire(plans.front().schedule, result.ranks);
  return result;
}

RunResult run_process(const RankPlan& plan, const RunOptions& options, Rendezvous& rendezvous, Transport& transport) {
  DSPLAN_CHECK(options.backend != nullptr && options.memory.size() == 1 && plan.rank() == rendezvous.rank(),
               "one rank of a run");
  divide(plan.schedule, transport);
  Report report;
  report.run.figures.rank = rendezvous.rank();
  report.strangers = rendezvous.strangers();
  const std::int64_t before = resident_bytes();
  const RanksOutcome outcome = run_one_rank(
      rendezvous.rank(), transport, [&](RankScope& scope) { run_rank(plan, options, transport, scope, report.run); });
  RunResult result;
  const std::int64_t most = most_resident_bytes();
  if (before >= 0 && most >= before) result.resident_growth = most - before;
  std::exception_ptr other;  // A Refusal, or an InternalError.
  try {
    outcome.rethrow_if_failed();
  } catch (const Parted& parted) {
    report.parted = parted.event();
    report.parted_text = parted.what();
  } catch (const RunFailure&) {
  } catch (...) {
    other = std::current_exception();
  }
  const std::vector<std::optional<Blob>> reports = rendezvous.gather(packed(report));
  if (other) std::rethrow_exception(other);
  if (const std::optional<Failure> first = rendezvous.failure().get()) tell(*first, result);
  if (rendezvous.rank() != 0) {
    if (report.parted) result.message = report.parted_text;
    result.parted = report.parted;
    result.ranks.push_back(std::move(report.run));
    result.strangers = report.strangers;
    return result;
  }
  take_reports(reports, result);
  if (result.outcome == Receipt::Outcome::Ran) share_wire(plan.schedule, result.ranks);
  return result;
}

}  // namespace dsplan::exec
