#include "report/export/write_training.h"

#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "io/json_text.h"
#include "io/own_file.h"
#include "model/quantized.h"
#include "model/traits.h"
#include "report/export/write_deepspeed.h"

namespace dsplan {
namespace {

const ResolvedInput* input_of(const Job& job, std::string_view name) {
  const auto at =
      std::find_if(job.inputs.begin(), job.inputs.end(), [&](const ResolvedInput& one) { return one.name == name; });
  return at == job.inputs.end() ? nullptr : &*at;
}

bool given(const Job& job, std::string_view name) {
  const ResolvedInput* input = input_of(job, name);
  return input != nullptr && input->origin == Origin::Given;
}

std::string kept_words(const CheckpointGroup& group) {
  std::string text;
  for (const Op op : group.kept) {
    text += (text.empty() ? "" : "+") + std::string(name(op)) + (group.alternate && op == Op::Linear ? "/2" : "");
  }
  return text;
}

bool in_one_run(const CheckpointGroup& a, const CheckpointGroup& b) {
  return a.kind == b.kind && a.kept == b.kept && a.alternate == b.alternate;
}

// The K of groups of K layers from the first to the last layer, the last group possibly shorter.
std::int64_t equal_runs(const std::vector<CheckpointGroup>& groups, std::int64_t layers) {
  const std::int64_t size = groups.front().last - groups.front().first + 1;
  std::int64_t next = 0;
  for (const CheckpointGroup& group : groups) {
    if (group.first != next || !in_one_run(group, groups.front())) return 0;
    if (group.last != std::min(next + size, layers) - 1) return 0;
    next = group.last + 1;
  }
  return next == layers ? size : 0;
}

std::string group_words(const CheckpointGroup& group, CheckpointKind usual) {
  std::string text = std::to_string(group.first);
  if (group.last != group.first) text += "-" + std::to_string(group.last);
  if (!group.kept.empty()) return text + "=keep+" + kept_words(group);
  return group.kind == usual ? text : text + "=" + std::string(name(group.kind));
}

// transformers' names where the Trainer's ways with bitsandbytes are meant, else our own.
std::string optimizer_name(const Optimizer& optimizer) {
  if (!optimizer.embeddings_32bit && !optimizer.paged) return std::string(name(optimizer.kind));
  std::string text = optimizer.paged ? "paged_" : "";
  switch (optimizer.kind) {
    case OptimizerKind::Lion8bit: return text + "lion_8bit";
    case OptimizerKind::Lion: return text + "lion_32bit";
    case OptimizerKind::AdEmaMix8bit: return text + "ademamix_8bit";
    case OptimizerKind::AdEmaMix: return text + "ademamix_32bit";
    case OptimizerKind::AdamW32bit: return text + "adamw_32bit";
    default: return optimizer.paged ? text + "adamw_8bit" : "adamw_bnb_8bit";
  }
}

Json optimizer_of(const Optimizer& optimizer) {
  Json json = {{"name", optimizer_name(optimizer)}, {"implementation", name(optimizer.implementation)}};
  const bool has_momentum = optimizer.kind == OptimizerKind::Sgd || optimizer.kind == OptimizerKind::RmsProp;
  if (has_momentum) json.set("momentum", optimizer.momentum);
  if (optimizer.weight_decay != 0) json.set("weight_decay", optimizer.weight_decay);
  return json;
}

// What the DeepSpeed JSON says of a job that has one.
void add_pytorch(const Training& t, Json& json) {
  json.set("runtime", "pytorch");
  json.set("micro_batch", t.micro_batch);
  json.set("grad_accum", t.grad_accum);
  json.set("dtype", name(t.dtype));
  if (!t.autocast) {
    json.set("autocast", "none");
  } else if (t.outputs_to_fp32) {
    json.set("mixed_precision", name(*t.autocast));
  } else {
    json.set("autocast", name(*t.autocast));
  }
  json.set("optimizer", optimizer_of(t.optimizer));
  json.set("param_groups", name(t.param_groups));
  json.set("zero_grad_set_to_none", t.zero_grad_to_none);
  json.set("max_grad_norm", t.gradient_clipping);
}

// What FullyShardedDataParallel is given, after `wrap` and `reshard_after_forward`.
void add_flattened(const Training& t, Json fsdp, Json& json) {
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  if (t.fsdp.casts_parameters) fsdp.set("param_dtype", name(t.dtype));
  if (t.communication_dtype != t.dtype) fsdp.set("reduce_dtype", name(t.communication_dtype));
  fsdp.set("gradient_sync", t.fsdp.sync_every ? "every" : "last");
  fsdp.set("replicate", std::to_string(t.fsdp.replicate));
  fsdp.set("use_orig_params", truth(t.fsdp.use_orig_params));
  fsdp.set("limit_all_gathers", truth(t.fsdp.limit_all_gathers));
  fsdp.set("sync_module_states", truth(t.fsdp.sync_module_states));
  if (t.fsdp.cpu_offload) fsdp.set("cpu_offload", "true");
  fsdp.set("forward_prefetch", truth(t.fsdp.forward_prefetch > 0));
  const BackwardPrefetch backward = t.fsdp.backward();
  fsdp.set("backward_prefetch", backward == BackwardPrefetch::Pre    ? "pre"
                                : backward == BackwardPrefetch::Post ? "post"
                                                                     : "none");
  json.set("fsdp", std::move(fsdp));
}

// What fully_shard is given. The model's dtype is that of its shards.
void add_fsdp(const Training& t, Json& json) {
  const std::int64_t reshards = t.fsdp.reshard_after_forward;
  json.set("runtime", name(t.runtime));
  json.set("dtype", name(t.master_dtype));
  Json fsdp;
  fsdp.set("wrap", t.fsdp.wrap);
  fsdp.set("reshard_after_forward", reshards > 1 ? std::to_string(reshards) : reshards == 1 ? "true" : "false");
  if (t.runtime == Runtime::Fsdp1) return add_flattened(t, std::move(fsdp), json);
  fsdp.set("reshard_root", t.fsdp.reshard_root ? "true" : "false");
  if (t.fsdp.reshard_tail) fsdp.set("reshard_tail", "true");
  if (!t.fsdp.reshard_last) fsdp.set("reshard_last", "false");
  if (t.fsdp.casts_parameters) fsdp.set("param_dtype", name(t.dtype));
  if (t.communication_dtype != t.dtype) fsdp.set("reduce_dtype", name(t.communication_dtype));
  if (t.fsdp.casts_outputs) fsdp.set("output_dtype", name(t.dtype));
  fsdp.set("gradient_sync", t.fsdp.sync_every ? "every" : "last");
  fsdp.set("replicate", std::to_string(t.fsdp.replicate));
  if (t.fsdp.cpu_offload) fsdp.set("cpu_offload", "true");
  if (t.fsdp.forward_prefetch > 0) fsdp.set("forward_prefetch", std::to_string(t.fsdp.forward_prefetch));
  if (t.fsdp.backward_prefetch > 0) fsdp.set("backward_prefetch", std::to_string(t.fsdp.backward_prefetch));
  if (!t.fsdp.ignored.empty()) fsdp.set("ignored", t.fsdp.ignored);
  json.set("fsdp", std::move(fsdp));
}

// What DistributedDataParallel is given, where that is not its own.
void add_ddp(const Ddp& ddp, Json& json) {
  Json block = {{"find_unused_parameters", ddp.find_unused_parameters}, {"broadcast_buffers", ddp.broadcast_buffers}};
  if (ddp.bucket_cap_mb > 0) block.set("bucket_cap_mb", ddp.bucket_cap_mb);
  if (ddp.gradient_as_bucket_view) block.set("gradient_as_bucket_view", true);
  if (ddp.static_graph) block.set("static_graph", true);
  if (ddp.comm_hook) block.set("comm_hook", name(*ddp.comm_hook));
  if (ddp.zero_redundancy) block.set("zero_redundancy", true);
  json.set("ddp", std::move(block));
}

void add_checkpointing(const Checkpointing& c, std::int64_t layers, Json& json) {
  json.set("checkpoint", checkpoint_words(c, layers));
  if (c.groups.empty() && c.modules.empty()) return;
  const CheckpointKind kind = c.groups.empty() ? c.kind : c.groups.front().kind;
  json.set("checkpoint_impl", name(kind));
  json.set("preserve_rng_state", c.groups.empty() ? c.preserve_rng_state : c.groups.front().preserve_rng_state);
}

// The dtype is that in which the weights are loaded.
void add_packing(const Quantization& packing, Json& json) {
  json.set("dtype", name(packing.loaded));
  json.set("quantization", packing.kind);
  json.set("double_quant", packing.nested);
  json.set("quant_compute_dtype", name(packing.compute));
  json.set("quant_storage", name(packing.storage));
  json.set("kbit_prepare", packing.prepared);
}

void add_execution(const ModelSpec& model, const Job& job, Json& json) {
  const Training& t = job.training;
  if (t.seq_list.empty()) {
    json.set("seq", t.seq);
  } else {
    json.set("seq_list", t.seq_list);
  }
  if (t.target_seq > 0) json.set("target_seq", t.target_seq);
  if (picture_tokens(model, t.image_size) > 0) json.set("images", t.images);
  if (!t.image_size.empty()) json.set("image_size", t.image_size);
  if (const ResolvedInput* lora = input_of(job, "lora")) json.set("lora", lora->value);
  if (const std::optional<Quantization> packing = packing_of(model)) add_packing(*packing, json);
  if (!t.freeze.empty()) json.set("freeze", t.freeze);
  json.set("attention", t.windows_in_kernel ? "flash_attention_2" : name(t.attention));
  json.set("loss", loss_text(t));
  json.set("loop", name(t.loop));
  if (t.use_cache) json.set("use_cache", true);
  if (t.labels_are_ids) json.set("labels_are_ids", true);
  if (t.cast_model) json.set("cast_model", true);
  if (t.input_require_grads) json.set("input_require_grads", true);
  if (t.layers_require_grads) json.set("layers_require_grads", true);
  add_checkpointing(t.checkpoint, model.dims.layers, json);
  if (t.activation_offloading != ActivationOffloading::None) {
    json.set("activation_offloading", name(t.activation_offloading));
  }
  json.set("model_init", name(t.model_init));
  if (t.level == Level::Dispatch) json.set("level", "dispatch");
  if (t.experts != ExpertsImplementation::GroupedMm) json.set("experts", name(t.experts));
  if (const ResolvedInput* routing = input_of(job, "routing")) json.set("routing", routing->value);
}

void add_machine(const Job& job, Json& json) {
  if (!job.allocator_conf.empty()) json.set("allocator_conf", job.allocator_conf);
  if (job.stream_frees != StreamFrees::AtSync) json.set("stream_frees", name(job.stream_frees));
  if (job.placement == PlacementKind::Planned) json.set("placement", "planned");
  const Training& t = job.training;
  json.set("torch_version", t.torch.text());
  json.set("transformers_version", t.transformers.text());
  if (t.runtime == Runtime::DeepSpeed) json.set("deepspeed_version", t.deepspeed.text());
  if (t.loss == Loss::Liger || t.liger_kernels.any()) json.set("liger_version", t.liger.text());
  if (t.liger_kernels.any()) json.set("liger_kernels", name(t.liger_kernels));
  if (t.lora_kernels.any()) json.set("lora_kernels", name(t.lora_kernels));
  if (job.capacity && (given(job, "capacity") || !job.hardware)) json.set("capacity", job.capacity->value());
  if (job.reserve != Bytes(0)) json.set("reserve", job.reserve.value());
  if (job.host_memory && (given(job, "host memory per node") || !job.cluster)) {
    json.set("host_memory", job.host_memory->value());
  }
  if (job.nvme_memory && (given(job, "NVMe memory per node") || !job.cluster)) {
    json.set("nvme_memory", job.nvme_memory->value());
  }
  if (job.rank != "worst") json.set("rank", job.rank);
}

}  // namespace

std::string checkpoint_words(const Checkpointing& c, std::int64_t layers) {
  if (!c.modules.empty() && !c.groups.empty()) return "nested";
  if (!c.modules.empty()) return formatted("modules:{}", joined(c.modules, "+"));
  if (c.groups.empty()) return "none";
  if (c.text.starts_with("segments:") || c.text.starts_with("nth:")) return c.text;
  const std::int64_t size = equal_runs(c.groups, layers);
  const std::vector<Op>& kept = c.groups.front().kept;
  if (size == 1 && !kept.empty()) return "keep:" + kept_words(c.groups.front());
  if (size == 1) return "full";
  if (size > 1 && kept.empty()) return formatted("every:{}", size);
  std::string text = "groups:";
  for (const CheckpointGroup& group : c.groups) {
    if (&group != &c.groups.front()) text += ",";
    text += group_words(group, c.groups.front().kind);
  }
  return text;
}

std::string training_json(const ModelSpec& model, const Job& job, const std::string& source) {
  const Training& t = job.training;
  const bool implied = t.outputs_to_fp32 && t.autocast == DType::Float16;  // By "mixed_precision".
  if (t.grad_scaler && !implied) throw Refusal(model.name, "torch.amp.GradScaler has no key in a training file yet");
  Json json = {{"dsplan", kFileVersion}, {"kind", "training"}, {"source", source}};
  if (t.runtime == Runtime::PyTorch) {
    add_pytorch(t, json);
    if (t.ddp != Ddp{}) add_ddp(t.ddp, json);
  } else if (is_fsdp(t.runtime)) {
    add_pytorch(t, json);
    add_fsdp(t, json);
  } else if (!optimizer_in_deepspeed_json(t)) {
    json.set("optimizer", optimizer_of(t.optimizer));
  }
  const Parallelism& p = job.parallelism;
  json.set("gpus", p.world);
  json.set("gpus_per_node", p.gpus_per_node);
  json.set("tp", p.tp);
  json.set("sp", p.sp);
  json.set("ep", p.ep);
  add_execution(model, job, json);
  add_machine(job, json);
  return json_text(json, 1) + "\n";
}

}  // namespace dsplan
