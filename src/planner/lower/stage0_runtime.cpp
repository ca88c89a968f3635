// DeepSpeed without ZeRO. In 16 bit FP16_Optimizer (fp16/fused_optimizer.py) for FusedAdam: a flat 16-bit copy, a flat
// fp32 master and its states, made at init by a dummy step; for others FP16_UnfusedOptimizer
// (fp16/unfused_optimizer.py): the same parameter by parameter. In fp32 the base optimizer itself, over separate
// tensors. Gradients are all-reduced at the boundary in parameter order, in buckets that close once they exceed 5e8
// elements (engine.py, allreduce_gradients; the configured bucket size is not consulted).
#include <algorithm>

#include "core/error.h"
#include "planner/lower/optimizer_step.h"
#include "planner/lower/runtime_base.h"

namespace dsplan {
namespace {

constexpr std::int64_t kReduceElements = 500'000'000;  // MEMORY_OPT_ALLREDUCE_SIZE
// runtime/utils.py, CheckOverflow: before, each gradient in turn was summed as fp32.
constexpr Version kScanWithoutCopies{0, 19, 6};

class Stage0Runtime final : public RuntimeBase {
 public:
  Stage0Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        mixed_(job.training.dtype != DType::Float32),
        unfused_(uses_unfused_wrapper(job.training)),
        whole_(model.parameters.size(), kNoBuffer),
        gradients_(model.parameters.size(), kNoBuffer),
        states_(model.parameters.size()),
        masters_(model.parameters.size(), kNoBuffer),
        optimizer_(job.training.optimizer, emitter, model.parameters.size()),
        offset_(model.parameters.size(), 0) {
    for (const Leaf& leaf : trained_) {
      offset_[at(leaf.id)] = elements_;
      elements_ = checked_add(elements_, leaf.elements);
    }
  }

  void initialise() override {
    whole_ = load_model("parameter");
    if (!trained_.empty()) make_overflow_buffer();
    if (unfused_) {
      create_masters();
    } else if (mixed_ && !trained_.empty()) {
      flatten();
      emitter_.promise_update(master_, Bytes(0), emitter_.size(master_));
    }
    for (const Leaf& leaf : trained_) {
      const ParameterPlace updated = place(leaf.id);
      emitter_.promise_update(updated.buffer, updated.offset, updated.bytes);
    }
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId buffer = whole_[at(parameter)];
    if (buffer != kNoBuffer) return {buffer, Bytes(0), emitter_.size(buffer)};
    return {flat_, in_model_dtype(offset_[at(parameter)]),
            in_model_dtype(trained_[static_cast<std::size_t>(trained_index_[at(parameter)])].elements)};
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    accumulate(gradients_[at(parameter)], gradient);
  }

  void backward_ends(bool boundary) override {
    if (!boundary) return;
    std::vector<ParameterId> bucket;
    std::int64_t filled = 0;
    for (const Leaf& leaf : trained_) {
      if (gradients_[at(leaf.id)] == kNoBuffer) continue;
      bucket.push_back(leaf.id);
      filled += leaf.elements;
      if (filled > kReduceElements) {
        reduce(bucket, filled);
        bucket.clear();
        filled = 0;
      }
    }
    if (!bucket.empty()) reduce(bucket, filled);
  }

  void step(bool first) override {
    if (trained_.empty()) return;
    if (unfused_) {
      step_unfused();
    } else if (mixed_) {
      step_flat();
    } else {
      step_separate(first);
    }
  }

 private:
  [[nodiscard]] static std::size_t at(ParameterId parameter) { return static_cast<std::size_t>(parameter); }

