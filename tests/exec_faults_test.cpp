// Whatever call of the machine fails: the run ends, says which call of which rank at which event, and gives everything
// back.
#include <doctest/doctest.h>

#include "exec/watched_backend.h"
#include "running.h"

using namespace dsplan;

namespace {

struct Tried {
  exec::RunResult result;
  std::string failed;      // The call's name.
  std::int64_t left = 0;   // Devices that are still open.
  std::int64_t calls = 0;  // Of the rank.
};

Tried with_fault(const ModelSpec& model, const Job& job, const ExecutableRanks& plan,
                 std::optional<exec::WatchedBackend::Fault> fault) {
  exec::HostOptions machine;
  machine.kernels = exec::host_kernels;
  const exec::HostBackend host(machine);
  const exec::WatchedBackend watched(host.table(), fault);
  running::Options options;
  options.backend = &watched.table();
  Tried tried;
  tried.result = running::run(model, job, plan, options);
  tried.failed = watched.failed();
  tried.left = watched.open_devices();
  tried.calls = watched.calls(fault ? fault->rank : 0);
  return tried;
}

}  // namespace

TEST_CASE("a call that fails ends the run, with its name, and leaves nothing") {
  const ModelSpec model = running::model(running::kLlama);
  for (const int stage : {-1, 2, 3, 4}) {
    Job job = lowered::job(stage == 4 ? 1 : stage, 2);
    if (stage == 4) {  // The two ranks share layers.
      job.parallelism.dp = 1;
      job.parallelism.tp = 2;
    }
    const ExecutableRanks plan = executables_of(model, job, 2, "test");
    const std::int64_t calls = with_fault(model, job, plan, std::nullopt).calls;
    REQUIRE(calls > 100);
    // Every call of the beginning, then a sample over all of them.
    for (std::int64_t k = 0; k < calls; k += k < 30 ? 1 : 1 + calls / 100) {
      const int rank = static_cast<int>(k % 2);
      const Tried tried = with_fault(model, job, plan, exec::WatchedBackend::Fault{rank, k, DSPLAN_DEVICE});
      CAPTURE(stage);
      CAPTURE(k);
      CAPTURE(tried.result.message);
      CHECK(tried.left == 0);
      if (tried.failed.empty()) continue;  // This rank makes fewer calls.
      CHECK(tried.result.outcome == Receipt::Outcome::Error);
      CHECK(tried.result.message.find(tried.failed) != std::string::npos);
      CHECK(tried.result.message.starts_with(fmt::format("rank {}", rank)));
    }
  }
}
