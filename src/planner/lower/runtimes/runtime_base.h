// What the engines of all runtimes share: the job, the parameters with what is trained, how the model is loaded, and
// the control values of a step.
#pragma once

#include <string>
#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/control_values.h"
#include "planner/lower/runtimes/model_loading.h"
#include "planner/lower/runtimes/named_parameters.h"
#include "planner/lower/runtimes/optimizer_state.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

inline constexpr Source kFusedAdamInit = "ops/adam/fused_adam.py, FusedAdam.__init__";

class RuntimeBase : public TrainingRuntime {
 public:
  RuntimeBase(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void build(ModelInit where, const BuffersOf& buffers_of) override {
    if (where == ModelInit::Host) loading_.build_on_host(moves_with_buffers(model_, named_, buffers_of));
    if (where == ModelInit::Device) loading_.build_on_device(model_, buffers_of, before_product);
  }
  void forward_returns(bool with_outputs) override {
    if (!with_outputs) print("Engine after forward");
  }

 protected:
  [[nodiscard]] const Training& training() const { return job_.training; }
  [[nodiscard]] const Zero& zero() const { return job_.training.zero; }
  [[nodiscard]] std::int64_t world() const { return job_.parallelism.dp; }
  [[nodiscard]] std::int64_t tensor_ranks() const { return job_.parallelism.tp; }
  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] DType dtype() const { return job_.training.dtype; }
  [[nodiscard]] Bytes in_model_dtype(std::int64_t elements) const { return storage(Elements(elements), dtype()); }
  [[nodiscard]] Bytes in_master_dtype(std::int64_t elements) const {
    return storage(Elements(elements), job_.training.master_dtype);
  }

  // Whose loop has a variable for the norm that clipping found.
  [[nodiscard]] bool keeps_norm() const {
    const bool titan = training().loop == LoopKind::Torchtitan && training().torchtitan >= Version{0, 2, 0};
    return holds_norm(training().loop) || titan;
  }

  // What DeepSpeed's see_memory_usage would say here; nothing under plain PyTorch.
  void print(std::string text) {
    if (training().runtime == Runtime::DeepSpeed) emitter_.print(std::move(text));
  }
  // DeepSpeed's FusedAdam makes an int32 for overflows when it is constructed, and keeps it (ops/adam/fused_adam.py).
  void make_overflow_buffer();

  const Job& job_;
  const ModelSpec& model_;
  std::int64_t rank_;
  Emitter& emitter_;
  Eager eager_;
  std::vector<NamedParameter> named_;
  std::vector<NamedParameter> trained_;      // Those that the optimizer updates, in registration order.
  std::vector<std::int32_t> trained_index_;  // By ParameterId; -1 for frozen and tied.
  ModelLoading loading_;
  ControlValues control_;
  HeldNorms norms_;
  GradientNorms gradient_norms_;
};

// One constructor each; make_runtime chooses.
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_pytorch_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                    Emitter&);
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_fsdp2_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                  Emitter&);
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_fsdp1_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                  Emitter&);
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_stage0_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                   Emitter&);
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_stage12_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                    Emitter&);
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_bf16_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                 Emitter&);
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_stage3_runtime(const Job&, const ModelSpec&, std::int64_t rank,
                                                                   Emitter&);

}  // namespace dsplan
