#include "planner/resolve/axolotl_sharding.h"

#include <algorithm>
#include <utility>

#include "core/format.h"
#include "planner/resolve/fsdp_plugin.h"

namespace dsplan {
namespace {

template <class T>
const Place* standing(const Setting<T>& setting) {
  return setting.given() ? &setting.place : nullptr;
}

class AxolotlSharding {
 public:
  AxolotlSharding(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults)
      : foreign_(foreign), said_(foreign.trainers), base_(base), request_(request), faults_(faults) {}

  ShardingInput take() {
    const Place* const key = first_key();
    if (key == nullptr) {
      without_config();
      return {};
    }
    said_.on = {true, *key};
    version();
    if (request_.deepspeed.given() || request_.inline_deepspeed) {
      faults_.add(key->says("FSDP beside deepspeed", "the Trainer takes one of them"));
    }
    pins();
    optimizer();
    if (foreign_.trainer.given() || foreign_.rewards.value_or(false)) {
      not_modelled(*key, "preference training and rewards of axolotl under FSDP");
    }
    *said_.version == "2" ? second() : first();
    return said_;
  }

 private:
  // Of fsdp_config: `fsdp` and the version by themselves start nothing.
  [[nodiscard]] const Place* first_key() const {
    for (const Place* one :
         {standing(said_.reshard_after_forward), standing(said_.wrap_policy), standing(said_.classes),
          standing(said_.offload), standing(said_.pins), standing(said_.rank0_loads), standing(said_.synchronises),
          standing(said_.state_dict), standing(said_.checkpoints), standing(said_.use_orig_params),
          standing(said_.least_parameters), standing(said_.inner_version)}) {
      if (one != nullptr) return one;
    }
    return nullptr;
  }
  template <class T>
  [[nodiscard]] const Place& place_of(const Setting<T>& setting) const {
    return setting.given() ? setting.place : said_.on.place;
  }
  void not_modelled(const Place& place, std::string feature) {
    request_.not_modelled.push_back({place, When::Always, "fsdp_config", std::move(feature)});
  }

  // setup_fsdp_envs asks fsdp_config, which is None then; _get_parallel_config_kwargs wants FSDP.
  void without_config() {
    if (said_.on.value_or(false)) {
      faults_.add(
          said_.on.place.says("fsdp without fsdp_config: axolotl stops", "say fsdp_config, if fsdp_version: 1"));
    }
    for (const Setting<std::int64_t>* one : {&said_.shards, &said_.replicas}) {
      if (one->value_or(1) == 1) continue;
      request_.not_modelled.push_back({one->place, When::Always,
                                       one == &said_.shards ? "dp_shard_size" : "dp_replicate_size",
                                       "a mesh of ranks without fsdp_config"});
    }
  }

  // The first one is axolotl's, the other one the Trainer's; without either it is 1.
  void version() {
    const Setting<std::string>& inside = said_.inner_version;
    if (said_.version.value_or(inside.value_or("")) != inside.value_or(said_.version.value_or(""))) {
      faults_.add(inside.place.says(
          formatted("version {} of FSDP, and {} says {}", *inside, said_.version.place.text(), *said_.version)));
    }
    if (!said_.version.given()) said_.version = inside.given() ? inside : Setting<std::string>{"1", said_.on.place};
  }

  // check_fsdp2_cpu_offload_pin_memory
  void pins() {
    if (said_.pins.value_or(true)) return;
    if (*said_.version != "2" || !said_.offload.value_or(false)) {
      faults_.add(said_.pins.place.says("cpu_offload_pin_memory: false without offload_params of fsdp_version 2",
                                        "axolotl refuses it"));
    } else {
      not_modelled(said_.pins.place, "shards of the host that are not pinned");
    }
  }

  // check_fsdp_offload_w_8bit_optimizer, check_fsdp2_w_8bit_optimizer
  void optimizer() {
    const std::string name = request_.optimizer.value_or("");
    if (name.find("8bit") == std::string::npos) return;
    const bool second = *said_.version == "2";
    if (second ? name == "adamw_8bit" || name == "adamw_bnb_8bit" : said_.offload.value_or(false)) {
      faults_.add(request_.optimizer.place.says(
          formatted("{} under FSDP{}{}", name, second ? "2" : "1", second ? "" : " with offload_params"),
          "axolotl refuses it"));
    }
  }

