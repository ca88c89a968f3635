// DeepSpeed without ZeRO. In 16 bit FP16_Optimizer (fp16/fused_optimizer.py) for FusedAdam: a flat 16-bit copy, a flat
// fp32 master and its states, made at init by a dummy step; for others FP16_UnfusedOptimizer
// (fp16/unfused_optimizer.py): the same parameter by parameter. In fp32 the base optimizer itself, over separate
// tensors. Gradients are all-reduced at the boundary in parameter order, in buckets that close once they exceed 5e8
// elements (engine.py, allreduce_gradients; the configured bucket size is not consulted).
#include <memory>
#include <optional>
#include <utility>

#include "planner/lower/runtimes/flat_layout.h"
#include "planner/lower/runtimes/flat_optimizer.h"
#include "planner/lower/runtimes/optimizer_step.h"
#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/separate_gradients.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

constexpr std::int64_t kReduceElements = 500'000'000;  // MEMORY_OPT_ALLREDUCE_SIZE
// runtime/utils.py, CheckOverflow: before, each gradient in turn was summed as fp32.
constexpr Version kScanWithoutFp32{0, 19, 6};

// What an optimizer of the engine's works on.
struct Stage0Model {
  const ModelSpec& spec;
  const Training& training;
  const std::vector<NamedParameter>& trained;
  std::vector<Variable> whole;  // By ParameterId.
  SeparateGradients gradients;
  ControlValues& control;
  GradientNorms& gradient_norms;
};

// As the base optimizer meets it.
StepParameter step_parameter(const Stage0Model& model, ParameterId id, const Variable& stepped, BufferId gradient,
                             DType dtype) {
  const Parameter& parameter = model.spec.parameter_at(id);
  return {id, stepped.id(), gradient, parameter.shape, dtype, false, false, parameter.split == Split::Replicated};
}

class Stage0Optimizer {
 public:
  virtual ~Stage0Optimizer() noexcept(false) = default;
  virtual void initialise() = 0;
  // Of a parameter that is no tensor of its own any more.
  [[nodiscard]] virtual ParameterPlace place(ParameterId) const { return {}; }
  virtual void step(bool first) = 0;
};

// fp16/fused_optimizer.py
class Fp16Optimizer final : public Stage0Optimizer {
 public:
  Fp16Optimizer(Stage0Model& model, Emitter& emitter)
      : model_(model),
        training_(model.training),
        eager_(emitter),
        layout_(model.trained, 1, 1, 0),
        optimizer_(emitter, model.training, kInit) {}

  // Originals, a clone of each and the flat buffer coexist; then master, and the dummy step with zero gradients.
  void initialise() override {
    Variables clones;
    for (const NamedParameter& p : layout_.order) {
      clones.append(eager_.clone(model_.whole[at(p.id)], {Role::Temporaries, "clone", kInit}, "clone parameter", p.id));
    }
    flat_ =
        eager_.empty(in_model_dtype(layout_.elements), training_.dtype, {Role::Parameters, "flat parameters", kInit});
    eager_.concatenate(flat_, clones, "flatten parameters");
    clones.reset();
    for (const NamedParameter& p : layout_.order) model_.whole[at(p.id)].reset();
    optimizer_.create_master(flat_, {Role::Temporaries, "clone of all", kInit}, "clone parameters");
    initialize_optimizer_states();
    eager_.emitter().promise_update(optimizer_.master(), Bytes(0), eager_.emitter().size(optimizer_.master()));
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const std::size_t i = layout_.index_of(parameter);
    return {flat_.id(), in_model_dtype(layout_.offset[i]), in_model_dtype(layout_.order[i].elements)};
  }

  // fp32 casts of all gradients and their concatenation coexist with the 16-bit gradients; then one fp32 gradient
  // stays. Every data-parallel rank has all gradients: overflow and norm are shared over tensor-parallel ranks alone.
  void step(bool /*first*/) override {
    model_.control.tensor_parallel(Bytes(1),
                                   {Role::Temporaries, "overflow flag", "runtime/utils.py, CheckOverflow.has_overflow"},
                                   model_.control.squares_of(model_.gradients.ids(), layout_.order));
    Variable flat_gradient = flatten_gradients();
    model_.gradients.drop(layout_.order);
    measure(flat_gradient);
    optimizer_.step(flat_gradient);
    optimizer_.copy_master_to(flat_);
    flat_gradient.reset(Reason::GradientHeld);
  }

