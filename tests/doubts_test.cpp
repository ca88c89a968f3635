// How far off a verdict's figures may be: what was measured, and what nobody has measured.
#include "planner/predict/doubts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan;

namespace {

struct Kind {
  Training training;
  Parallelism parallel;
};

Kind kind_of(const std::string& jobs) {
  Kind kind;
  kind.parallel.world = kind.parallel.dp = jobs == "pytorch" ? 1 : 4;
  if (jobs == "fsdp2") kind.training.runtime = Runtime::Fsdp2;
  if (!jobs.starts_with("zero")) return kind;
  kind.training.runtime = Runtime::DeepSpeed;
  kind.training.zero.stage = jobs[4] - '0';
  if (jobs.ends_with("-offload")) kind.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
  return kind;
}

const Doubt* find(const std::vector<Doubt>& doubts, const std::string& what) {
  const auto found = std::find_if(doubts.begin(), doubts.end(), [&](const Doubt& one) { return one.what == what; });
  return found == doubts.end() ? nullptr : &*found;
}

constexpr Bytes kGiB{1LL << 30};

}  // namespace

TEST_CASE("errors of reserved memory are those that were measured") {
  std::istringstream lines(test::slurp(test_paths::source_dir() + "/tests/data/reserved-errors.csv"));
  int seen = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#') || line.starts_with("jobs,")) continue;
    std::istringstream cells(line);
    std::string jobs, count, permille;
    std::getline(cells, jobs, ',');
    std::getline(cells, count, ',');
    std::getline(cells, permille, ',');
    const Kind kind = kind_of(jobs);
    CAPTURE(jobs);
    CHECK(reserved_error_permille(kind.training, kind.parallel) == std::stoll(permille));
    CHECK(std::stoi(count) >= 10);
    ++seen;
  }
  CHECK(seen >= 8);
}

TEST_CASE("what is certain has no row, what nobody measured has one") {
  Job job;
  job.capacity = kGiB * 80;
  job.hardware.emplace();
  job.hardware->capacity = *job.capacity;
  job.hardware->capacity_is_driver_figure = true;
  CHECK(find(doubts_of(job, kGiB), "CUDA context") != nullptr);
  CHECK(find(doubts_of(job, kGiB), "communicators") == nullptr);  // One rank has none.
  CHECK(find(doubts_of(job, kGiB), "first step's bucket") == nullptr);
  REQUIRE(find(doubts_of(job, kGiB, Bytes(5)), "first step's bucket") != nullptr);
  CHECK(find(doubts_of(job, kGiB, Bytes(5)), "first step's bucket")->bytes == Bytes(5));
  REQUIRE(find(doubts_of(job, kGiB), "capacity") != nullptr);
  CHECK(find(doubts_of(job, kGiB), "capacity")->bytes > kGiB);
  job.capacity = kGiB * 70;  // Said by the user.
  CHECK(find(doubts_of(job, kGiB), "capacity") == nullptr);
  job.hardware->context = Bytes(600LL << 20);
  CHECK(find(doubts_of(job, kGiB), "CUDA context") == nullptr);
  job.parallelism.world = job.parallelism.dp = 8;
  REQUIRE(find(doubts_of(job, kGiB), "communicators") != nullptr);
  job.communicators = Bytes(300LL << 20);  // Measured.
  CHECK(find(doubts_of(job, kGiB), "communicators") == nullptr);
  job.training.runtime = Runtime::DeepSpeed;
  job.training.zero.stage = 3;
  const std::vector<Doubt> small = doubts_of(job, kGiB);
  const std::vector<Doubt> large = doubts_of(job, kGiB * 50);
  const std::int64_t permille = reserved_error_permille(job.training, job.parallelism);
  CHECK((find(large, "reserved memory") != nullptr) == (permille > 0));
  CHECK((sum_of(large) - sum_of(small)).value() >= kGiB.value() * 49 / 1000 * permille);
  for (const Doubt& doubt : large) CHECK(!doubt.why.empty());
}
