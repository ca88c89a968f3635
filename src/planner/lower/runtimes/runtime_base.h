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

using Leaf = NamedParameter;
[[nodiscard]] inline std::vector<Leaf> leaves_of(const ModelSpec& model, const Training& training) {
  return named_parameters(model, training);
}

class RuntimeBase : public TrainingRuntime {
 public:
  RuntimeBase(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void build_on_host() override { loading_.build_on_host(); }
  void forward_returns() override { print("Engine after forward"); }

 protected:
  [[nodiscard]] const Training& training() const { return job_.training; }
  [[nodiscard]] const Zero& zero() const { return job_.training.zero; }
  // Of their own with overlap_comm alone, whoever else has one.
  [[nodiscard]] StreamId gather_stream() const { return zero().overlap_comm ? kGatherStream : kComputeStream; }
  [[nodiscard]] StreamId reduce_stream() const { return zero().overlap_comm ? kReduceStream : kComputeStream; }
  [[nodiscard]] std::int64_t world() const { return job_.parallelism.dp; }
  [[nodiscard]] std::int64_t tensor_ranks() const { return job_.parallelism.tp; }
  [[nodiscard]] std::int64_t rank() const { return rank_; }
  [[nodiscard]] DType dtype() const { return job_.training.dtype; }
  [[nodiscard]] Bytes in_model_dtype(std::int64_t elements) const { return storage(Elements(elements), dtype()); }
  [[nodiscard]] Bytes in_master_dtype(std::int64_t elements) const {
    return storage(Elements(elements), job_.training.master_dtype);
  }

  // The collective, or for a group of one rank the local copy that stands in its place. Reads and writes are stated
  // before, as for any work.
  void collective(Collective kind, DType dtype, Bytes payload);

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
  std::vector<NamedParameter> leaves_;
  std::vector<NamedParameter> trained_;      // Those that the optimizer updates, in registration order.
  std::vector<std::int32_t> trained_index_;  // By ParameterId; -1 for frozen and tied.
  ModelLoading loading_;
  ControlValues control_;
  HeldNorms norms_;

  // ZeRO-3 says these by their older names.
  [[nodiscard]] std::vector<BufferId> load_model(Label label) { return loading_.give_to_engine(label); }
  void print_model_given() { loading_.print_model_given(); }
  BufferId load_whole(const Leaf& leaf, Label label) { return loading_.load(leaf, label).hand_over(); }
  void broadcast(BufferId buffer) { loading_.broadcast(buffer, dtype()); }
  void control_all_reduce(Bytes bytes, Label label) { control_.all_reduce(bytes, {Role::Temporaries, label}); }
  void record_squares(ParameterId parameter);
  void hold_norms(DType type, std::size_t groups) { norms_.in_step(type, groups); }
  void let_go_of_norms() { norms_.step_returns(); }
  void accumulate(BufferId& held, BufferId gradient) { accumulate_gradient(emitter_, held, gradient); }
  void create_flat_state(std::int64_t elements, std::vector<BufferId>& state);
  void read_all(const std::vector<BufferId>& buffers);
  void write_all(const std::vector<BufferId>& buffers);
};

// One constructor each; make_runtime chooses.
[[nodiscard]] std::unique_ptr<TrainingRuntime> make_pytorch_runtime(const Job&, const ModelSpec&, std::int64_t rank,
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
