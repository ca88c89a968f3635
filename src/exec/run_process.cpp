// One rank in this process: it is carried out, and what it measured goes to rank 0 (exec/run.h).
#include "core/error.h"
#include "exec/host/host_backend.h"
#include "exec/packed_run.h"
#include "exec/run_rank.h"

namespace dsplan::exec {
namespace {

// Of all that are still there, in the order of ranks.
void take_reports(const std::vector<std::optional<Blob>>& blobs, RunResult& result) {
  result.ranks.clear();
  result.strangers = 0;
  for (const std::optional<Blob>& blob : blobs) {
    if (!blob) continue;
    auto report = unpacked<Report>(*blob);
    result.strangers += report.strangers;
    result.ranks.push_back(std::move(report.run));
    if (!report.parted || result.parted) continue;
    result.parted = report.parted;
    result.message = report.parted_text;
  }
}

}  // namespace

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
  if (const std::optional<Failure> first = rendezvous.first_failure()) tell(*first, result);
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