  // Originals, a clone of each and the flat buffer coexist; then master, and the dummy step with zero gradients.
  void flatten() {
    std::vector<BufferId> clones;
    for (const Leaf& leaf : trained_) {
      clones.push_back(emitter_.allocate(in_model_dtype(leaf.elements), dtype(), Role::Temporaries, "clone", leaf.id));
      emitter_.begin();
      emitter_.read(whole_[at(leaf.id)]);
      emitter_.write(clones.back());
      emitter_.compute("clone parameter");
    }
    flat_ = emitter_.allocate(in_model_dtype(elements_), dtype(), Role::Parameters, "flat parameters");
    emitter_.begin();
    read_all(clones);
    emitter_.write(flat_);
    emitter_.compute("flatten parameters");
    for (BufferId clone : clones) emitter_.release(clone, Reason::LastUse);
    for (const Leaf& leaf : trained_) {
      emitter_.release(std::exchange(whole_[at(leaf.id)], kNoBuffer), Reason::PythonFrame);
    }
    create_master();
    const BufferId zeros = emitter_.allocate(in_master_dtype(elements_), training().master_dtype, Role::Temporaries,
                                             "zero gradients of the dummy step");
    emitter_.begin();
    emitter_.write(zeros);
    emitter_.compute("zero gradients");
    create_flat_state(elements_, state_);
    emitter_.begin();
    emitter_.read(master_);
    emitter_.read(zeros);
    read_all(state_);
    emitter_.write(master_);
    write_all(state_);
    emitter_.compute("dummy optimizer step");
    emitter_.release(zeros, Reason::LastUse);
  }

  // A clone in 16 bit first, and then its cast.
  void create_master() {
    const BufferId clone = emitter_.allocate(in_model_dtype(elements_), dtype(), Role::Temporaries, "clone of all");
    emitter_.begin();
    emitter_.read(flat_);
    emitter_.write(clone);
    emitter_.compute("clone parameters");
    master_ = emitter_.allocate(in_master_dtype(elements_), training().master_dtype, Role::Optimizer, "master weights");
    emitter_.begin();
    emitter_.read(clone);
    emitter_.write(master_);
    emitter_.compute("cast to master");
    emitter_.release(clone, Reason::LastUse);
  }

  // Concatenated, cast where the communication dtype differs, reduced, copied back.
  void reduce(const std::vector<ParameterId>& bucket, std::int64_t elements) {
    if (world() == 1) return;
    const BufferId joined =
        emitter_.allocate(in_model_dtype(elements), dtype(), Role::RuntimeBuffers, "joined gradients");
    emitter_.begin();
    for (ParameterId parameter : bucket) emitter_.read(gradients_[at(parameter)]);
    emitter_.write(joined);
    emitter_.compute("concatenate gradients");
    const DType type = training().communication_dtype;
    BufferId sent = joined;
    if (type != dtype()) {
      sent = emitter_.allocate(storage(Elements(elements), type), type, Role::RuntimeBuffers,
                               "gradients in communication dtype");
      emitter_.begin();
      emitter_.read(joined);
      emitter_.write(sent);
      emitter_.compute("cast gradients");
    }
    emitter_.begin();
    emitter_.read(sent);
    emitter_.write(sent);
    emitter_.communicate(Collective::AllReduce, type, emitter_.size(sent));
    emitter_.begin();
    emitter_.read(sent);
    for (ParameterId parameter : bucket) emitter_.write(gradients_[at(parameter)]);
    emitter_.compute("copy gradients back");
    if (sent != joined) emitter_.release(sent, Reason::LastUse);
    emitter_.release(joined, Reason::PythonFrame);
  }

