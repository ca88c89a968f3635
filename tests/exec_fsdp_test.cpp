// fully_shard carried out: shards, gathers and reductions train the model that DistributedDataParallel trains.
#include <doctest/doctest.h>

#include "running.h"
#include "sharded_jobs.h"

using namespace dsplan;

using running::fp32_job;
using running::largest_gap;

namespace {

// Plain SGD with steps so large that losses tell gradients apart.
running::Options large_steps() {
  running::Options options;
  options.steps = 4;
  options.learning_rate = 0.5;
  return options;
}

void descend(Job& job) { job.training.optimizer = {OptimizerKind::Sgd, Implementation::Foreach, 0, 0, false}; }

std::vector<double> losses_of(const ModelSpec& model, const Job& job) {
  return running::losses_of(model, job, large_steps());
}

Job replicated(const ModelSpec& model, std::int64_t ranks) {
  Job job = fp32_job(model, -1, ranks);
  descend(job);
  return job;
}

Job sharded(const ModelSpec& model, std::int64_t ranks, DType kept, DType computed, DType reduced) {
  Job job = lowered::sharded(ranks, kept, computed, reduced);
  job.training.attention = fp32_job(model, -1, ranks).training.attention;
  descend(job);
  return job;
}

Job sharded(const ModelSpec& model, std::int64_t ranks) {
  return sharded(model, ranks, DType::Float32, DType::Float32, DType::Float32);
}

struct Way {
  const char* name;
  void (*change)(Job&);
};

void recompute_reentrant(Job& job) {
  for (std::int32_t at = 0; at < 3; ++at) {
    job.training.checkpoint.groups.push_back({at, at, CheckpointKind::Reentrant, true});
  }
}

constexpr Way kWays[] = {
    {"plain", [](Job&) {}},
    {"kept after forward", [](Job& job) { job.training.fsdp.reshard_after_forward = 0; }},
    {"shards among two after forward", [](Job& job) { job.training.fsdp.reshard_after_forward = 2; }},
    {"the model's own group resharded", [](Job& job) { job.training.fsdp.reshard_root = true; }},
    {"embeddings, norm and head", [](Job& job) { job.training.fsdp.wrap = "ends"; }},
    {"norm and head resharded",
     [](Job& job) {
       job.training.fsdp.wrap = "ends";
       job.training.fsdp.reshard_tail = true;
     }},
    {"the last layer kept", [](Job& job) { job.training.fsdp.reshard_last = false; }},
    {"one group", [](Job& job) { job.training.fsdp.wrap = "root"; }},
    {"replicas", [](Job& job) { job.training.fsdp.replicate = 2; }},
    {"layers gathered ahead",
     [](Job& job) { job.training.fsdp.forward_prefetch = job.training.fsdp.backward_prefetch = 1; }},
    {"layers run again with their hooks", recompute_reentrant},
    {"layers run again with their hooks, gathered ahead",
     [](Job& job) {
       recompute_reentrant(job);
       job.training.fsdp.forward_prefetch = 1;
     }},
    {"saved whole", [](Job& job) { job.training.fsdp.state_dict = "full"; }},
    {"saved whole on the device, of replicas",
     [](Job& job) {
       job.training.fsdp.state_dict = "full-device";
       job.training.fsdp.replicate = 2;
     }},
    {"made on the device", [](Job& job) { job.training.model_init = ModelInit::Device; }},
    {"made on the host", [](Job& job) { job.training.model_init = ModelInit::Host; }},
    {"shards on the host", [](Job& job) { job.training.fsdp.cpu_offload = true; }},
    {"moved to the host as shards",
     [](Job& job) {
       job.training.fsdp.cpu_offload = true;
       job.training.model_init = ModelInit::Host;
     }},
    {"sent by rank 0 to hosts",
     [](Job& job) {
       job.training.fsdp.cpu_offload = true;
       job.training.model_init = ModelInit::Rank0;
     }},
    {"sent by rank 0 to replicas' hosts",
     [](Job& job) {
       job.training.fsdp.cpu_offload = true;
       job.training.fsdp.replicate = 2;
       job.training.model_init = ModelInit::Rank0;
     }},
    {"sent by rank 0 to replicas",
     [](Job& job) {
       job.training.fsdp.replicate = 2;
       job.training.model_init = ModelInit::Rank0;
     }},
};

}  // namespace

