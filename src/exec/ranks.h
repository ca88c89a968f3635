// The ranks of a run as threads, or the one of this process: starts them, waits for all of them whatever happens, and
// tells the first failure.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/calibration.h"
#include "exec/device.h"
#include "exec/failure.h"
#include "exec/transport/transport.h"

namespace dsplan::exec {

// Where a rank is. Its body keeps `event` up to date, so that a failure can be told with it.
struct RankScope {
  int rank = 0;
  std::size_t event = kNoEvent;
};

struct RanksOutcome {
  // In time: the one that made the others leave. Absent: all ranks came to their end.
  std::optional<Failure> first;
  // What the rank of `first` threw: a RunFailure with the same text, or a Refusal or InternalError as it was.
  std::exception_ptr cause;
  std::vector<std::optional<Failure>> by_rank;  // Those that left because of it have DSPLAN_ABORTED.

  void rethrow_if_failed() const {
    if (cause) std::rethrow_exception(cause);
  }
};

// Runs `body` once for each rank, each in a thread of its own. A body that throws aborts the transport; one that
// returns leaves it.
[[nodiscard]] RanksOutcome run_ranks(int ranks, Transport& transport, const std::function<void(RankScope&)>& body);

// Runs `body` once, in this thread, for the one rank of this process; `by_rank` then has one entry.
[[nodiscard]] RanksOutcome run_one_rank(int rank, Transport& transport, const std::function<void(RankScope&)>& body);

// Lets all ranks stand still at one place, so that what the machine counts of their process can be held against what
// they count themselves.
class ProcessBarrier {
 public:
  ProcessBarrier(int ranks, const Transport& transport) : ranks_(ranks), transport_(transport) {}

  // Every rank comes, with what its allocator has taken; the last one looks at its device, then all go on. If the run
  // is lost meanwhile, whoever waits goes on, and nothing is noted.
  void at(const std::string& moment, Device& device, Bytes reserved);
  [[nodiscard]] const std::vector<ProcessMoment>& moments() const { return moments_; }

 private:
  int ranks_;
  const Transport& transport_;
  std::mutex mutex_;  // Of the rest.
  std::condition_variable all_here_;
  int here_ = 0;
  std::size_t passed_ = 0;
  Bytes reserved_;
  std::vector<ProcessMoment> moments_;
};

}  // namespace dsplan::exec
