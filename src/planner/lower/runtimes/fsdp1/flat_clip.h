// FullyShardedDataParallel.clip_grad_norm_ with the 2-norm (torch/distributed/fsdp/fully_sharded_data_parallel.py): the
// norm of each gradient in fp32, all of them together, then over the ranks.
#pragma once

#include <span>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/control_values.h"
#include "planner/lower/runtimes/gradient_scaling.h"
#include "planner/lower/runtimes/optimizer_step.h"

namespace dsplan {

class FlatClip {
 public:
  // `space`: where the gradients lie.
  FlatClip(Emitter& emitter, GradientNorms& norms, const Job& job, Space space);

  // The caller lets go of the norm that it kept.
  void forget() {
    kept_.reset(Reason::Loop);
    of_whole_.forget();
  }
  // `keep`: the caller holds the norm until the next step, as Hugging Face's Trainer does for its log.
  void run(std::span<const StepParameter> parameters, bool keep);

 private:
  [[nodiscard]] Variable scalar(Label label, Space space, DType type = DType::Float32, Body body = Body::Clear);
  [[nodiscard]] Variable local_norm(std::span<const StepParameter> parameters);

  Eager eager_;
  GradientNorms& norms_;
  Group group_;  // Of the ranks that have other shards each.
  Space space_;
  bool whole_;             // NO_SHARD, of which
  GradientClip of_whole_;  // torch.nn.utils' function takes the gradients as they are.
  Variable zero_;          // _zero_scalar, of the first call.
  Variable kept_;
};

}  // namespace dsplan
