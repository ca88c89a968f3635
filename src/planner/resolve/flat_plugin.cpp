#include "planner/resolve/flat_plugin.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/format.h"
#include "core/text/letters.h"
#include "planner/resolve/fsdp_plugin.h"

namespace dsplan {
namespace {

// accelerate's names of ShardingStrategy and BackwardPrefetch, which it takes by their numbers as well.
constexpr std::array<std::string_view, 5> kStrategies{"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                                      "hybrid_shard_zero2"};
constexpr std::array<std::string_view, 3> kPrefetches{"backward_pre", "backward_post", "no_prefetch"};

template <std::size_t N>
std::optional<std::size_t> number_of(const std::array<std::string_view, N>& names, std::string_view text) {
  for (std::size_t at = 0; at < N; ++at) {
    if (text == names[at] || text == std::to_string(at + 1)) return at;
  }
  return std::nullopt;
}

class FlatPlugin : FsdpPlugin {
 public:
  using FsdpPlugin::FsdpPlugin;

  void apply() {
    if (!request_.runtime.mentioned()) request_.runtime = {"fsdp1", said_.on.place};
    strategy();
    mesh();
    prefetch();
    views_and_states();
    const bool wraps = wrap();
    if (said_.offload.value_or(false)) usually(request_.fsdp.cpu_offload, "true", said_.offload.place);
    // Packed weights are where from_pretrained packs them.
    const std::string packed = request_.quantization.value_or("none");
    if (packed == "none") usually(request_.model_init, "host", place_of(said_.rank0_loads));
    // apply_activation_checkpointing, inside each unit.
    if (said_.checkpoints.value_or(false)) checkpoint(wraps, request_.fsdp.wrap.value_or("layers"));
  }

 private:
  // sharding_strategy wins over reshard_after_forward, and it is FULL_SHARD where nobody says it: by the launcher's
  // default, and in the plugin of the Trainer, which passes only the other.
  void strategy() {
    const Setting<std::string>& wished = said_.strategy;
    const std::string text = launched_ ? in_lower_case(wished.value_or("full_shard")) : "full_shard";
    const std::optional<std::size_t> found = number_of(kStrategies, text);
    unread_resharding();
    if (!found) {
      return faults_.add(wished.place.says(formatted("\"{}\" is no strategy of FSDP1", *wished),
                                           formatted("accelerate has {}", joined(kStrategies, ", "))));
    }
    const std::string_view name = kStrategies[*found];
    if (name == "no_shard") return usually(request_.fsdp.shard, "1", wished.place);
    const bool hybrid = name.starts_with("hybrid");
    if (hybrid) usually(request_.fsdp.shard, "node", wished.place);
    const bool reshards = name == "full_shard" || name == "hybrid_shard";
    usually(request_.fsdp.reshard_after_forward, reshards ? "true" : "false", place_of(wished));
  }

  // The Trainer's words of `fsdp` become its reshard_after_forward.
  void unread_resharding() {
    const Setting<std::string>& wished =
        said_.reshard_after_forward.given() || launched_ ? said_.reshard_after_forward : said_.strategy;
    if (!wished.given()) return;
    const std::string text = in_lower_case(*wished);
    const std::optional<std::size_t> found = number_of(kStrategies, text);
    if (!launched_ && !found) {
      return faults_.add(wished.place.says(
          formatted("\"{}\" of reshard_after_forward under version 1: accelerate finds no such ShardingStrategy",
                    *wished),
          formatted("it is {}", joined(kStrategies, ", "))));
    }
    if (found == 0U || (launched_ && text == "true")) return;
    request_.notices.push_back(
        {Notice::Kind::Warning,
         wished.place,
         formatted("\"{}\" of reshard_after_forward has no effect: under version 1 accelerate 1.15 takes "
                   "sharding_strategy, which is FULL_SHARD unless {}",
                   *wished, launched_ ? "fsdp_sharding_strategy says another" : "FSDP_SHARDING_STRATEGY is set"),
         {}});
  }

  void mesh() {
    for (const Setting<std::int64_t>* one : {&said_.replicas, &said_.shards}) {
      if (one->value_or(1) == 1) continue;
      return faults_.add(
          one->place.says("parallelism_config under FSDP version 1", "accelerate's mesh is version 2's"));
    }
  }

  void prefetch() {
    const Setting<std::string>& wished = said_.backward_prefetch;
    const std::optional<std::size_t> found = number_of(kPrefetches, in_lower_case(wished.value_or("no_prefetch")));
    if (!found) {
      faults_.add(wished.place.says(formatted("\"{}\" is no backward prefetch of FSDP1", *wished),
                                    "it is BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"));
    } else {
      constexpr std::array<const char*, 3> kWords{"pre", "post", "none"};
      usually(request_.fsdp.backward_prefetch, kWords[*found], place_of(wished));
    }
    if (said_.forward_prefetch.value_or(false)) {
      usually(request_.fsdp.forward_prefetch, "true", said_.forward_prefetch.place);
    }
    if (!said_.limits_gathers.value_or(true)) {
      usually(request_.fsdp.limit_all_gathers, "false", said_.limits_gathers.place);
    }
  }

  // Whole parameters are on the device when they are sent, on each rank: those that load nothing have zeros on the
  // host (transformers, modeling_utils.py, _move_missing_keys_from_meta_to_device).
  void views_and_states() {
    const bool views = said_.use_orig_params.value_or(true);
    usually(request_.fsdp.use_orig_params, views ? "true" : "false", place_of(said_.use_orig_params));
    const bool loads = said_.rank0_loads.value_or(launched_);
    check_loading();
    const bool sends = said_.synchronises.value_or(true) || loads;
    keep_storage();
    usually(request_.fsdp.sync_module_states, sends ? "true" : "false", place_of(said_.synchronises));
  }

  // transformers' update_fsdp_plugin_peft: what 4-bit weights are kept in is the policy's dtype.
  void keep_storage() {
    const std::string storage = request_.quant_storage.value_or("uint8");
    const std::string kind = request_.quantization.value_or("none");
    if (!request_.training_arguments || storage == "uint8" || (kind != "nf4" && kind != "fp4")) return;
    for (Setting<std::string>* one :
         {&request_.fsdp.param_dtype, &request_.fsdp.reduce_dtype, &request_.fsdp.buffer_dtype}) {
      usually(*one, short_name(storage), request_.quant_storage.place);
    }
  }

  // False: nothing but the model is wrapped.
  bool wrap() {
    const Setting<std::string>& wished = said_.wrap_policy;
    const std::string policy = in_lower_case(wished.value_or(launched_ ? "no_wrap" : "transformer_based_wrap"));
    const Place& place = place_of(wished);
    if (policy == "no_wrap") {
      usually(request_.fsdp.wrap, "root", place);
      return false;
    }
    if (policy == "size_based_wrap") {
      const std::int64_t usual = launched_ ? 100'000'000 : 0;  // Zero turns the policy off.
      const std::int64_t least = said_.least_parameters.value_or(usual);
      const std::string wrap = least > 0 ? formatted("size:{}", least) : "root";
      usually(request_.fsdp.wrap, wrap, place_of(said_.least_parameters));
      return least > 0;
    }
    if (policy != "transformer_based_wrap") {
      faults_.add(place.says(formatted("\"{}\" is no policy of wrapping", *wished),
                             "it is TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"));
    } else if (said_.classes.given() && !said_.classes->empty()) {
      usually(request_.fsdp.wrap, formatted("{}", joined(*said_.classes, "+")), said_.classes.place);
    } else {
      usually(request_.fsdp.wrap, unsplit_classes(place), place);
    }
    return true;
  }

  // _no_split_modules: the layers; encoders add their embeddings.
  std::string unsplit_classes(const Place& place) {
    const auto found = std::find_if(base_.modules.begin(), base_.modules.end(), [](const Module& module) {
      return module.layer == kNone && module.type.ends_with("Embeddings");
    });
    if (found != base_.modules.end()) {
      not_modelled(
          place,
          formatted("_no_split_modules of a model with {} (name classes in fsdp_transformer_layer_cls_to_wrap),",
                    found->type),
          "fsdp_auto_wrap_policy");
    }
    return "layers";
  }
};

}  // namespace

void apply_flat_plugin(const ShardingInput& said, bool launched, const ModelSpec& base, Request& request,
                       Diagnostics& faults) {
  FlatPlugin(said, launched, base, request, faults).apply();
}

void say_of_version_1(const ShardingInput& said, bool launched, Request& request) {
  const auto inert = [&](const auto& setting, std::string_view what, std::string_view why) {
    if (!setting.given()) return;
    request.notices.push_back({Notice::Kind::Inert,
                               setting.place,
                               formatted("\"{}\" has no effect here: it is FSDP1's (version 1){}", what, why),
                               {}});
  };
  if (launched) {
    inert(said.strategy, "fsdp_sharding_strategy",
          ", which version 2 does not read: fsdp_reshard_after_forward says it, true for FULL_SHARD and false for "
          "SHARD_GRAD_OP, and parallelism_config the replicas of HYBRID_SHARD");
  }
  inert(said.backward_prefetch, "backward_prefetch",
        ": accelerate warns that version 2 has none, which always gathers the group before");
  inert(said.forward_prefetch, "forward_prefetch", ", and version 2 does not read it from a configuration");
  inert(said.use_orig_params, "use_orig_params", ": version 2 has parameters as they are in any case");
  inert(said.limits_gathers, "limit_all_gathers", ", and version 2 does not read it");
}

}  // namespace dsplan
