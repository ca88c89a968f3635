#include "report/export/write_deepspeed.h"

#include "core/error.h"
#include "core/format.h"
#include "core/settings.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

// A field of a job as a value of the JSON.
struct AsJson {
  Json operator()(const Elements* field) const { return field->value(); }
  Json operator()(const DType* field) const { return std::string(name(*field)); }
  template <class Plain>
  Json operator()(const Plain* field) const {
    if constexpr (std::is_constructible_v<Json, Plain> && !std::is_enum_v<Plain>) {
      return *field;
    } else {
      DSPLAN_CHECK(false, "a field of this type is no value of a DeepSpeed JSON");
    }
  }
};

// What DeepSpeed takes where the JSON is silent.
Job usual_job(const Training& t) {
  Job usual;
  usual.training.zero = usual_zero(t.deepspeed, t.zero.stage);
  // On since 0.19.3 (runtime/precision_config.py); nobody reads it without bf16.
  usual.training.check_grad_overflow =
      t.dtype == DType::BFloat16 ? t.deepspeed >= Version{0, 19, 3} : t.check_grad_overflow;
  return usual;
}

bool has_meaning(When when, const DeepSpeedKey& key, const Training& t) {
  const Zero& zero = t.zero;
  switch (when) {
    case When::Zero: return zero.stage >= 1;
    case When::Stage12: return zero.stage == 1 || zero.stage == 2;
    case When::Stage3: return zero.stage == 3;
    case When::CpuAdam: return zero.offload_optimizer.device != OffloadDevice::None;
    case When::ParamOffload: return zero.offload_param.device != OffloadDevice::None;
    case When::Nvme: {  // Of the block that the key stands in.
      const bool params = key.path.starts_with("zero_optimization.offload_param.");
      return (params ? zero.offload_param : zero.offload_optimizer).device == OffloadDevice::Nvme;
    }
    case When::Bf16: return t.dtype == DType::BFloat16;
    case When::Fp16: return t.dtype == DType::Float16;
    default: return true;
  }
}

// One object of the configuration, key by key.
class Block {
 public:
  Block(const Job& job, std::string path, Diagnostics& faults) : job_(job), path_(std::move(path)), faults_(faults) {}

  // The keys of this block that the table has written: where they have a meaning, and where they differ from what
  // DeepSpeed takes anyway.
  void add_rows() {
    const Training& t = job_.training;
    const Job usual = usual_job(t);
    for (const SettingRow& row : settings()) {
      const DeepSpeedKey& key = row.json;
      if (!key.written || key.path.substr(0, key.path.rfind('.')) != path_) continue;
      const Json value = row.job.field ? std::visit(AsJson{}, row.job.field.of(job_)) : Json(key.on);
      const Json silent = row.job.field ? std::visit(AsJson{}, row.job.field.of(usual)) : Json(key.on);
      if (t.deepspeed < key.since) {
        if (value != silent) refuse(key, value);
      } else if (value != silent || (has_meaning(key.when, key, t) && has_meaning(key.written_when, key, t))) {
        add(std::string(key.path.substr(path_.size() + 1)), value);
      }
    }
  }
  // What every version has.
  void add(const std::string& key, Json value) { json_.set(key, std::move(value)); }

  [[nodiscard]] bool empty() const { return json_.empty(); }
  [[nodiscard]] Json take() && { return std::move(json_); }

 private:
  void refuse(const DeepSpeedKey& key, const Json& value) {
    faults_.add({std::string(key.path),
                 0,
                 0,
                 {},
                 formatted("{} cannot be said to DeepSpeed {}", json_text(value), job_.training.deepspeed.text()),
                 formatted("it is there since {}", key.since.text())});
  }

  const Job& job_;
  std::string path_;
  Diagnostics& faults_;
  Json json_ = Json::object();
};

std::string short_name(DType dtype) { return std::string(name(dtype)); }

bool offloads_optimizer(const Training& t) { return t.zero.offload_optimizer.device != OffloadDevice::None; }

bool on_nvme(const Zero& zero) {
  return zero.offload_param.device == OffloadDevice::Nvme || zero.offload_optimizer.device == OffloadDevice::Nvme;
}

void add_offload(const Job& job, const Offload& offload, const std::string& name_of_block, Diagnostics& faults,
                 Block& zero) {
  Block block(job, "zero_optimization." + name_of_block, faults);
  if (offload.device != OffloadDevice::None) block.add("device", std::string(name(offload.device)));
  if (!offload.nvme_path.empty()) block.add("nvme_path", offload.nvme_path);
  block.add_rows();
  if (!block.empty()) zero.add(name_of_block, std::move(block).take());
}

Json zero_block(const Job& job, Diagnostics& faults) {
  const Training& t = job.training;
  const Zero& z = t.zero;
  Block block(job, "zero_optimization", faults);
  block.add("stage", z.stage);
  block.add_rows();
  if (z.stage == 3 && t.deepspeed >= Version{0, 18, 0}) {
    block.add("leaf_module",
              {{"classes", z.leaf_classes}, {"names", z.leaf_names}, {"name_suffixes", z.leaf_suffixes}});
  }
  add_offload(job, z.offload_param, "offload_param", faults, block);
  add_offload(job, z.offload_optimizer, "offload_optimizer", faults, block);
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

// bf16 or fp16.
Json precision_block(const Job& job, const std::string& path, DType dtype, Diagnostics& faults) {
  Block block(job, path, faults);
  block.add("enabled", job.training.dtype == dtype);
  block.add_rows();
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
  json.set("bf16", precision_block(job, "bf16", DType::BFloat16, faults));
  json.set("fp16", precision_block(job, "fp16", DType::Float16, faults));
  json.set("communication_data_type", short_name(t.communication_dtype));
  // At stage 0 the engine raises for any other than the model's own, and takes that by itself.
  if (t.zero.stage > 0 || t.grad_accum_dtype == t.dtype) {
    json.set("data_types", {{"grad_accum_dtype", short_name(t.grad_accum_dtype)}});
  }
  if (Json optimizer = optimizer_block(t); !optimizer.is_null()) json.set("optimizer", std::move(optimizer));
  if (untested(t)) json.set("zero_allow_untested_optimizer", true);
  json.set("zero_optimization", zero_block(job, faults));
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
  const SettingRow* row = find_deepspeed_key(path);
  return row != nullptr && row->json.treatment == DeepSpeedKey::Treatment::Inert;
}

void keep_own(const Value& own, const std::string& above, Json& into) {
  for (const Member& member : own.members) {
    const std::string path = above.empty() ? member.key : above + "." + member.key;
    if (member.value.is(Value::Kind::Null)) continue;
    const Value* kept = into.value().find(member.key);
    const SettingRow* row = find_deepspeed_key(path);
    const bool block = row != nullptr && row->json.treatment == DeepSpeedKey::Treatment::Block;
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
