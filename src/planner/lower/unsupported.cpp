#include "planner/lower/unsupported.h"

#include <algorithm>

#include "core/format.h"
#include "model/graphs/graphs.h"
#include "model/lora.h"
#include "model/parts.h"
#include "model/quantized.h"
#include "model/traits.h"
#include "planner/fsdp/flat_facts.h"
#include "planner/fsdp/fsdp_facts.h"
#include "planner/lower/runtimes/named_parameters.h"
#include "planner/lower/runtimes/optimizer_step.h"
#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/zero3/zero3.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// Sums of gradients in another dtype than the model's, below ZeRO-3.
std::optional<std::string> accumulation_unsupported(const Training& training) {
  const Zero& zero = training.zero;
  if (zero.stage == 0 || zero.stage == 3 || training.grad_accum_dtype == training.dtype) return std::nullopt;
  if (uses_bf16_optimizer(training)) return std::nullopt;
  if (training.grad_accum_dtype != DType::Float32) return "gradient accumulation in less than fp32";
  if (training.deepspeed < Version{0, 19, 8}) {
    // ZeRO-2 kept 16 bits whatever was asked for. ZeRO-1 summed each rank's own gradients in fp32, and reduced casts
    // that it then let go of.
    if (zero.stage == 2) return std::nullopt;
    return "gradient accumulation in fp32 with ZeRO-1 before DeepSpeed 0.19.8";
  }
  if (!zero.contiguous_gradients) return "gradient accumulation in fp32 without contiguous_gradients";
  return std::nullopt;
}

std::optional<std::string> offload_unsupported(const Training& training) {
  if (training.zero.stage == 3) {
    // Since 0.19.4 Init(module=...) replaces nn.functional.linear too (#8189). PyTorch's own keeps a view of the weight
    // for backward, and with it what was gathered.
    if (!training.under_zero_init() && training.deepspeed < Version{0, 19, 4}) {
      return "a model built outside zero.Init before DeepSpeed 0.19.4";
    }
    return stage3_offload_unsupported(training);
  }
  if (training.zero.offload_optimizer.device == OffloadDevice::None) return std::nullopt;
  if (training.deepspeed < Version{0, 14, 4}) return "optimizer offload below ZeRO-3 before DeepSpeed 0.14.4";
  return std::nullopt;
}

// Packed weights beside what is not: gathered in flat buffers of their own. Nobody has measured more than that.
std::optional<std::string> packed_partitions_unsupported(const Zero& zero) {
  if (zero.quantized_weights) return "packed weights with zero_quantized_weights";
  if (zero.all_reduce_for_fetch) {
    return "packed weights with use_all_reduce_for_fetch_params, which DeepSpeed makes for one dtype alone";
  }
  if (zero.offload_param.device != OffloadDevice::None) return "packed weights with parameter offload";
  if (zero.hpz_partition_size > 1) return "packed weights with secondary shards (hpZ)";
  return std::nullopt;
}

// peft's adapters in fp32 beside weights that zero.Init has cast.
std::optional<std::string> mixed_unsupported(const ModelSpec& model, const Training& training) {
  if (training.zero.stage == 3 && packing_of(model)) return packed_partitions_unsupported(training.zero);
  if (training.zero.stage != 3 || training.casts_parameters()) return std::nullopt;
  bool mixed = false;
  bool trained = false;  // Beside them.
  for (const NamedParameter& p : named_parameters(model, training)) {
    mixed = mixed || p.dtype != training.dtype;
    trained = trained || (p.trainable && p.dtype == training.dtype);
  }
  if (!mixed) return std::nullopt;
  const Zero& zero = training.zero;
  if (trained) return "parameters in fp32 beside trained weights in 16 bits under ZeRO-3";
  if (zero.quantized_weights) return "adapters in fp32 with zero_quantized_weights";
  if (zero.all_reduce_for_fetch) return "adapters in fp32 with use_all_reduce_for_fetch_params";
  if (zero.offload_param.device != OffloadDevice::None) return "adapters in fp32 with parameter offload";
  return std::nullopt;
}

