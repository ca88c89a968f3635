// The matrix of plans: everything that is predicted and measured, on every rank, held against each other with tolerance
// 0. By default a small part of it; with DSPLAN_FULL_MATRIX set, all of it (ctest -L matrix).
#include <doctest/doctest.h>

#include <cstdlib>

#include "running.h"

using namespace dsplan;

namespace {

struct Plan {
  std::string name;
  Job job;
  bool planned = false;
};

// What a job is changed by, with a name.
struct Change {
  const char* name;
  void (*apply)(Job& job, std::int32_t layers);
};

void checkpoint(Job& job, std::int32_t layers, std::int32_t length, CheckpointKind kind) {
  for (std::int32_t first = 0; first < layers; first += length) {
    job.training.checkpoint.groups.push_back({first, std::min(first + length, layers) - 1, kind, true});
  }
}

constexpr Change kSegments[] = {
    {"none", [](Job&, std::int32_t) {}},
    {"full", [](Job& job, std::int32_t layers) { checkpoint(job, layers, 1, CheckpointKind::NonReentrant); }},
    {"every:2", [](Job& job, std::int32_t layers) { checkpoint(job, layers, 2, CheckpointKind::Reentrant); }},
    {"uneven",
     [](Job& job, std::int32_t layers) {
       job.training.checkpoint.groups = {{0, 0, CheckpointKind::NonReentrant, true},
                                         {1, layers - 1, CheckpointKind::NonReentrant, true}};
     }},
    {"deepspeed", [](Job& job, std::int32_t layers) { checkpoint(job, layers, 1, CheckpointKind::DeepSpeed); }},
    {"host",
     [](Job& job, std::int32_t layers) {
       checkpoint(job, layers, 1, CheckpointKind::DeepSpeed);
       job.training.checkpoint.deepspeed.cpu = true;
     }},
};

bool offloads(const Job& job) {
  return job.training.zero.offload_optimizer.device != OffloadDevice::None ||
         job.training.zero.offload_param.device != OffloadDevice::None;
}

constexpr Change kRuntimes[] = {
    {"plain", [](Job&, std::int32_t) {}},
    {"accumulation", [](Job& job, std::int32_t) { job.training.grad_accum = 2; }},
    {"small buckets",
     [](Job& job, std::int32_t) {
       job.training.zero.reduce_bucket_size = Elements(3000);
       job.training.zero.prefetch_bucket_size = Elements(4000);
       job.training.zero.param_persistence_threshold = Elements(40);
     }},
    {"optimizer on the host",
     [](Job& job, std::int32_t) {
       if (job.training.zero.stage == 0) return;
       job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
       job.training.zero.offload_optimizer.pin_memory = true;
     }},
};

std::vector<Plan> plans_of(const ModelSpec& model, bool full) {
  std::vector<Plan> plans;
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  for (int stage = -1; stage <= 3; ++stage) {
    for (const std::int64_t ranks : full ? std::vector<std::int64_t>{1, 2, 3, 4, 8} : std::vector<std::int64_t>{2, 3}) {
      for (std::size_t s = 0; s < std::size(kSegments); ++s) {
        for (std::size_t r = 0; r < std::size(kRuntimes); ++r) {
          if (stage < 0 && r > 1) continue;
          if (!full && (s + r + static_cast<std::size_t>(stage + 1)) % 4 != 0) continue;
          Plan plan{fmt::format("{} stage {} ranks {} {} {}", model.family, stage, ranks, kSegments[s].name,
                                kRuntimes[r].name),
                    lowered::job(stage, ranks)};
          kSegments[s].apply(plan.job, layers);
          kRuntimes[r].apply(plan.job, layers);
          if (r == 3 && !offloads(plan.job)) continue;
          plan.planned = (s + r) % 3 == 2;
          plans.push_back(std::move(plan));
        }
      }
    }
  }
  return plans;
}

// The rows that differ, in words.
std::string differences(const ModelSpec& model, const Plan& plan, const exec::RunResult& result, std::int64_t& rows) {
  Receipt receipt;
  receipt.device = Receipt::Device::Host;
  receipt.level = Receipt::Level::Threads;
  receipt.complete = true;
  receipt.world = plan.job.parallelism.world;
  receipt.inputs.digest = std::string(64, '0');  // Nobody asks to which part it belongs.
  std::vector<PredictedRank> predicted;
  for (const exec::RankRun& rank : result.ranks) {
    receipt.ranks.push_back(rank.figures);
    Job job = plan.job;
    job.placement = plan.planned ? PlacementKind::Planned : PlacementKind::Caching;
    predicted.push_back(figures_of(predict(model, job, rank.figures.rank)));
  }
  CompareTerms exactly;
  for (std::size_t kind = 0; kind < kRowKinds; ++kind) exactly.tolerances.by_kind[static_cast<RowKind>(kind)] = {};
  std::string text;
  for (const RankComparison& rank : compare(receipt, predicted, exactly).ranks) {
    for (const ComparedRow& row : rank.rows) {
      rows += row.state == ComparedRow::State::Equal ? 1 : 0;
      // Under a planned arena blocks are the arena's own: what the caching allocator would do is not measured.
      const bool blocks =
          row.kind == RowKind::Allocated || row.kind == RowKind::Active || row.kind == RowKind::Reserved;
      if (row.state != ComparedRow::State::Differs || (plan.planned && blocks)) continue;
      text += fmt::format("rank {} {}: predicted {}, measured {}\n", rank.rank, row.path, row.predicted.value_or(-1),
                          row.measured.value_or(-1));
    }
  }
  return text;
}

}  // namespace

