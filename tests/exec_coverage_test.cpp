// Whatever is predicted for GPT-2 and the Llama shape is either run, with every row equal, or refused by name: a table
// of what a job can ask for, in the order in which people meet it. Nothing is dropped silently.
#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"
#include "model/lora.h"
#include "planner/lower/unsupported.h"
#include "running.h"

using namespace dsplan;

namespace {

enum class On : std::uint8_t { Both, Gpt2, Llama };

struct Asked {
  const char* name;
  int stage;  // Below 0: plain PyTorch.
  std::int64_t ranks;
  void (*change)(Job& job);
  const char* refused = nullptr;  // Part of the refusal; nullptr: it runs, and every row is equal.
  On on = On::Both;
  bool adapted = false;
};

void on_host(Job& job) {
  job.training.zero.offload_optimizer.device = job.training.zero.offload_param.device = OffloadDevice::Cpu;
}

void half_autocast(Job& job, DType half) {
  lowered::set_dtype(job, DType::Float32);
  job.training.autocast = half;
  job.training.outputs_to_fp32 = true;
}

const Asked kAsked[] = {
    {"hpZ", 3, 4, [](Job& j) { j.training.zero.hpz_partition_size = 2; }},
    {"hpZ inside one node", 3, 2, [](Job& j) { j.training.zero.hpz_partition_size = 2; }},
    {"hpZ, one by one", 3, 4,
     [](Job& j) {
       j.training.zero.hpz_partition_size = 2;
       j.training.zero.allgather_sequential = true;
     }},
    {"hpZ, frozen embeddings, accumulation", 3, 4,
     [](Job& j) {
       j.training.zero.hpz_partition_size = 2;
       j.training.freeze = {"*embed*", "*wte*"};
       j.training.grad_accum = 2;
     }},
    {"qwZ", 3, 2, [](Job& j) { j.training.zero.quantized_weights = true; }},
    {"qwZ, fetched ahead", 3, 4,
     [](Job& j) {
       j.training.zero.quantized_weights = true;
       j.training.zero.prefetch_bucket_size = Elements(4000);
     }},
    {"qwZ, one by one, fp16", 3, 4,
     [](Job& j) {
       lowered::set_dtype(j, DType::Float16);
       j.training.zero.quantized_weights = j.training.zero.allgather_sequential = true;
     }},
    {"qwZ in hpZ", 3, 4,
     [](Job& j) {
       j.training.zero.quantized_weights = true;
       j.training.zero.hpz_partition_size = 2;
       j.training.grad_accum = 2;
     }},
    {"qwZ, parameters on the host", 3, 2,
     [](Job& j) {
       on_host(j);
       j.training.zero.quantized_weights = true;
     }},
    {"partitions by all-reduce", 3, 3, [](Job& j) { j.training.zero.all_reduce_for_fetch = true; }},
    {"no reduce_scatter", 3, 2, [](Job& j) { j.training.zero.reduce_scatter = false; }},
    {"no contiguous_gradients, ZeRO-1", 1, 2, [](Job& j) { j.training.zero.contiguous_gradients = false; }},
    {"no contiguous_gradients, ZeRO-2", 2, 2, [](Job& j) { j.training.zero.contiguous_gradients = false; }},
    {"no contiguous_gradients, ZeRO-3", 3, 2, [](Job& j) { j.training.zero.contiguous_gradients = false; }},
    {"saved whole", 3, 2, [](Job& j) { j.training.zero.gather_16bit_weights_on_model_save = true; }},
    {"leaf modules", 3, 2,
     [](Job& j) {
       j.training.zero.leaf_classes = {"LlamaDecoderLayer", "GPT2Block"};
     }},
    {"fine modules as leaves", 3, 2, [](Job& j) { j.training.zero.module_granularity_threshold = Elements(3000); }},
    {"round robin", 2, 3, [](Job& j) { j.training.zero.round_robin_gradients = true; }},
    {"overlap_comm", 2, 2, [](Job& j) { j.training.zero.overlap_comm = true; }},
    {"BF16_Optimizer", 1, 2,
     [](Job& j) {
       j.training.grad_accum_dtype = DType::Float32;
       j.training.grad_accum = 2;
     }},
    {"bf16, sums in fp32, ZeRO-2", 2, 2,
     [](Job& j) {
       j.training.grad_accum_dtype = DType::Float32;
       j.training.grad_accum = 2;
     }},
    {"bf16, sums in fp32, ZeRO-3", 3, 2,
     [](Job& j) {
       j.training.grad_accum_dtype = DType::Float32;
       j.training.grad_accum = 2;
     }},
    {"sent in fp32", 2, 2, [](Job& j) { j.training.communication_dtype = DType::Float32; }},
    {"model made on the device", 3, 2, [](Job& j) { j.training.model_init = ModelInit::Device; }},
    {"model made on the host", 3, 2, [](Job& j) { j.training.model_init = ModelInit::Host; }},
    {"model made on the host, ZeRO-2", 2, 2, [](Job& j) { j.training.model_init = ModelInit::Host; }},
    {"both on the host", 3, 2, on_host},
    {"both on the host, planned", 3, 2,
     [](Job& j) {
       on_host(j);
       j.placement = PlacementKind::Planned;
     }},
    {"optimizer on the host, planned", 2, 2,
     [](Job& j) {
       j.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
       j.placement = PlacementKind::Planned;
     }},
    {"DeepSpeed 0.16.9", 3, 2,
     [](Job& j) {
       j.training.deepspeed = Version{0, 16, 9};
     }},
    {"DeepSpeed 0.14.0", 2, 2,
     [](Job& j) {
       j.training.deepspeed = Version{0, 14, 0};
     }},
    {"DeepSpeed 0.12.6", 1, 2,
     [](Job& j) {
       j.training.deepspeed = Version{0, 12, 6};
     }},

    {"frozen embeddings, ZeRO-3", 3, 2,
     [](Job& j) {
       j.training.freeze = {"*embed*", "*wte*"};
     }},
    {"frozen embeddings, ZeRO-2", 2, 2,
     [](Job& j) {
       j.training.freeze = {"*embed*", "*wte*"};
     }},
    {"only norms trained", -1, 2,
     [](Job& j) {
       j.training.freeze = {"*mlp*", "*attn*", "*embed*", "*wte*", "*wpe*"};
     }},
    {"LoRA", -1, 1, [](Job&) {}, nullptr, On::Both, true},
    {"LoRA, DDP, checkpoints", -1, 2,
     [](Job& j) {
       j.training.checkpoint.groups = {{0, 0}, {1, 1}, {2, 2}};
     },
     nullptr, On::Both, true},
    {"LoRA, ZeRO-2", 2, 2, [](Job&) {}, nullptr, On::Both, true},
    {"LoRA, ZeRO-3", 3, 2, [](Job&) {}, nullptr, On::Both, true},
    {"lengths in turn", -1, 1,
     [](Job& j) {
       j.training.seq_list = {8, 16, 12};
       j.training.grad_accum = 2;
     }},
    {"lengths in turn, ZeRO-3, checkpoints", 3, 2,
     [](Job& j) {
       j.training.seq_list = {16, 8};
       j.training.checkpoint.groups = {{0, 0}, {1, 2}};
     }},
    {"lengths in turn, shared layers", 2, 2,
     [](Job& j) {
       j.training.seq_list = {8, 16};
       j.parallelism.tp = 2;
       j.parallelism.world = 4;
     }},
    {"autocast in bf16", -1, 2, [](Job& j) { half_autocast(j, DType::BFloat16); }},
    {"autocast in fp16 with a loss scaler", -1, 2,
     [](Job& j) {
       half_autocast(j, DType::Float16);
       j.training.grad_scaler = true;
       j.training.gradient_clipping = 1;
     }},
    {"native loss", 2, 2, [](Job& j) { j.training.loss = Loss::Native; }},
    {"loss in chunks", 3, 2,
     [](Job& j) {
       j.training.loss = Loss::Chunked;
       j.training.loss_chunks = 4;
     }},
    {"Liger's loss", -1, 1, [](Job& j) { j.training.loss = Loss::Liger; }, "liger_fused_linear_cross_entropy",
     On::Llama},
    {"eager attention", 2, 2, [](Job& j) { j.training.attention = Attention::Eager; }},
    {"math attention", 3, 2, [](Job& j) { j.training.attention = Attention::Math; }},
    {"memory-efficient attention", 2, 2, [](Job& j) { j.training.attention = Attention::MemoryEfficient; }, nullptr,
     On::Gpt2},
    {"checkpoints around modules", 3, 2, [](Job& j) { j.training.checkpoint.modules = {"mlp"}; }},
    {"every second layer", 2, 2,
     [](Job& j) {
       j.training.checkpoint.groups = {{0, 0}, {2, 2}};
     }},
    {"kept products", -1, 1,
     [](Job& j) {
       j.training.checkpoint.groups = {{0, 0}, {1, 1}, {2, 2}};
       for (CheckpointGroup& group : j.training.checkpoint.groups) group.kept = {Op::Linear, Op::Attention};
     }},
    {"plain loop", -1, 1, [](Job& j) { j.training.loop = LoopKind::Minimal; }},
    {"script loop", -1, 1, [](Job& j) { j.training.loop = LoopKind::Script; }},
    {"loop that holds its loss", -1, 1, [](Job& j) { j.training.loop = LoopKind::Loss; }},
    {"labels that are the ids", -1, 2, [](Job& j) { j.training.labels_are_ids = true; }},
    {"a model that was cast", -1, 2, [](Job& j) { j.training.cast_model = true; }},
    {"embeddings that want a gradient", -1, 1, [](Job& j) { j.training.input_require_grads = true; }},
    {"gradients zeroed", -1, 2,
     [](Job& j) {
       j.training.zero_grad_to_none = false;
       j.training.grad_accum = 2;
     }},
    {"Lion", -1, 1, [](Job& j) { j.training.optimizer.kind = OptimizerKind::Lion; }},
    {"Lion, ZeRO-2", 2, 2, [](Job& j) { j.training.optimizer.kind = OptimizerKind::Lion; }},
    {"Lion on the host", 3, 2,
     [](Job& j) {
       on_host(j);
       j.training.optimizer.kind = OptimizerKind::Lion;
     }},
    {"Adagrad", -1, 2,
     [](Job& j) {
       j.training.optimizer = {OptimizerKind::Adagrad, Implementation::Foreach, 0, 0.1, false};
     }},
    {"RMSprop", -1, 1,
     [](Job& j) {
       j.training.optimizer = {OptimizerKind::RmsProp, Implementation::Foreach, 0, 0, false};
     }},
    {"RMSprop with momentum", -1, 2,
     [](Job& j) {
       j.training.optimizer = {OptimizerKind::RmsProp, Implementation::ForLoop, 0.9, 0.1, false};
     }},
    {"Muon", -1, 1, [](Job& j) { j.training.optimizer.kind = OptimizerKind::Muon; }, "the step of muon"},
    {"Adafactor", -1, 1, [](Job& j) { j.training.optimizer.kind = OptimizerKind::Adafactor; }, "the step of adafactor"},
    {"8-bit Adam", -1, 1, [](Job& j) { j.training.optimizer.kind = OptimizerKind::Adam8bit; }, "the step of adam8bit"},
    {"what the dispatcher sees", -1, 1, [](Job& j) { j.training.level = Level::Dispatch; }, "--level dispatch"},
    {"PyTorch 2.6", -1, 1,
     [](Job& j) {
       j.training.torch = Version{2, 6, 0};
     },
     "the fused attention of PyTorch"},
    {"shared key-value heads", 2, 1,
     [](Job& j) {
       j.parallelism.tp = 4;
       j.parallelism.world = 4;
     },
     "key-value heads that tensor-parallel ranks share", On::Llama},
};

ModelSpec model_of(const char* config, bool adapted) {
  const ModelSpec model = running::model(config);
  if (!adapted) return model;
  Lora lora;
  lora.targets = {"all-linear"};
  lora.dropout = 0.1;
  return with_adapters(model, lora, {});
}

// Empty: it ran, and all rows are equal.
std::string outcome_of(const ModelSpec& model, const Job& job, std::int64_t& rows) {
  try {
    const ExecutableRanks plan = executables_of(model, job, job.training.steps(), "test");
    running::Options options;
    options.learning_rate = 1e-3;
    const bool planned = job.placement == PlacementKind::Planned;
    if (planned) options.memory = running::planned(plan);
    const exec::RunResult result = running::run(model, job, plan, options);
    if (result.outcome != Receipt::Outcome::Ran) return "ran into: " + result.message;
    for (const exec::RankRun& rank : result.ranks) {
      for (const double loss : rank.losses) {
        if (!std::isfinite(loss)) return "a loss that is no number";
      }
    }
    return running::differences(model, job, planned, result, rows);
  } catch (const Refusal& refusal) {
    return std::string("refused: ") + refusal.what();
  }
}

}  // namespace