// ignored_params: plain tensors beside DTensors, which no operator of PyTorch takes together, and which nobody casts.
std::optional<std::string> ignored_unsupported(const ModelSpec& model, const Training& training) {
  if (training.fsdp.ignored.empty()) return std::nullopt;
  if (training.model_init == ModelInit::Rank0) {
    return "parameters that fully_shard ignores where rank 0 loads, at which accelerate stops";
  }
  if (training.model_init == ModelInit::Meta && training.fsdp.cpu_offload) {
    return "parameters that fully_shard ignores, made by to_empty on the host";
  }
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to == kNone || training.model_init != ModelInit::Meta) continue;
    const Parameter& first = model.parameter_at(parameter.tied_to);
    if (training.is_ignored(first)) return formatted("{}, which fully_shard ignores and to_empty unties", first.name);
  }
  for (const NamedParameter& p : named_parameters(model, training)) {
    const Parameter& parameter = model.parameter_at(p.id);
    if (!training.is_ignored(parameter)) continue;
    if (p.trainable) return formatted("{}, which is trained and which fully_shard ignores", parameter.name);
    const DType kept = training.made_dtype(parameter);
    if (kept != training.dtype && is_floating(kept)) {
      return formatted("{}, which fully_shard ignores, in {} among modules that compute in {}", parameter.name,
                       name(kept), name(training.dtype));
    }
  }
  return std::nullopt;
}

// param_dtype casts whatever floats, packed weights too; so does DeepSpeed's engine.
std::optional<std::string> packed_shards_unsupported(const ModelSpec& model, const Training& training) {
  const std::optional<Quantization> packing = packing_of(model);
  if (!packing) return std::nullopt;
  for (const Parameter& p : model.parameters) {
    const DType gathered = training.dtype_of(p);
    if (p.dtype != packing->storage || gathered == packing->storage || training.is_ignored(p)) continue;
    return formatted("packed weights kept in {} and used in {}, a cast of their bits", name(packing->storage),
                     name(gathered));
  }
  return std::nullopt;
}

// What a step does with DTensors.
std::optional<std::string> sharded_step_unsupported(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW:
    case OptimizerKind::Sgd:
    case OptimizerKind::Adagrad:
    case OptimizerKind::RmsProp: return std::nullopt;
    case OptimizerKind::Adafactor:
      return "Adafactor under fully_shard: its states are no DTensors, and PyTorch refuses to mix them";
    case OptimizerKind::Muon: return "Muon under fully_shard, not compared with PyTorch yet";
    case OptimizerKind::AoAdamW8bit:
    case OptimizerKind::AoAdamW4bit:
    case OptimizerKind::AoAdamWFp8: return "torchao's optimizers under fully_shard, not compared with PyTorch yet";
    default: return "bitsandbytes' optimizers under fully_shard: its kernels take no DTensors, and PyTorch stops there";
  }
}

// Factors that have groups of their own. peft casts what they are given to the dtype in which it sees them: in a
// recomputation that is another one, where they stayed gathered after forward.
std::optional<std::string> sharded_adapters_unsupported(const ModelSpec& model, const Training& training) {
  const std::optional<DType> shown = sharded_adapters(model, training);
  if (!shown) return std::nullopt;
  if (has_magnitudes(model)) return "DoRA whose factors have groups of fully_shard of their own";
  if (packing_of(model)) return "adapters of packed weights that have groups of fully_shard of their own";
  const Checkpointing& checkpoint = training.checkpoint;
  if (!checkpoint.modules.empty())
    return "adapters that have groups of fully_shard of their own among nested checkpoints";
  if (!checkpoint.groups.empty() && training.fsdp.reshard_after_forward != 1 && *shown != training.dtype) {
    return "a recomputation of adapters that fully_shard has left gathered, whose inputs it casts to another dtype "
           "than "
           "the forward did";
  }
  return std::nullopt;
}

