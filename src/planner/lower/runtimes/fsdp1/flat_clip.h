// FullyShardedDataParallel.clip_grad_norm_ with the 2-norm (torch/distributed/fsdp/fully_sharded_data_parallel.py): the
// norm of each gradient in fp32, all of them together, then over the ranks.
#pragma once

#include <span>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/control_values.h"
#include "planner/lower/runtimes/optimizer_step.h"

namespace dsplan {

class FlatClip {
 public:
  // Ranks of `group` have other shards each; `space`: where the gradients lie.
  FlatClip(Emitter& emitter, GradientNorms& norms, Group group, Space space)
      : eager_(emitter), norms_(norms), group_(group), space_(space) {}

  // What each call begins with.
  void make_zero();
  // The caller lets go of the norm that it kept.
  void forget() { kept_.reset(Reason::Loop); }
  // `keep`: the caller holds the norm until the next step, as Hugging Face's Trainer does for its log.
  void run(std::span<const StepParameter> parameters, bool keep);

 private:
  [[nodiscard]] Variable scalar(Label label, Space space, DType type = DType::Float32, Body body = Body::Clear);
  [[nodiscard]] Variable local_norm(std::span<const StepParameter> parameters);

  Eager eager_;
  GradientNorms& norms_;
  Group group_;
  Space space_;
  Variable zero_;  // _zero_scalar, of the first call.
  Variable kept_;
};

}  // namespace dsplan
