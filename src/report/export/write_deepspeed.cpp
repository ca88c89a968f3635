#include "report/export/write_deepspeed.h"

#include "core/error.h"
#include "core/format.h"
#include "io/deepspeed_keys.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

constexpr Version kAlways{0, 0, 0};
constexpr Version kComputeGradNorm{0, 19, 7};  // compute_grad_norm and parameter_alignment.

// One object of the configuration, key by key.
class Block {
 public:
  Block(const Training& training, std::string path, Diagnostics& faults)
      : training_(training), path_(std::move(path)), faults_(faults) {}

  // A key of DeepSpeed's since `since`; `usual` is what DeepSpeed takes where it is missing.
  void add(const char* key, Json value, const Json& usual, bool applies, Version since = kAlways) {
    if (training_.deepspeed < since) {
      if (value == usual) return;
      faults_.add({path_ + "." + key,
                   0,
                   0,
                   {},
                   formatted("{} cannot be said to DeepSpeed {}", json_text(value), training_.deepspeed.text()),
                   formatted("it is there since {}", since.text())});
      return;
    }
    if (applies || value != usual) json_.set(key, std::move(value));
  }
  // What every version has.
  void add(const char* key, Json value) { json_.set(key, std::move(value)); }

  [[nodiscard]] bool empty() const { return json_.empty(); }
  [[nodiscard]] Json take() && { return std::move(json_); }

 private:
  const Training& training_;
  std::string path_;
  Diagnostics& faults_;
  Json json_ = Json::object();
};

std::string short_name(DType dtype) { return std::string(name(dtype)); }

bool offloads_optimizer(const Training& t) { return t.zero.offload_optimizer.device != OffloadDevice::None; }

bool on_nvme(const Zero& zero) {
  return zero.offload_param.device == OffloadDevice::Nvme || zero.offload_optimizer.device == OffloadDevice::Nvme;
}

// pin_memory is on by default since 0.19.5 (runtime/zero/offload_config.py).
bool usual_pin(const Training& t) { return t.deepspeed >= Version{0, 19, 5}; }