// What is cut into which groups, and what is cast for them. FSDPState._pre_forward casts nothing in a recomputation.
std::optional<std::string> shards_unsupported(const ModelSpec& model, const Training& training) {
  const bool wide = model.parts != nullptr && model.parts->rotary.wide_tables;
  const auto& groups = training.checkpoint.groups;
  const bool recomputes = std::any_of(groups.begin(), groups.end(), [](const CheckpointGroup& group) {
    return group.kind == CheckpointKind::NonReentrant;
  });
  if (wide && recomputes && training.fsdp.casts_parameters && shards_decoder_layers(model, training.fsdp)) {
    return "non-reentrant checkpoints of layers that are given tables in fp32: fully_shard casts those in the forward "
           "alone, and PyTorch finds other values when it recomputes (inside of accelerate's wrappers it would not, "
           "which is not modelled)";
  }
  if (training.loss == Loss::Cut && training.dtype == DType::Float32) {
    return "cut cross-entropy over weights gathered in fp32, which its backward does not take";
  }
  if (training.lora_kernels.any() && !wraps_adapters(training.fsdp))  // Else they gather the factors by hand.
    return "axolotl's kernels over adapters in their layers' groups";
  if (const auto adapters = sharded_adapters_unsupported(model, training)) return adapters;
  return groups_unsupported(model, training);
}

std::optional<std::string> fsdp_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (const auto ignored = ignored_unsupported(model, training)) return ignored;
  if (training.torch < Version{2, 6, 0}) return "fully_shard before PyTorch 2.6";
  // _init_mp_dtypes: frozen parameters count until 2.8.
  const bool differ = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& p) {
    return !training.is_ignored(p) && training.made_dtype(p) != training.made_dtype(model.parameters.front());
  });
  if (differ && training.torch < Version{2, 8, 0}) {
    return "parameters of several dtypes, which fully_shard refuses before PyTorch 2.8";
  }
  if (job.parallelism.tp > 1) return "fully_shard under tensor parallelism";
  if (sharding_ranks(job) == 1) return "fully_shard over one rank";
  if (training.fsdp.replicate > 1 && training.fsdp.reshard_after_forward > 1) {
    return "fully_shard with replicas and shards among fewer ranks after forward";
  }
  const auto half = [](DType type) { return type == DType::Float16; };
  if (half(training.dtype) || half(training.master_dtype) || half(training.communication_dtype)) {
    return "fully_shard in fp16";
  }
  if (training.communication_dtype == DType::BFloat16 && training.dtype == DType::Float32) {
    return "reduction in bf16 of gradients in fp32";
  }
  if (training.autocast) return "autocast under fully_shard";
  if (!training.zero_grad_to_none) return "zero_grad(set_to_none=False) under fully_shard";
  if (const auto steps = sharded_step_unsupported(training.optimizer.kind)) return steps;
  if (const auto packed = packed_shards_unsupported(model, training)) return packed;
  for (const Parameter& p : model.parameters) {
    const DType gathered = training.dtype_of(p);
    if (half(gathered) || half(training.made_dtype(p))) return "fully_shard in fp16";
    if (gathered == DType::Float32 && training.communication_dtype == DType::BFloat16 && training.dtype != gathered &&
        training.fsdp.casts_parameters) {
      return "reduction in bf16 of gradients in fp32";
    }
  }
  return shards_unsupported(model, training);
}

// What comes out of others has no gradient, and PyTorch does not gather them in backward. The root's is there anyway.
bool has_trained_inside(const ModelSpec& model, const std::vector<FlatUnit>& units, ModuleId module) {
  return module == 0 || std::any_of(units.begin(), units.end(), [&](const FlatUnit& unit) {
           return unit.trains && model.lies_in(unit.module, module);
         });
}

// peft casts an adapter's input to the dtype of its weight as it is seen outside of its unit. A recomputation sees
// another than the forward where the unit is gathered by then.
std::optional<std::string> wrapped_adapters_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (!wraps_adapters(training.fsdp)) return std::nullopt;
  if (has_magnitudes(model)) return "DoRA whose parts FSDP1 wraps by themselves, which are used outside of their units";
  if (training.fsdp.forward_prefetch > 0) return "adapters that FSDP1 wraps by themselves and gathers ahead in forward";
  if (!training.checkpoint.modules.empty()) return "adapters that FSDP1 wraps by themselves among checkpointed modules";
  const auto shown = shown_adapters(model, job);
  const bool casts = shown && !(packing_of(model) && training.autocast);  // Under autocast packed layers cast nothing.
  if (!casts || training.checkpoint.groups.empty()) return std::nullopt;
  if (shown->first != shown->later) {
    return "a first recomputation of adapters that FSDP1 wraps by themselves, whose inputs it casts to another dtype "
           "than the forward did (use_orig_params=False)";
  }
  const bool differs = std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& parameter) {
    return parameter.trainable && training.dtype_of(parameter) != shown->later;
  });
  const bool ahead = training.fsdp.backward() != BackwardPrefetch::None || training.fsdp.reshard_after_forward != 1;
  if (differs && ahead) {
    return "a recomputation of adapters that FSDP1 wraps by themselves and has gathered by then, whose inputs it casts "
           "to another dtype than the forward did";
  }
  return std::nullopt;
}