TEST_CASE("what is predicted is what is measured, row by row, on every rank") {
  const bool full = std::getenv("DSPLAN_FULL_MATRIX") != nullptr;
  std::int64_t ran = 0;
  std::int64_t rows = 0;
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (const Plan& plan : plans_of(model, full)) {
      CAPTURE(plan.name);
      const ExecutableRanks ranks = executables_of(model, plan.job, plan.job.training.steps(), "test");
      running::Options options;
      options.learning_rate = 1e-3;
      if (plan.planned) options.memory = running::planned(ranks);
      const exec::RunResult result = running::run(model, plan.job, ranks, options);
      CHECK_MESSAGE(result.message == "", result.message);
      if (result.outcome != Receipt::Outcome::Ran) continue;
      const std::string differs = differences(model, plan, result, rows);
      CHECK_MESSAGE(differs == "", differs);
      ++ran;
    }
  }
  MESSAGE(ran << " plans, " << rows << " rows equal");
  CHECK(ran >= (full ? 500 : 40));
}

TEST_CASE("a plan runs in exactly its planned height, and not in one granule less") {
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (const int stage : {-1, 1, 2, 3}) {
      const Job job = lowered::job(stage, 2);
      const ExecutableRanks ranks = executables_of(model, job, 2, "test");
      running::Options options;
      options.memory = running::planned(ranks);
      CHECK(running::run(model, job, ranks, options).message == "");
      options.memory[1].limit = options.memory[1].height - kArenaAlignment;
      const exec::RunResult refused = running::run(model, job, ranks, options);
      CAPTURE(stage);
      CHECK(refused.outcome == Receipt::Outcome::OutOfMemory);
      CHECK_MESSAGE(refused.message.starts_with("rank 1"), refused.message);
    }
  }
}

TEST_CASE("under a limit the run ends as predicted: same verdict, same retries, same event") {
  const ModelSpec model = running::model(running::kLlama);
  for (const int stage : {-1, 2, 3}) {
    const Job job = lowered::job(stage, 2);
    const ExecutableRanks ranks = executables_of(model, job, 2, "test");
    PlacementOptions unlimited;
    const Bytes peak = place(ranks.ranks[0].schedule, unlimited).peak.reserved;
    for (const std::int64_t segments : {-4, -1, 0, 1}) {
      const Bytes limit = peak + Bytes(segments * (2 << 20));
      PlacementOptions options;
      options.limit = limit;
      const Placement predicted = place(ranks.ranks[0].schedule, options);
      running::Options how;
      how.memory[0].limit = limit;
      const exec::RunResult result = running::run(model, job, ranks, how);
      CAPTURE(stage);
      CAPTURE(segments);
      CHECK(predicted.failed_event.has_value() == (result.outcome == Receipt::Outcome::OutOfMemory));
      if (predicted.failed_event || result.outcome != Receipt::Outcome::Ran) continue;
      CHECK(*result.ranks[0].figures.peak[Counter::Reserved] == predicted.peak.reserved);
    }
  }
}