TEST_CASE("what is predicted is run with every row equal, or refused by name") {
  std::int64_t ran = 0;
  std::int64_t refused = 0;
  std::int64_t rows = 0;
  for (const Asked& asked : kAsked) {
    for (const On on : {On::Gpt2, On::Llama}) {
      if (asked.on != On::Both && asked.on != on) continue;
      const ModelSpec model = model_of(on == On::Gpt2 ? running::kGpt2Dropout : running::kLlama, asked.adapted);
      Job job = lowered::job(asked.stage, asked.ranks);
      job.training.zero.param_persistence_threshold = Elements(40);
      job.training.zero.prefetch_bucket_size = Elements(0);
      asked.change(job);
      const std::string name = asked.name;
      CAPTURE(name);
      CAPTURE(model.family);
      REQUIRE_FALSE(unsupported(model, job).has_value());
      const std::string outcome = outcome_of(model, job, rows);
      if (asked.refused != nullptr) {
        CHECK_MESSAGE(outcome.starts_with("refused: "), outcome);
        CHECK_MESSAGE(outcome.find(asked.refused) != std::string::npos, outcome);
        ++refused;
        continue;
      }
      CHECK_MESSAGE(outcome == "", outcome);
      ran += outcome.empty() ? 1 : 0;
    }
  }
  MESSAGE(ran << " jobs run with " << rows << " rows equal, " << refused << " refused by name");
  CHECK(ran > 110);
}

