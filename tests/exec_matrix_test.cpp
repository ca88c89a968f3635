// The matrix of plans: everything that is predicted and measured, on every rank, held against each other with tolerance
// 0. By default a small part of it; with DSPLAN_FULL_MATRIX set, all of it (ctest -L matrix).
#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>

#include "planner/lower/unsupported.h"
#include "running.h"
#include "sharded_jobs.h"

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
    {"fp16", [](Job& job, std::int32_t) { lowered::set_dtype(job, DType::Float16); }},
    {"optimizer on the host",
     [](Job& job, std::int32_t) {
       if (job.training.zero.stage == 0) return;
       job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
       job.training.zero.offload_optimizer.pin_memory = true;
     }},
};

// What fewer jobs ask for: with each stage that knows it, checkpointed and not, on two and four ranks.
struct Way {
  const char* name;
  int first;  // Stages from, up to; -1 is plain PyTorch.
  int last;
  void (*apply)(Job& job);
};

constexpr Way kWays[] = {
    {"overlap", 1, 3,
     [](Job& job) {
       job.training.zero.overlap_comm = true;
       job.training.zero.reduce_bucket_size = Elements(3000);
     }},
    {"overlap, accumulation", 1, 3,
     [](Job& job) {
       job.training.zero.overlap_comm = true;
       job.training.zero.reduce_bucket_size = Elements(3000);
       job.training.grad_accum = 2;
     }},
    {"overlap, no contiguous_gradients", 1, 3,
     [](Job& job) {
       job.training.zero.overlap_comm = true;
       job.training.zero.contiguous_gradients = false;
     }},
    {"overlap, fp16, optimizer on the host", 1, 3,
     [](Job& job) {
       job.training.zero.overlap_comm = true;
       lowered::set_dtype(job, DType::Float16);
       job.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
     }},
    {"overlap, qwZ in hpZ", 3, 3,
     [](Job& job) {
       job.training.zero.overlap_comm = true;
       job.training.zero.quantized_weights = true;
       job.training.zero.hpz_partition_size = 2;
     }},
    {"hpZ", 3, 3, [](Job& job) { job.training.zero.hpz_partition_size = 2; }},
    {"qwZ", 3, 3, [](Job& job) { job.training.zero.quantized_weights = true; }},
    {"qwZ in hpZ", 3, 3,
     [](Job& job) {
       job.training.zero.quantized_weights = true;
       job.training.zero.hpz_partition_size = 2;
     }},
    {"partitions by all-reduce", 3, 3, [](Job& job) { job.training.zero.all_reduce_for_fetch = true; }},
    {"one by one", 3, 3, [](Job& job) { job.training.zero.allgather_sequential = true; }},
    {"saved whole", 3, 3, [](Job& job) { job.training.zero.gather_16bit_weights_on_model_save = true; }},
    {"made on the host", 2, 3, [](Job& job) { job.training.model_init = ModelInit::Host; }},
    {"no contiguous_gradients", 1, 3, [](Job& job) { job.training.zero.contiguous_gradients = false; }},
    {"round robin", 1, 2, [](Job& job) { job.training.zero.round_robin_gradients = true; }},
    {"sums in fp32", 1, 3,
     [](Job& job) {
       job.training.grad_accum_dtype = DType::Float32;
       job.training.grad_accum = 2;
     }},
    {"frozen embeddings", -1, 3,
     [](Job& job) {
       job.training.freeze = {"*embed*", "*wte*"};
     }},
    {"lengths in turn", -1, 3,
     [](Job& job) {
       job.training.seq_list = {8, 16, 12};
       job.training.grad_accum = 2;
     }},
    {"loss in chunks", -1, 3,
     [](Job& job) {
       job.training.loss = Loss::Chunked;
       job.training.loss_chunks = 4;
     }},
    {"native loss", -1, 3, [](Job& job) { job.training.loss = Loss::Native; }},
    {"eager attention", -1, 3, [](Job& job) { job.training.attention = Attention::Eager; }},
    {"math attention", -1, 3, [](Job& job) { job.training.attention = Attention::Math; }},
    {"lion", -1, 3, [](Job& job) { job.training.optimizer.kind = OptimizerKind::Lion; }},
    {"momentum", -1, 3,
     [](Job& job) {
       job.training.optimizer.kind = OptimizerKind::Sgd;
       job.training.optimizer.momentum = 0.9;
     }},
    {"adagrad", -1, -1,
     [](Job& job) {
       job.training.optimizer = {OptimizerKind::Adagrad, Implementation::Foreach, 0, 0, false};
     }},
    {"rmsprop", -1, -1,
     [](Job& job) {
       job.training.optimizer = {OptimizerKind::RmsProp, Implementation::ForLoop, 0.9, 0, false};
     }},
    {"autocast", -1, -1,
     [](Job& job) {
       lowered::set_dtype(job, DType::Float32);
       job.training.autocast = DType::BFloat16;
       job.training.outputs_to_fp32 = true;
     }},
};

