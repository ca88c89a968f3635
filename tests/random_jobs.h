// Random small models and jobs, for properties that must hold for all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/format.h"
#include "core/job.h"
#include "core/model.h"

namespace dsplan::test {

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  std::int64_t from(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(engine_);
  }
  bool coin() { return from(0, 1) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return *(choices.begin() + from(0, static_cast<std::int64_t>(choices.size()) - 1));
  }

 private:
  std::mt19937 engine_;
};

inline std::string experts_of(std::string_view family, std::int64_t count) {
  if (family != "mixtral") return {};
  return dsplan::formatted(R"("num_local_experts": {}, "num_experts_per_tok": 2, )", count);
}

inline std::string random_config(Dice& dice) {
  const auto family = dice.one_of<const char*>({"llama", "mistral", "qwen2", "qwen3", "gemma2", "mixtral", "gpt2"});
  const std::int64_t kv = dice.one_of<std::int64_t>({1, 2});
  const std::int64_t heads = kv * dice.from(1, 3);
  const std::int64_t head_dim = 2 * dice.from(1, 12);
  const std::int64_t layers = dice.from(1, 6);
  const std::int64_t vocab = dice.from(11, 999);
  const bool tied = dice.coin();
  if (std::string_view(family) == "gpt2") {
    return dsplan::formatted(
        R"({{"model_type": "gpt2", "n_layer": {}, "n_embd": {}, "n_head": {}, "vocab_size": {}, "n_positions": 64,
            "resid_pdrop": {}, "embd_pdrop": {}, "attn_pdrop": 0.1, "tie_word_embeddings": {}}})",
        layers, heads * head_dim, heads, vocab, dice.coin() ? 0.1 : 0.0, dice.coin() ? 0.1 : 0.0, tied);
  }
  return dsplan::formatted(
      R"({{"model_type": "{}", "num_hidden_layers": {}, "hidden_size": {}, "num_attention_heads": {},
          "num_key_value_heads": {}, "head_dim": {}, "intermediate_size": {}, "vocab_size": {},
          "max_position_embeddings": 64, "sliding_window": null, {}"tie_word_embeddings": {}}})",
      family, layers, heads * head_dim, heads, kv, head_dim, dice.from(3, 80), vocab,
      experts_of(family, dice.from(2, 5)), tied);
}

inline Checkpointing random_checkpointing(Dice& dice, std::int64_t layers) {
  Checkpointing c;
  const std::int64_t group = dice.one_of<std::int64_t>({0, 1, 2, 3});
  if (group == 0) return c;
  for (std::int64_t first = 0; first < layers; first += group) {
    c.groups.push_back(
        {static_cast<std::int32_t>(first), static_cast<std::int32_t>(std::min(first + group, layers) - 1)});
  }
  if (dice.coin() && c.groups.size() > 1) c.groups.pop_back();  // checkpoint_sequential stores the last segment.
  return c;
}

// Those whose states may be paged.
inline bool perhaps_paged(Dice& dice, OptimizerKind kind) {
  const bool own = kind >= OptimizerKind::AdamW32bit || kind == OptimizerKind::Lion || kind == OptimizerKind::Adam8bit;
  return dice.coin() && own;
}

