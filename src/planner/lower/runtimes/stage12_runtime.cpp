// ZeRO-1 and ZeRO-2 (DeepSpeed runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer).
//
// One flat 16-bit buffer per rank holds all trained parameters, padded to 2 * W elements and cut into W equal
// partitions; master copy and optimizer state cover the rank's own partition. Gradients travel through a bucket of
// `reduce_bucket_size` elements: copied in as they become ready, all-reduced when the next one does not fit, and those
// that touch the rank's partition are kept in one tensor (grads_in_partition).
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/separate_gradients.h"
#include "planner/lower/runtimes/stage12_buckets.h"

namespace dsplan {
namespace {

class Stage12Runtime final : public RuntimeBase {
 public:
  Stage12Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        facts_(job.training, trained_, world(), rank),
        parameters_(emitter, facts_.layout, dtype(), model.parameters.size()),
        held_(emitter, model.parameters.size()),
        sums_(emitter, facts_),
        partition_(partition_of({emitter, facts_, sums_, control_, norms_, gradient_norms_})),
        reduction_(emitter, facts_, sums_),
        buckets_(emitter, facts_, reduction_, *partition_) {}

  void initialise(const std::vector<BufferId>& /*buffers*/) override {
    if (zero().overlap_comm) emitter_.use_streams();
    parameters_.take(loading_.give_to_engine({Role::Parameters, "parameter"}));
    if (trained_.empty()) return;
    if (!facts_.offloads()) make_overflow_buffer();
    flatten();
    const Part own = parameters_.partition();
    partition_->create_master(own);
    emitter_.promise_update(own.buffer, own.offset, own.bytes);
    emitter_.promise_update(partition_->master(), Bytes(0), emitter_.size(partition_->master()));
    print("Before initializing optimizer states");
    partition_->initialize_optimizer_states();
    print("After initializing optimizer states");
    print("After initializing ZeRO optimizer");
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override { return parameters_.place(parameter); }

  void backward_begins(bool boundary) override {
    partition_->backward_begins(boundary);
    boundary_ = boundary;
    // backward_prologue, before 0.18.3: on top of all activations; since then at the first gradient.
    if (training().deepspeed < Version{0, 18, 3} && !trained_.empty()) buckets_.setup_buckets();
  }

  // reduce_ready_partitions_and_remove_grads. ZeRO-1 between boundaries: the gradient waits.
  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    buckets_.setup_buckets();
    if (facts_.widens) {
      fill_param_grad_accum_attribute(parameter, Variable(emitter_, gradient));
    } else {
      held_.accumulate(parameter, gradient);
    }
    if (zero().stage == 2 || (boundary_ && zero().overlap_comm)) reduce(parameter);
  }

  void backward_ends(bool boundary) override {
    if (zero().stage == 1) {
      if (!boundary) return;
      reduce_gradients();
    }
    buckets_.independent_gradient_partition_epilogue(boundary);
  }

  void step(bool first) override {
    if (trained_.empty()) return;
    print("In step before checking overflow");
    partition_->check_overflow();
    print("Before norm calculation");
    partition_->measure();
    print("After norm before optimizer");
    if (!facts_.offloads()) buckets_.drop_late();
    partition_->update(first, parameters_.partition());
    print("After optimizer before all-gather");
    partition_->drop_gradients();
    parameters_.all_gather();
    print("After zero_optimizer step");
    norms_.step_returns();
    buckets_.drop_late();  // zero_grad
  }

 private:
  [[nodiscard]] std::unique_ptr<OwnPartition> partition_of(const PartitionInputs& inputs) const {
    return inputs.facts.offloads() ? make_partition_on_host(inputs) : make_partition_on_device(inputs);
  }

  // Since 0.18.7 on the device, where there is room for both; before, through the host.
  void flatten() {
    if (!flattens_on_device(training())) return parameters_.flatten_on_host();
    emitter_.empty_cache();
    const char* device = training().deepspeed < Version{0, 19, 0} ? "GPU" : "cuda";
    parameters_.flatten({std::string("After flattening param group 0 on ") + device,
                         "After Flattening and after emptying param group 0 cache"});
  }

  // ZeRO-1 with sums in fp32 since 0.19.8: param.grad_accum, cast or added to when the gradient is ready.
  void fill_param_grad_accum_attribute(ParameterId parameter, Variable gradient) {
    Variable cast = eager_.cast(gradient, training().grad_accum_dtype,
                                {Role::Gradients, "gradient in accumulation dtype"}, "cast gradient");
    gradient.reset();
    held_.accumulate(parameter, cast.hand_over());
  }

  void reduce(ParameterId parameter) {
    buckets_.reduce_independent_p_g_buckets_and_remove_grads(facts_.layout.index_of(parameter), held_.take(parameter));
  }

  // Without overlap the gradients are walked in parameter order after backward.
  void reduce_gradients() {
    for (const NamedParameter& p : trained_) {
      if (held_.holds(p.id)) reduce(p.id);
    }
  }

  Stage12Facts facts_;
  FlatParameters parameters_;
  SeparateGradients held_;  // `.grad` that waits for the boundary.
  GradientSums sums_;
  std::unique_ptr<OwnPartition> partition_;
  Stage12Reduction reduction_;
  IpgBuckets buckets_;
  bool boundary_ = true;
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_stage12_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                      Emitter& emitter) {
  return std::make_unique<Stage12Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
