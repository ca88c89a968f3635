// What happens to gradients between backward and the optimizer step: torch.nn.utils.clip_grad_norm_ and
// torch.amp.GradScaler, with every scalar that they make.
//
// Sources: torch 2.11 torch/nn/utils/clip_grad.py, torch/amp/grad_scaler.py; the scratch of the multi-tensor norm:
// ATen/native/cuda/ForeachReduceOp.cu. Witness: tests/witnesses/optimizers.json.
#pragma once

#include <span>
#include <vector>

#include "planner/lower/emitter.h"
#include "planner/lower/optimizer_step.h"

namespace dsplan {

// clip_grad_norm_ with the 2-norm and its default, the multi-tensor form. Over tensor-parallel ranks, of which each has
// gradients of its own, the norm is brought together (Megatron-LM, core/optimizer/clip_grads.py).
class GradientClip {
 public:
  GradientClip(Emitter& emitter, Level level, std::int64_t tensor_ranks = 1)
      : emitter_(emitter), level_(level), tensor_ranks_(tensor_ranks) {}

  // The caller lets go of the norm that it kept.
  void forget();
  // `keep`: the caller holds the norm until the next step, as Hugging Face's Trainer does for its log.
  void run(std::span<const StepParameter> parameters, bool keep);

 private:
  [[nodiscard]] std::vector<BufferId> norms(std::span<const StepParameter> group);
  void record_squares(std::span<const StepParameter> group);
  [[nodiscard]] BufferId scalar(Bytes size, DType dtype, Label label, Body body = Body::Clear);
  [[nodiscard]] BufferId total_norm(std::span<const StepParameter> parameters, DType& dtype);
  void drop(BufferId& buffer);

  Emitter& emitter_;
  Level level_;
  std::int64_t tensor_ranks_;
  BufferId norm_ = kNoBuffer;
};

// The dtype of the total norm: that of all gradients, fp32 where they differ.
[[nodiscard]] DType norm_dtype(std::span<const StepParameter> parameters);

// GradScaler over one optimizer; no step is skipped. `scale` and `backward_done` enclose each backward pass; then once:
// unscale (only where gradients are clipped), before_step, after_step.
class LossScaler {
 public:
  explicit LossScaler(Emitter& emitter) : emitter_(emitter) {}

  void scale();
  void backward_done();
  void unscale(std::span<const StepParameter> parameters);
  // `fused`: the optimizer's own kernel unscales and looks for infinities.
  void before_step(std::span<const StepParameter> parameters, bool fused);
  void after_step();

 private:
  [[nodiscard]] BufferId scalar(Bytes size, DType dtype, Role role, Label label);
  void drop(BufferId& buffer);
  void check(std::span<const StepParameter> parameters, BufferId& inverse);

  Emitter& emitter_;
  BufferId scale_ = kNoBuffer;  // Made by the first loss, kept for ever, as is the next.
  BufferId growth_tracker_ = kNoBuffer;
  BufferId scaled_loss_ = kNoBuffer;
  BufferId found_inf_ = kNoBuffer;  // Until update().
  BufferId found_sum_ = kNoBuffer;  // Attributes of a fused optimizer during its step, as is the next.
  BufferId handed_scale_ = kNoBuffer;
};

}  // namespace dsplan
