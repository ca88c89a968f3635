// zero_optimization with defaults filled in (deepspeed-zero.md, sections 1, 4, 6, 7 and 12).
#include <algorithm>

#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {
namespace {

// Sizes that Hugging Face fills in from the model's width (transformers, integrations/deepspeed.py,
// trainer_config_finalize; the latter two only for stage 3).
struct AutoRule {
  std::string_view key;
  const Setting<std::int64_t>& setting;
  Elements& size;          // Holds DeepSpeed's default.
  std::int64_t of_hidden;  // What Hugging Face fills in.
  bool stage3_only;
  std::string_view rule;  // "h * h"
};

DType buffer_dtype(const Training& training) {
  return training.zero.stage == 3 ? training.communication_dtype : training.dtype;
}

// Bytes of the parameters that stage 3 keeps whole with this threshold (section 6.3), aligned size.
Bytes persistent_bytes(const Resolver& resolver, Elements threshold) {
  const std::int64_t dp = resolver.job.parallelism.dp;
  Elements kept;
  for (const Parameter& parameter : resolver.model.parameters) {
    if (parameter.tied_to != kNone) continue;
    const Elements size = parameter.shape.elements();
    if (size <= threshold) kept += round_up(size, dp);
  }
  return storage(kept, resolver.job.training.dtype);
}

// How many bytes more DeepSpeed's own default takes than Hugging Face's value: the bucket itself, the batch in
// flight, or the parameters kept whole.
Bytes difference(const Resolver& resolver, const AutoRule& rule, Elements fallback) {
  const Training& training = resolver.job.training;
  const Elements wished(rule.of_hidden);
  if (rule.key == "stage3_param_persistence_threshold") {
    return persistent_bytes(resolver, fallback) - persistent_bytes(resolver, wished);
  }
  const bool bucket = rule.key == "reduce_bucket_size";
  const std::int64_t copies = bucket && training.zero.stage < 3 && training.zero.overlap_comm ? 2 : 1;
  const DType dtype = bucket ? buffer_dtype(training) : training.dtype;
  return storage(fallback - wished, dtype) * copies;
}

void fill_automatic(Resolver& resolver, const AutoRule& rule) {
  if (!rule.setting.is_auto || !resolver.applies(rule.stage3_only ? When::Stage3 : When::Always)) return;
  const Place& place = rule.setting.place;
  const Elements fallback = rule.size;
  const bool filled = resolver.request.hugging_face_rules();
  if (resolver.model.dims.hidden == 0) {
    if (filled) {
      resolver.fault(
          place,
          formatted("\"{}\" is \"auto\", but {} has no hidden size to derive it from", rule.key, resolver.model.name),
          "transformers raises here; write a number");
    }
    return;
  }
  if (filled) {
    rule.size = Elements(rule.of_hidden);
    return resolver.derived(std::string(rule.key), grouped(rule.of_hidden) + " elements",
                            formatted("\"auto\" is {} in transformers", rule.rule), std::string(rule.key));
  }
  resolver.derived(std::string(rule.key), grouped(fallback.value()) + " elements",
                   "DeepSpeed drops \"auto\" and takes its default", std::string(rule.key));
  if (!resolver.applies(When::Zero)) return;
  resolver.job.notices.push_back(
      {Notice::Kind::Announcement, place,
       formatted("\"{}\" is \"auto\" and nobody fills it in: DeepSpeed takes {} elements, not the {} "
                 "({}) that transformers would",
                 rule.key, grouped(fallback.value()), grouped(rule.of_hidden), rule.rule),
       difference(resolver, rule, fallback), "auto_fallback", "zero_optimization." + std::string(rule.key)});
}

void fill_sizes(Resolver& resolver, const ZeroInput& in) {
  Zero& zero = resolver.training().zero;
  const auto take = [](Elements& size, const Setting<std::int64_t>& setting) {
    if (setting.given()) size = Elements(*setting);
  };
  take(zero.reduce_bucket_size, in.reduce_bucket_size);
  take(zero.sub_group_size, in.sub_group_size);
  take(zero.prefetch_bucket_size, in.prefetch_bucket_size);
  take(zero.param_persistence_threshold, in.param_persistence_threshold);
  take(zero.model_persistence_threshold, in.model_persistence_threshold);
  take(zero.max_live_parameters, in.max_live_parameters);
  take(zero.max_reuse_distance, in.max_reuse_distance);
  const std::int64_t hidden = resolver.model.dims.hidden;
  const std::int64_t square = checked_mul(hidden, hidden);
  // Python computes 0.9 * h * h in double precision and truncates.
  const auto most_of_square =
      static_cast<std::int64_t>(0.9 * static_cast<double>(hidden) * static_cast<double>(hidden));
  fill_automatic(resolver,
                 {"reduce_bucket_size", in.reduce_bucket_size, zero.reduce_bucket_size, square, false, "hidden^2"});
  fill_automatic(resolver, {"stage3_prefetch_bucket_size", in.prefetch_bucket_size, zero.prefetch_bucket_size,
                            most_of_square, true, "0.9 hidden^2"});
  fill_automatic(resolver, {"stage3_param_persistence_threshold", in.param_persistence_threshold,
                            zero.param_persistence_threshold, checked_mul(10, hidden), true, "10 hidden"});
}

// Bucket sizes count elements; third-party guides call them bytes. A whole number of MiB is how bytes are written,
// unless it is the square of the width, as transformers fills it in.
void announce_unit(Resolver& resolver, const Setting<std::int64_t>& size, std::string_view key, bool stage3_only) {
  constexpr std::int64_t kMebi = 1 << 20;
  if (!size.given() || *size < kMebi || *size % kMebi != 0) return;
  if (!resolver.applies(stage3_only ? When::Stage3 : When::Zero)) return;
  const std::int64_t hidden = resolver.model.dims.hidden;
  if (*size == checked_mul(hidden, hidden)) return;
  const Training& training = resolver.job.training;
  const bool bucket = key == "reduce_bucket_size";
  const DType dtype = bucket ? buffer_dtype(training) : training.dtype;
  const Bytes taken = storage(Elements(*size), dtype);
  const std::int64_t copies = bucket && training.zero.stage < 3 && training.zero.overlap_comm ? 2 : 1;
  resolver.job.notices.push_back(
      {Notice::Kind::Warning, size.place,
       formatted("\"{}\" counts elements, not bytes: {} of them take {}; for {} write {}", key, grouped(*size),
                 human(taken), human(Bytes(*size)), grouped(*size / (taken.value() / *size))),
       (taken - Bytes(*size)) * copies, "wrong_unit", "zero_optimization." + std::string(key)});
}

void announce_misread(Resolver& resolver, const DeepSpeedInput& ds) {
  announce_unit(resolver, ds.zero.reduce_bucket_size, "reduce_bucket_size", false);
  announce_unit(resolver, ds.zero.prefetch_bucket_size, "stage3_prefetch_bucket_size", true);
  const Training& training = resolver.job.training;
  const bool chosen = training.zero.max_live_parameters != Zero{}.max_live_parameters;
  if (ds.zero.max_live_parameters.given() && chosen && training.zero.stage == 3) {
    resolver.job.notices.push_back(
        {Notice::Kind::Announcement,
         ds.zero.max_live_parameters.place,
         "\"stage3_max_live_parameters\" holds prefetching back and is no cap: what a module "
         "needs is gathered whatever is live",
         {},
         "no_cap",
         "zero_optimization.stage3_max_live_parameters"});
  }
}

// The rest of the block has no rule in transformers: "auto" ends as DeepSpeed's default there as well.
void announce_dropped(Resolver& resolver, const ZeroInput& in) {
  const auto announce = [&resolver](const auto& setting, std::string_view key) {
    if (!setting.is_auto) return;
    resolver.announce(setting.place, formatted("\"{}\" is \"auto\": DeepSpeed drops it and takes its default", key));
  };
  announce(in.stage, "stage");
  announce(in.contiguous_gradients, "contiguous_gradients");
  announce(in.reduce_scatter, "reduce_scatter");
  announce(in.use_multi_rank_bucket_allreduce, "use_multi_rank_bucket_allreduce");
  announce(in.overlap_comm, "overlap_comm");
  announce(in.round_robin_gradients, "round_robin_gradients");
  announce(in.sub_group_size, "sub_group_size");
  announce(in.model_persistence_threshold, "stage3_model_persistence_threshold");
  announce(in.max_live_parameters, "stage3_max_live_parameters");
  announce(in.max_reuse_distance, "stage3_max_reuse_distance");
  announce(in.gather_16bit_weights_on_model_save, "stage3_gather_16bit_weights_on_model_save");
  announce(in.all_reduce_for_fetch, "stage3_use_all_reduce_for_fetch_params");
  announce(in.allgather_sequential, "stage3_allgather_sequential");
  announce(in.hpz_partition_size, "zero_hpz_partition_size");
  announce(in.quantized_weights, "zero_quantized_weights");
  announce(in.module_granularity_threshold, "stage3_module_granularity_threshold");
}

// DEFAULT_LEAF_MODULE_CLASSES (deepspeed/runtime/zero/leaf_module_config.py).
constexpr const char* kLeafClasses[] = {"transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
                                        "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
                                        "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"};

void resolve_fetching(Resolver& resolver, const ZeroInput& in) {
  Zero& zero = resolver.training().zero;
  zero.all_reduce_for_fetch = in.all_reduce_for_fetch.value_or(false);
  zero.allgather_sequential = in.allgather_sequential.value_or(false);
  zero.quantized_weights = in.quantized_weights.value_or(false);
  zero.module_granularity_threshold = Elements(in.module_granularity_threshold.value_or(0));
  if (in.leaf_classes.given()) zero.leaf_classes = *in.leaf_classes;
  zero.leaf_names = in.leaf_names.value_or({});
  zero.leaf_suffixes = in.leaf_suffixes.value_or({});
  // min(size, world), which must divide the world (utils/groups.py, _create_zero_param_parallel_group).
  const std::int64_t ranks = resolver.job.parallelism.dp;
  zero.hpz_partition_size = std::clamp<std::int64_t>(in.hpz_partition_size.value_or(1), 1, ranks);
  if (zero.stage == 3 && ranks % zero.hpz_partition_size != 0) {
    resolver.fault(in.hpz_partition_size.place,
                   formatted("\"zero_hpz_partition_size\" {} does not divide {} ranks", zero.hpz_partition_size, ranks),
                   "DeepSpeed asserts that it does");
  }
}

// Of offload_param, where offload_optimizer has 4 (runtime/zero/offload_config.py).
constexpr std::int64_t kParamBuffers = 5;

// pin_memory is true by default since 0.19.5 (section 1).
Offload offload_of(const Resolver& resolver, const OffloadInput& in, std::int64_t buffers) {
  Offload offload;
  offload.device = in.device.value_or(OffloadDevice::None);
  offload.pin_memory = in.pin_memory.value_or(resolver.job.training.deepspeed >= Version{0, 19, 5});
  offload.nvme_path = in.nvme_path.value_or("");
  offload.buffer_count = in.buffer_count.value_or(buffers);
  offload.buffer_size = Elements(in.buffer_size.value_or(offload.buffer_size.value()));
  offload.max_in_cpu = Elements(in.max_in_cpu.value_or(offload.max_in_cpu.value()));
  offload.pipeline_read = in.pipeline_read.value_or(false);
  offload.pipeline_write = in.pipeline_write.value_or(false);
  return offload;
}

void resolve_offload(Resolver& resolver, const ZeroInput& in) {
  Zero& zero = resolver.training().zero;
  zero.offload_param = offload_of(resolver, in.offload_param, kParamBuffers);
  zero.offload_optimizer = offload_of(resolver, in.offload_optimizer, 4);
  const Place& param = in.offload_param.device.place;
  const Place& optimizer = in.offload_optimizer.device.place;
  if (zero.offload_param.device != OffloadDevice::None && zero.stage != 3) {
    resolver.fault(param, formatted("offload_param with ZeRO stage {}", zero.stage),
                   "DeepSpeed offloads parameters with stage 3 only");
  }
  if (zero.offload_optimizer.device != OffloadDevice::None && zero.stage == 0) {
    resolver.fault(optimizer, "offload_optimizer with ZeRO stage 0", "DeepSpeed offloads with stages 1, 2 and 3 only");
  }
  if (zero.offload_optimizer.device == OffloadDevice::Nvme && zero.stage < 3) {
    resolver.fault(optimizer, formatted("NVMe offload with ZeRO stage {}", zero.stage),
                   "DeepSpeed offloads to NVMe with stage 3 only");
  }
  const auto needs_path = [&resolver](const Offload& offload, const Place& place, std::string_view block) {
    if (offload.device != OffloadDevice::Nvme || !offload.nvme_path.empty()) return;
    resolver.fault(place, formatted("{} to NVMe without \"nvme_path\"", block), "DeepSpeed asserts a path");
  };
  needs_path(zero.offload_param, param, "offload_param");
  needs_path(zero.offload_optimizer, optimizer, "offload_optimizer");
  // The offloading code path of stages 1 and 2 always copies gradients into the bucket (section 4.4).
  if (zero.stage < 3 && zero.offload_optimizer.device != OffloadDevice::None && !zero.contiguous_gradients) {
    zero.contiguous_gradients = true;
    resolver.announce(in.contiguous_gradients.place, "optimizer offload forces contiguous gradients");
  }
}

// offload_optimizer's ratio (zero/offload_config.py; zero/config.py, offload_ratio_check, whatever the device). With
// the parameters in files, masters of the device stay on the host and cannot be given their gradients; with the
// optimizer there, what the backup optimizer keeps is not swapped.
void resolve_ratio(Resolver& resolver, const DeepSpeedInput& ds) {
  const Setting<double>& ratio = ds.offload_optimizer_ratio;
  if (!ratio.given()) return;
  Zero& zero = resolver.training().zero;
  const Version& version = resolver.job.training.deepspeed;
  if (version < Version{0, 12, 3}) {
    return resolver.fault(ratio.place, formatted("unknown key \"ratio\": DeepSpeed {} forbids it", version.text()),
                          "it is there since 0.12.3");
  }
  if (!(*ratio >= 0 && *ratio <= 1)) {
    return resolver.fault(ratio.place, formatted("\"ratio\" must be from 0 to 1, not {}", *ratio));
  }
  if (*ratio == 1) return;
  if (zero.stage != 3) {
    return resolver.fault(ratio.place,
                          formatted("offload_optimizer \"ratio\" {} with ZeRO stage {}", *ratio, zero.stage),
                          "DeepSpeed offloads a part of the optimizer with stage 3 only");
  }
  if (zero.offload_optimizer.device == OffloadDevice::None) return;
  if (zero.offload_optimizer.device == OffloadDevice::Nvme || zero.offload_param.device == OffloadDevice::Nvme) {
    return resolver.not_modelled(ratio.place, "partial optimizer offload beside NVMe");
  }
  zero.offload_optimizer.ratio = *ratio;
}

// bf16.immediate_grad_update: BF16_Optimizer's, read since 0.13.3, on by default from 0.16.5 until 0.17.1
// (runtime/constants.py, runtime/precision_config.py).
void resolve_immediate_updates(Resolver& resolver) {
  Training& training = resolver.training();
  const Version& version = training.deepspeed;
  const Setting<bool> wished = resolver.ds != nullptr ? resolver.ds->bf16_immediate_grad_update : Setting<bool>();
  const bool usual = version >= Version{0, 16, 5} && version < Version{0, 17, 1};
  const bool used = training.zero.stage <= 1 && training.dtype == DType::BFloat16 &&
                    training.grad_accum_dtype == DType::Float32 &&
                    training.zero.offload_optimizer.device == OffloadDevice::None && version >= Version{0, 13, 3};
  training.immediate_grad_update = used && wished.value_or(usual);
  if (wished.value_or(false) && !used && training.dtype == DType::BFloat16) {
    resolver.notice(Notice::Kind::Inert, wished.place,
                    "\"immediate_grad_update\" has no effect here: only BF16_Optimizer reads it, for ZeRO-1 with bf16 "
                    "and grad_accum_dtype fp32");
  }
}

// Stages 2 and 3 refuse scaling tricks beside reduce_scatter (stage_1_and_2.py and stage3.py, constructors).
void check_scaling(Resolver& resolver, const DeepSpeedInput& ds) {
  const Zero& zero = resolver.training().zero;
  if (zero.stage == 3 && ds.sum_gradients.value_or(false)) {
    resolver.fault(ds.sum_gradients.place, "\"gradient_allreduce_op\" \"sum\" with ZeRO stage 3",
                   "DeepSpeed refuses the combination");
  }
  if (zero.stage < 2 || !zero.reduce_scatter) return;
  if (ds.prescale_gradients.value_or(false)) {
    resolver.fault(ds.prescale_gradients.place,
                   formatted("\"prescale_gradients\" with reduce_scatter and ZeRO stage {}", zero.stage),
                   "DeepSpeed refuses the combination; set \"reduce_scatter\" to false");
  }
  if (ds.gradient_predivide_factor.value_or(1.0) != 1.0) {
    resolver.fault(ds.gradient_predivide_factor.place,
                   formatted("\"gradient_predivide_factor\" {} with reduce_scatter and ZeRO stage {}",
                             *ds.gradient_predivide_factor, zero.stage),
                   "DeepSpeed refuses the combination; set \"reduce_scatter\" to false");
  }
}

// compute_grad_norm: zero/config.py, compute_grad_norm_valid; stage_1_and_2.py and engine.py where they choose.
void check_grad_norm(Resolver& resolver, const DeepSpeedInput& ds) {
  if (ds.compute_grad_norm.value_or(true)) return;
  const Training& training = resolver.job.training;
  const Zero& zero = training.zero;
  const Place& place = ds.compute_grad_norm.place;
  const auto refuse = [&](std::string_view beside) {
    resolver.fault(place, formatted("\"compute_grad_norm\" false with {}", beside),
                   "DeepSpeed refuses the combination");
  };
  if (zero.stage != 1 && zero.stage != 2) return refuse(formatted("ZeRO stage {}", zero.stage));
  if (ds.gradient_clipping.value_or(1.0) > 0) return refuse("gradient clipping, which is on unless it is set to 0");
  if (zero.offload_optimizer.device != OffloadDevice::None) return refuse("an offloaded optimizer");
  if (zero.stage == 1 && training.dtype == DType::BFloat16 && training.grad_accum_dtype == DType::Float32) {
    return refuse("bf16, fp32 accumulation and ZeRO stage 1");
  }
  resolver.not_modelled(place, "a step without the gradient norm");
}

// What DeepSpeed's configuration classes refuse by themselves (runtime/config.py, runtime/zero/config.py).
void check_rules_of_version(Resolver& resolver, const DeepSpeedInput& ds) {
  const Version& version = resolver.job.training.deepspeed;
  const bool removes = version >= kRulesOfKeys;
  for (const ConditionalKey& key : ds.removed) {
    if (!removes) continue;
    resolver.fault(key.place,
                   formatted("DeepSpeed {} no longer has \"{}\" and refuses the key", version.text(), key.key),
                   "remove it");
  }
  for (const ConditionalKey& key : ds.added) {
    if (removes) continue;
    resolver.fault(key.place, formatted("unknown key \"{}\": DeepSpeed {} forbids it", key.key, version.text()),
                   formatted("it is there since {}", kRulesOfKeys.text()));
  }
  const Setting<bool>& sequential = ds.zero.allgather_sequential;
  if (sequential.given() && version < Version{0, 18, 5}) {
    resolver.fault(sequential.place,
                   formatted("unknown key \"stage3_allgather_sequential\": DeepSpeed {} forbids it", version.text()),
                   "it is there since 0.18.5");
  }
  if (removes && ds.zero.reduce_bucket_size.given() && *ds.zero.reduce_bucket_size == 0) {
    resolver.fault(ds.zero.reduce_bucket_size.place, "\"reduce_bucket_size\" must be at least 1, not 0");
  }
  if (removes) check_grad_norm(resolver, ds);
}

}  // namespace

