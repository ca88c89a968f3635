// Lower bounds of a plan's peak against the simulation of the plan, over random models, jobs and segmentations.
#include <doctest/doctest.h>
#include <algorithm>

#include "core/format.h"
#include "io/text.h"
#include "lowered.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/predict/footprint.h"
#include "planner/predict/saved_tensors.h"
#include "random_jobs.h"
#include "sharded_jobs.h"
#include "sim/memory.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

std::vector<CheckpointGroup> cut(std::int32_t layers, std::int32_t size, std::int32_t end) {
  std::vector<CheckpointGroup> groups;
  for (std::int32_t first = 0; first < end; first += size) {
    groups.push_back({first, std::min(first + size, layers) - 1});
  }
  return groups;
}

// none, full, every:K, segments:K, nth:K, groups of any length, with kept results, in all three forms.
Checkpointing any_checkpointing(Dice& dice, const ModelSpec& model, const Job& job) {
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  Checkpointing c;
  switch (dice.from(0, 6)) {
    case 0: return c;
    case 1: c.groups = cut(layers, 1, layers); break;
    case 2: c.groups = cut(layers, static_cast<std::int32_t>(dice.from(1, layers)), layers); break;
    case 3: {
      const auto k = static_cast<std::int32_t>(dice.from(1, layers));
      c.groups = cut(layers, layers / k, layers / k * (k - 1));
      break;
    }
    case 4: {
      const auto k = static_cast<std::int32_t>(dice.from(1, layers));
      for (std::int32_t at = 0; at < layers; at += k) c.groups.push_back({at, at});
      break;
    }
    default:
      for (std::int32_t at = 0; at < layers; ++at) {
        if (dice.coin()) continue;
        const auto last = static_cast<std::int32_t>(dice.from(at, layers - 1));
        c.groups.push_back({at, last});
        at = last;
      }
  }
  for (CheckpointGroup& group : c.groups) {
    if (dice.from(0, 3) == 0) group.kept = {Op::Linear, Op::Attention, Op::Add};
  }
  if (job.training.runtime == Runtime::DeepSpeed && dice.from(0, 4) == 0) {
    for (CheckpointGroup& group : c.groups) group.kind = CheckpointKind::DeepSpeed;
    c.kind = CheckpointKind::DeepSpeed;
    c.deepspeed.partition = model.family != "gpt2" && job.parallelism.tp == 1 && dice.coin();
    c.deepspeed.cpu = dice.coin();
  } else if (job.training.freeze.empty() && dice.from(0, 3) == 0) {
    for (CheckpointGroup& group : c.groups) group.kind = CheckpointKind::Reentrant;
  }
  if (!c.groups.empty() && c.groups.front().kind != CheckpointKind::NonReentrant) {
    for (CheckpointGroup& group : c.groups) group.kept.clear();
  }
  return c;
}

void vary(Dice& dice, const ModelSpec& model, Job& job) {
  Training& t = job.training;
  if (dice.from(0, 2) == 0) t.loss = dice.one_of({Loss::Native, Loss::Chunked});
  if (t.loss == Loss::Chunked) t.loss_chunks = dice.from(1, 2);
  if (dice.from(0, 4) == 0) t.attention = Attention::Eager;
  if (t.zero.stage == 3 && t.runtime == Runtime::DeepSpeed) {
    // DeepSpeedCPUAdam is what runs there.
    if (t.optimizer.kind == OptimizerKind::AdamW && dice.coin()) t.zero.offload_optimizer.device = OffloadDevice::Cpu;
    if (dice.from(0, 3) == 0) t.zero.offload_param.device = OffloadDevice::Cpu;
    if (dice.from(0, 3) == 0) t.model_init = dice.one_of({ModelInit::Device, ModelInit::Host});
  }
  t.checkpoint = any_checkpointing(dice, model, job);
}

// A job with what does not depend on the ranks.
struct Case {
  ModelSpec model;
  Job job;
  Graph graph;
  RecipeBook recipes;

  Case(ModelSpec of, Job with)
      : model(std::move(of)),
        job(std::move(with)),
        graph(build_graph(model, graph_options(model, job))),
        recipes(graph, job.training.level, catalogue_options(job)) {}

  [[nodiscard]] ActivationBytes activations() const { return activation_bytes(model, job, graph, recipes); }
  [[nodiscard]] Bytes bound() const {
    return least_peak(model, job, footprint(model, job).persistent.total(), activations(),
                      checkpointing_of(job.training, graph));
  }
  [[nodiscard]] Bytes peak(std::int64_t rank, std::string& where) const {
    const Schedule schedule = lower(model, job, graph, recipes, rank);
    MemoryMeter meter(schedule);
    replay(schedule, meter);
    where = describe_moment(schedule, model, meter.peak_event());
    return meter.peak_requested();
  }
};

}  // namespace

