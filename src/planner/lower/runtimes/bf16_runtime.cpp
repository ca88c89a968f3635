// DeepSpeed's BF16_Optimizer (runtime/bf16_optimizer.py): ZeRO-1 with bf16 parameters and gradients summed in fp32.
//
// One flat bf16 buffer as ZeRO-1 has it, master and state for the own partition, and a sum of all gradients on every
// rank, zeroed and never freed. After each backward every `.grad` is cast and added to it; `.grad` itself is zeroed,
// and let go of only behind the step; with immediate_grad_update it is added and let go of as soon as it is there. At
// the boundary the sum is all-reduced in one piece.
#include <utility>

#include "planner/lower/runtimes/flat_optimizer.h"
#include "planner/lower/runtimes/flat_parameters.h"
#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/separate_gradients.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// --explain names ZeRO-1's file for both of its optimizers.
constexpr Source kZero1Constructor = "zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__";

class Bf16Runtime final : public RuntimeBase {
 public:
  Bf16Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        layout_(trained_, flat_alignment(world()), world(), rank),
        parameters_(emitter, layout_, dtype(), model.parameters.size()),
        lp_grads_(emitter, model.parameters.size()),
        optimizer_(emitter, job.training, kZero1Constructor) {}

  // __init__ and _setup_for_real_optimizer.
  void initialise(const std::vector<BufferId>& /*buffers*/) override {
    parameters_.take(loading_.give_to_engine({Role::Parameters, "parameter"}));
    if (trained_.empty()) return;
    make_overflow_buffer();
    print("begin bf16_optimizer");
    print("before initializing group 0");
    parameters_.flatten();
    optimizer_.create_master(parameters_.partition(), {Role::Temporaries, "clone of the partition", kZero1Constructor},
                             "clone partition");
    sums_ = eager_.zeros(in_sums(layout_.padded), training().grad_accum_dtype, {Role::Gradients, "sums of gradients"},
                         "zero sums of gradients");
    print("after initializing group 0");
    print("end bf16_ optimizer");
    const Part own = parameters_.partition();
    emitter_.promise_update(own.buffer, own.offset, own.bytes);
    emitter_.promise_update(optimizer_.master(), Bytes(0), emitter_.size(optimizer_.master()));
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override { return parameters_.place(parameter); }

  [[nodiscard]] bool holds_gradient(ParameterId parameter) const override { return lp_grads_.holds(parameter); }

  // `.grad` was zeroed in place after it had been added to the sums: what is there already counts as nothing.
  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    if (training().immediate_grad_update) {  // accumulate_hp_grads_and_remove_lp
      const Variable lp_grad(emitter_, gradient, Reason::GradientHeld);
      return update_hp_grad(layout_.index_of(parameter), lp_grad.id());
    }
    if (!lp_grads_.holds(parameter) || emitter_.recording() == nullptr) {
      return lp_grads_.accumulate(parameter, gradient);
    }
    const Variable added(emitter_, gradient);
    const BufferId held = lp_grads_[parameter];
    eager_.work()
        .read(held)
        .read(added)
        .write(held)
        .really_reads({{gradient, Bytes(0), emitter_.size(gradient)}})
        .run(Body::Copy, "accumulate gradient");
  }

  // update_hp_grads, then the engine's allreduce_gradients.
  void backward_ends(bool boundary) override {
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      if (lp_grads_.holds(trained_[i].id)) update_hp_grad(i, lp_grads_[trained_[i].id]);
    }
    if (boundary && !trained_.empty()) allreduce_bucket();
  }

  // The norm is taken over views of the sums, and every data-parallel rank has them all.
  void step(bool first) override {
    if (trained_.empty()) return;
    measure();
    control_.tensor_parallel(Bytes(4),
                             {Role::Temporaries, "gradient norm", "zero/stage_1_and_2.py, get_grad_norm_direct"},
                             control_.squares_of(sums_.id(), trained_));
    norms_.replace(DType::Float32, tensor_ranks() == 1 ? sums_.id() : kNoBuffer);
    if (first) optimizer_.create_states();
    optimizer_.step({sums_.id(), in_sums(layout_.begin()), in_sums(layout_.partition)});
    optimizer_.copy_master_to(parameters_.partition());  // update_lp_params
    parameters_.all_gather();
    eager_.zero(sums_, "zero sums of gradients");  // clear_hp_grads
    lp_grads_.drop(trained_);
  }

 private:
  [[nodiscard]] Bytes in_sums(std::int64_t elements) const {
    return storage(Elements(elements), training().grad_accum_dtype);
  }

  // get_global_norm_of_tensors: one norm after the other, each of an fp32 tensor, and their sum.
  void measure() {
    constexpr What kNorm{Role::Temporaries, "gradient norm", "runtime/utils.py, get_global_norm_of_tensors"};
    Variables norms;
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      const Part gradient(sums_.id(), in_sums(layout_.offset[i]), in_sums(trained_[i].elements));
      Variable wide;
      if (training().grad_accum_dtype != DType::Float32) {
        wide = eager_.cast(gradient, DType::Float32, {Role::Temporaries, "gradient in fp32", kNorm.source},
                           "cast gradient");
      }
      norms.append(gradient_norms_.norm_of(wide ? Part(wide) : gradient, kNorm, std::vector<ByteRange>{}));
    }
    const Variable squares = gradient_norms_.squares_of(norms, kNorm);
    const Variable sum = gradient_norms_.sum_of(squares, kNorm);
    const Variable root = gradient_norms_.root_or_square(sum, kNorm);
    root.mark_scratch();
    control_.mask_invalid(kNorm);
  }

  // _update_hp_grad: hp_grad.data.add_(lp.grad.data.to(hp_grad.dtype))
  void update_hp_grad(std::size_t index, BufferId lp_grad) {
    const Part hp_grad(sums_.id(), in_sums(layout_.offset[index]), in_sums(trained_[index].elements));
    const Variable cast =
        eager_.cast(lp_grad, training().grad_accum_dtype,
                    {Role::RuntimeBuffers, "gradient in accumulation dtype", "zero/stage_1_and_2.py"}, "cast gradient");
    eager_.add(hp_grad, cast, "add to sums of gradients");
  }

  // engine.py, allreduce_bucket over the one flat tensor of the group.
  void allreduce_bucket() {
    const DType type = training().communication_dtype;
    if (type == training().grad_accum_dtype) return eager_.all_reduce(sums_, world());
    const Variable cast = eager_.cast(
        sums_, type,
        {Role::RuntimeBuffers, "gradients in communication dtype", "zero/stage_1_and_2.py, allreduce_bucket"},
        "cast gradients");
    eager_.all_reduce(cast, world());
    eager_.copy(sums_, cast, "copy reduced gradients back");
  }

  FlatLayout layout_;
  FlatParameters parameters_;
  SeparateGradients lp_grads_;
  FlatOptimizer optimizer_;
  Variable sums_;  // fp32_groups_gradients_flat
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_bf16_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                   Emitter& emitter) {
  return std::make_unique<Bf16Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
