// What all runtimes share: the list of parameters with what is trained, frozen parameters, and optimizer state.
#pragma once

#include <string>
#include <vector>

#include "planner/lower/runtime.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

// A parameter that is not a tie, in registration order.
struct Leaf {
  ParameterId id = 0;
  std::int64_t elements = 0;
  bool trainable = true;
  DType dtype = DType::BFloat16;
};
[[nodiscard]] std::vector<Leaf> leaves_of(const ModelSpec& model, const Training& training);

// One tensor of optimizer state.
struct StateTensor {
  Bytes bytes;
  DType dtype = DType::Float32;
  Label label = "";
};
// State that the optimizer keeps for one tensor of `shape` whose own dtype is `dtype`, in order of creation.
// Sources: torch/optim/{adam,sgd,adafactor,muon}.py, transformers' Adafactor, bitsandbytes' blockwise 8-bit Adam
// (two bytes and two fp32 scales per 256 elements; tensors below 4,096 elements stay fp32).
// `hidden_matrix`: a 2-D weight that is neither embedding nor head; only Muon cares.
[[nodiscard]] std::vector<StateTensor> optimizer_state(const Optimizer& optimizer, const Shape& shape, DType dtype,
                                                       bool hidden_matrix);

// The same where the optimizer works on the parameters themselves, under plain PyTorch: torch's fused Adam counts its
// steps on the device; bitsandbytes' 32-bit states are fp32 whatever the parameter's dtype, and embeddings are among
// them where transformers' Trainer registers them (trainer.py, create_optimizer).
[[nodiscard]] std::vector<StateTensor> separate_state(const Optimizer& optimizer, const Shape& shape, DType dtype,
                                                      bool hidden_matrix, bool embedding);

// A parameter group of the optimizer, in the order of the groups.
struct ParameterGroup {
  std::vector<const Leaf*> leaves;
  double weight_decay = 0;
};
// All of `trained` in one; or as transformers' Trainer makes them: what decays, then biases and norms, which do not
// (trainer.py, get_decay_parameter_names). Empty groups are left out. The result points into `trained`.
[[nodiscard]] std::vector<ParameterGroup> parameter_groups(const ModelSpec& model, const Training& training,
                                                           const std::vector<Leaf>& trained);

// For an executor: of what a control value is the norm, beside what has been measured before, or what is looked at for
// an overflow; where every data-parallel rank has it all, and they add up, `copies` of them.
struct Squares {
  std::vector<ByteRange> of;
  std::uint8_t copies = 0;
};

class RuntimeBase : public TrainingRuntime {
 public:
  RuntimeBase(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void build_on_host() override;
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
  [[nodiscard]] std::int64_t width() const { return bytes_per_element(job_.training.dtype); }
  [[nodiscard]] Bytes in_model_dtype(std::int64_t elements) const { return storage(Elements(elements), dtype()); }
  [[nodiscard]] Bytes in_master_dtype(std::int64_t elements) const {
    return storage(Elements(elements), job_.training.master_dtype);
  }

  // The collective, or for a group of one rank the local copy that stands in its place. Reads and writes are stated
  // before, as for any work.
  void collective(Collective kind, DType dtype, Bytes payload);
  // A small control collective over a value of `bytes`: over the data-parallel ranks, then over the tensor-parallel
  // ones, each where there are several.
  void control_all_reduce(Bytes bytes, Label label, const Squares& squares = {});
  // Of a value that is the same on all data-parallel ranks: over the tensor-parallel ones alone.
  void tensor_parallel_control(Bytes bytes, Label label, const Squares& squares = {});
  // runtime_recording.cpp. Of gradients that lie in `flat` in the order of trained_; or by ParameterId, on all ranks.
  [[nodiscard]] Squares squares_of(BufferId flat) const;
  [[nodiscard]] Squares squares_of(const std::vector<BufferId>& gradients) const;
  // Whether this tensor-parallel rank's gradient of it joins the norm.
  [[nodiscard]] bool counts_in_norm(ParameterId parameter) const;
  // The sum of squares under way is one of this parameter's gradient.
  void record_squares(ParameterId parameter);
  // A value that is there, over the ranks of one group; nothing where there is one.
  void share_control(BufferId value, Group group);

  // What DeepSpeed's see_memory_usage would say here; nothing under plain PyTorch.
  void print(std::string text) {
    if (training().runtime == Runtime::DeepSpeed) emitter_.print(std::move(text));
  }
  // DeepSpeed's engine is given the model: whole parameters of all leaves, by ParameterId, sent by rank 0.
  [[nodiscard]] std::vector<BufferId> load_model(Label label);
  void print_model_given();

  // Whole parameters outside any flat buffer: made here, or moved from where build_on_host made them.
  BufferId load_whole(const Leaf& leaf, Label label);
  // Rank 0 sends what `buffer` holds to all; nothing where there is one rank.
  void broadcast(BufferId buffer) { broadcast(buffer, dtype()); }
  void broadcast(BufferId buffer, DType type);
  void accumulate(BufferId& held, BufferId gradient) { accumulate_gradient(emitter_, held, gradient); }
  // DeepSpeed's FusedAdam makes an int32 for overflows when it is constructed, and keeps it (ops/adam/fused_adam.py).
  void make_overflow_buffer();
  // The wrapper's _global_grad_norm: a scalar that each step replaces.
  // `gradient`: what it is the norm of, where no event of its own has measured it.
  void hold_norm(DType type, BufferId gradient = kNoBuffer);
  // The same under ZeRO, where the scaled norm, the norms of `groups` groups that step() has a variable for, and the
  // norm of the step before, which the engine holds, stay until `let_go_of_norms`.
  void hold_norms(DType type, std::size_t groups);
  void let_go_of_norms();
  // Zeros that end a flat buffer, made before it (runtime/utils.py, align_dense_tensors); kNoBuffer where none are.
  BufferId padding_of_flat(std::int64_t elements);
  // Originals, padding and the flat buffer coexist; then the parameters, by ParameterId in `whole`, become views of it.
  // `printed` is said while all are there.
  BufferId flatten_trained(std::vector<BufferId>& whole, std::int64_t elements, std::int64_t padded,
                           const std::vector<std::string>& printed = {});
  // All state tensors for one flat partition.
  void create_flat_state(std::int64_t elements, std::vector<BufferId>& state);
  void read_all(const std::vector<BufferId>& buffers);
  void write_all(const std::vector<BufferId>& buffers);

  const Job& job_;
  const ModelSpec& model_;
  std::int64_t rank_;
  Emitter& emitter_;
  std::vector<Leaf> leaves_;
  std::vector<Leaf> trained_;                // Those that the optimizer updates, in registration order.
  std::vector<std::int32_t> trained_index_;  // By ParameterId; -1 for frozen and tied.

 private:
  [[nodiscard]] BufferId make_norm(DType type, BufferId gradient = kNoBuffer);
  [[nodiscard]] BufferId control_value(Bytes bytes, Label label, const Squares& squares);
  void record_norm(const Squares& squares);

  std::vector<BufferId> on_host_;  // By ParameterId, before they are moved; empty where the host has no model.
  std::vector<BufferId> norms_of_step_;
  BufferId norm_ = kNoBuffer;
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