  // fp32 casts of all gradients and their concatenation coexist with the 16-bit gradients; then one fp32 gradient
  // stays. Every data-parallel rank has all gradients: overflow and norm are shared over tensor-parallel ranks alone.
  void step_flat() {
    tensor_parallel_control(Bytes(1), "overflow flag", squares_of(gradients_));
    std::vector<BufferId> casts;
    for (const Leaf& leaf : trained_) {
      casts.push_back(emitter_.allocate(in_master_dtype(leaf.elements), training().master_dtype, Role::Temporaries,
                                        "gradient in master dtype", leaf.id));
      emitter_.begin();
      if (gradients_[at(leaf.id)] != kNoBuffer) emitter_.read(gradients_[at(leaf.id)]);
      emitter_.write(casts.back());
      emitter_.compute("cast gradient");
    }
    const BufferId flat = emitter_.allocate(in_master_dtype(elements_), training().master_dtype, Role::Temporaries,
                                            "flat gradient in master dtype");
    emitter_.begin();
    read_all(casts);
    emitter_.write(flat);
    emitter_.compute("flatten gradients");
    for (BufferId cast : casts) emitter_.release(cast, Reason::LastUse);
    drop_gradients();
    tensor_parallel_control(Bytes(4), "gradient norm", squares_of(flat));
    hold_norm(DType::Float32, tensor_ranks() == 1 ? flat : kNoBuffer);
    emitter_.begin();
    emitter_.read(master_);
    emitter_.read(flat);
    read_all(state_);
    emitter_.write(master_);
    write_all(state_);
    emitter_.states_of_update(state_.size());
    emitter_.compute("optimizer update");
    emitter_.begin();
    emitter_.read(master_);
    emitter_.write(flat_);
    emitter_.compute("copy master to parameters");
    emitter_.release(flat, Reason::GradientHeld);
  }

  // Of each parameter a clone and its cast; then the dummy step, with zeros as both of its gradients.
  void create_masters() {
    if (trained_.empty()) return;
    for (const Leaf& leaf : trained_) {
      const BufferId clone =
          emitter_.allocate(in_model_dtype(leaf.elements), dtype(), Role::Temporaries, "clone", leaf.id);
      emitter_.begin();
      emitter_.read(whole_[at(leaf.id)]);
      emitter_.write(clone);
      emitter_.compute("clone parameter");
      masters_[at(leaf.id)] = emitter_.allocate(in_master_dtype(leaf.elements), training().master_dtype,
                                                Role::Optimizer, "master weights", leaf.id);
      emitter_.begin();
      emitter_.read(clone);
      emitter_.write(masters_[at(leaf.id)]);
      emitter_.compute("cast to master");
      emitter_.release(clone, Reason::LastUse);
    }
    const std::vector<BufferId> zeros = zero_gradients(dtype());
    const std::vector<BufferId> wide = zero_gradients(training().master_dtype);
    optimizer_.construct(step_parameters(wide));
    optimizer_.dummy_step(step_parameters(wide), training().optimizer.weight_decay);
    for (const std::vector<BufferId>& list : {zeros, wide}) {
      for (const Leaf& leaf : trained_) emitter_.release(list[at(leaf.id)], Reason::GradientHeld);
    }
    for (const Leaf& leaf : trained_) {
      const BufferId master = masters_[at(leaf.id)];
      emitter_.promise_update(master, Bytes(0), emitter_.size(master));
    }
  }

  // By ParameterId.
  std::vector<BufferId> zero_gradients(DType type) {
    std::vector<BufferId> made(model_.parameters.size(), kNoBuffer);
    for (const Leaf& leaf : trained_) {
      made[at(leaf.id)] = emitter_.allocate(storage(Elements(leaf.elements), type), type, Role::Temporaries,
                                            "zero gradients of the dummy step", leaf.id);
      if (type != training().master_dtype) emitter_.mark_scratch(made[at(leaf.id)]);
      emitter_.begin();
      emitter_.write(made[at(leaf.id)]);
      emitter_.compute("zero gradients");
    }
    return made;
  }

  [[nodiscard]] std::vector<StepParameter> step_parameters(const std::vector<BufferId>& gradients) const {
    std::vector<StepParameter> made;
    for (const Leaf& leaf : trained_) {
      const Parameter& parameter = model_.parameters[at(leaf.id)];
      made.push_back({leaf.id, masters_[at(leaf.id)], gradients[at(leaf.id)], parameter.shape, training().master_dtype,
                      false, false, parameter.split == Split::Replicated});
    }
    return made;
  }

