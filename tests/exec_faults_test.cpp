// Whatever call of the machine fails: the run ends, says which call of which rank at which event, and gives everything
// back. Every call of the smallest plan of each class, with DSPLAN_FULL_MATRIX set; else every one of the beginning,
// every call on a file, and a sample of the others.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "running.h"
#include "watched_backend.h"

using namespace dsplan;

namespace {

struct Tried {
  exec::RunResult result;
  std::string failed;              // The call's name.
  std::int64_t left = 0;           // Devices that are still open.
  std::ptrdiff_t open = 0;         // Descriptors of the process that were not open before.
  std::int64_t files = 0;          // That lie where the plan's were.
  std::vector<std::string> names;  // Of the rank's calls.
};

std::ptrdiff_t entries(const std::string& path) {
  return std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator{});
}

Tried with_fault(const ModelSpec& model, const Job& job, const ExecutableRanks& plan,
                 std::optional<exec::WatchedBackend::Fault> fault) {
  const test::Folder folder;
  Tried tried;
  const std::ptrdiff_t before = entries("/proc/self/fd");
  {
    exec::HostOptions machine;
    machine.kernels = exec::host_kernels;
    const exec::HostBackend host(machine);
    const exec::WatchedBackend watched(host.table(), fault);
    running::Options options;
    options.backend = &watched.table();
    options.directory = folder.path();
    tried.result = running::run(model, job, plan, options);
    tried.failed = watched.failed();
    tried.left = watched.open_devices();
    tried.names = watched.names(fault ? fault->rank : 0);
  }
  tried.open = entries("/proc/self/fd") - before;
  tried.files = entries(folder.path());
  return tried;
}

bool on_file(const std::string& call) { return call.starts_with("file_"); }

// Opening the device, what the rank times and counts with, and a look at the process by whichever rank comes last:
// calls before the first event of the schedule.
constexpr std::int64_t kBeforeEvents = 7;

struct Tally {
  std::int64_t failed = 0;
  std::int64_t on_files = 0;
};

void fail_call(const ModelSpec& model, const Job& job, const ExecutableRanks& plan, int rank, std::int64_t k,
               const std::string& call, Tally& tally) {
  const dsplan_status status = on_file(call) ? DSPLAN_IO : DSPLAN_DEVICE;
  const Tried tried = with_fault(model, job, plan, exec::WatchedBackend::Fault{rank, k, status});
  CAPTURE(k);
  CAPTURE(call);
  CAPTURE(tried.result.message);
  CHECK(tried.left == 0);
  CHECK(tried.open == 0);
  CHECK(tried.files == 0);
  if (tried.failed.empty()) return;  // This rank makes fewer calls.
  ++tally.failed;
  tally.on_files += on_file(tried.failed) ? 1 : 0;
  CHECK(tried.result.outcome == Receipt::Outcome::Error);
  CHECK(tried.result.message.find(tried.failed) != std::string::npos);
  CHECK(tried.result.message.starts_with(dsplan::formatted("rank {}", rank)));
  if (k >= kBeforeEvents) CHECK(tried.result.message.find("event ") != std::string::npos);
}

Tally fail_calls(const ModelSpec& model, const Job& job) {
  const ExecutableRanks plan = executables_of(model, job, 2, "test");
  const Tried whole = with_fault(model, job, plan, std::nullopt);
  REQUIRE_MESSAGE(whole.result.message == "", whole.result.message);
  const auto calls = static_cast<std::int64_t>(whole.names.size());
  REQUIRE(calls > 100);
  const bool all = std::getenv("DSPLAN_FULL_MATRIX") != nullptr;
  std::mt19937 random(7);
  Tally tally;
  for (std::int64_t k = 0; k < calls; ++k) {
    const std::string& call = whole.names[static_cast<std::size_t>(k)];
    const bool drawn = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(calls)) < 60;
    if (!all && k >= 30 && !on_file(call) && !drawn) continue;
    const int rank = plan.ranks.size() > 1 ? static_cast<int>(k % 2) : 0;
    fail_call(model, job, plan, rank, k, call, tally);
  }
  return tally;
}

// One layer whose matrices are just large enough for files: a megabyte or more.
Job in_files(bool parameters) {
  Job job = lowered::job(3, 1);
  job.training.micro_batch = 1;
  job.training.seq = 4;
  lowered::set_dtype(job, DType::Float32);
  job.training.attention = Attention::Math;
  Zero& zero = job.training.zero;
  zero.sub_group_size = Elements(2'000'000);
  zero.prefetch_bucket_size = Elements(0);
  zero.param_persistence_threshold = Elements(1000);
  zero.offload_optimizer.device = OffloadDevice::Nvme;
  zero.offload_optimizer.buffer_count = 6;
  if (!parameters) return job;
  zero.offload_param.device = OffloadDevice::Nvme;
  zero.offload_param.max_in_cpu = Elements(0);
  zero.offload_param.buffer_count = 4;
  zero.offload_param.buffer_size = Elements(300'000);
  return job;
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
    CAPTURE(stage);
    CHECK(fail_calls(model, job).failed > 70);
  }
}

TEST_CASE("a call that fails while optimizer and parameters lie in files ends the run, and no file is left") {
  const ModelSpec model = running::model(R"({"model_type": "gpt2", "n_embd": 260, "n_layer": 1, "n_head": 2,
    "n_positions": 4, "vocab_size": 61, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0})");
  for (const bool parameters : {false, true}) {
    CAPTURE(parameters);
    const Tally tally = fail_calls(model, in_files(parameters));
    MESSAGE(tally.failed << " calls failed one at a time, " << tally.on_files << " of them on files");
    CHECK(tally.failed > 60);
    CHECK(tally.on_files > (parameters ? 20 : 5));
  }
}
