// The configurations of accelerate that TRL brings (trl 1.16.0, accelerate_configs/*.yaml), by their names.
#include <optional>
#include <string>

#include "core/format.h"
#include "io/dialects/program_line.h"
#include "io/text.h"

namespace dsplan {
namespace {

struct Brought {
  std::string_view name;
  std::string_view text;  // Beside what all of them say.
};
constexpr Brought kBrought[] = {
    {"single_gpu", "distributed_type: 'NO'\n"},
    {"multi_gpu", "distributed_type: MULTI_GPU\n"},
    {"zero1",
     "distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_accumulation_steps: 1, zero3_init_flag: false, "
     "zero_stage: 1}\n"},
    {"zero2",
     "distributed_type: DEEPSPEED\ndeepspeed_config: {offload_optimizer_device: none, offload_param_device: none, "
     "zero3_init_flag: false, zero_stage: 2}\n"},
    {"zero3",
     "distributed_type: DEEPSPEED\ndeepspeed_config: {offload_optimizer_device: none, offload_param_device: none, "
     "zero3_init_flag: true, zero3_save_16bit_model: true, zero_stage: 3}\n"},
    {"fsdp1",
     "distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: false, fsdp_auto_wrap_policy: "
     "TRANSFORMER_BASED_WRAP, fsdp_backward_prefetch: BACKWARD_PRE, fsdp_cpu_ram_efficient_loading: true, "
     "fsdp_forward_prefetch: true, fsdp_offload_params: false, fsdp_reshard_after_forward: FULL_SHARD, "
     "fsdp_state_dict_type: FULL_STATE_DICT, fsdp_sync_module_states: true, fsdp_use_orig_params: true, "
     "fsdp_version: 1}\n"},
    {"fsdp2",
     "distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: false, fsdp_auto_wrap_policy: "
     "TRANSFORMER_BASED_WRAP, fsdp_cpu_ram_efficient_loading: true, fsdp_offload_params: false, "
     "fsdp_reshard_after_forward: true, fsdp_state_dict_type: FULL_STATE_DICT, fsdp_version: 2}\n"},
};

}  // namespace

std::optional<Document> launch_file_of_trl(const std::string& name) {
  for (const Brought& one : kBrought) {
    if (one.name != name) continue;
    return parse_yaml(formatted("TRL's {}", name),
                      formatted("{}mixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n", one.text));
  }
  return std::nullopt;
}

Diagnostic no_launch_file(const Setting<std::string>& named) {
  std::vector<std::string_view> names;
  for (const Brought& one : kBrought) names.push_back(one.name);
  const std::string near = did_you_mean(nearest(*named, names));
  return named.place.says(
      formatted("\"{}\" is no configuration of accelerate that TRL brings: {}", *named, joined(names, ", ")), near);
}

}  // namespace dsplan
