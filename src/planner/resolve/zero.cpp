// zero_optimization with defaults filled in (deepspeed-zero.md, sections 1, 4, 6, 7 and 12).
#include <algorithm>
#include <array>
#include <type_traits>
#include <variant>

#include "core/format.h"
#include "model/traits.h"
#include "planner/resolve/resolver.h"
#include "planner/zero/zero_facts.h"

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

// Bytes of the parameters that stage 3 keeps whole with this threshold (section 6.3).
Bytes persistent_bytes(const Resolver& resolver, Elements threshold) {
  const std::int64_t dp = resolver.job.parallelism.dp;
  Elements kept;
  for (const Parameter& parameter : resolver.model.parameters) {
    if (parameter.tied_to != kNone) continue;
    const Elements size = parameter.shape.elements();
    if (may_persist(size, threshold)) kept += gathered_of(size, dp);
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
  return storage(fallback - wished, bucket ? bucket_dtype(training) : training.dtype) *
         (bucket ? bucket_count(training) : 1);
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

void fill_automatic_sizes(Resolver& resolver, const ZeroInput& in) {
  Zero& zero = resolver.training().zero;
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
  const Bytes taken = storage(Elements(*size), bucket ? bucket_dtype(training) : training.dtype);
  const std::int64_t copies = bucket ? bucket_count(training) : 1;
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
void announce_dropped(Resolver& resolver, const DeepSpeedInput& ds) {
  constexpr std::string_view kBlock = "zero_optimization.";
  constexpr std::array<std::string_view, 3> kFilled = {"reduce_bucket_size", "stage3_prefetch_bucket_size",
                                                       "stage3_param_persistence_threshold"};
  for (const SettingRow& row : settings()) {
    if (!row.json.field || !row.job.field || !row.json.path.starts_with(kBlock)) continue;
    const std::string_view key = row.json.path.substr(kBlock.size());
    const bool below = key.find('.') != std::string_view::npos;
    if (below || std::find(kFilled.begin(), kFilled.end(), key) != kFilled.end()) continue;
    std::visit(
        [&](const auto* setting) {
          if (!setting->is_auto) return;
          resolver.announce(setting->place,
                            formatted("\"{}\" is \"auto\": DeepSpeed drops it and takes its default", key));
        },
        row.json.field.of(ds));
  }
}

// Keys of zero_optimization and aio whose value is taken as it stands.
void take_plain_values(Resolver& resolver, const DeepSpeedInput& ds) {
  for (const SettingRow& row : settings()) {
    const bool ours = row.json.path.starts_with("zero_optimization.") || row.json.path.starts_with("aio.");
    if (!ours || !row.json.field || !row.job.field) continue;
    std::visit(
        [](const auto* said, auto* field) {
          using Said = std::remove_cvref_t<decltype(**said)>;
          using Field = std::remove_pointer_t<decltype(field)>;
          constexpr bool kSize = std::is_same_v<Said, std::int64_t> && std::is_same_v<Field, Elements>;
          if constexpr (std::is_same_v<Said, Field> || kSize) {
            if (said->given()) *field = Field(**said);
          }
        },
        row.json.field.of(ds), row.job.field.of(resolver.job));
  }
}

void resolve_fetching(Resolver& resolver, const ZeroInput& in) {
  Zero& zero = resolver.training().zero;
  // min(size, world), which must divide the world (utils/groups.py, _create_zero_param_parallel_group).
  const std::int64_t ranks = resolver.job.parallelism.dp;
  zero.hpz_partition_size = std::clamp<std::int64_t>(in.hpz_partition_size.value_or(1), 1, ranks);
  if (zero.stage == 3 && ranks % zero.hpz_partition_size != 0) {
    resolver.fault(in.hpz_partition_size.place,
                   formatted("\"zero_hpz_partition_size\" {} does not divide {} ranks", zero.hpz_partition_size, ranks),
                   "DeepSpeed asserts that it does");
  }
}

void resolve_offload(Resolver& resolver, const ZeroInput& in) {
  Zero& zero = resolver.training().zero;
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
  zero.offload_optimizer.ratio = 1;
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
  const bool used = uses_bf16_optimizer(training) && version >= Version{0, 13, 3};
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
  if (uses_bf16_optimizer(training)) {
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

// engine.py, _broadcast_model: p.data.view(torch.uint8), which PyTorch refuses of a tensor without dimensions.
void check_scalars_as_bytes(Resolver& resolver) {
  const Training& training = resolver.training();
  if (training.deepspeed < Version{0, 19, 8} || training.zero.stage == 3) return;
  const Parameter* const scalar = first_scalar(resolver.model);
  if (scalar == nullptr) return;
  resolver.fault(option("--deepspeed"), formatted("{} has no dimensions", scalar->name),
                 formatted("DeepSpeed {} broadcasts parameters as bytes, which PyTorch refuses of a scalar",
                           training.deepspeed.text()));
}

}  // namespace

void resolve_zero(Resolver& resolver) {
  if (!resolver.deepspeed()) return;
  check_scalars_as_bytes(resolver);
  Zero& zero = resolver.training().zero;
  zero = usual_zero(resolver.training().deepspeed, zero.stage);
  if (resolver.ds == nullptr) return resolve_immediate_updates(resolver);
  const DeepSpeedInput& ds = *resolver.ds;
  const ZeroInput& in = ds.zero;
  take_plain_values(resolver, ds);
  resolve_offload(resolver, in);
  resolve_ratio(resolver, ds);
  resolve_immediate_updates(resolver);
  resolve_fetching(resolver, in);
  fill_automatic_sizes(resolver, in);
  announce_dropped(resolver, ds);
  announce_misread(resolver, ds);
  check_scaling(resolver, ds);
  check_rules_of_version(resolver, ds);
}

}  // namespace dsplan