  // A scan of each gradient, its norm in fp32 (runtime/utils.py, get_weight_norm), all casts, the base optimizer. A
  // cast goes when its master is copied, the gradients themselves when all are.
  void step_unfused() {
    if (training().deepspeed < kScanWithoutCopies) each_in_fp32("overflow scan", Body::Clear);
    tensor_parallel_control(Bytes(1), "overflow flag", squares_of(gradients_));
    each_in_fp32("gradient norm", Body::SquareSum);
    tensor_parallel_control(Bytes(4), "gradient norm");
    std::vector<BufferId> casts(model_.parameters.size(), kNoBuffer);
    for (const Leaf& leaf : trained_) {
      casts[at(leaf.id)] = emitter_.allocate(in_master_dtype(leaf.elements), training().master_dtype, Role::Temporaries,
                                             "gradient in master dtype", leaf.id);
      emitter_.begin();
      if (gradients_[at(leaf.id)] != kNoBuffer) emitter_.read(gradients_[at(leaf.id)]);
      emitter_.write(casts[at(leaf.id)]);
      emitter_.compute("cast gradient");
    }
    optimizer_.step(step_parameters(casts), training().optimizer.weight_decay);
    for (const Leaf& leaf : trained_) {
      emitter_.release(casts[at(leaf.id)], Reason::GradientHeld);
      emitter_.begin();
      emitter_.read(masters_[at(leaf.id)]);
      emitter_.write(whole_[at(leaf.id)]);
      emitter_.compute("copy master to parameters");
    }
    drop_gradients();
  }

  // One after the other.
  void each_in_fp32(Label label, Body body) {
    for (const Leaf& leaf : trained_) {
      const BufferId gradient = gradients_[at(leaf.id)];
      if (gradient == kNoBuffer) continue;
      const BufferId wide =
          emitter_.allocate(storage(Elements(leaf.elements), DType::Float32), DType::Float32, Role::Temporaries, label);
      emitter_.mark_scratch(wide);
      emitter_.begin();
      emitter_.read(gradient);
      emitter_.write(wide);
      emitter_.as(body);
      if (body == Body::SquareSum) record_squares(leaf.id);
      emitter_.compute(label);
      emitter_.release(wide, Reason::LastUse);
    }
  }

  // engine.py, clip_fp32_gradients: its norm is summed over all ranks, wrongly or not.
  void step_separate(bool first) {
    if (training().gradient_clipping > 0) control_all_reduce(Bytes(4), "gradient norm", squares_of(gradients_));
    for (const Leaf& leaf : trained_) {
      std::vector<BufferId>& state = states_[at(leaf.id)];
      if (first) {
        const Parameter& parameter = model_.parameters[at(leaf.id)];
        for (const StateTensor& tensor : optimizer_state(training().optimizer, parameter.shape, dtype(), false)) {
          state.push_back(emitter_.allocate(tensor.bytes, tensor.dtype, Role::Optimizer, tensor.label, leaf.id));
        }
        if (!state.empty()) {
          emitter_.begin();
          write_all(state);
          emitter_.compute("create optimizer state");
        }
      }
      if (gradients_[at(leaf.id)] == kNoBuffer) continue;
      emitter_.begin();
      emitter_.read(whole_[at(leaf.id)]);
      emitter_.read(gradients_[at(leaf.id)]);
      read_all(state);
      emitter_.write(whole_[at(leaf.id)]);
      write_all(state);
      emitter_.states_of_update(state.size());
      emitter_.compute("optimizer update");
    }
    drop_gradients();
  }

  void drop_gradients() {
    for (const Leaf& leaf : trained_) {
      BufferId& gradient = gradients_[at(leaf.id)];
      if (gradient != kNoBuffer) emitter_.release(std::exchange(gradient, kNoBuffer), Reason::GradientHeld);
    }
  }

  bool mixed_;
  bool unfused_;
  std::vector<BufferId> whole_;  // By ParameterId, as are the next three, and the offsets.
  std::vector<BufferId> gradients_;
  std::vector<std::vector<BufferId>> states_;
  std::vector<BufferId> masters_;  // Unfused.
  OptimizerStep optimizer_;        // Likewise.
  std::vector<std::int64_t> offset_;
  std::int64_t elements_ = 0;
  BufferId flat_ = kNoBuffer;
  BufferId master_ = kNoBuffer;
  std::vector<BufferId> state_;
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_stage0_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                     Emitter& emitter) {
  return std::make_unique<Stage0Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