inline Job random_job(Dice& dice, const ModelSpec& model) {
  Job job;
  Training& t = job.training;
  t.runtime = dice.from(0, 4) == 0 ? Runtime::PyTorch : Runtime::DeepSpeed;
  Zero& z = t.zero;
  z.stage = static_cast<int>(dice.from(0, 3));
  t.dtype = model.dims.kv_heads == model.dims.heads ? dice.one_of({DType::BFloat16, DType::Float16, DType::Float32})
                                                    : dice.one_of({DType::BFloat16, DType::Float16});
  t.attention = t.dtype == DType::Float32 ? Attention::MemoryEfficient : Attention::Flash;
  t.communication_dtype = dice.coin() ? t.dtype : DType::Float32;
  t.grad_accum_dtype = z.stage >= 1 && dice.coin() ? DType::Float32 : t.dtype;
  t.deepspeed = *Version::parse(kDeepSpeedVersion);
  t.optimizer.kind = dice.one_of({OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion,
                                  OptimizerKind::Adam8bit, OptimizerKind::Adafactor});
  t.optimizer.implementation = dice.one_of({Implementation::Fused, Implementation::Foreach, Implementation::ForLoop});
  t.optimizer.momentum = dice.coin() ? 0.9 : 0;
  if (t.runtime == Runtime::PyTorch) {
    t.optimizer.kind = dice.one_of({OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion,
                                    OptimizerKind::Adam8bit, OptimizerKind::Adafactor, OptimizerKind::Muon,
                                    OptimizerKind::Adagrad, OptimizerKind::RmsProp, OptimizerKind::AdamW32bit,
                                    OptimizerKind::Lion8bit, OptimizerKind::AdEmaMix, OptimizerKind::AdEmaMix8bit});
    t.optimizer.paged = perhaps_paged(dice, t.optimizer.kind);
    t.optimizer.weight_decay = dice.coin() ? 0.1 : 0;
    t.optimizer.embeddings_32bit = dice.coin();
    t.param_groups = dice.one_of({ParamGroups::Single, ParamGroups::Decay});
    t.zero_grad_to_none = dice.coin();
    t.grad_scaler = dice.coin();
    t.loop = dice.one_of({LoopKind::Trainer, LoopKind::Minimal, LoopKind::Script, LoopKind::Loss});
    t.gradient_clipping = dice.coin() ? 1.0 : 0;
  }
  t.micro_batch = dice.from(1, 3);
  t.grad_accum = dice.from(1, 4);
  t.seq = dice.from(2, 40);
  t.check_grad_overflow = dice.coin();
  t.checkpoint = random_checkpointing(dice, model.dims.layers);
  if (dice.from(0, 3) == 0) t.freeze = {dice.one_of<std::string>({"*embed*", "*wte*", "*norm*", "*ln_*", "*mlp*"})};
  z.contiguous_gradients = dice.from(0, 4) > 0;
  if (z.stage < 3 && t.grad_accum_dtype != t.dtype) z.contiguous_gradients = true;
  z.reduce_scatter = dice.from(0, 4) > 0;
  z.use_multi_rank_bucket_allreduce = dice.from(0, 4) > 0;
  z.overlap_comm = dice.coin();
  z.round_robin_gradients = dice.coin();
  z.reduce_bucket_size = Elements(dice.one_of<std::int64_t>({200, 3000, 50'000, 500'000'000}));
  z.sub_group_size = Elements(dice.one_of<std::int64_t>({100, 5000, 1'000'000'000}));
  z.param_persistence_threshold = Elements(dice.one_of<std::int64_t>({0, 30, 1000, 100'000}));
  z.model_persistence_threshold = Elements(dice.one_of<std::int64_t>({100, INT64_MAX}));
  z.prefetch_bucket_size = Elements(dice.one_of<std::int64_t>({0, 0, 1, 2000, 50'000'000}));
  z.max_reuse_distance = Elements(dice.one_of<std::int64_t>({0, 0, 3000, 1'000'000'000}));
  z.max_live_parameters = Elements(dice.one_of<std::int64_t>({0, 10'000, 1'000'000'000}));
  if ((z.stage == 1 || z.stage == 2) && t.runtime == Runtime::DeepSpeed && dice.from(0, 3) == 0) {
    z.offload_optimizer.device = OffloadDevice::Cpu;
    z.offload_optimizer.pin_memory = dice.coin();
    z.contiguous_gradients = true;
  }
  job.parallelism.dp = job.parallelism.world = dice.from(0, 2) == 0 ? dice.from(1, 64) : dice.from(1, 4);
  // Of the heads that this model has, and of its columns.
  std::vector<std::int64_t> degrees{1};
  for (std::int64_t tp : {2, 3, 4, 6}) {
    const Dimensions& d = model.dims;
    const bool shared = d.kv_heads % tp == 0 || tp % d.kv_heads == 0;
    if (d.heads % tp == 0 && d.ffn % tp == 0 && shared) degrees.push_back(tp);
  }
  if (dice.coin()) {
    job.parallelism.tp = degrees[static_cast<std::size_t>(dice.from(0, static_cast<std::int64_t>(degrees.size()) - 1))];
  }
  job.parallelism.world *= job.parallelism.tp;
  return job;
}

inline std::string tell(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  return dsplan::formatted("{} runtime {} stage {} W {} tp {} g {} dtype {} groups {} bucket {} layers {}",
                           model.family, name(t.runtime), t.zero.stage, job.parallelism.dp, job.parallelism.tp,
                           t.grad_accum, name(t.dtype), t.checkpoint.groups.size(), t.zero.reduce_bucket_size.value(),
                           model.dims.layers);
}

}  // namespace dsplan::test