// _validate_tensors_to_flatten; and what accelerate would cast beside what it does not.
std::optional<std::string> unit_unsupported(const ModelSpec& model, const Training& training, const FlatUnit& unit) {
  const Parameter& first = model.parameter_at(unit.pieces.front().id);
  for (const FlatPiece& piece : unit.pieces) {
    if (piece.id == kNone) continue;
    const Parameter& parameter = model.parameter_at(piece.id);
    if (training.made_dtype(parameter) != training.made_dtype(first)) {
      return formatted("{} and {} in {} and {}, which FSDP1 refuses to flatten together", first.name, parameter.name,
                       name(training.made_dtype(first)), name(training.made_dtype(parameter)));
    }
    if (piece.trained != unit.trains && !training.fsdp.use_orig_params) {
      return "frozen parameters beside trained ones without use_orig_params, which FSDP1 refuses to flatten together";
    }
  }
  if (unit.trains && training.autocast && unit.kept != DType::Float32) {
    return "adapters in 16 bits under accelerate's mixed precision of a model in fp32";
  }
  return std::nullopt;
}

// _use_sharded_grad_views of NO_SHARD gives a shared parameter the gradient that no_sync() has left, in whose dtype it
// is not: PyTorch stops in the second micro-batch's forward.
std::optional<std::string> accumulated_ties_unsupported(const ModelSpec& model, const Training& training) {
  const bool waits = training.grad_accum > 1 && !training.fsdp.sync_every && training.fsdp.use_orig_params;
  const bool mixes = training.dtype != training.master_dtype;
  if (!waits || !mixes) return std::nullopt;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to == kNone || !training.trains(parameter)) continue;
    return formatted(
        "{}, a shared parameter, accumulated under no_sync() by NO_SHARD with use_orig_params in another "
        "dtype, at which PyTorch stops",
        parameter.name);
  }
  return std::nullopt;
}

// A model, or parts of one, that FullyShardedDataParallel's hooks are not followed through yet.
// What reads the head's weight without calling the head finds it gathered in the root's unit alone.
bool root_has_head(const ModelSpec& model, const FlatUnit& root) {
  const ParameterId weight = model.parameter(model.child(model.causal, "lm_head"), "weight");
  const ParameterId tied = weight == kNone ? weight : model.parameter_at(weight).tied_to;
  return std::any_of(root.pieces.begin(), root.pieces.end(), [&](const FlatPiece& piece) {
    return piece.id != kNone && (piece.id == weight || piece.id == tied);
  });
}

std::optional<std::string> flattened_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (const auto packed = packed_shards_unsupported(model, training)) return packed;
  for (const FsdpGroup& group : fsdp_groups(model, training.fsdp)) {
    const auto calls = std::count_if(model.calls.begin(), model.calls.end(), [&](const ModuleCall& call) {
      return call.enter && call.module == group.modules.front();
    });
    if (calls > 1) return "a unit of FSDP1 that is called several times";
  }
  if (keeps_whole(job)) {
    if (const auto stops = accumulated_ties_unsupported(model, training)) return stops;
  }
  const std::vector<FlatUnit> units = flat_units(model, job);
  if (training.loss == Loss::Cut && !root_has_head(model, units.front())) {
    return "cut cross-entropy over a head with a unit of its own, which nobody gathers";
  }
  for (const FlatUnit& unit : units) {
    if (keeps_whole(job) && training.fsdp.cpu_offload && unit.gathered == unit.kept) {
      return "CPUOffload by NO_SHARD of parameters that are not cast, whose copies on the device saved tensors keep";
    }
    if (const auto one = unit_unsupported(model, training, unit)) return one;
    if (!unit.trains && !has_trained_inside(model, units, unit.module)) {
      return "units of FSDP1 in and below which nothing is trained";
    }
  }
  if (const auto adapters = wrapped_adapters_unsupported(model, job)) return adapters;
  return groups_unsupported(model, training);
}