 private:
  static constexpr Source kInit = "fp16/fused_optimizer.py, FP16_Optimizer.__init__";
  static constexpr Source kStep = "fp16/fused_optimizer.py, step";

  [[nodiscard]] Bytes in_model_dtype(std::int64_t elements) const {
    return storage(Elements(elements), training_.dtype);
  }

  void initialize_optimizer_states() {
    const Variable zeros = eager_.zeros(
        storage(Elements(layout_.elements), training_.master_dtype), training_.master_dtype,
        {Role::Temporaries, "zero gradients of the dummy step", "fp16/fused_optimizer.py, initialize_optimizer_states"},
        "zero gradients");
    optimizer_.create_states();
    optimizer_.dummy_step(zeros);
  }

  // runtime/utils.py, get_flattened_grad_norm: the norm becomes a number of Python's, is sent to the device again for
  // tensor-parallel ranks, and comes back. What they have alike counts once.
  void measure(const Variable& flat_gradient) {
    constexpr What kNorm{Role::Temporaries, "gradient norm", "runtime/utils.py, get_flattened_grad_norm"};
    const Variable norm = model_.gradient_norms.norm_of(flat_gradient, kNorm, std::vector<ByteRange>{});
    model_.control.tensor_parallel(Bytes(4), kNorm, model_.control.squares_of(flat_gradient.id(), layout_.order), norm);
  }

  // _flatten_dense_tensors([p.grad.to(fp32) for p in group]); a parameter without gradient is zeros.
  Variable flatten_gradients() {
    const DType wide = training_.master_dtype;
    Variables casts;
    for (const NamedParameter& p : layout_.order) {
      Variable cast = eager_.empty(storage(Elements(p.elements), wide), wide,
                                   {Role::Temporaries, "gradient in master dtype", kStep}, p.id);
      Work work = eager_.work();
      if (model_.gradients.holds(p.id)) work.read(model_.gradients[p.id]);
      work.write(cast).run(Body::Copy, "cast gradient");
      casts.append(std::move(cast));
    }
    Variable flat = eager_.empty(storage(Elements(layout_.elements), wide), wide,
                                 {Role::Temporaries, "flat gradient in master dtype", kStep});
    eager_.concatenate(flat, casts, "flatten gradients");
    return flat;
  }

  Stage0Model& model_;
  const Training& training_;
  Eager eager_;
  FlatLayout layout_;
  Variable flat_;
  FlatOptimizer optimizer_;
};

// fp16/unfused_optimizer.py
class Fp16UnfusedOptimizer final : public Stage0Optimizer {
 public:
  Fp16UnfusedOptimizer(Stage0Model& model, Emitter& emitter)
      : model_(model),
        training_(model.training),
        eager_(emitter),
        masters_(model.spec.parameters.size()),
        optimizer_(training_.optimizer, emitter, model.spec.parameters.size(),
                   {state_source(training_), "torch/optim/adam.py, _multi_tensor_adam"}) {}

  // Of each parameter a clone and its cast; then the dummy step.
  void initialise() override {
    if (model_.trained.empty()) return;
    for (const NamedParameter& p : model_.trained) {
      const Variable clone =
          eager_.clone(model_.whole[at(p.id)], {Role::Temporaries, "clone", kInit}, "clone parameter", p.id);
      masters_[at(p.id)] = eager_.cast(clone, training_.master_dtype, {Role::Optimizer, "master weights", kInit},
                                       "cast to master", p.id);
    }
    initialize_optimizer_states();
    for (const NamedParameter& p : model_.trained) {
      const BufferId master = masters_[at(p.id)].id();
      eager_.emitter().promise_update(master, Bytes(0), eager_.emitter().size(master));
    }
  }

