// Real schedules for tests: small models of each family that has a graph, lowered under jobs that differ in one thing.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/schedule.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "paths.h"
#include "planner/lower/lower.h"

namespace lowered {

struct Case {
  std::string name;
  dsplan::Job job;
};

inline dsplan::ModelSpec bundled(const std::string& name) {
  return dsplan::build_model(dsplan::read_document(test_paths::source_dir() + "/models/" + name + ".json"), name);
}

inline dsplan::ModelSpec inlined(const std::string& name, const std::string& config) {
  return dsplan::build_model(dsplan::parse_json(name, config), name);
}

inline dsplan::ModelSpec tiny_mixtral() {
  return inlined("tiny-mixtral", R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "num_local_experts": 4, "num_experts_per_tok": 2})");
}

inline dsplan::ModelSpec tiny_gemma2() {
  return inlined("tiny-gemma2", R"({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"],
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "sliding_window": 32})");
}

// stage < 0: plain PyTorch.
inline dsplan::Job job(int stage, std::int64_t ranks) {
  dsplan::Job job;
  job.training.runtime = stage < 0 ? dsplan::Runtime::PyTorch : dsplan::Runtime::DeepSpeed;
  job.training.deepspeed = *dsplan::Version::parse(dsplan::kDeepSpeedVersion);
  job.training.zero.stage = std::max(stage, 0);
  job.training.seq = 16;
  job.training.micro_batch = 2;
  job.training.zero.reduce_bucket_size = dsplan::Elements(1'000'000);
  job.parallelism.dp = job.parallelism.world = ranks;
  return job;
}

inline void set_dtype(dsplan::Job& job, dsplan::DType dtype) {
  job.training.dtype = job.training.grad_accum_dtype = job.training.communication_dtype = dtype;
}

// All ranks of one job.
inline std::vector<dsplan::Schedule> all_ranks(const dsplan::ModelSpec& model, const dsplan::Job& job) {
  const dsplan::Graph graph = dsplan::build_graph(model, dsplan::graph_options(model, job));
  const dsplan::RecipeBook recipes(graph, job.training.level, dsplan::catalogue_options(job));
  std::vector<dsplan::Schedule> schedules;
  for (std::int64_t rank = 0; rank < job.parallelism.dp; ++rank) {
    schedules.push_back(dsplan::lower(model, job, graph, recipes, rank));
  }
  return schedules;
}

// The plain job of one stage, and its variants so far.
struct Variants {
  int stage = 0;
  std::int64_t ranks = 1;
  std::int32_t layers = 0;
  std::vector<Case> cases;

  template <class Change>
  void add(const std::string& name, Change change) {
    Case made{dsplan::formatted("stage {} ranks {} {}", stage, ranks, name), job(stage, ranks)};
    change(made.job);
    cases.push_back(std::move(made));
  }
  void checkpoint_full(dsplan::Job& j) const {
    for (std::int32_t at = 0; at < layers; ++at) j.training.checkpoint.groups.push_back({at, at});
  }
};

// What any runtime can do.
inline void add_training(Variants& to) {
  using namespace dsplan;
  to.add("plain", [](Job&) {});
  to.add("accumulation 2", [](Job& j) { j.training.grad_accum = 2; });
  to.add("accumulation 3", [](Job& j) { j.training.grad_accum = 3; });
  to.add("fp32", [](Job& j) { set_dtype(j, DType::Float32); });
  to.add("fp16", [](Job& j) { set_dtype(j, DType::Float16); });
  to.add("checkpoint full", [&](Job& j) { to.checkpoint_full(j); });
  to.add("checkpoint every second", [&](Job& j) {
    for (std::int32_t at = 0; at < to.layers; at += 2) j.training.checkpoint.groups.push_back({at, at});
  });
  to.add("checkpoint one segment", [&](Job& j) { j.training.checkpoint.groups = {{0, to.layers - 1}}; });
  to.add("checkpoint reentrant", [&](Job& j) {
    to.checkpoint_full(j);
    for (CheckpointGroup& group : j.training.checkpoint.groups) group.kind = CheckpointKind::Reentrant;
    j.training.grad_accum = 2;
  });
  to.add("checkpoint keeping products", [&](Job& j) {
    to.checkpoint_full(j);
    for (CheckpointGroup& group : j.training.checkpoint.groups) group.kept = {Op::Linear, Op::Attention};
  });
  to.add("checkpoint around modules", [&](Job& j) { j.training.checkpoint.modules = {"mlp", "core_attn"}; });
  to.add("checkpoint full, accumulation 2", [&](Job& j) {
    to.checkpoint_full(j);
    j.training.grad_accum = 2;
  });
  to.add("foreach", [](Job& j) { j.training.optimizer.implementation = Implementation::Foreach; });
  to.add("for loop", [](Job& j) { j.training.optimizer.implementation = Implementation::ForLoop; });
  to.add("momentum", [](Job& j) {
    j.training.optimizer.kind = OptimizerKind::Sgd;
    j.training.optimizer.momentum = 0.9;
  });
  to.add("sgd", [](Job& j) { j.training.optimizer.kind = OptimizerKind::Sgd; });
  to.add("adafactor", [](Job& j) { j.training.optimizer.kind = OptimizerKind::Adafactor; });
  to.add("adam8bit", [](Job& j) { j.training.optimizer.kind = OptimizerKind::Adam8bit; });
  to.add("clipping", [](Job& j) { j.training.gradient_clipping = 1; });
  to.add("memory-efficient attention", [](Job& j) { j.training.attention = Attention::MemoryEfficient; });
  to.add("eager attention", [](Job& j) { j.training.attention = Attention::Eager; });
  to.add("eager attention, checkpoint full", [&](Job& j) {
    j.training.attention = Attention::Eager;
    to.checkpoint_full(j);
  });
  to.add("native loss", [](Job& j) { j.training.loss = Loss::Native; });
  to.add("loss in chunks", [](Job& j) {
    j.training.loss = Loss::Chunked;
    j.training.loss_chunks = 4;
  });
  to.add("script loop, accumulation 2", [](Job& j) {
    j.training.loop = LoopKind::Script;
    j.training.grad_accum = 2;
  });
  to.add("frozen embeddings", [](Job& j) { j.training.freeze = {"*embed*", "*wte*", "*lm_head*"}; });
  to.add("only norms trained", [](Job& j) { j.training.freeze = {"*weight"}; });
}