void add_offload_param(const Training& t, Diagnostics& faults, Block& zero) {
  const Offload& o = t.zero.offload_param;
  const bool on = o.device != OffloadDevice::None;
  const bool nvme = o.device == OffloadDevice::Nvme;
  Block block(t, "zero_optimization.offload_param", faults);
  if (on) block.add("device", std::string(name(o.device)));
  if (!o.nvme_path.empty()) block.add("nvme_path", o.nvme_path);
  block.add("pin_memory", o.pin_memory, usual_pin(t), on);
  block.add("buffer_count", o.buffer_count, 5, nvme);
  block.add("buffer_size", o.buffer_size.value(), 100'000'000, nvme);
  block.add("max_in_cpu", o.max_in_cpu.value(), 1'000'000'000, nvme);
  if (!block.empty()) zero.add("offload_param", std::move(block).take());
}

void add_offload_optimizer(const Training& t, Diagnostics& faults, Block& zero) {
  const Offload& o = t.zero.offload_optimizer;
  const bool on = o.device != OffloadDevice::None;
  const bool nvme = o.device == OffloadDevice::Nvme;
  Block block(t, "zero_optimization.offload_optimizer", faults);
  if (on) block.add("device", std::string(name(o.device)));
  if (!o.nvme_path.empty()) block.add("nvme_path", o.nvme_path);
  block.add("pin_memory", o.pin_memory, usual_pin(t), on);
  block.add("buffer_count", o.buffer_count, 4, nvme);
  block.add("pipeline_read", o.pipeline_read, false, nvme);
  block.add("pipeline_write", o.pipeline_write, false, nvme);
  block.add("fast_init", false, false, nvme);
  block.add("ratio", o.ratio, 1.0, on && t.zero.stage == 3, {0, 12, 3});
  block.add("super_offload", false, false, on && t.zero.stage == 3, {0, 18, 0});
  if (!block.empty()) zero.add("offload_optimizer", std::move(block).take());
}

void add_stage3(const Training& t, Diagnostics& faults, Block& block) {
  const Zero& z = t.zero;
  const bool on = z.stage == 3;
  block.add("sub_group_size", z.sub_group_size.value(), 1'000'000'000, on);
  block.add("stage3_prefetch_bucket_size", z.prefetch_bucket_size.value(), 50'000'000, on);
  block.add("stage3_param_persistence_threshold", z.param_persistence_threshold.value(), 100'000, on);
  block.add("stage3_model_persistence_threshold", z.model_persistence_threshold.value(), INT64_MAX, on);
  block.add("stage3_max_live_parameters", z.max_live_parameters.value(), 1'000'000'000, on);
  block.add("stage3_max_reuse_distance", z.max_reuse_distance.value(), 1'000'000'000, on);
  block.add("stage3_gather_16bit_weights_on_model_save", z.gather_16bit_weights_on_model_save, false, on);
  block.add("stage3_use_all_reduce_for_fetch_params", z.all_reduce_for_fetch, false, on, {0, 14, 3});
  block.add("stage3_allgather_sequential", z.allgather_sequential, false, on, {0, 18, 5});
  block.add("stage3_module_granularity_threshold", z.module_granularity_threshold.value(), 0, on, {0, 16, 0});
  block.add("memory_efficient_linear", z.memory_efficient_linear, true, on, {0, 9, 0});
  block.add("zero_hpz_partition_size", z.hpz_partition_size, 1, on, {0, 10, 0});
  block.add("zero_quantized_weights", z.quantized_weights, false, on, {0, 10, 0});
  block.add("zero_quantized_nontrainable_weights", false, false, on, {0, 10, 2});
  block.add("zero_quantized_gradients", false, false, on, {0, 10, 0});
  if (!on || t.deepspeed < Version{0, 18, 0}) return;
  Block leaves(t, "zero_optimization.leaf_module", faults);
  leaves.add("classes", z.leaf_classes);
  leaves.add("names", z.leaf_names);
  leaves.add("name_suffixes", z.leaf_suffixes);
  block.add("leaf_module", std::move(leaves).take());
}

Json zero_block(const Training& t, Diagnostics& faults) {
  const Zero& z = t.zero;
  const bool any = z.stage >= 1;
  const bool one_or_two = z.stage == 1 || z.stage == 2;
  Block block(t, "zero_optimization", faults);
  block.add("stage", z.stage);
  block.add("contiguous_gradients", z.contiguous_gradients, true, any);
  block.add("reduce_scatter", z.reduce_scatter, true, any);
  block.add("reduce_bucket_size", z.reduce_bucket_size.value(), 500'000'000, any);
  block.add("use_multi_rank_bucket_allreduce", z.use_multi_rank_bucket_allreduce, t.deepspeed >= Version{0, 12, 4},
            one_or_two, {0, 12, 4});
  block.add("overlap_comm", z.overlap_comm, z.stage == 3, any);
  block.add("round_robin_gradients", z.round_robin_gradients, false, one_or_two);
  block.add("compute_grad_norm", true, true, one_or_two, kComputeGradNorm);
  block.add("parameter_alignment", false, false, one_or_two, kComputeGradNorm);
  add_stage3(t, faults, block);
  add_offload_param(t, faults, block);
  add_offload_optimizer(t, faults, block);
  return std::move(block).take();
}

// What the engine makes by name (deepspeed/runtime/engine.py, _configure_basic_optimizer); null: the script makes it.
Json optimizer_block(const Training& t) {
  const Optimizer& o = t.optimizer;
  const bool offloaded = offloads_optimizer(t);
  Json params = Json::object();
  const char* type = nullptr;
  switch (o.kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
      if (!offloaded && o.implementation == Implementation::ForLoop) return nullptr;
      type = o.kind == OptimizerKind::AdamW ? "AdamW" : "Adam";
      params.set("torch_adam", !offloaded && o.implementation == Implementation::Foreach);
      params.set("adam_w_mode", o.kind == OptimizerKind::AdamW);
      if (offloaded) params.set("fp32_optimizer_states", true);
      break;
    case OptimizerKind::Lion: type = "Lion"; break;
    case OptimizerKind::Muon: type = "Muon"; break;
    case OptimizerKind::Sgd:
      if (o.implementation != Implementation::Foreach) return nullptr;
      type = "SGD";
      params.set("momentum", o.momentum);
      break;
    default: return nullptr;
  }
  if (o.weight_decay > 0) params.set("weight_decay", o.weight_decay);
  return {{"type", type}, {"params", std::move(params)}};
}

Json bf16_block(const Training& t, Diagnostics& faults) {
  const bool on = t.dtype == DType::BFloat16;
  Block block(t, "bf16", faults);
  block.add("enabled", on);
  if (on) block.add("check_grad_overflow", t.check_grad_overflow, t.deepspeed >= Version{0, 19, 3}, on, {0, 17, 1});
  block.add("immediate_grad_update", t.immediate_grad_update, false, on, {0, 17, 1});
  block.add("bf16_master_weights_and_grads", false, false, on, {0, 18, 3});
  block.add("bf16_optimizer_states", false, false, on, {0, 18, 3});
  return std::move(block).take();
}

Json fp16_block(const Training& t, Diagnostics& faults) {
  const bool on = t.dtype == DType::Float16;
  Block block(t, "fp16", faults);
  block.add("enabled", on);
  block.add("fp16_master_weights_and_grads", false, false, on, {0, 17, 1});
  return std::move(block).take();
}

Json activation_block(const Training& t) {
  const DeepSpeedCheckpointing& c = t.checkpoint.deepspeed;
  Json block = {{"partition_activations", c.partition},
                {"cpu_checkpointing", c.cpu},
                {"contiguous_memory_optimization", c.contiguous}};
  if (c.number_checkpoints > 0) block.set("number_checkpoints", c.number_checkpoints);
  return block;
}

// _do_optimizer_sanity_check lets others through with this permission only.
bool untested(const Training& t) {
  const OptimizerKind kind = t.optimizer.kind;
  return t.zero.stage > 0 && kind != OptimizerKind::Adam && kind != OptimizerKind::AdamW &&
         kind != OptimizerKind::Lion && kind != OptimizerKind::Muon;
}

Json complete(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  if (t.runtime != Runtime::DeepSpeed) {
    throw Refusal(model.name, "is trained by plain PyTorch here, which no DeepSpeed JSON can say",
                  "--zero-stage 0 to 3 or --runtime deepspeed make it a job of DeepSpeed");
  }
  Diagnostics faults;
  Json json;
  json.set("train_batch_size", checked_mul(checked_mul(t.micro_batch, t.grad_accum), job.parallelism.dp));
  json.set("train_micro_batch_size_per_gpu", t.micro_batch);
  json.set("gradient_accumulation_steps", t.grad_accum);
  json.set("gradient_clipping", t.gradient_clipping);
  json.set("bf16", bf16_block(t, faults));
  json.set("fp16", fp16_block(t, faults));
  json.set("communication_data_type", short_name(t.communication_dtype));
  // At stage 0 the engine raises for any other than the model's own, and takes that by itself.
  if (t.zero.stage > 0 || t.grad_accum_dtype == t.dtype) {
    json.set("data_types", {{"grad_accum_dtype", short_name(t.grad_accum_dtype)}});
  }
  if (Json optimizer = optimizer_block(t); !optimizer.is_null()) json.set("optimizer", std::move(optimizer));
  if (untested(t)) json.set("zero_allow_untested_optimizer", true);
  json.set("zero_optimization", zero_block(t, faults));
  if (on_nvme(t.zero) || t.zero.aio_block_size != Zero{}.aio_block_size ||
      t.zero.aio_intra_op_parallelism != Zero{}.aio_intra_op_parallelism) {
    json.set("aio", {{"block_size", t.zero.aio_block_size}, {"intra_op_parallelism", t.zero.aio_intra_op_parallelism}});
  }
  if (t.checkpoint.by_deepspeed()) json.set("activation_checkpointing", activation_block(t));
  faults.throw_if_any();
  return json;
}

// Keys of the user's own that decide no byte: what the reader calls inert, and the optimizer's hyperparameters.
bool may_stay(std::string_view path) {
  constexpr std::string_view kHyper[] = {
      "optimizer.params.lr", "optimizer.params.betas",    "optimizer.params.eps", "optimizer.params.weight_decay",
      "prescale_gradients",  "gradient_predivide_factor", "gradient_allreduce_op"};
  for (const std::string_view one : kHyper) {
    if (one == path) return true;
  }
  const DeepSpeedKey* key = find_deepspeed_key(path);
  return key != nullptr && key->treatment == DeepSpeedKey::Treatment::Inert;
}

void keep_own(const Value& own, const std::string& above, Json& into) {
  for (const Member& member : own.members) {
    const std::string path = above.empty() ? member.key : above + "." + member.key;
    if (member.value.is(Value::Kind::Null)) continue;
    const Value* kept = into.value().find(member.key);
    const DeepSpeedKey* key = find_deepspeed_key(path);
    const bool block = key != nullptr && key->treatment == DeepSpeedKey::Treatment::Block;
    if (block && member.value.is(Value::Kind::Object)) {
      if (kept != nullptr) {
        Json inner = *kept;
        keep_own(member.value, path, inner);
        into.set(member.key, std::move(inner));
      }
      continue;
    }
    if (kept == nullptr && may_stay(path)) into.set(member.key, member.value);
  }
}

std::string text_of(const Json& json) { return json_text(json, 2) + "\n"; }

}  // namespace

std::string deepspeed_json(const ModelSpec& model, const Job& job) { return text_of(complete(model, job)); }

std::string deepspeed_json(const ModelSpec& model, const Job& job, const Value& own) {
  Json json = complete(model, job);
  keep_own(own, {}, json);
  return text_of(json);
}

bool optimizer_in_deepspeed_json(const Training& t) {
  const bool own_on_host = offloads_optimizer(t) && t.optimizer.implementation != Implementation::Fused;
  return !optimizer_block(t).is_null() && !own_on_host;
}

}  // namespace dsplan