namespace {

std::vector<double> losses(const ModelSpec& model, const Job& job) {
  running::Options options;
  options.steps = 4;
  const exec::RunResult result = running::run(model, job, options);
  CHECK_MESSAGE(result.message == "", result.message);
  if (result.outcome != Receipt::Outcome::Ran) return {};
  return running::losses_by_step(result, job.training.grad_accum);
}

}  // namespace

TEST_CASE("however parameters come together, the numbers are the same; as int8 they are near") {
  const ModelSpec model = running::model(running::kLlama);
  Job job = lowered::job(3, 4);
  job.training.zero.param_persistence_threshold = Elements(40);
  job.training.grad_accum = 2;
  const std::vector<double> plain = losses(model, job);
  REQUIRE(plain.size() == 4);
  CHECK(plain.back() < plain.front());
  for (const std::int64_t ahead : {0, 4000}) {
    job.training.zero.prefetch_bucket_size = Elements(ahead);
    CAPTURE(ahead);
    Job secondary = job;
    secondary.training.zero.hpz_partition_size = 2;
    CHECK(losses(model, secondary) == plain);
    Job summed = job;
    summed.training.zero.all_reduce_for_fetch = true;
    CHECK(losses(model, summed) == plain);
    for (Job quantized : {job, secondary}) {
      quantized.training.zero.quantized_weights = true;
      const std::vector<double> near = losses(model, quantized);
      CHECK(near != plain);
      for (std::size_t step = 0; step < plain.size(); ++step) CHECK(std::abs(near[step] / plain[step] - 1) < 0.01);
    }
  }
}

TEST_CASE("optimizers beside Adam and SGD step as their formulas say, and the loss falls") {
  const ModelSpec model = running::model(running::kLlama);
  for (const OptimizerKind kind : {OptimizerKind::Lion, OptimizerKind::Adagrad, OptimizerKind::RmsProp}) {
    Job job = lowered::job(-1, 1);
    lowered::set_dtype(job, DType::Float32);
    job.training.attention = Attention::Math;
    job.training.optimizer = {kind, Implementation::Foreach, 0, 0, false};
    CAPTURE(name(kind));
    const std::vector<double> single = losses(model, job);
    CHECK(single.back() < single.front());
    job.parallelism.dp = job.parallelism.world = 2;
    job.training.micro_batch = 1;  // The same samples.
    const std::vector<double> two = losses(model, job);
    for (std::size_t step = 0; step < two.size(); ++step)
      CHECK(two[step] == doctest::Approx(single[step]).epsilon(1e-4));
  }
}
