#include "planner/predict/label_rules.h"

#include <span>

#include "planner/lower/runtime_base.h"

namespace dsplan {
namespace {

struct Rule {
  std::string_view label;
  std::string_view where;
};

constexpr Rule kStage0[] = {
    {"flat parameters", "fp16/fused_optimizer.py, FP16_Optimizer.__init__"},
    {"clone", "fp16/fused_optimizer.py, FP16_Optimizer.__init__"},
    {"master weights", "fp16/fused_optimizer.py, FP16_Optimizer.__init__"},
    {"zero gradients of the dummy step", "fp16/fused_optimizer.py, initialize_optimizer_states"},
    {"joined gradients", "engine.py, allreduce_bucket"},
    {"gradients in communication dtype", "engine.py, allreduce_bucket"},
    {"gradient in master dtype", "fp16/fused_optimizer.py, step"},
    {"flat gradient in master dtype", "fp16/fused_optimizer.py, step"},
};

constexpr Rule kUnfused[] = {
    {"clone", "fp16/unfused_optimizer.py, FP16_UnfusedOptimizer.__init__"},
    {"master weights", "fp16/unfused_optimizer.py, FP16_UnfusedOptimizer.__init__"},
    {"zero gradients of the dummy step", "fp16/unfused_optimizer.py, initialize_optimizer_states"},
    {"gradient in master dtype", "fp16/unfused_optimizer.py, step"},
    {"gradient norm", "runtime/utils.py, get_weight_norm"},
    {"overflow scan", "runtime/utils.py, CheckOverflow._has_inf_or_nan"},
    {"square root of exp_avg_sq", "torch/optim/adam.py, _multi_tensor_adam"},
};

constexpr Rule kStage12[] = {
    {"flat parameters", "zero/stage_1_and_2.py, flatten_dense_tensors_aligned"},
    {"master weights", "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__"},
    {"clone of the partition", "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__"},
    {"stand-in of a parameter on the host", "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__"},
    {"zero gradients of initialize_optimizer_states", "zero/stage_1_and_2.py, initialize_optimizer_states"},
    {"gradient bucket", "zero/stage_1_and_2.py, setup_buckets"},
    {"joined gradients", "zero/stage_1_and_2.py, allreduce_and_scatter"},
    {"gradients in communication dtype", "zero/stage_1_and_2.py, allreduce_bucket"},
    {"gradients in partition", "zero/stage_1_and_2.py, copy_grads_in_partition"},
    {"flat gradient", "zero/stage_1_and_2.py, step"},
    {"gradient in master dtype", "zero/stage_1_and_2.py, step"},
    {"gradient norm", "zero/stage_1_and_2.py, get_grad_norm_direct"},
    {"overflow scan", "zero/stage_1_and_2.py, has_overflow"},
    {"gradient scratch of the device", "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__"},
    {"clone of a large gradient", "zero/stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads"},
    {"gradient in fp64", "zero/stage_1_and_2.py, set_norm_for_param_grad_in_gpu"},
    {"gradient on its way to the host", "zero/stage_1_and_2.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu"},
};

constexpr Rule kStage3[] = {
    {"parameter partition", "zero/partition_parameters.py, _partition_param"},
    {"parameter partitions", "zero/stage3.py, _create_fp16_partitions_with_defragmentation"},
    {"staging of parameter partitions", "zero/utils.py, defragment"},
    {"whole parameter", "zero/partition_parameters.py, Init._post_init_method"},
    {"gradient partitions", "zero/stage3.py, initialize_gradient_partitioning_data_structures"},
    {"gradient bucket", "zero/stage3.py, _setup_for_real_optimizer"},
    {"master weights", "zero/stage3.py, _create_fp32_partitions"},
    {"master weights before the clone", "zero/stage3.py, _create_fp32_partitions"},
    {"zero gradients of initialize_optimizer_states", "zero/stage3.py, initialize_optimizer_states"},
    {"gathered parameter", "zero/partition_parameters.py, all_gather_coalesced"},
    {"gather buffer", "zero/partition_parameters.py, _all_gather_coalesced"},
    {"interleaved gradients", "comm/coalesced_collectives.py, reduce_scatter_coalesced"},
    {"gradients in communication dtype", "zero/stage3.py, __avg_scatter_grads"},
    {"flat gradient", "zero/stage3.py, step"},
    {"gradient in master dtype", "zero/stage3.py, step"},
    {"gradient norm", "zero/stage3.py, get_grad_norm_direct"},
    {"overflow scan", "zero/stage3.py, has_overflow"},
    {"overflow tracker", "zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__"},
    {"partition on the device", "zero/partition_parameters.py, _all_gather_dtype"},
    {"gradient partition back on the device", "zero/stage3.py, partition_grads"},
    {"gradient norm of a sub-group", "zero/stage3.py, complete_grad_norm_calculation_for_cpu_offload"},
    {"empty flat buffer", "zero/stage3.py, _create_param_groups_fp16_flat_cpu_memory"},
    {"swap buffer", "swap_tensor/utils.py, SwapBufferManager.__init__"},
    {"swap buffers before they are locked", "swap_tensor/partitioned_param_swapper.py, _configure_aio"},
    {"swap buffers of parameters", "swap_tensor/partitioned_param_swapper.py, _configure_aio"},
    {"swap buffer of new parameters", "swap_tensor/partitioned_param_swapper.py, reserve_partitioned_swap_space"},
    {"parameter partition in a file", "swap_tensor/partitioned_param_swapper.py, swap_out_and_release"},
    {"master weights in a file", "swap_tensor/optimizer_utils.py, _initialize_parameters"},
    {"optimizer state in a file", "swap_tensor/optimizer_utils.py, add_state_tensors"},
    {"gradient in a file", "swap_tensor/optimizer_utils.py, _swap_out_gradients"},
};

// Where the optimizer is on the host, the same labels come from other functions.
constexpr Rule kStage3Host[] = {
    {"parameter of the backup optimizer", "zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__"},
    {"gradient for the device's optimizer", "zero/stage3.py, initialize_optimizer_states"},
    {"square root of exp_avg_sq", "torch/optim/adam.py, _multi_tensor_adam"},
    {"gradient in master dtype", "zero/stage3.py, _offload_grad_partition_at_boundary"},
    {"gradient norm", "zero/stage3.py, _constant_buffered_norm2"},
};

constexpr Rule kAnywhere[] = {
    {"partition of an argument", "activation_checkpointing/checkpointing.py, partition_activations"},
    {"contiguous checkpoint", "activation_checkpointing/checkpointing.py, partition_activations"},
    {"index of pages", "activation_checkpointing/checkpointing.py, partition_activations"},
    {"emptied argument", "activation_checkpointing/checkpointing.py, get_partitioned_activations_for_backward"},
    {"argument of a checkpoint", "activation_checkpointing/checkpointing.py, CheckpointFunction.backward"},
    {"random state of the host", "torch/utils/checkpoint.py, get_device_states"},
    {"random state of the device", "torch/utils/checkpoint.py, get_device_states"},
    {"gradient of the loss", "torch/autograd/__init__.py, _make_grads"},
    {"loss by micro-batches", "engine.py, backward"},
    {"scaled loss", "fp16/loss_scaler.py, scale_loss"},
    {"tensor of a barrier", "torch/csrc/distributed/c10d/ProcessGroup.hpp, barrier"},
    {"sum of gradients", "torch/csrc/autograd/input_buffer.cpp, InputBuffer::add"},
    {"cuBLAS workspace", "torch: aten/src/ATen/cuda/CublasHandlePool.cpp"},
    {"cuBLASLt workspace", "torch: aten/src/ATen/cuda/CublasHandlePool.cpp"},
};

std::string_view found(std::span<const Rule> rules, std::string_view label) {
  for (const Rule& rule : rules) {
    if (rule.label == label) return rule.where;
  }
  return {};
}

std::span<const Rule> rules_of(int stage) {
  if (stage == 0) return kStage0;
  if (stage == 3) return kStage3;
  return kStage12;
}

std::string_view file_of(int stage) {
  if (stage == 0) return "fp16/fused_optimizer.py";
  return stage == 3 ? "zero/stage3.py" : "zero/stage_1_and_2.py";
}

}  // namespace

std::string_view rule_of(std::string_view label, Role role, const Training& training) {
  if (training.runtime == Runtime::PyTorch) {
    if (label == "gradient bucket") return "torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets";
    return found(kAnywhere, label);
  }
  const int stage = training.zero.stage;
  const bool away = training.zero.offload_optimizer.device != OffloadDevice::None;
  if (away && stage == 3) {
    if (const std::string_view where = found(kStage3Host, label); !where.empty()) return where;
  }
  if (uses_unfused_wrapper(training)) {
    if (const std::string_view where = found(kUnfused, label); !where.empty()) return where;
  }
  if (const std::string_view where = found(rules_of(stage), label); !where.empty()) return where;
  if (const std::string_view where = found(kAnywhere, label); !where.empty()) return where;
  if (role == Role::Optimizer) {
    // What lies on the device is the backup optimizer's (stage3.py, partial offload).
    if (away && training.zero.offload_optimizer.ratio < 1 && training.deepspeed >= Version{0, 13, 3}) {
      return "torch/optim/adam.py, AdamW.step";
    }
    return away ? "deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam.step"
                : "deepspeed/ops/adam/fused_adam.py, FusedAdam.step";
  }
  return role == Role::RuntimeBuffers ? file_of(stage) : std::string_view();
}

void name_rules(const Training& training, Prediction& p) {
  const auto fill = [&training](std::vector<LiveBuffer>& list) {
    for (LiveBuffer& buffer : list) {
      if (buffer.rule.empty()) buffer.rule = rule_of(buffer.name, buffer.role, training);
    }
  };
  if (p.peak) fill(p.peak->live);
  if (p.held_for_backward) fill(p.held_for_backward->largest);
  if (p.loss_spike) fill(p.loss_spike->live);
}

}  // namespace dsplan