// What FullyShardedDataParallel is not followed in yet.
std::optional<std::string> fsdp1_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  // From 2.6 to 2.11 torch/distributed/fsdp decides the same, but for _writeback_tensor.
  if (training.torch < Version{2, 6, 0}) return "FSDP1 before PyTorch 2.6, not compared with PyTorch yet";
  if (training.torch < Version{2, 9, 0} && keeps_whole(job) && training.fsdp.use_orig_params &&
      training.fsdp.widens_shards) {
    return "NO_SHARD with use_orig_params of a model that accelerate casts to fp32, at which PyTorch before 2.9 stops";
  }
  if (job.parallelism.tp > 1) return "FSDP1 under tensor parallelism";
  // found_inf has one dimension there, which the states' counters have not (optim/adam.py, _fused_adam).
  if (training.grad_scaler && training.gradient_clipping > 0 && fused_in_torch(training.optimizer)) {
    return "a fused optimizer and clipping with ShardedGradScaler, at which PyTorch stops (say adamw_torch)";
  }
  if (training.grad_scaler && training.fsdp.cpu_offload) return "ShardedGradScaler with CPUOffload under FSDP1";
  if (training.autocast && *training.autocast != training.dtype) {
    return "autocast over flat parameters in another dtype, of which it would keep no copies";
  }
  if (!training.zero_grad_to_none) return "zero_grad(set_to_none=False) under FSDP1";
  if (training.fsdp.cpu_offload && training.fsdp.sync_every && training.grad_accum > 1) {
    return "gradients summed on the host outside of no_sync(), which FSDP1 does not do right";
  }
  if (training.model_init != ModelInit::Host && training.model_init != ModelInit::Device) {
    return "FSDP1 of a model that is made on no device";
  }
  for (const CheckpointGroup& group : training.checkpoint.groups) {
    if (group.kind == CheckpointKind::DeepSpeed) return "DeepSpeed's checkpoints under FSDP1";
  }
  return flattened_unsupported(model, job);
}

// Where nothing is cast between a layer and its adapters, a gradient that comes back to the layer's result is added in
// place or not by rules that are worked out for fully_shard alone.
bool magnitudes_cast(const ModelSpec& model, const Training& training) {
  const DType layers = training.autocast.value_or(training.dtype);
  return std::all_of(model.modules.begin(), model.modules.end(), [&](const Module& module) {
    if (!module.path.ends_with(".lora_A.default") || packing_of(model)) return true;
    const auto id = static_cast<ModuleId>(&module - model.modules.data());
    return training.dtype_of(model.parameter_at(model.parameter(id, "weight"))) != layers;
  });
}

// Of which the runtimes know nothing yet: ZeRO-3's gathers go by the modules that are called.
std::optional<std::string> adapters_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  const bool gathers = training.runtime == Runtime::DeepSpeed && training.zero.stage == 3;
  if (has_wrapped_parameters(model)) {
    if (gathers) return "adapters on the parameters of experts or routers where ZeRO-3 gathers them";
    const bool shards = training.runtime == Runtime::Fsdp2 || training.runtime == Runtime::Fsdp1;
    if (shards) return "adapters on the parameters of experts or routers where fully_shard or FSDP1 shards them";
  }
  if (has_magnitudes(model) && gathers) return "DoRA where parameters are gathered by ZeRO-3";
  if (has_magnitudes(model) && training.runtime != Runtime::Fsdp2 && !magnitudes_cast(model, training)) {
    return "DoRA whose adapters have the dtype in which their layers compute";
  }
  return std::nullopt;
}