TEST_CASE("shards train as whole parameters do") {
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
      CAPTURE(ranks);
      const std::vector<double> ddp = losses_of(model, replicated(model, ranks));
      CHECK(ddp.back() < ddp.front());
      CHECK(largest_gap(losses_of(model, sharded(model, ranks)), ddp) < 1e-6);
    }
    const std::vector<double> ddp = losses_of(model, replicated(model, 4));
    for (const Way& way : kWays) {
      CAPTURE(way.name);
      Job job = sharded(model, 4);
      way.change(job);
      CHECK(largest_gap(losses_of(model, job), ddp) < 1e-6);
    }
  }
}

TEST_CASE("what is ignored stays whole on each rank, and the rest trains") {
  const ModelSpec model = running::model(running::kLlama);
  Job ddp = replicated(model, 3);
  ddp.training.freeze = {"*mlp*"};
  Job job = sharded(model, 3);
  job.training.freeze = {"*mlp*"};
  job.training.fsdp.ignored = "*mlp*";
  CHECK(largest_gap(losses_of(model, job), losses_of(model, ddp)) < 1e-6);
}

TEST_CASE("shards accumulate, reduced at the end or each time") {
  const ModelSpec model = running::model(running::kLlama);
  Job ddp = replicated(model, 4);
  ddp.training.grad_accum = 3;
  const std::vector<double> whole = losses_of(model, ddp);
  for (const bool every : {false, true}) {
    for (const std::int64_t replicate : {1, 2}) {
      Job job = sharded(model, 4);
      job.training.grad_accum = 3;
      job.training.fsdp.sync_every = every;
      job.training.fsdp.replicate = replicate;
      CAPTURE(every);
      CAPTURE(replicate);
      CHECK(largest_gap(losses_of(model, job), whole) < 1e-6);
      job.training.fsdp.cpu_offload = true;
      CHECK(largest_gap(losses_of(model, job), whole) < 1e-6);
    }
  }
}

TEST_CASE("shards are clipped by the norm of whole gradients") {
  const ModelSpec model = running::model(running::kGpt2);
  const auto clipped = [](Job job) {
    job.training.gradient_clipping = 0.05;
    return job;
  };
  const std::vector<double> ddp = losses_of(model, clipped(replicated(model, 4)));
  CHECK(largest_gap(ddp, losses_of(model, replicated(model, 4))) > 1e-4);  // It matters.
  CHECK(largest_gap(losses_of(model, clipped(sharded(model, 4))), ddp) < 1e-6);
  Job replicas = clipped(sharded(model, 4));
  replicas.training.fsdp.replicate = 2;
  CHECK(largest_gap(losses_of(model, replicas), ddp) < 1e-6);
  Job hosts = clipped(sharded(model, 4));
  hosts.training.fsdp.cpu_offload = true;
  hosts.training.optimizer.implementation = Implementation::ForLoop;
  CHECK(largest_gap(losses_of(model, hosts), ddp) < 1e-6);
}

TEST_CASE("what is gathered in 16 bits follows what is kept in 32") {
  for (const char* config : {running::kGpt2, running::kLlama}) {
    const ModelSpec model = running::model(config);
    const std::vector<double> wide = losses_of(model, sharded(model, 4));
    for (const DType reduced : {DType::Float32, DType::BFloat16}) {
      const Job job = sharded(model, 4, DType::Float32, DType::BFloat16, reduced);
      CHECK(largest_gap(losses_of(model, job), wide) < 0.02);
    }
  }
}
