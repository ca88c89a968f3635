#include "planner/resolve/fsdp_plugin.h"

#include <algorithm>
#include <optional>

namespace dsplan {

void FsdpPlugin::not_modelled(const Place& place, std::string feature, std::string_view key) {
  request_.not_modelled.push_back({place, When::Always, std::string(key), std::move(feature)});
}

void FsdpPlugin::check_loading() {
  if (!launched_ || !said_.rank0_loads.value_or(true) || said_.synchronises.value_or(true)) return;
  faults_.add(
      said_.synchronises.place.says("fsdp_cpu_ram_efficient_loading without fsdp_sync_module_states",
                                    "accelerate refuses it: turn both on, or fsdp_cpu_ram_efficient_loading off"));
}

bool FsdpPlugin::checkpoint(bool wraps, std::string_view wrapped) {
  const Place& place = said_.checkpoints.place;
  const auto layer = std::find_if(base_.modules.begin(), base_.modules.end(), [&](const Module& module) {
    return module.layer != kNone && base_.modules[static_cast<std::size_t>(module.parent)].layer == kNone;
  });
  if (!wraps) {
    faults_.add(place.says("activation_checkpointing without a wrapping policy",
                           "accelerate checkpoints what it wraps: say TRANSFORMER_BASED_WRAP"));
  } else if (wrapped != "layers" && layer != base_.modules.end() && layer->type != wrapped) {
    not_modelled(place, "checkpoints around other modules than layers", "activation_checkpointing");
  }
  const std::optional<TrainingArguments>& arguments = request_.training_arguments;
  if (arguments && arguments->gradient_checkpointing.value_or(false)) {
    faults_.add(arguments->gradient_checkpointing.place.says(
        "gradient_checkpointing beside activation_checkpointing of fsdp_config", "transformers allows one of them"));
  }
  if (request_.checkpoint.given()) return false;
  request_.checkpoint = {"full", place};
  usually(request_.checkpoint_impl, "non_reentrant", place);
  return true;
}

}  // namespace dsplan