  // A scan of each gradient, its norm in fp32 (runtime/utils.py, get_weight_norm), all casts, the base optimizer. A
  // cast goes when its master is copied, the gradients themselves when all are.
  void step(bool /*first*/) override {
    if (training_.deepspeed < kScanWithoutFp32) {
      each_in_fp32({Role::Temporaries, "overflow scan", "runtime/utils.py, CheckOverflow._has_inf_or_nan"},
                   Body::Clear);
    }
    model_.control.tensor_parallel(Bytes(1),
                                   {Role::Temporaries, "overflow flag", "runtime/utils.py, CheckOverflow.has_overflow"},
                                   model_.control.squares_of(model_.gradients.ids(), model_.trained));
    constexpr What kNorm{Role::Temporaries, "gradient norm", "runtime/utils.py, get_weight_norm"};
    each_in_fp32(kNorm, Body::SquareSum);
    model_.control.tensor_parallel(Bytes(4), kNorm);
    std::vector<Variable> casts(model_.spec.parameters.size());
    for (const NamedParameter& p : model_.trained) {
      Variable cast =
          eager_.empty(storage(Elements(p.elements), training_.master_dtype), training_.master_dtype,
                       {Role::Temporaries, "gradient in master dtype", "fp16/unfused_optimizer.py, step"}, p.id);
      Work work = eager_.work();
      if (model_.gradients.holds(p.id)) work.read(model_.gradients[p.id]);
      work.write(cast).run(Body::Copy, "cast gradient");
      casts[at(p.id)] = std::move(cast);
    }
    optimizer_.step(step_parameters(casts), training_.optimizer.weight_decay);
    for (const NamedParameter& p : model_.trained) {
      casts[at(p.id)].reset(Reason::GradientHeld);
      eager_.copy(model_.whole[at(p.id)], masters_[at(p.id)], "copy master to parameters");
    }
    model_.gradients.drop(model_.trained);
  }

 private:
  static constexpr Source kInit = "fp16/unfused_optimizer.py, FP16_UnfusedOptimizer.__init__";

  // Zeros are both gradients of a parameter, of which the 16-bit one is read by nobody.
  void initialize_optimizer_states() {
    std::vector<Variable> narrow = zero_gradients(training_.dtype);
    std::vector<Variable> wide = zero_gradients(training_.master_dtype);
    optimizer_.construct(step_parameters(wide));
    optimizer_.dummy_step(step_parameters(wide), training_.optimizer.weight_decay);
    for (std::vector<Variable>* list : {&narrow, &wide}) {
      for (const NamedParameter& p : model_.trained) (*list)[at(p.id)].reset(Reason::GradientHeld);
    }
  }

  // By ParameterId.
  [[nodiscard]] std::vector<Variable> zero_gradients(DType type) {
    std::vector<Variable> made(model_.spec.parameters.size());
    for (const NamedParameter& p : model_.trained) {
      made[at(p.id)] = eager_.zeros(storage(Elements(p.elements), type), type,
                                    {Role::Temporaries, "zero gradients of the dummy step",
                                     "fp16/unfused_optimizer.py, initialize_optimizer_states"},
                                    "zero gradients", p.id);
      if (type != training_.master_dtype) eager_.emitter().mark_scratch(made[at(p.id)].id());
    }
    return made;
  }

  [[nodiscard]] std::vector<StepParameter> step_parameters(const std::vector<Variable>& gradients) const {
    std::vector<StepParameter> made;
    for (const NamedParameter& p : model_.trained) {
      made.push_back(
          step_parameter(model_, p.id, masters_[at(p.id)], gradients[at(p.id)].id(), training_.master_dtype));
    }
    return made;
  }

