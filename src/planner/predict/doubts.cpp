#include "planner/predict/doubts.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "planner/libraries/library_memory.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// What `tools/dry/compare tests/receipts/dry --errors tests/data/reserved-errors.csv` found: jobs of real PyTorch and
// DeepSpeed, measured against their predictions. Nine of ten reserve at most so much more than was predicted.
struct MeasuredError {
  std::string_view jobs;
  std::int64_t permille;
};
constexpr std::array kReservedErrors = {
    MeasuredError{"pytorch", 0}, MeasuredError{"ddp", 0},           MeasuredError{"fsdp2", 0},
    MeasuredError{"zero0", 0},   MeasuredError{"zero1", 0},         MeasuredError{"zero2", 0},
    MeasuredError{"zero3", 0},   MeasuredError{"zero3-offload", 0},
};

// A CUDA context takes 0.47 to 0.92 GiB with PyTorch 2.1 on an A100, by how its kernels are loaded
// (tests/data/published-memory.csv, STAS-009 and STAS-010).
constexpr Bytes kLargestContext{942LL << 20};
// The first collective of one communicator took 1.45 GiB of an A100 (the same rows: 0.55 to 2.00 GiB).
constexpr Bytes kLargestCommunicator{1485LL << 20};
// CUDA's total is below the driver's figure: by 1.46 % on an RTX 3090 (23.65 of 24 GiB), 1.27 % on an A100 of 40 GB,
// 1.06 % on one of 80 GB, 0.57 % on an H100.
constexpr std::int64_t kDriverPermille = 15;

std::string_view measured_as(const Training& t, const Parallelism& parallel) {
  if (is_fsdp(t.runtime)) return "fsdp2";
  if (t.runtime != Runtime::DeepSpeed) return parallel.world > 1 ? "ddp" : "pytorch";
  if (t.zero.stage == 3 && offloads(t)) return "zero3-offload";
  constexpr std::array<std::string_view, 4> kStages = {"zero0", "zero1", "zero2", "zero3"};
  return kStages[static_cast<std::size_t>(t.zero.stage)];
}

std::int64_t error_of(std::string_view jobs) {
  std::int64_t worst = 0;
  for (const MeasuredError& one : kReservedErrors) {
    if (one.jobs == jobs) return one.permille;
    worst = std::max(worst, one.permille);
  }
  return worst;
}

// Rounded up.
Bytes permille_of(Bytes bytes, std::int64_t permille) { return Bytes((bytes.value() / 1000 + 1) * permille); }

void add(std::vector<Doubt>& into, std::string what, Bytes bytes, std::string why) {
  if (bytes > Bytes(0)) into.push_back({std::move(what), bytes, std::move(why)});
}

void add_reserved(std::vector<Doubt>& into, std::string_view jobs, Bytes reserved) {
  const std::int64_t permille = error_of(jobs);
  const bool measured = std::any_of(kReservedErrors.begin(), kReservedErrors.end(),
                                    [jobs](const MeasuredError& one) { return one.jobs == jobs; });
  const double percent = static_cast<double>(permille) / 10;
  add(into, "reserved memory", permille_of(reserved, permille),
      measured
          ? formatted("nine of ten measured {} jobs reserve at most {:.1f} % more than predicted", jobs, percent)
          : formatted("no {} job was held against a measurement: {:.1f} % is the worst of the others", jobs, percent));
}

void add_context(std::vector<Doubt>& into) {
  add(into, "CUDA context", kLargestContext - kUncalibratedContext,
      formatted("not measured on this device: {} are assumed, 0.47 to 0.92 GiB were seen",
                human(kUncalibratedContext)));
}

void add_communicators(std::vector<Doubt>& into, const Job& job) {
  const Bytes by_formula = communicators_of(job);
  if (job.communicators || by_formula == Bytes(0)) return;
  const Bytes one = div_ceil(by_formula, communicator_count(job));
  if (one >= kLargestCommunicator) return;
  add(into, "communicators", (kLargestCommunicator - one) * communicator_count(job),
      "by NCCL's formula, not measured: up to 1.45 GiB were seen for one");
}

void add_capacity(std::vector<Doubt>& into, const Job& job) {
  if (!job.hardware || !job.hardware->capacity_is_driver_figure || job.capacity != job.hardware->capacity) return;
  const Bytes total = job.hardware->capacity;
  add(into, "capacity", permille_of(total, kDriverPermille),
      formatted("{} is what the driver calls total; CUDA has up to 1.5 % less", human(total)));
}

std::vector<Doubt> largest_first(std::vector<Doubt> doubts) {
  std::stable_sort(doubts.begin(), doubts.end(), [](const Doubt& a, const Doubt& b) { return a.bytes > b.bytes; });
  return doubts;
}

}  // namespace

std::int64_t reserved_error_permille(const Training& training, const Parallelism& parallel) {
  return error_of(measured_as(training, parallel));
}

std::vector<Doubt> doubts_of(const Job& job, Bytes reserved, Bytes first_bucket) {
  std::vector<Doubt> doubts;
  add(doubts, "first step's bucket", first_bucket,
      "until the second step's first all-reduce, where NCCL's watchdog, which looks every 100 ms, has not seen it "
      "arrive when buckets are made anew");
  add_reserved(doubts, measured_as(job.training, job.parallelism), reserved);
  const bool measured = job.calibration && job.calibration->context;
  if (!measured && !(job.hardware && job.hardware->context)) add_context(doubts);
  add_communicators(doubts, job);
  add_capacity(doubts, job);
  return largest_first(std::move(doubts));
}

std::vector<Doubt> doubts_of_graph(Bytes reserved, bool context_measured) {
  std::vector<Doubt> doubts;
  add_reserved(doubts, "pytorch", reserved);
  if (!context_measured) add_context(doubts);
  return largest_first(std::move(doubts));
}

Bytes sum_of(const std::vector<Doubt>& doubts) {
  Bytes sum;
  for (const Doubt& one : doubts) sum += one.bytes;
  return sum;
}

}  // namespace dsplan
