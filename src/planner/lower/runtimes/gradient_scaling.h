// What happens to gradients between backward and the optimizer step: torch.nn.utils.clip_grad_norm_ and
// torch.amp.GradScaler, with every scalar that they make.
//
// Sources: torch 2.11 torch/nn/utils/clip_grad.py, torch/amp/grad_scaler.py; the scratch of the multi-tensor norm:
// ATen/native/cuda/ForeachReduceOp.cu. Witness: tests/witnesses/optimizers.json.
#pragma once

#include <span>
#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/optimizer_step.h"

namespace dsplan {

// clip_grad_norm_ with the 2-norm and its default, the multi-tensor form. Over tensor-parallel ranks, of which each has
// gradients of its own, the norm is brought together (Megatron-LM, core/optimizer/clip_grads.py); so are norms of the
// shards of DTensors, all at once (torch/distributed/tensor/_ops/_math_ops.py, _NormPartial).
struct ShardedNorms {
  std::int64_t ranks = 1;
  Group group = Group::DataParallel;
  Space space = Space::Device;  // Where the gradients lie, and the norms.
};
class GradientClip {
 public:
  GradientClip(Emitter& emitter, Level level, std::int64_t tensor_ranks = 1, ShardedNorms sharded = {})
      : eager_(emitter), level_(level), tensor_ranks_(tensor_ranks), sharded_(sharded) {}

  // The caller lets go of the norm that it kept.
  void forget() { norm_.reset(Reason::Loop); }
  // `keep`: the caller holds the norm until the next step, as Hugging Face's Trainer does for its log.
  void run(std::span<const StepParameter> parameters, bool keep);

 private:
  [[nodiscard]] Variable get_total_norm(std::span<const StepParameter> parameters, DType dtype);
  void foreach_norm(std::span<const StepParameter> group, Variables& norms);
  [[nodiscard]] Variable scalars(std::int64_t count, DType dtype, Label label, Body body = Body::Clear);
  [[nodiscard]] Variable sum_over_shards(std::int64_t count, DType dtype);

  Eager eager_;
  Level level_;
  std::int64_t tensor_ranks_;
  ShardedNorms sharded_;
  Variable norm_;
};

// The dtype of the total norm: that of all gradients, fp32 where they differ.
[[nodiscard]] DType norm_dtype(std::span<const StepParameter> parameters);

// GradScaler over one optimizer; no step is skipped. `scale` and `backward_done` enclose each backward pass; then once:
// unscale (only where gradients are clipped), before_step, after_step.
class LossScaler {
 public:
  explicit LossScaler(Emitter& emitter) : eager_(emitter) {}
  // accelerate's ShardedGradScaler: unscale_ asks the other ranks what they have found, and step does not
  // (torch/distributed/fsdp/sharded_grad_scaler.py). The loss is divided before (accelerator.py, backward).
  LossScaler(Emitter& emitter, std::int64_t ranks) : eager_(emitter), ranks_(ranks), divides_(true) {}

  void scale();
  void backward_done() {
    scaled_loss_.reset();
    divided_loss_.reset();
  }
  void unscale(std::span<const StepParameter> parameters);
  // `fused`: the optimizer's own kernel unscales and looks for infinities.
  void before_step(std::span<const StepParameter> parameters, bool fused);
  void after_step();

 private:
  [[nodiscard]] Variable scalar(DType dtype, What what, Body body = Body::Clear);
  void unscale_grads(std::span<const StepParameter> parameters, Variable inv_scale);

  Eager eager_;
  std::int64_t ranks_ = 1;
  bool divides_ = false;
  Variable scale_;  // Made by the first loss, kept for ever, as is the next.
  Variable growth_tracker_;
  Variable divided_loss_;
  Variable scaled_loss_;
  Variable found_inf_;  // Until update().
  Variable found_sum_;  // Attributes of a fused optimizer during its step, as is the next.
  Variable handed_scale_;
};

}  // namespace dsplan