  // One after the other.
  void each_in_fp32(What what, Body body) {
    for (const NamedParameter& p : model_.trained) {
      if (!model_.gradients.holds(p.id)) continue;
      const Variable wide = eager_.scratch(storage(Elements(p.elements), DType::Float32), DType::Float32, what);
      const bool norm = body == Body::SquareSum;
      NormInMaking making;
      if (norm) making = model_.gradient_norms.begin(wide, what);
      if (norm) making.norm.mark_scratch();  // It becomes a number of Python's.
      Work work = eager_.work();
      work.read(model_.gradients[p.id]).write(wide);
      making.written_by(work);
      if (norm && !model_.control.counts_in_norm(p.id)) work.really_reads({});
      work.run(body, what.label);
    }
  }

  Stage0Model& model_;
  const Training& training_;
  Eager eager_;
  std::vector<Variable> masters_;  // By ParameterId.
  OptimizerStep optimizer_;
};

// fp32: the base optimizer over the parameters themselves, one of DeepSpeed's or of PyTorch's.
class Fp32Optimizer final : public Stage0Optimizer {
 public:
  Fp32Optimizer(Stage0Model& model, Emitter& emitter)
      : model_(model), eager_(emitter), states_(model.spec.parameters.size()) {
    const Optimizer& optimizer = model.training.optimizer;  // Adam is PyTorch's with "torch_adam" alone.
    const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
    if (!adam || optimizer.implementation == Implementation::Fused) return;
    torch_.emplace(optimizer, emitter, model.spec.parameters.size(),
                   StepSources{state_source(model.training), "torch/optim/adam.py, _multi_tensor_adam"});
  }

  void initialise() override {
    if (torch_) torch_->construct(step_parameters());
  }

  void step(bool first) override {
    if (model_.training.gradient_clipping > 0) clip_fp32_gradients();
    if (torch_) {
      torch_->step(step_parameters(), model_.training.optimizer.weight_decay);
    } else {
      update(first);
    }
    model_.gradients.drop(model_.trained);
  }

 private:
  void update(bool first) {
    for (const NamedParameter& p : model_.trained) {
      Variables& states = states_[at(p.id)];
      if (first) create(p, states);
      if (!model_.gradients.holds(p.id)) continue;
      const Variable& whole = model_.whole[at(p.id)];
      eager_.work()
          .read(whole)
          .read(model_.gradients[p.id])
          .read(states)
          .write(whole)
          .write(states)
          .states(states.size())
          .run(Body::Update, "optimizer update");
    }
  }

  [[nodiscard]] std::vector<StepParameter> step_parameters() const {
    std::vector<StepParameter> made;
    for (const NamedParameter& p : model_.trained) {
      const BufferId gradient = model_.gradients.holds(p.id) ? model_.gradients[p.id] : kNoBuffer;
      made.push_back(step_parameter(model_, p.id, model_.whole[at(p.id)], gradient, p.dtype));
    }
    return made;
  }

  // runtime/utils.py, clip_grad_norm_: all norms stay until it returns. What they come to is summed over all ranks,
  // wrongly or not.
  void clip_fp32_gradients() {
    constexpr What kNorm{Role::Temporaries, "gradient norm", "runtime/utils.py, clip_grad_norm_"};
    Variables norms;
    for (const NamedParameter& p : model_.trained) {
      if (!model_.gradients.holds(p.id)) continue;
      norms.append(model_.gradient_norms.norm_of(model_.gradients[p.id], kNorm, std::vector<ByteRange>{}));
    }
    Variable sum;
    if (!norms.empty()) sum = model_.gradient_norms.sum_of_squares(norms, kNorm);
    model_.control.all_reduce(Bytes(4), kNorm, model_.control.squares_of(model_.gradients.ids(), model_.trained),
                              std::move(sum));
  }

  void create(const NamedParameter& p, Variables& states) {
    const Shape& shape = model_.spec.parameter_at(p.id).shape;
    for (const StateTensor& tensor : optimizer_state(model_.training.optimizer, shape, model_.training.dtype, false)) {
      states.append(eager_.empty(tensor.bytes, tensor.dtype,
                                 {Role::Optimizer, tensor.label, state_source(model_.training)}, p.id));
    }
    if (!states.empty()) eager_.zero(states, "create optimizer state");
  }

