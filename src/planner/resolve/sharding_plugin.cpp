#include "planner/resolve/sharding_plugin.h"

#include <algorithm>

#include "core/format.h"
#include "core/text/letters.h"
#include "planner/resolve/axolotl_sharding.h"
#include "planner/resolve/flat_plugin.h"
#include "planner/resolve/fsdp_plugin.h"

namespace dsplan {
namespace {

// str_to_bool of both.
std::optional<bool> truth_of(std::string_view text) {
  for (const std::string_view yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"n", "no", "f", "false", "off", "0"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

// Tensor, context and sequence parallelism share the ranks, and are refused by name.
bool shares_ranks_otherwise(const Request& request) {
  return std::any_of(request.not_modelled.begin(), request.not_modelled.end(),
                     [](const NotModelled& one) { return one.key.starts_with("parallelism_config."); });
}

class ShardingPlugin : FsdpPlugin {
 public:
  using FsdpPlugin::FsdpPlugin;

  void apply() {
    const std::string version = said_.version.value_or(launched_ ? "1" : "2");
    if (version == "1") return apply_flat_plugin(said_, launched_, base_, request_, faults_);
    if (version != "2") {
      return faults_.add(
          said_.version.place.says(formatted("FSDP version \"{}\" does not exist", version), "it is 1 or 2"));
    }
    say_of_version_1(said_, launched_, request_);
    if (!request_.runtime.mentioned()) request_.runtime = {"fsdp2", said_.on.place};
    compare_keys();
    reshard();
    mesh();
    const std::string wrapped = wrap();
    if (said_.offload.value_or(false)) usually(request_.fsdp.cpu_offload, "true", said_.offload.place);
    load();
    if (said_.checkpoints.value_or(false)) checkpoint_all(wrapped);
  }

 private:
  // ParallelismConfig: both sizes are 1 unless they are said, and their product is the number of ranks.
  void mesh() {
    if (!said_.replicas.given() && !said_.shards.given()) return;
    if (shares_ranks_otherwise(request_)) return;
    const Place& place = said_.shards.given() ? said_.shards.place : said_.replicas.place;
    const std::int64_t replicas = said_.replicas.value_or(1);
    const std::int64_t shards = said_.shards.value_or(1);
    if (replicas < 1 || shards < 2) {
      faults_.add(place.says(formatted("parallelism_config has {} replicas of {} shards", replicas, shards),
                             "accelerate's FSDP needs a parallelism_config_dp_shard_size above 1"));
      return;
    }
    if (request_.gpus.given() && checked_mul(replicas, shards) != *request_.gpus) {
      faults_.add(place.says(formatted("parallelism_config has {} replicas of {} shards, which are not {} ranks",
                                       replicas, shards, *request_.gpus),
                             "accelerate wants their product to be num_processes"));
      return;
    }
    if (!request_.fsdp.shard.given()) request_.fsdp.shard = {std::to_string(shards), place};
    if (replicas == 1 || request_.fsdp.replicate.given()) return;
    request_.fsdp.replicate = {std::to_string(replicas), said_.replicas.place};
    if (request_.runtime.value_or({}) == "fsdp2") request_.runtime.value = "hsdp";
  }

  // What accelerate raises for.
  void compare_keys() {
    // Unless it is said the Trainer saves whole ones, and accelerate of version 2 shards.
    const std::string saved = in_lower_case(said_.state_dict.value_or(launched_ ? "" : "FULL_STATE_DICT"));
    if (saved == "full_state_dict" && !said_.offload.value_or(false)) {
      usually(request_.fsdp.state_dict, "full", place_of(said_.state_dict));
    }
    if (in_lower_case(said_.state_dict.value_or({})) == "local_state_dict") {
      faults_.add(said_.state_dict.place.says("LOCAL_STATE_DICT under FSDP2",
                                              "accelerate has SHARDED_STATE_DICT and FULL_STATE_DICT for it"));
    }
    check_loading();
  }

  // fsdp2_prepare_model: 4-bit weights that are whole numbers are left out, and rank 0 sends nobody anything.
  bool packs() {
    const std::string kind = request_.quantization.value_or("none");
    if (kind != "nf4" && kind != "fp4") return false;
    if (request_.quant_storage.value_or("uint8") == "uint8") {
      usually(request_.fsdp.ignored, "packed", request_.quantization.place);
    }
    return true;
  }

  void load() {
    if (packs()) return;
    usually(request_.model_init, rank0_loads() ? "rank0" : "host", place_of(said_.rank0_loads));
  }
  [[nodiscard]] bool rank0_loads() const { return said_.rank0_loads.value_or(launched_); }
  // Its own variables hold what is not made on no device first.
  [[nodiscard]] std::string ends() const { return rank0_loads() ? "+ends" : "+ends+held"; }

  // What fsdp_config says of it goes before a word of the Trainer's fsdp; the launcher's strategy is version 1's.
  void reshard() {
    Setting<std::string> wished = said_.reshard_after_forward;
    if (!launched_ && !wished.given() && said_.strategy.given()) {
      const std::string& word = *said_.strategy;
      wished = {word == "full_shard" ? "true" : word == "shard_grad_op" ? "false" : word, said_.strategy.place};
    }
    if (!wished.given()) return usually(request_.fsdp.reshard_after_forward, "true", said_.on.place);
    const std::optional<bool> reshards = truth_of(in_lower_case(*wished));
    if (!reshards) {
      faults_.add(wished.place.says(formatted("\"{}\" is FSDP1's word for how parameters are sharded", *wished),
                                    "fsdp_reshard_after_forward of version 2 is true or false"));
      return;
    }
    usually(request_.fsdp.reshard_after_forward, *reshards ? "true" : "false", wished.place);
  }

  // transformers says of clip and siglip which modules of their text are not split, too, and accelerate looks for each
  // (fsdp2_prepare_auto_wrap_policy).
  void check_layers(const Place& place) {
    for (const std::string_view family : {"CLIP", "Siglip"}) {
      const std::string layer = formatted("{}EncoderLayer", family);
      const std::string text = formatted("{}TextEmbeddings", family);
      const auto has = [&](const std::string& type) {
        return std::any_of(base_.modules.begin(), base_.modules.end(),
                           [&](const Module& module) { return module.type == type; });
      };
      if (!has(layer) || has(text)) continue;
      faults_.add(
          place.says(formatted("accelerate stops: it looks for \"{}\", which {} does not have", text, base_.name),
                     "name the classes of its layers: fsdp_transformer_layer_cls_to_wrap"));
    }
  }

  // Layers or the classes that are named, bottom up; then embeddings; norm and head; the model. Returns what stands for
  // layers.
  std::string wrap() {
    const Setting<std::string>& wished = said_.wrap_policy;
    const std::string policy = in_lower_case(wished.value_or(launched_ ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP"));
    const Place& place = place_of(wished);
    if (policy == "size_based_wrap") {
      not_modelled(place, "wrapping by size", "fsdp_auto_wrap_policy");
    } else if (policy == "no_wrap") {
      usually(request_.fsdp.wrap, "root" + ends(), place);
    } else if (policy != "transformer_based_wrap") {
      faults_.add(place.says(formatted("\"{}\" is no policy of wrapping", *wished),
                             "it is TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"));
    } else if (said_.classes.given() && !said_.classes->empty()) {
      std::string classes = formatted("{}", joined(*said_.classes, "+"));
      usually(request_.fsdp.wrap, classes + ends(), said_.classes.place);
      return classes;
    } else {
      if (!request_.fsdp.wrap.mentioned()) check_layers(place);
      usually(request_.fsdp.wrap, "layers" + ends(), place);
    }
    return policy == "no_wrap" ? "root" : "layers";
  }

  // fsdp2_apply_ac
  void checkpoint_all(const std::string& wrapped) {
    const bool said_here = checkpoint(wrapped != "root", wrapped);
    if (said_here && !request_.preserve_rng_state.mentioned()) {
      request_.preserve_rng_state = {false, said_.checkpoints.place};
    }
  }
};

const Place* first_key(const ShardingInput& said) {
  for (const Setting<std::string>* one :
       {&said.version, &said.strategy, &said.reshard_after_forward, &said.wrap_policy, &said.backward_prefetch}) {
    if (one->given()) return &one->place;
  }
  for (const Setting<bool>* one : {&said.offload, &said.rank0_loads, &said.synchronises, &said.checkpoints,
                                   &said.use_orig_params, &said.forward_prefetch}) {
    if (one->given()) return &one->place;
  }
  return nullptr;
}

// Without FSDP accelerate raises: `accelerate launch` for the option, and Accelerator for a mesh that nobody shards
// over.
void refuse_mesh(const ShardingInput& said, Diagnostics& faults) {
  for (const Setting<std::int64_t>* one : {&said.replicas, &said.shards}) {
    if (one->value_or(1) == 1) continue;
    faults.add(one->place.says("parallelism_config without FSDP version 2", "accelerate refuses it"));
    return;
  }
}

// accelerate wants the number then (commands/launch.py).
void say_of_ranks(const Setting<std::string>& distribution, Request& request) {
  if (!distribution.given() || *distribution == "NO" || request.gpus.given()) return;
  request.notices.push_back(
      {Notice::Kind::Warning,
       distribution.place,
       formatted("{} without num_processes: accelerate wants it on its line; say --gpus", *distribution),
       {}});
}

void say_unused(const ShardingInput& said, std::string_view needs, Request& request) {
  const Place* const place = first_key(said);
  if (place == nullptr || said.on.value_or(false)) return;
  request.notices.push_back(
      {Notice::Kind::Inert, *place, formatted("\"fsdp_config\" has no effect here: it needs {}", needs), {}});
}

}  // namespace

void apply_sharding_plugin(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults) {
  const std::string program = foreign.program.value_or({});
  const ShardingInput told =
      program == "axolotl" ? take_axolotl_sharding(foreign, base, request, faults) : foreign.trainers;
  const bool launched = foreign.launched.on.value_or(false);
  const bool trainers = told.on.value_or(false);
  say_unused(foreign.launched, "distributed_type: FSDP", request);
  say_unused(told, "fsdp", request);
  if (!launched && !shares_ranks_otherwise(request)) refuse_mesh(foreign.launched, faults);
  say_of_ranks(foreign.distribution, request);
  if (!launched && !trainers) return;
  const ShardingInput& said = launched ? foreign.launched : told;
  if (launched && trainers) {
    faults.add(told.on.place.says(
        formatted("TrainingArguments turn FSDP on, and so does {}", foreign.launched.on.place.text()),
        "say it in one of them"));
  }
  if (program == "llama-factory" || (program == "axolotl" && launched)) {
    request.not_modelled.push_back(
        {said.on.place, When::Always, "fsdp", formatted("FSDP as {} prepares models for it", program)});
  }
  ShardingPlugin(said, launched, base, request, faults).apply();
}

}  // namespace dsplan
