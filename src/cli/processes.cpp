#include "cli/processes.h"

#include <cstdlib>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/format.h"
#include "exec/library_transport.h"
#include "exec/tcp.h"

namespace dsplan {
namespace {

// What happened before the run, or around it, as everywhere else: wrong words, or a machine that is not there.
[[noreturn]] void tell(const exec::Failure& failure, const MachineWords& words) {
  const std::string text = exec::describe(failure);
  if (failure.status == DSPLAN_INVALID) throw Refusal("--transport " + *words.transport, text);
  throw Unavailable(formatted("--transport {}: {}\n", *words.transport, text));
}

}  // namespace

Processes::Processes(const MachineWords& words, std::chrono::milliseconds timeout) : words_(words), timeout_(timeout) {
  const std::optional<exec::LaunchPlace> place = exec::launch_place([](const char* name) { return std::getenv(name); });
  if (!place) {
    throw Refusal("--transport " + *words.transport, "nobody launched this process as one rank of several",
                  "torchrun --no-python, mpirun or srun: docs/running.md");
  }
  place_ = *place;
}

void Processes::expect(std::int64_t world) const {
  if (world == place_.ranks) return;
  throw Refusal("--ranks", formatted("{} launched {} process{}, and the plan is of {} rank{}", place_.launcher,
                                     place_.ranks, place_.ranks == 1 ? "" : "es", world, world == 1 ? "" : "s"));
}

void Processes::agree(const std::vector<RunTerm>& terms) {
  std::vector<std::string> own;
  for (const RunTerm& term : terms) own.push_back(term.value);
  const std::vector<exec::Blob> all = rendezvous_->exchange(exec::packed(own), "the words");
  const auto of_first = exec::unpacked<std::vector<std::string>>(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto theirs = exec::unpacked<std::vector<std::string>>(all[rank]);
    for (std::size_t at = 0; at < terms.size(); ++at) {
      if (theirs.at(at) == of_first.at(at)) continue;
      throw exec::RunFailure({DSPLAN_INVALID, static_cast<int>(rank), exec::kNoEvent, terms[at].name,
                              formatted("\"{}\", and on rank 0 \"{}\"", theirs.at(at), of_first.at(at))});
    }
  }
}

int Processes::together(const std::vector<RunTerm>& terms, const std::function<int()>& body) {
  try {
    rendezvous_ = std::make_unique<exec::Rendezvous>(place_, timeout_);
    agree(terms);
  } catch (const exec::RunFailure& failure) {
    tell(failure.failure(), words_);
  }
  int code = 0;
  try {
    code = body();
  } catch (const exec::RunFailure& failure) {
    rendezvous_->abort(failure.failure());
    tell(failure.failure(), words_);
  } catch (const std::exception& error) {
    const bool missing = dynamic_cast<const Unavailable*>(&error) != nullptr;
    rendezvous_->abort(
        {missing ? DSPLAN_UNAVAILABLE : DSPLAN_INVALID, place_.rank, exec::kNoEvent, "run", error.what()});
    throw;
  }
  // Nobody ends before rank 0 has written what there is: launchers end all ranks when one has ended badly.
  if (first()) {
    rendezvous_->announce(exec::packed(code));
    return code;
  }
  const std::optional<exec::Blob> word = rendezvous_->await_announcement();
  if (word) return exec::unpacked<int>(*word);
  if (const std::optional<exec::Failure> failure = rendezvous_->first_failure()) say(exec::describe(*failure) + "\n");
  return code == kDone ? kUnavailable : code;
}

std::unique_ptr<exec::Transport> Processes::transport(const dsplan_backend& backend) {
  if (*words_.transport == "tcp") return std::make_unique<exec::TcpTransport>(*rendezvous_);
  return std::make_unique<exec::LibraryTransport>(*rendezvous_, backend, words_.most_blocks);
}

exec::RunResult Processes::run(const exec::RankPlan& plan, const exec::RunOptions& options) {
  const std::unique_ptr<exec::Transport> carries = transport(*options.backend);
  return exec::run_process(plan, options, *rendezvous_, *carries);
}

}  // namespace dsplan