  [[nodiscard]] bool loads_on_rank0() const { return said_.rank0_loads.value_or(false); }
  [[nodiscard]] bool packs() const { return foreign_.bits.value_or(0) != 0; }

  // _apply_post_lora_load_setup: a model that rank 0 does not load is moved whole to each device before anything is
  // cut.
  void place_model(const char* sent) {
    if (!packs()) usually(request_.model_init, loads_on_rank0() ? sent : "device", place_of(said_.rank0_loads));
  }

  void first() {
    place_model("host");
    if (said_.wrap_policy.value_or("") == "SIZE_BASED_WRAP" && !said_.least_parameters.given()) {
      faults_.add(said_.wrap_policy.place.says("SIZE_BASED_WRAP without min_num_params", "axolotl refuses it"));
    }
    if (request_.lora_kernels.value_or("none") != "none") {
      faults_.add(
          request_.lora_kernels.place.says("axolotl's kernels for adapters under FSDP1", "axolotl refuses them"));
    }
  }

  // Its own fsdp2_prepare_model: fully_shard of layers and of the model, all with one reshard_after_forward.
  void second() {
    place_model("rank0");
    if (foreign_.adapters.value_or(false) && packs()) {
      not_modelled(foreign_.adapters.place, "QLoRA under FSDP2 as axolotl shards it (fsdp_version: 1 is modelled),");
    }
    if (said_.checkpoints.value_or(false)) {
      // accelerate 1.13 checkpoints the parts of each layer (fsdp2_apply_ac), axolotl the layer around them.
      usually(request_.checkpoint, "nested", said_.checkpoints.place);
      usually(request_.checkpoint_impl, "non_reentrant", said_.checkpoints.place);
    }
    mesh();
    wrap();
    const bool reshards = said_.reshard_after_forward.given() ? *said_.reshard_after_forward != "false"
                                                              : said_.strategy.value_or("") != "shard_grad_op";
    usually(request_.fsdp.reshard_root, reshards ? "true" : "false", place_of(said_.reshard_after_forward));
  }

  void wrap() {
    if (said_.wrap_policy.value_or("") == "SIZE_BASED_WRAP") return;  // Refused where the Trainer's plugin is read.
    std::string words = "layers";
    const std::vector<std::string> classes = said_.classes.value_or({});
    const auto layer = std::find_if(base_.modules.begin(), base_.modules.end(), [&](const Module& module) {
      return module.layer != kNone && base_.modules[static_cast<std::size_t>(module.parent)].layer == kNone;
    });
    const bool layers = classes.size() == 1 && layer != base_.modules.end() && layer->type == classes.front();
    if (!classes.empty() && !layers) words = formatted("{}", joined(classes, "+"));
    if (foreign_.adapters.value_or(false)) words = "adapters+" + words;  // Each factor has a call of its own.
    usually(request_.fsdp.wrap, words + "+axolotl", place_of(said_.classes));
  }

  // _get_parallel_config_kwargs: what one of both sizes leaves is the other's.
  void mesh() {
    if (said_.shards.value_or(1) > 1) usually(request_.fsdp.shard, std::to_string(*said_.shards), said_.shards.place);
    if (said_.replicas.value_or(1) > 1) {
      usually(request_.fsdp.replicate, std::to_string(*said_.replicas), said_.replicas.place);
    }
    said_.shards = {};
    said_.replicas = {};
  }

  const ForeignInput& foreign_;
  ShardingInput said_;
  const ModelSpec& base_;
  Request& request_;
  Diagnostics& faults_;
};

}  // namespace

ShardingInput take_axolotl_sharding(const ForeignInput& foreign, const ModelSpec& base, Request& request,
                                    Diagnostics& faults) {
  return AxolotlSharding(foreign, base, request, faults).take();
}

}  // namespace dsplan
