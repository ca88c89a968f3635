#include "report/export/write_sharding.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/format.h"
#include "model/quantized.h"
#include "report/export/write_training.h"

namespace dsplan {
namespace {

// What a format cannot say of a job, gathered, so that one run tells all.
class Unsayable {
 public:
  explicit Unsayable(const ModelSpec& model) : model_(model) {}
  void when(bool wrong, std::string message, std::string hint = {}) {
    if (wrong) faults_.add({model_.name, 0, 0, {}, std::move(message), std::move(hint)});
  }
  void throw_if_any() { faults_.throw_if_any(); }

 private:
  const ModelSpec& model_;
  Diagnostics faults_;
};

void refuse_without_shards(const ModelSpec& model, const Job& job, std::string_view format) {
  if (job.training.runtime == Runtime::Fsdp2) return;
  throw Refusal(model.name, formatted("no fully_shard, which {} is for", format), "--runtime fsdp2");
}

std::string_view truth_word(bool truth) { return truth ? "true" : "false"; }

// What accelerate wraps behind layers or classes; of a model on the host it has variables.
std::string_view accelerate_ends(const Training& t) {
  return t.model_init == ModelInit::Host ? std::string_view("+ends+held") : std::string_view("+ends");
}

// The classes before those, with commas; nothing where it is layers. Absent: not as accelerate wraps.
std::optional<std::string> accelerate_classes(const Training& t) {
  const std::string_view ends = accelerate_ends(t);
  if (!t.fsdp.wrap.ends_with(ends)) return std::nullopt;
  std::string wrap = t.fsdp.wrap.substr(0, t.fsdp.wrap.size() - ends.size());
  if (wrap == "layers") return "";
  std::replace(wrap.begin(), wrap.end(), '+', ',');
  const std::string listed = "," + wrap + ",";
  for (const std::string_view word : {",layers,", ",ends,"}) {
    if (listed.find(word) != std::string::npos) return std::nullopt;
  }
  return wrap;
}

// Its three dtypes are one, over parameters in fp32; or there is no policy.
std::optional<std::string_view> accelerate_precision(const Training& t) {
  const bool one = t.communication_dtype == t.dtype;
  if (!t.fsdp.casts_parameters)
    return one && !t.fsdp.casts_outputs ? std::optional<std::string_view>("no") : std::nullopt;
  const bool outputs = t.fsdp.casts_outputs && t.dtype != DType::Float32;
  if (one && outputs && t.master_dtype == DType::Float32) return name(t.dtype);
  return std::nullopt;
}

// As fsdp2_apply_ac makes them: each layer, without the states of random numbers.
bool checkpoints_as_accelerate(const ModelSpec& model, const Checkpointing& c) {
  const bool all = !c.groups.empty() && c.modules.empty() && checkpoint_words(c, model.dims.layers) == "full";
  return all && c.groups.front().kind == CheckpointKind::NonReentrant && !c.groups.front().preserve_rng_state;
}

void refuse_what_accelerate_lacks(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  Unsayable refuse(model);
  refuse.when(!accelerate_classes(t),
              formatted("fsdp.wrap {}: accelerate gives embeddings, and norm with head, groups behind those of layers",
                        t.fsdp.wrap),
              formatted("--set fsdp.wrap=layers{}", accelerate_ends(t)));
  refuse.when(t.fsdp.reshard_after_forward > 1,
              formatted("fsdp.reshard_after_forward {}: accelerate takes true or false", t.fsdp.reshard_after_forward));
  refuse.when(t.fsdp.forward_prefetch > 0 || t.fsdp.backward_prefetch > 0,
              "fsdp.forward_prefetch or backward_prefetch, for which accelerate has no key");
  refuse.when(!t.fsdp.ignored.empty(), "fsdp.ignored: accelerate's fsdp_ignored_modules are names of modules");
  refuse.when(t.fsdp.reshard_root, "fsdp.reshard_root: accelerate leaves the model's own group to PyTorch");
  refuse.when(!t.fsdp.reshard_last, "fsdp.reshard_last false: accelerate treats layers alike");
  refuse.when(t.fsdp.reshard_tail, "fsdp.reshard_tail: accelerate keeps norm and head after forward");
  refuse.when(t.fsdp.sync_every && t.grad_accum > 1,
              "fsdp.gradient_sync every: accelerate reduces gradients in the last micro-batch alone");
  refuse.when(!accelerate_precision(t),
              "dtypes that are no mixed_precision of accelerate: one for parameters, sums and outputs, over fp32",
              "--dtype fp32 --set fsdp.param_dtype=bf16 --set fsdp.reduce_dtype=bf16 --set fsdp.output_dtype=bf16");
  refuse.when(t.model_init != ModelInit::Rank0 && t.model_init != ModelInit::Host,
              formatted("model_init {}: accelerate is given a model on the host", name(t.model_init)),
              "--set model_init=rank0 (fsdp_cpu_ram_efficient_loading), or host");
  refuse.throw_if_any();
}

}  // namespace

std::string accelerate_yaml(const ModelSpec& model, const Job& job) {
  refuse_without_shards(model, job, "accelerate's fsdp_config");
  refuse_what_accelerate_lacks(model, job);
  const Training& t = job.training;
  const std::string classes = *accelerate_classes(t);
  const bool root = classes == "root";
  const std::string_view precision = *accelerate_precision(t);
  std::string text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n";
  append_formatted(text, "  fsdp_version: 2\n  fsdp_auto_wrap_policy: {}\n",
                   root ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP");
  if (!root && !classes.empty()) append_formatted(text, "  fsdp_transformer_layer_cls_to_wrap: {}\n", classes);
  append_formatted(text, "  fsdp_activation_checkpointing: {}\n",
                   truth_word(checkpoints_as_accelerate(model, t.checkpoint)));
  append_formatted(text, "  fsdp_cpu_ram_efficient_loading: {}\n", truth_word(t.model_init == ModelInit::Rank0));
  append_formatted(text, "  fsdp_offload_params: {}\n", truth_word(t.fsdp.cpu_offload));
  append_formatted(text, "  fsdp_reshard_after_forward: {}\n", truth_word(t.fsdp.reshard_after_forward == 1));
  text += "  fsdp_state_dict_type: SHARDED_STATE_DICT\nmachine_rank: 0\nmain_training_function: main\n";
  append_formatted(text, "mixed_precision: {}\n", precision == "no" ? "'no'" : precision);
  append_formatted(text, "num_machines: {}\nnum_processes: {}\n", job.parallelism.nodes, job.parallelism.world);
  if (t.fsdp.replicate > 1) {
    append_formatted(text,
                     "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n"
                     "  parallelism_config_dp_shard_size: {}\n",
                     t.fsdp.replicate, job.parallelism.dp / t.fsdp.replicate);
  }
  return text + "rdzv_backend: static\nsame_network: true\nuse_cpu: false\n";
}

namespace {

struct TitanModel {
  std::string_view name;
  std::string_view flavor;
};

// io/dialects/model_name.cpp has them the other way round.
std::optional<TitanModel> titan_model(std::string_view model) {
  struct Known {
    std::string_view model;
    TitanModel titan;
  };
  constexpr Known kKnown[] = {
      {"llama-3.1-8b", {"llama3", "8B"}},
      {"llama-3.1-70b", {"llama3", "70B"}},
      {"llama-3.1-405b", {"llama3", "405B"}},
      {"qwen3-0.6b", {"qwen3", "0.6B"}},
      {"qwen3-1.7b", {"qwen3", "1.7B"}},
      {"qwen3-4b", {"qwen3", "4B"}},
      {"torchtitan-debugmodel", {"llama3", "debugmodel"}},
      {"qwen3-8b", {"qwen3", "8B"}},
      {"qwen3-14b", {"qwen3", "14B"}},
      {"qwen3-32b", {"qwen3", "32B"}},
  };
  for (const Known& known : kKnown) {
    if (known.model == model) return known.titan;
  }
  return std::nullopt;
}

// The n of "each n-th layer", the first being the n-th; 0 where the checkpoints are others.
std::int64_t every_nth(const Checkpointing& c, std::int64_t layers) {
  if (c.groups.empty() || !c.modules.empty()) return 0;
  const std::int64_t step = c.groups.front().first + 1;
  std::int64_t next = step - 1;
  for (const CheckpointGroup& group : c.groups) {
    const bool plain = group.kind == CheckpointKind::NonReentrant && group.kept.empty();
    if (!plain || group.first != next || group.last != next) return 0;
    next += step;
  }
  return next >= layers ? step : 0;
}

void refuse_what_torchtitan_lacks(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  Unsayable refuse(model);
  refuse.when(!titan_model(model.name), formatted("torchtitan has no flavor of {}", model.name),
              "it has llama-3.1-8b, -70b and -405b, and qwen3-0.6b to -32b");
  refuse.when(
      t.fsdp.wrap != "ends",
      formatted("fsdp.wrap {}: torchtitan gives embeddings, and norm with head, groups before layers", t.fsdp.wrap),
      "--set fsdp.wrap=ends");
  refuse.when(t.fsdp.reshard_after_forward > 1 || t.fsdp.reshard_root,
              "resharding to fewer ranks, or of the model's own group, which torchtitan has no key for");
  refuse.when(!t.fsdp.reshard_last, "a last layer that stays whole after forward, as torchtitan left it before 0.2");
  refuse.when(t.fsdp.reshard_tail && t.fsdp.reshard_after_forward == 0,
              "norm and head that reshard after forward where the others do not, which torchtitan has no key for");
  refuse.when(t.fsdp.forward_prefetch > 0 || t.fsdp.backward_prefetch > 0 || !t.fsdp.ignored.empty(),
              "explicit prefetches or parameters that are left out, for which torchtitan has no key");
  refuse.when(!t.fsdp.sync_every, "fsdp.gradient_sync last: torchtitan reduces gradients in each micro-batch",
              "--set fsdp.gradient_sync=every");
  refuse.when(!t.fsdp.casts_parameters || t.fsdp.casts_outputs || t.communication_dtype != DType::Float32,
              "dtypes that are not torchtitan's: param_dtype given, sums in fp32, outputs as they are",
              "--set fsdp.param_dtype=bf16 --set fsdp.reduce_dtype=fp32");
  const bool adam = t.optimizer.kind == OptimizerKind::Adam || t.optimizer.kind == OptimizerKind::AdamW;
  refuse.when(!adam, formatted("{}: torchtitan makes Adam or AdamW", name(t.optimizer.kind)));
  refuse.when(t.model_code != ModelCode::Torchtitan, "transformers' model code, which torchtitan does not run",
              "--model-code torchtitan");
  refuse.when(t.loop != LoopKind::Torchtitan, formatted("loop {}, which is not torchtitan's", name(t.loop)),
              "--loop torchtitan");
  refuse.when(t.gradient_clipping <= 0, "no gradient clipping: torchtitan always clips, to max_norm",
              "\"max_grad_norm\": 1 in a training file");
  refuse.when(t.model_init != ModelInit::Meta,
              formatted("model_init {}: torchtitan makes models on meta", name(t.model_init)), "--set model_init=meta");
  refuse.when(t.param_groups != ParamGroups::Single, "param_groups decay: torchtitan has one group");
  refuse.when(!t.freeze.empty() || packing_of(model).has_value(), "frozen or packed weights");
  refuse.when(!t.seq_list.empty(), "a list of lengths: torchtitan's rows are alike");
  const bool checkpoints = !t.checkpoint.groups.empty() || !t.checkpoint.modules.empty();
  refuse.when(checkpoints && every_nth(t.checkpoint, model.dims.layers) == 0,
              "checkpoints other than each n-th layer's in the non-reentrant form");
  refuse.throw_if_any();
}

// TOML tells 1.0 from 1, and torchtitan wants the first.
std::string real_number(double value) {
  std::string text = formatted("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

void add_titan_checkpoints(const ModelSpec& model, const Checkpointing& c, std::string& text) {
  const std::int64_t step = every_nth(c, model.dims.layers);
  text += "\n[activation_checkpoint]\n";
  append_formatted(text, "mode = \"{}\"\n", step == 0 ? "none" : step == 1 ? "full" : "selective");
  if (step > 1) append_formatted(text, "selective_ac_option = \"{}\"\n", step);
  if (step > 0) append_formatted(text, "preserve_rng_state = {}\n", truth_word(c.groups.front().preserve_rng_state));
}

}  // namespace

std::string torchtitan_toml(const ModelSpec& model, const Job& job) {
  refuse_without_shards(model, job, "torchtitan");
  refuse_what_torchtitan_lacks(model, job);
  const Training& t = job.training;
  const Parallelism& p = job.parallelism;
  const auto long_name = [](DType dtype) { return dtype == DType::Float32 ? "float32" : "bfloat16"; };
  const TitanModel titan = *titan_model(model.name);
  std::string text = formatted("[model]\nname = \"{}\"\nflavor = \"{}\"\n", titan.name, titan.flavor);
  append_formatted(text, "\n[optimizer]\nname = \"{}\"\nimplementation = \"{}\"\nweight_decay = {}\n",
                   t.optimizer.kind == OptimizerKind::Adam ? "Adam" : "AdamW", name(t.optimizer.implementation),
                   real_number(t.optimizer.weight_decay));
  append_formatted(text, "\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\nmax_norm = {}\n",
                   t.micro_batch, t.micro_batch * t.grad_accum * p.dp, t.seq, real_number(t.gradient_clipping));
  append_formatted(text, "dtype = \"{}\"\nmixed_precision_param = \"{}\"\nmixed_precision_reduce = \"float32\"\n",
                   long_name(t.master_dtype), long_name(t.dtype));
  if (t.fsdp.cpu_offload) text += "enable_cpu_offload = true\n";
  append_formatted(text, "\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n",
                   t.fsdp.replicate, p.dp / t.fsdp.replicate);
  append_formatted(text, "fsdp_reshard_after_forward = \"{}\"\n",
                   t.fsdp.reshard_tail                 ? "always"
                   : t.fsdp.reshard_after_forward == 1 ? "default"
                                                       : "never");
  add_titan_checkpoints(model, t.checkpoint, text);
  return text;
}

}  // namespace dsplan