std::optional<std::string> deepspeed_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (const auto offload = offload_unsupported(training)) return offload;
  if (const auto mixed = mixed_unsupported(model, training)) return mixed;
  if (const auto packed = packed_shards_unsupported(model, training)) return packed;
  if (training.zero.stage == 0 && training.grad_accum_dtype != training.dtype) {
    return "bf16 without ZeRO before DeepSpeed 0.17.6 (BF16_Optimizer)";
  }
  // Before, the 16-bit gradients that had been added to the sums stayed until the step.
  if (training.immediate_grad_update && uses_bf16_optimizer(training) && training.deepspeed < Version{0, 19, 8}) {
    return "immediate gradient updates before DeepSpeed 0.19.8";
  }
  if (const auto other = accumulation_unsupported(training)) return other;
  const bool gathers_after_step = training.zero.stage == 1 || training.zero.stage == 2;
  if (gathers_after_step && job.parallelism.dp > 1 && training.deepspeed < Version{0, 12, 4}) {
    return "weights gathered in shards before DeepSpeed 0.12.4";
  }
  return std::nullopt;
}

std::optional<std::string> sharded_tower_unsupported(const ModelSpec& model, const Training& training) {
  if (training.runtime == Runtime::Fsdp1) return "a tower under FSDP1";
  if (model.family == "mllama") return "mllama under fully_shard, not compared with PyTorch yet";
  if (contrasts(model)) return formatted("{} under fully_shard, not compared with PyTorch yet", model.graph_class);
  if (model.parts->tower->projection == ProjectorKind::Connected) {
    return "idefics3's tower under fully_shard, not compared with PyTorch yet";
  }
  if (model.parts->tower->projection == ProjectorKind::Embedded) {
    return "gemma4's tower under fully_shard, whose patches have a group of their own: not compared with PyTorch yet";
  }
  const bool other = model.dims.experts > 0 || model.parts->has_mixers();
  if (model.parts->tower->merge == 0 || !other) return std::nullopt;
  return "a tower of pictures of all sizes beside experts or mixers under fully_shard, not compared with PyTorch yet";
}

// Without a reducer parameters that no loss reaches keep no gradient, and the optimizer makes no state for them.
// DeepSpeed's engine takes zeros in their place. DDP waits for their gradients (find_unused_parameters), and
// fully_shard was not compared.
bool skips_unreached(const Job& job) {
  const Runtime runtime = job.training.runtime;
  return runtime == Runtime::DeepSpeed || (runtime == Runtime::PyTorch && job.parallelism.dp == 1);
}

// dinov2's token of masked patches, which a classifier does not read; parameters that a recorded step did not read.
std::optional<std::string> unread_unsupported(const ModelSpec& model, const Job& job) {
  if (model.family != "dinov2" && model.family != "gemma3n_text" && !model.recording) return std::nullopt;
  const Training& training = job.training;
  const std::vector<std::string> unreached = unreached_parameters(model, trained_parameters(model, training), 0);
  if (!skips_unreached(job) && !unreached.empty()) {
    return formatted("a parameter that is trained and that no loss reaches: --freeze '{}'", unreached.front());
  }
  return std::nullopt;
}

// albert, whose groups of layers are called several times with the same weights: gathered each time, in an order that
// was not compared with PyTorch.
std::optional<std::string> shared_layers_unsupported(const ModelSpec& model, const Training& training) {
  if (model.family != "albert") return std::nullopt;
  if (is_fsdp(training.runtime)) {
    return "albert's shared layers under fully_shard and FSDP1, not compared with PyTorch yet";
  }
  return std::nullopt;
}