void resolve_zero(Resolver& resolver) {
  if (!resolver.deepspeed()) return;
  Zero& zero = resolver.training().zero;
  zero.overlap_comm = zero.stage == 3;
  zero.leaf_classes.assign(std::begin(kLeafClasses), std::end(kLeafClasses));
  // One all-reduce per bucket since 0.12.4; before that one reduce per owner (section 1).
  zero.use_multi_rank_bucket_allreduce = resolver.training().deepspeed >= Version{0, 12, 4};
  zero.offload_param.pin_memory = zero.offload_optimizer.pin_memory =
      resolver.training().deepspeed >= Version{0, 19, 5};
  zero.offload_param.buffer_count = kParamBuffers;
  if (resolver.ds == nullptr) return resolve_immediate_updates(resolver);
  const DeepSpeedInput& ds = *resolver.ds;
  const ZeroInput& in = ds.zero;
  zero.contiguous_gradients = in.contiguous_gradients.value_or(true);
  zero.reduce_scatter = in.reduce_scatter.value_or(true);
  zero.use_multi_rank_bucket_allreduce =
      in.use_multi_rank_bucket_allreduce.value_or(zero.use_multi_rank_bucket_allreduce);
  zero.overlap_comm = in.overlap_comm.value_or(zero.overlap_comm);
  zero.round_robin_gradients = in.round_robin_gradients.value_or(false);
  zero.gather_16bit_weights_on_model_save = in.gather_16bit_weights_on_model_save.value_or(false);
  zero.aio_block_size = ds.aio_block_size.value_or(zero.aio_block_size);
  zero.aio_intra_op_parallelism = ds.aio_intra_op_parallelism.value_or(zero.aio_intra_op_parallelism);
  resolve_offload(resolver, in);
  resolve_ratio(resolver, ds);
  resolve_immediate_updates(resolver);
  resolve_fetching(resolver, in);
  fill_sizes(resolver, in);
  announce_dropped(resolver, in);
  announce_misread(resolver, ds);
  check_scaling(resolver, ds);
  check_rules_of_version(resolver, ds);
}

}  // namespace dsplan