void add_ways(const ModelSpec& model, bool full, std::vector<Plan>& plans) {
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  for (std::size_t w = 0; w < std::size(kWays); ++w) {
    for (int stage = kWays[w].first; stage <= kWays[w].last; ++stage) {
      for (const std::int64_t ranks : {2, 4}) {
        for (const std::size_t s : {0U, 1U}) {
          const std::size_t turn = w + s + static_cast<std::size_t>(stage + 1 + ranks / 4);
          if (!full && turn % 4 != 0) continue;
          Plan plan{dsplan::formatted("{} stage {} ranks {} {} {}", model.family, stage, ranks, kSegments[s].name,
                                      kWays[w].name),
                    lowered::job(stage, ranks)};
          plan.job.training.zero.param_persistence_threshold = Elements(40);
          plan.job.training.zero.prefetch_bucket_size = Elements(turn % 2 == 0 ? 4000 : 0);
          kSegments[s].apply(plan.job, layers);
          kWays[w].apply(plan.job);
          if (unsupported(model, plan.job)) continue;  // Not predicted either.
          plan.planned = turn % 3 == 2;
          plans.push_back(std::move(plan));
        }
      }
    }
  }
}

// fully_shard: what a change of it alone does.
struct Sharding {
  const char* name;
  void (*apply)(Job& job);
};

constexpr Sharding kShardings[] = {
    {"plain", [](Job&) {}},
    {"accumulation", [](Job& job) { job.training.grad_accum = 2; }},
    {"accumulation, each reduced",
     [](Job& job) {
       job.training.grad_accum = 2;
       job.training.fsdp.sync_every = true;
     }},
    {"kept after forward", [](Job& job) { job.training.fsdp.reshard_after_forward = 0; }},
    {"to two", [](Job& job) { job.training.fsdp.reshard_after_forward = 2; }},
    {"replicas", [](Job& job) { job.training.fsdp.replicate = 2; }},
    {"embeddings, norm and head", [](Job& job) { job.training.fsdp.wrap = "ends"; }},
    {"norm and head resharded",
     [](Job& job) {
       job.training.fsdp.wrap = "ends";
       job.training.fsdp.reshard_tail = true;
     }},
    {"one group", [](Job& job) { job.training.fsdp.wrap = "root"; }},
    {"root resharded", [](Job& job) { job.training.fsdp.reshard_root = true; }},
    {"clipping", [](Job& job) { job.training.gradient_clipping = 1; }},
    {"foreach", [](Job& job) { job.training.optimizer.implementation = Implementation::Foreach; }},
    {"made on the device", [](Job& job) { job.training.model_init = ModelInit::Device; }},
    {"made on the host", [](Job& job) { job.training.model_init = ModelInit::Host; }},
    {"frozen embeddings",
     [](Job& job) {
       job.training.freeze = {"*embed*", "*wte*"};
     }},
};

// Absent where the mesh does not divide: fewer ranks than all, or replicas, are two neighbours here.
std::optional<Plan> sharded_plan(const ModelSpec& model, const Sharding& sharding, const Change& segments,
                                 std::int64_t ranks, bool mixed) {
  Plan plan{dsplan::formatted("{} fully_shard {} ranks {} {} mixed {}", model.family, sharding.name, ranks,
                              segments.name, mixed),
            mixed ? lowered::sharded_mixed(ranks)
                  : lowered::sharded(ranks, DType::BFloat16, DType::BFloat16, DType::BFloat16)};
  segments.apply(plan.job, static_cast<std::int32_t>(model.dims.layers));
  sharding.apply(plan.job);
  const Fsdp& fsdp = plan.job.training.fsdp;
  if ((fsdp.replicate > 1 || fsdp.reshard_after_forward > 1) && (ranks % 2 != 0 || ranks == 2)) return std::nullopt;
  return plan;
}

