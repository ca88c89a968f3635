#include "planner/lower/runtimes/runtime_base.h"

#include <utility>

#include "core/error.h"
#include "planner/lower/runtimes/flat_optimizer.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

BufferId move_to_device(Emitter& emitter, BufferId source, What what, ParameterId parameter) {
  const Variable there(emitter, source);
  return Eager(emitter).clone(there, what, "move to device", parameter).hand_over();
}

void accumulate_gradient(Emitter& emitter, BufferId& held, BufferId gradient) {
  Variable grad(emitter, std::exchange(held, kNoBuffer), Reason::GradientHeld);
  accumulate_gradient(grad, Variable(emitter, gradient, Reason::GradientHeld));
  held = grad.hand_over();
}

void accumulate_gradient(Variable& grad, Variable gradient) {
  if (!grad) {
    grad = std::move(gradient);
    return;
  }
  Eager(gradient.emitter()).add(grad, gradient, "accumulate gradient");
  gradient.reset(Reason::AutogradGraph);
}

namespace {

// The step() of the class that holds the optimizer.
Source step_of(const Training& training) {
  if (training.zero.stage == 3) return "zero/stage3.py, step";
  if (uses_bf16_optimizer(training)) return "bf16_optimizer.py, step";
  if (uses_unfused_wrapper(training)) return "fp16/unfused_optimizer.py, step";
  return training.zero.stage == 0 ? "fp16/fused_optimizer.py, step" : "zero/stage_1_and_2.py, step";
}

}  // namespace

RuntimeBase::RuntimeBase(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : job_(job),
      model_(model),
      rank_(rank),
      emitter_(emitter),
      eager_(emitter),
      named_(named_parameters(model, job.training)),
      trained_index_(model.parameters.size(), -1),
      loading_(emitter, job, named_, model.parameters.size()),
      control_(emitter, model, {job.parallelism.dp, job.parallelism.tp, rank}),
      norms_(emitter, step_of(job.training)),
      gradient_norms_(emitter, job) {
  for (const NamedParameter& parameter : named_) {
    if (!parameter.trainable) continue;
    trained_index_[static_cast<std::size_t>(parameter.id)] = static_cast<std::int32_t>(trained_.size());
    trained_.push_back(parameter);
  }
}

void RuntimeBase::make_overflow_buffer() {
  const Optimizer& optimizer = training().optimizer;
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  if (!adam || optimizer.implementation != Implementation::Fused) return;
  Variable flag =
      eager_.scratch(Bytes(4), DType::Int32, {Role::Temporaries, "overflow buffer of FusedAdam", kFusedAdamInit});
  eager_.zero(flag, "zero overflow buffer");
  (void)flag.hand_over();
}

std::unique_ptr<TrainingRuntime> make_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                              Emitter& emitter) {
  if (job.training.runtime == Runtime::PyTorch) return make_pytorch_runtime(job, model, rank, emitter);
  if (job.training.runtime == Runtime::Fsdp2) return make_fsdp2_runtime(job, model, rank, emitter);
  if (job.training.runtime == Runtime::Fsdp1) return make_fsdp1_runtime(job, model, rank, emitter);
  switch (job.training.zero.stage) {
    case 0: return make_stage0_runtime(job, model, rank, emitter);
    case 1:
      if (uses_bf16_optimizer(job.training)) return make_bf16_runtime(job, model, rank, emitter);
      return make_stage12_runtime(job, model, rank, emitter);
    case 2: return make_stage12_runtime(job, model, rank, emitter);
    case 3: return make_stage3_runtime(job, model, rank, emitter);
    default: break;
  }
  DSPLAN_CHECK(false, "stage " + std::to_string(job.training.zero.stage));
}

}  // namespace dsplan