// PyTorch's fused kernels keep no log-sum-exp for a query that needs no gradient, though keys and values do, and its
// backward asks for it: pictures that are learned from below the first layer that looks at them.
std::optional<std::string> crossing_unsupported(const ModelSpec& model, const Training& training,
                                                const std::vector<bool>& trained) {
  const std::vector<bool>& crossing = model.parts->crossing;
  const auto first = std::find(crossing.begin(), crossing.end(), true);
  if (first == crossing.end() || training.attention == Attention::Eager) return std::nullopt;
  if (!training.checkpoint.groups.empty() || training.input_require_grads) return std::nullopt;
  const auto at = static_cast<std::int32_t>(first - crossing.begin());
  bool pictures = false;
  bool query = false;
  for (std::size_t id = 0; id < trained.size(); ++id) {
    if (!trained[id]) continue;
    const Parameter& parameter = model.parameters[id];
    const std::int32_t layer = model.module_at(parameter.module).layer;
    const auto has = [&](std::string_view part) { return parameter.name.find(part) != std::string::npos; };
    pictures |= has("vision_model.") || has("multi_modal_projector.");
    query |= has("embed_tokens.") || (layer != kNone && layer < at);
    query |= layer == at && (has(".q_proj.") || has(".q_norm.") || has(".input_layernorm."));
  }
  if (!pictures || query) return std::nullopt;
  return "pictures that are trained under text that is not, up to the first layer that looks at them: PyTorch's fused "
         "attention keeps nothing to go backward with there (--attention eager does)";
}

// A tower's parameters that get no gradient; and a class token of one picture, whose gradient is a part of another. Its
// places are gathered by modules that the runtimes have not been compared with.
std::optional<std::string> tower_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (model.parts == nullptr || model.parts->tower == nullptr) return std::nullopt;
  const std::vector<bool> trained = trained_parameters(model, training);
  const bool one = training.micro_batch == 1 && training.images <= 1;
  const bool apart = training.runtime != Runtime::PyTorch || training.zero_grad_to_none;
  for (std::size_t at = 0; one && !apart && at < trained.size(); ++at) {
    const std::string& name = model.parameters[at].name;
    if (trained[at] && (name.ends_with("class_embedding") || name.ends_with("cls_token"))) {
      return "one picture at a time, whose trained class token takes its gradient as a part of another";
    }
  }
  const std::vector<std::string> globs = unreached_parameters(model, trained, training.images);
  if (!globs.empty() && !skips_unreached(job)) {
    std::string options;
    for (const std::string& glob : globs) options += formatted(" --freeze '{}'", glob);
    return formatted("parts of a tower that are trained and that no loss reaches:{}", options);
  }
  for (const Module& module : model.modules) {
    if (module.path.ends_with(formatted("{}.linear_1.lora_A", model.parts->tower->projector))) {
      return "adapters of a projector's first layer";
    }
  }
  if (const auto crossing = crossing_unsupported(model, training, trained)) return crossing;
  return is_fsdp(training.runtime) ? sharded_tower_unsupported(model, training) : std::nullopt;
}

// Beside a value head nothing leads from the model's own head to the loss. Engines and shards were not compared.
std::optional<std::string> value_head_unsupported(const ModelSpec& model, const Training& training) {
  if (training.loss != Loss::RewardValues) return std::nullopt;
  if (training.runtime != Runtime::PyTorch) return formatted("a value head under {}", name(training.runtime));
  for (const NamedParameter& p : named_parameters(model, training)) {
    const Parameter& parameter = model.parameter_at(p.id);
    if (!p.trainable || parameter.tied_to != kNone || !parameter.name.ends_with("lm_head.weight")) continue;
    return formatted("{}, which is trained and which no loss reaches: --freeze it", parameter.name);
  }
  return std::nullopt;
}

std::optional<std::string> nested_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (training.checkpoint.groups.empty() || training.checkpoint.modules.empty()) return std::nullopt;
  const auto frozen = [](const NamedParameter& one) { return !one.trainable; };
  const std::vector<NamedParameter> named = named_parameters(model, training);
  std::string_view beside;
  if (training.runtime == Runtime::DeepSpeed || training.runtime == Runtime::Fsdp1) beside = name(training.runtime);
  if (job.parallelism.tp > 1) beside = "tensor parallelism";
  if (training.use_cache) beside = "kept keys and values";
  if (packing_of(model) || std::any_of(named.begin(), named.end(), frozen)) beside = "frozen parameters";
  if (beside.empty()) return std::nullopt;
  return formatted("checkpoints within those of layers beside {}", beside);
}

