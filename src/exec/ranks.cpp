#include "exec/ranks.h"

#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"

namespace dsplan::exec {
namespace {

struct Ended {
  std::optional<Failure> failure;
  std::exception_ptr thrown;
};

Failure complete(Failure failure, const RankScope& scope) {
  if (failure.rank < 0) failure.rank = scope.rank;
  if (failure.event == kNoEvent) failure.event = scope.event;
  return failure;
}

void run_one(RankScope scope, Transport& transport, const std::function<void(RankScope&)>& body, Ended& ended) {
  const auto fail = [&](const Failure& failure, std::exception_ptr thrown) {
    ended = {failure, std::move(thrown)};
    transport.abort(failure);
  };
  try {
    body(scope);
  } catch (const RunFailure& error) {
    const Failure failure = complete(error.failure(), scope);
    fail(failure, std::make_exception_ptr(RunFailure(failure)));
  } catch (const std::bad_alloc& error) {
    const Failure failure{DSPLAN_OUT_OF_MEMORY, scope.rank, scope.event, "run", "dsplan's own memory"};
    fail(failure, std::make_exception_ptr(RunFailure(failure)));
  } catch (const std::exception& error) {
    fail({DSPLAN_INVALID, scope.rank, scope.event, "run", error.what()}, std::current_exception());
  }
  transport.leave(scope.rank);
}

}  // namespace

RanksOutcome run_ranks(int ranks, Transport& transport, const std::function<void(RankScope&)>& body) {
  DSPLAN_CHECK(ranks > 0, "a run without ranks");
  std::vector<Ended> ended(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    threads.reserve(ended.size());
    try {
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] { run_one({rank}, transport, body, ended[static_cast<std::size_t>(rank)]); });
      }
    } catch (const std::system_error& error) {
      const Failure failure{DSPLAN_UNAVAILABLE, static_cast<int>(threads.size()), kNoEvent, "start", error.what()};
      ended[threads.size()] = {failure, std::make_exception_ptr(RunFailure(failure))};
      transport.abort(failure);
    }
  }
  RanksOutcome outcome;
  outcome.first = transport.first_failure();
  for (Ended& each : ended) outcome.by_rank.push_back(std::move(each.failure));
  if (!outcome.first) return outcome;
  const auto at = static_cast<std::size_t>(outcome.first->rank);
  if (at < ended.size()) outcome.cause = ended[at].thrown;
  if (!outcome.cause) outcome.cause = std::make_exception_ptr(RunFailure(*outcome.first));
  return outcome;
}

RanksOutcome run_one_rank(int rank, Transport& transport, const std::function<void(RankScope&)>& body) {
  Ended ended;
  run_one({rank}, transport, body, ended);
  RanksOutcome outcome;
  outcome.first = transport.first_failure();
  outcome.by_rank.push_back(ended.failure);
  if (!outcome.first) return outcome;
  outcome.cause = outcome.first->rank == rank ? ended.thrown : std::make_exception_ptr(RunFailure(*outcome.first));
  if (!outcome.cause) outcome.cause = std::make_exception_ptr(RunFailure(*outcome.first));
  return outcome;
}

void ProcessBarrier::at(const std::string& moment, Device& device, Bytes reserved) {
  if (!device.synchronous()) device.synchronize();
  std::unique_lock lock(mutex_);
  reserved_ += reserved;
  const std::size_t passed = passed_;
  if (++here_ < ranks_) {
    const auto all_here = [&] { return passed_ != passed || transport_.first_failure().has_value(); };
    while (!all_here_.wait_for(lock, std::chrono::milliseconds(50), all_here)) {
    }
    return;
  }
  const dsplan_usage usage = device.usage();
  ProcessMoment& now = moments_.emplace_back();
  now.name = moment;
  now.reserved = std::exchange(reserved_, Bytes(0));
  if (usage.process_bytes >= 0) now.process = Bytes(usage.process_bytes);
  // A host's counter is of one rank alone.
  if (!device.host_readable() && usage.device_total >= 0 && usage.device_free >= 0) {
    now.device_used = Bytes(usage.device_total - usage.device_free);
  }
  here_ = 0;
  ++passed_;
  all_here_.notify_all();
}

}  // namespace dsplan::exec