  Stage0Model& model_;
  Eager eager_;
  std::vector<Variables> states_;  // By ParameterId, of DeepSpeed's own.
  std::optional<OptimizerStep> torch_;
};

class Stage0Runtime final : public RuntimeBase {
 public:
  Stage0Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        engine_{model, job.training, trained_, {}, {emitter, model.parameters.size()}, control_, gradient_norms_} {
    if (uses_unfused_wrapper(job.training)) {
      optimizer_ = std::make_unique<Fp16UnfusedOptimizer>(engine_, emitter);
    } else if (job.training.dtype != DType::Float32 && !trained_.empty()) {
      optimizer_ = std::make_unique<Fp16Optimizer>(engine_, emitter);
    } else {
      optimizer_ = std::make_unique<Fp32Optimizer>(engine_, emitter);
    }
  }

  void initialise(const std::vector<BufferId>& /*buffers*/) override {
    for (const BufferId whole : loading_.give_to_engine({Role::Parameters, "parameter"})) {
      engine_.whole.push_back(whole == kNoBuffer ? Variable() : Variable(emitter_, whole));
    }
    if (!trained_.empty()) make_overflow_buffer();
    optimizer_->initialise();
    for (const NamedParameter& p : trained_) {
      const ParameterPlace updated = place(p.id);
      emitter_.promise_update(updated.buffer, updated.offset, updated.bytes);
    }
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId whole = engine_.whole[at(parameter)].id();
    if (whole != kNoBuffer) return {whole, Bytes(0), emitter_.size(whole)};
    return optimizer_->place(parameter);
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    engine_.gradients.accumulate(parameter, gradient);
  }

  // buffered_allreduce_fallback, of one rank as well.
  void backward_ends(bool boundary) override {
    if (!boundary) return;
    fill_missing();
    std::vector<BufferId> bucket;
    std::int64_t filled = 0;
    for (const NamedParameter& p : trained_) {
      bucket.push_back(engine_.gradients[p.id]);
      filled += p.elements;
      if (filled <= kReduceElements) continue;
      allreduce_and_copy(std::exchange(bucket, {}), std::exchange(filled, 0));
    }
    if (!bucket.empty()) allreduce_and_copy(bucket, filled);
  }

  void step(bool first) override {
    if (!trained_.empty()) optimizer_->step(first);
  }

 private:
  // Other ranks may have a gradient where this one has none.
  void fill_missing() {
    constexpr What kZeros{Role::Gradients, "zero gradient", "engine.py, _get_gradients_for_reduction"};
    for (const NamedParameter& p : trained_) {
      if (engine_.gradients.holds(p.id)) continue;
      Variable zeros = eager_.zeros(storage(Elements(p.elements), p.dtype), p.dtype, kZeros, "zero gradient");
      engine_.gradients.accumulate(p.id, zeros.hand_over());
    }
  }

  // Concatenated, cast where the communication dtype differs, reduced, copied back. One gradient by itself is a view
  // (tensor_flatten.h, flatten_dense_tensors).
  void allreduce_and_copy(const std::vector<BufferId>& bucket, std::int64_t elements) {
    constexpr Source kSource = "engine.py, allreduce_bucket";
    Variable joined;
    if (bucket.size() > 1) {
      joined = eager_.empty(in_model_dtype(elements), dtype(), {Role::RuntimeBuffers, "joined gradients", kSource});
      eager_.concatenate(joined, bucket, "concatenate gradients");
    }
    const Part whole = joined ? joined.id() : bucket.front();
    const DType type = training().communication_dtype;
    Variable cast;
    if (type != dtype()) {
      cast = eager_.cast(whole, type, {Role::RuntimeBuffers, "gradients in communication dtype", kSource},
                         "cast gradients");
    }
    const Part sent = cast ? Part(cast.id()) : whole;
    eager_.all_reduce(sent, world());
    if (cast || joined) eager_.split(bucket, sent, "copy gradients back");
  }

  Stage0Model engine_;
  std::unique_ptr<Stage0Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_stage0_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                     Emitter& emitter) {
  return std::make_unique<Stage0Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