void add_sharded(const ModelSpec& model, bool full, std::vector<Plan>& plans) {
  for (std::size_t at = 0; at < std::size(kShardings); ++at) {
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
      for (const std::size_t form : {0U, 1U, 2U, 3U}) {  // Segments, and mixed precision.
        const std::size_t turn = at + static_cast<std::size_t>(ranks) + form % 2 + form / 2;
        if (!full && turn % 7 != 0) continue;
        std::optional<Plan> plan = sharded_plan(model, kShardings[at], kSegments[form % 2], ranks, form / 2 == 1);
        if (!plan) continue;
        plan->planned = turn % 3 == 2;
        plans.push_back(*std::move(plan));
      }
    }
  }
}

// Ranks that share layers: with each stage, and with what concerns both.
void add_tensor_parallel(const ModelSpec& model, bool full, std::vector<Plan>& plans) {
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  for (int stage = -1; stage <= 3; ++stage) {
    for (const std::int64_t tp : {2, 4}) {
      if (model.dims.kv_heads % tp != 0) continue;
      for (const std::int64_t dp : full ? std::vector<std::int64_t>{1, 2, 3} : std::vector<std::int64_t>{2}) {
        for (std::size_t s = 0; s < std::size(kSegments); ++s) {
          if (!full && (s + static_cast<std::size_t>(stage + 1 + tp)) % 4 != 0) continue;
          Plan plan{dsplan::formatted("{} stage {} tp {} dp {} {}", model.family, stage, tp, dp, kSegments[s].name),
                    lowered::job(stage, dp)};
          plan.job.parallelism.tp = tp;
          plan.job.parallelism.world = dp * tp;
          plan.job.training.gradient_clipping = s % 2 == 0 ? 0 : 1;
          kSegments[s].apply(plan.job, layers);
          if (plan.job.training.checkpoint.by_deepspeed()) plan.job.training.checkpoint.deepspeed.partition = dp > 1;
          plan.planned = s % 3 == 2;
          plans.push_back(std::move(plan));
        }
      }
    }
  }
}

std::vector<Plan> plans_of(const ModelSpec& model, bool full) {
  std::vector<Plan> plans;
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  for (int stage = -1; stage <= 3; ++stage) {
    for (const std::int64_t ranks : full ? std::vector<std::int64_t>{1, 2, 3, 4, 8} : std::vector<std::int64_t>{2, 3}) {
      for (std::size_t s = 0; s < std::size(kSegments); ++s) {
        for (std::size_t r = 0; r < std::size(kRuntimes); ++r) {
          if (stage < 0 && r > 1) continue;
          if (!full && (s + r + static_cast<std::size_t>(stage + 1)) % 4 != 0) continue;
          Plan plan{dsplan::formatted("{} stage {} ranks {} {} {}", model.family, stage, ranks, kSegments[s].name,
                                      kRuntimes[r].name),
                    lowered::job(stage, ranks)};
          kSegments[s].apply(plan.job, layers);
          kRuntimes[r].apply(plan.job, layers);
          if (r == 4 && !offloads(plan.job)) continue;
          plan.planned = (s + r) % 3 == 2;
          plans.push_back(std::move(plan));
        }
      }
    }
  }
  add_tensor_parallel(model, full, plans);
  add_ways(model, full, plans);
  add_sharded(model, full, plans);
  return plans;
}

}  // namespace

TEST_CASE("what is predicted is what is measured, row by row, on every rank") {
  const bool full = std::getenv("DSPLAN_FULL_MATRIX") != nullptr;
  std::int64_t ran = 0;
  std::int64_t rows = 0;
  std::int64_t asked = 0;
  std::int64_t differ = 0;
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (const Plan& plan : plans_of(model, full)) {
      CAPTURE(plan.name);
      ++asked;
      const ExecutableRanks ranks = executables_of(model, plan.job, plan.job.training.steps(), "test");
      running::Options options;
      options.learning_rate = 1e-3;
      if (plan.planned) options.memory = running::planned(ranks);
      const exec::RunResult result = running::run(model, plan.job, ranks, options);
      CHECK_MESSAGE(result.message == "", result.message);
      if (result.outcome != Receipt::Outcome::Ran) continue;
      const std::string differs = running::differences(model, plan.job, plan.planned, result, rows);
      CHECK_MESSAGE(differs == "", differs);
      differ += differs.empty() ? 0 : 1;
      ++ran;
    }
  }
  MESSAGE(ran << " plans of " << asked << " ran, " << rows << " rows equal, " << differ << " plans differ");
  CHECK(ran == asked);
  CHECK(asked >= (full ? 1500 : 40));
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