// Checkpoints of all single layers, whose inputs alone are saved. Heads that were saved themselves come back in
// another order, and so do their gradients, which are then copied.
bool saves_inputs_alone(const Checkpointing& checkpoint, const ModelSpec& model) {
  const auto plain = [](const CheckpointGroup& one) {
    return one.kind == CheckpointKind::NonReentrant && one.first == one.last && one.kept.empty();
  };
  return checkpoint.modules.empty() && checkpoint.groups.size() == static_cast<std::size_t>(model.dims.layers) &&
         std::all_of(checkpoint.groups.begin(), checkpoint.groups.end(), plain);
}

// Where it is imported the class empties the cache before each step.
bool imports_bitsandbytes(const ModelSpec& model, OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Lion:
    case OptimizerKind::Adam8bit:
    case OptimizerKind::AdamW32bit:
    case OptimizerKind::Lion8bit:
    case OptimizerKind::AdEmaMix:
    case OptimizerKind::AdEmaMix8bit: return true;
    default: return packing_of(model).has_value();
  }
}

// What OffloadActivations was compared with. It notes where parameters lie before an engine moves them, and what has
// moved is sent to the host with all else.
std::optional<std::string> activation_offloading_unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (training.activation_offloading == ActivationOffloading::None) return std::nullopt;
  std::string beside;
  const bool decoder = model.parts != nullptr && model.parts->tower == nullptr;
  if (!decoder && model.family != "gpt2") beside = formatted("a model of family {}", model.family);
  if (model.dims.experts > 0) beside = "a mixture of experts";
  if (training.model_code != ModelCode::Transformers) beside = "torchtitan's code";
  if (training.runtime != Runtime::PyTorch) beside = name(training.runtime);
  if (job.parallelism.tp > 1 || job.parallelism.sp > 1) beside = "tensor or sequence parallelism";
  if (!saves_inputs_alone(training.checkpoint, model)) {
    beside = formatted("--checkpoint {} of the form {}", training.checkpoint.text, name(training.checkpoint.kind));
  }
  if (training.loss != Loss::HuggingFace && training.loss != Loss::Trl)
    beside = formatted("the loss {}", loss_text(training));
  if (imports_bitsandbytes(model, training.optimizer.kind)) beside = "bitsandbytes";
  if (training.liger_kernels.any() || training.lora_kernels.any()) beside = "kernels in place of the model's own";
  if (training.use_cache) beside = "kept keys and values";
  if (!training.seq_list.empty()) beside = "batches of several lengths";
  if (beside.empty()) return std::nullopt;
  return formatted("activation offloading beside {}, not compared with TRL's yet", beside);
}

}  // namespace

std::optional<std::string> unsupported(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (const auto graph = graph_unsupported(model, training, job.parallelism.tp)) return graph;
  if (const auto unread = unread_unsupported(model, job)) return unread;
  if (const auto layers = shared_layers_unsupported(model, training)) return layers;
  if (const auto tower = tower_unsupported(model, job)) return tower;
  if (const auto adapters = adapters_unsupported(model, job)) return adapters;
  if (const auto head = value_head_unsupported(model, training)) return head;
  if (const auto nested = nested_unsupported(model, job)) return nested;
  if (const auto offloading = activation_offloading_unsupported(model, job)) return offloading;
  if (model.causal != 0 && !training.checkpoint.groups.empty() && training.transformers < Version{5, 0, 0}) {
    return "checkpointed adapters under transformers 4";
  }
  if (job.parallelism.tp > 1 && training.zero.hpz_partition_size > 1) {
    return "zero_hpz_partition_size under tensor parallelism";
  }
  if (job.parallelism.sp > 1) return "sequence parallelism";
  if (job.parallelism.ep > 1) return "expert parallelism";
  if (training.runtime == Runtime::Fsdp2) return fsdp_unsupported(model, job);
  if (training.runtime == Runtime::Fsdp1) return fsdp1_unsupported(model, job);
  if (training.runtime == Runtime::DeepSpeed) return deepspeed_unsupported(model, job);
  const bool accumulates = job.parallelism.dp > 1 && training.grad_accum > 1;
  if (model.code == ModelCode::Torchtitan && training.runtime == Runtime::PyTorch && accumulates) {
    return "accumulation under torchtitan's DDP, which reduces each micro-batch";
  }
  return std::nullopt;
}

}  // namespace dsplan