// What only plain PyTorch can do.
inline void add_pytorch(Variants& to) {
  using namespace dsplan;
  const auto optimizer = [&](const char* name, OptimizerKind kind, Implementation form, double momentum, double decay) {
    to.add(name, [=](Job& j) { j.training.optimizer = {kind, form, momentum, decay, false}; });
  };
  optimizer("adam, weight decay, foreach", OptimizerKind::Adam, Implementation::Foreach, 0, 0.1);
  optimizer("adam, weight decay, for loop", OptimizerKind::Adam, Implementation::ForLoop, 0, 0.1);
  optimizer("sgd, weight decay, for loop", OptimizerKind::Sgd, Implementation::ForLoop, 0.9, 0.1);
  optimizer("adagrad", OptimizerKind::Adagrad, Implementation::Foreach, 0, 0.1);
  optimizer("rmsprop", OptimizerKind::RmsProp, Implementation::ForLoop, 0.9, 0);
  optimizer("lion", OptimizerKind::Lion, Implementation::Fused, 0, 0);
  optimizer("muon", OptimizerKind::Muon, Implementation::ForLoop, 0, 0);
  to.add("8-bit with wide embeddings", [](Job& j) {
    j.training.optimizer = {OptimizerKind::Adam8bit, Implementation::Fused, 0, 0, true};
    j.training.param_groups = ParamGroups::Decay;
  });
  to.add("gradients zeroed, accumulation 2", [](Job& j) {
    j.training.zero_grad_to_none = false;
    j.training.grad_accum = 2;
  });
  to.add("two groups, foreach, clipping, minimal loop", [](Job& j) {
    j.training.param_groups = ParamGroups::Decay;
    j.training.optimizer.implementation = Implementation::Foreach;
    j.training.gradient_clipping = 1;
    j.training.loop = LoopKind::Minimal;
  });
  to.add("loss scaler", [](Job& j) {
    j.training.grad_scaler = true;
    j.training.grad_accum = 2;
  });
  to.add("loss scaler, clipping, foreach", [](Job& j) {
    j.training.grad_scaler = true;
    j.training.gradient_clipping = 1;
    j.training.optimizer.implementation = Implementation::Foreach;
  });
}

// What DeepSpeed can do.
inline void add_communication(Variants& to) {
  using namespace dsplan;
  to.add("fp32 communication", [](Job& j) { j.training.communication_dtype = DType::Float32; });
  to.add("fp32 communication, small bucket", [](Job& j) {
    j.training.communication_dtype = DType::Float32;
    j.training.zero.reduce_bucket_size = Elements(5000);
  });
}