TEST_CASE("the least peak is never more than the simulated one, and nearly all of it") {
  Dice dice(20);
  std::vector<double> ratios;
  for (int draw = 0; draw < 700; ++draw) {
    const ModelSpec model = build_model(parse_json("random", random_config(dice)), "random");
    Job job = random_job(dice, model);
    vary(dice, model, job);
    if (unsupported(model, job)) continue;
    const Case one(model, job);
    std::string where;
    const Bytes bound = one.bound();
    const Bytes peak = one.peak(dice.from(0, job.parallelism.dp - 1), where);
    INFO(tell(model, job), " draw ", draw, ", peak at ", where);
    CHECK(bound.value() <= peak.value());
    ratios.push_back(static_cast<double>(bound.value()) / static_cast<double>(peak.value()));
  }
  std::sort(ratios.begin(), ratios.end());
  const double median = ratios[ratios.size() / 2];
  const double tenth = ratios[ratios.size() / 10];
  MESSAGE("least peak / simulated peak over ", ratios.size(), " schedules: median ", median, ", worst tenth ", tenth);
  CHECK(ratios.size() > 400);
  CHECK(median > 0.999);
  CHECK(tenth > 0.84);
}

TEST_CASE("of a large model the bound is most of the peak") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  double worst = 1;
  for (const int stage : {-1, 1, 2, 3}) {
    for (const std::int32_t every : {0, 1, 4}) {
      for (const std::int64_t accumulation : {1, 4}) {
        Job job = lowered::job(stage, stage < 0 ? 1 : 64);
        job.training.seq = 8192;
        job.training.micro_batch = 1;
        job.training.grad_accum = accumulation;
        job.training.zero.reduce_bucket_size = Elements(500'000'000);
        if (every > 0) job.training.checkpoint.groups = cut(layers, every, layers);
        const Case one(model, job);
        std::string where;
        const Bytes bound = one.bound();
        const Bytes peak = one.peak(0, where);
        INFO("stage ", stage, " every ", every, " accumulation ", accumulation, ", peak at ", where);
        CHECK(bound.value() <= peak.value());
        worst = std::min(worst, static_cast<double>(bound.value()) / static_cast<double>(peak.value()));
      }
    }
  }
  MESSAGE("least peak / simulated peak of llama-3-8b, at worst ", worst);
  CHECK(worst > 0.94);
}

// The list of `--explain saved`, which shares nothing with the sums.
TEST_CASE("what regions keep adds up to what autograd saves") {
  Dice dice(21);
  int compared = 0;
  for (int draw = 0; draw < 200; ++draw) {
    const ModelSpec model = build_model(parse_json("random", random_config(dice)), "random");
    Job job = random_job(dice, model);
    job.training.freeze.clear();
    vary(dice, model, job);
    if (unsupported(model, job)) continue;
    const auto layers = static_cast<std::int32_t>(model.dims.layers);
    for (std::int32_t every = 0; every <= layers; ++every) {
      job.training.checkpoint = {};
      if (every > 0) job.training.checkpoint.groups = cut(layers, every, layers);
      const Case one(model, job);
      const ActivationBytes kept = one.activations();
      Bytes sum = kept.rest;
      for (std::int32_t at = 0; at < layers; ++at) {
        if (every == 0) sum += kept.stored[static_cast<std::size_t>(at)];
        if (every > 0 && at % every == 0) sum += kept.checkpointed[static_cast<std::size_t>(at)];
      }
      Bytes listed;
      for (const SavedTensor& row : saved_tensors(model, one.graph, one.recipes, job.training.checkpoint, {})) {
        listed += row.counted;
      }
      INFO(tell(model, job), " every ", every);
      CHECK(sum.value() == listed.value());
      ++compared;
    }
  }
  CHECK(compared > 300);
}

TEST_CASE("the least peak under fully_shard is never more than the simulated one") {
  Dice dice(21);
  std::vector<double> ratios;
  for (int draw = 0; draw < 300; ++draw) {
    const ModelSpec model = build_model(parse_json("random", random_config(dice)), "random");
    const auto half = DType::BFloat16;
    const auto whole = DType::Float32;
    Job job = lowered::sharded(dice.one_of<std::int64_t>({2, 3, 4, 8}), dice.one_of({half, whole}), half,
                               dice.one_of({half, whole}));
    Training& t = job.training;
    t.micro_batch = dice.from(1, 3);
    t.seq = dice.from(2, 40);
    t.grad_accum = dice.from(1, 3);
    t.fsdp.sync_every = dice.coin();
    t.fsdp.cpu_offload = dice.from(0, 3) == 0;
    if (t.fsdp.cpu_offload) t.optimizer.implementation = Implementation::ForLoop;
    t.checkpoint = dice.coin() ? Checkpointing{} : any_checkpointing(dice, model, job);
    if (unsupported(model, job)) continue;
    const Case one(model, job);
    std::string where;
    const Bytes bound = one.bound();
    const Bytes peak = one.peak(0, where);
    INFO(tell(model, job), " draw ", draw, ", peak at ", where);
    CHECK(bound.value() <= peak.value());
    ratios.push_back(static_cast<double>(bound.value()) / static_cast<double>(peak.value()));
  }
  std::sort(ratios.begin(), ratios.end());
  MESSAGE("least peak / simulated peak over ", ratios.size(), " schedules: median ", ratios[ratios.size() / 2]);
  CHECK(ratios.size() > 100);
  CHECK(ratios[ratios.size() / 2] > 0.5);
}