// What partitioned gradients can do.
inline void add_buckets(Variants& to) {
  using namespace dsplan;
  to.add("small bucket", [](Job& j) { j.training.zero.reduce_bucket_size = Elements(5000); });
  to.add("overlap", [](Job& j) { j.training.zero.overlap_comm = true; });
  to.add("overlap, small bucket, accumulation 2", [](Job& j) {
    j.training.zero.overlap_comm = true;
    j.training.zero.reduce_bucket_size = Elements(5000);
    j.training.grad_accum = 2;
  });
  to.add("round robin", [](Job& j) { j.training.zero.round_robin_gradients = true; });
  to.add("no reduce_scatter", [](Job& j) { j.training.zero.reduce_scatter = false; });
  to.add("one reduce per owner", [](Job& j) { j.training.zero.use_multi_rank_bucket_allreduce = false; });
  to.add("sums in fp32, accumulation 2", [](Job& j) {
    j.training.grad_accum_dtype = DType::Float32;
    j.training.grad_accum = 2;
  });
  to.add("fp16, sums in fp32, small bucket, fp32 communication", [](Job& j) {
    set_dtype(j, DType::Float16);
    j.training.grad_accum_dtype = j.training.communication_dtype = DType::Float32;
    j.training.zero.reduce_bucket_size = Elements(5000);
  });
  to.add("sums in fp32, no reduce_scatter", [](Job& j) {
    j.training.grad_accum_dtype = DType::Float32;
    j.training.zero.reduce_scatter = false;
  });
  to.add("fp16, sums in fp32, one reduce per owner", [](Job& j) {
    set_dtype(j, DType::Float16);
    j.training.grad_accum_dtype = DType::Float32;
    j.training.zero.use_multi_rank_bucket_allreduce = false;
    j.training.zero.reduce_bucket_size = Elements(500);
    j.training.grad_accum = 2;
  });
  to.add("fp32 communication, one reduce per owner", [](Job& j) {
    j.training.communication_dtype = DType::Float32;
    j.training.zero.use_multi_rank_bucket_allreduce = false;
  });
  to.add("DeepSpeed 0.18.2", [](Job& j) {
    j.training.deepspeed = Version{0, 18, 2};
    j.training.check_grad_overflow = true;
    j.training.communication_dtype = DType::Float32;
    j.training.zero.reduce_bucket_size = Elements(5000);
  });
  to.add("not contiguous", [](Job& j) { j.training.zero.contiguous_gradients = false; });
  to.add("not contiguous, small bucket, accumulation 2", [](Job& j) {
    j.training.zero.contiguous_gradients = false;
    j.training.zero.reduce_bucket_size = Elements(5000);
    j.training.grad_accum = 2;
  });
  to.add("checkpoint full, small bucket, accumulation 3, fp16", [&](Job& j) {
    to.checkpoint_full(j);
    set_dtype(j, DType::Float16);
    j.training.zero.reduce_bucket_size = Elements(5000);
    j.training.grad_accum = 3;
  });
}

// What an optimizer on the host can do below ZeRO-3.
inline void add_offload(Variants& to) {
  using namespace dsplan;
  const auto offload = [&](const char* name, bool pins, auto change) {
    to.add(name, [=](Job& j) {
      j.training.zero.offload_optimizer.device = OffloadDevice::Cpu;
      j.training.zero.offload_optimizer.pin_memory = pins;
      change(j);
    });
  };
  offload("offload", true, [](Job&) {});
  offload("offload, pageable", false, [](Job&) {});
  offload("offload, accumulation 3", true, [](Job& j) { j.training.grad_accum = 3; });
  offload("offload, pageable, small bucket, overlap, accumulation 2", false, [](Job& j) {
    j.training.zero.reduce_bucket_size = Elements(5000);
    j.training.zero.overlap_comm = true;
    j.training.grad_accum = 2;
  });
  offload("offload, fp32", true, [](Job& j) { set_dtype(j, DType::Float32); });
  offload("offload, fp16, one reduce per owner, large gradients", true, [](Job& j) {
    set_dtype(j, DType::Float16);
    j.training.zero.use_multi_rank_bucket_allreduce = false;
    j.training.zero.reduce_bucket_size = Elements(500);
    j.training.grad_accum = 2;
  });
  offload("offload, round robin, no reduce_scatter, lion", false, [](Job& j) {
    j.training.zero.round_robin_gradients = true;
    j.training.zero.reduce_scatter = false;
    j.training.optimizer.kind = OptimizerKind::Lion;
  });
  offload("offload, sums in fp32, accumulation 2", true, [](Job& j) {
    j.training.grad_accum_dtype = DType::Float32;
    j.training.grad_accum = 2;
  });
  offload("offload, few trained", true, [](Job& j) { j.training.freeze = {"*weight"}; });
}

// What partitioned parameters can do.
inline void add_partitions(Variants& to) {
  using namespace dsplan;
  to.add("no persistence", [](Job& j) { j.training.zero.param_persistence_threshold = Elements(0); });
  to.add("some persistence", [](Job& j) { j.training.zero.param_persistence_threshold = Elements(100); });
  to.add("sub-groups", [](Job& j) { j.training.zero.sub_group_size = Elements(7000); });
  to.add("fp32 accumulation", [](Job& j) { j.training.grad_accum_dtype = DType::Float32; });
  to.add("no persistence, checkpoint full", [&](Job& j) {
    j.training.zero.param_persistence_threshold = Elements(0);
    to.checkpoint_full(j);
  });
}

// Each way in which a job of `stage` over `ranks` can differ from the plain one, one at a time and in some pairs.
inline std::vector<Case> variants(int stage, std::int64_t ranks, std::int32_t layers) {
  Variants all{stage, ranks, layers, {}};
  add_training(all);
  if (stage < 0) add_pytorch(all);
  if (stage >= 0) add_communication(all);
  if (stage >= 1) add_buckets(all);
  if (stage == 1 || stage == 2) add_offload(all);
  if (stage >= 3) add_partitions(all);
  return std::move(all.cases);
}

}  // namespace lowered
