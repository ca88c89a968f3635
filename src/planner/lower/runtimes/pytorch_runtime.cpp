// Plain PyTorch: one tensor per parameter, gradients in `.grad`, an optimizer of torch.optim; with more than one rank
// DistributedDataParallel.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "model/quantized.h"
#include "planner/lower/runtimes/ddp_reducer.h"
#include "planner/lower/runtimes/gradient_scaling.h"
#include "planner/lower/runtimes/optimizer_step.h"
#include "planner/lower/runtimes/runtime_base.h"
#include "planner/lower/runtimes/separate_gradients.h"
#include "planner/lower/runtimes/shared_updates.h"

namespace dsplan {
namespace {

// It is no part of what DistributedDataParallel is given.
bool of_reference(const ModelSpec& model, ModuleId module) {
  return model.reference != kNone && module >= model.reference;
}

// Operators alone tune nothing.
Bytes l2_of(const Job& job) {
  const bool known = job.hardware && job.hardware->l2 && job.training.level == Level::Kernel;
  return known ? *job.hardware->l2 : Bytes(0);
}

class PyTorchRuntime final : public RuntimeBase {
 public:
  PyTorchRuntime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        parameters_(model.parameters.size()),
        gradients_(emitter, model.parameters.size()),
        views_(model.parameters.size()),
        shares_(trained_, job.training.ddp.zero_redundancy ? world() : 1, rank),
        optimizer_(job.training.optimizer, emitter, model.parameters.size(), {"", "", l2_of(job)}),
        clip_(emitter, job.training.level, job.parallelism.tp),
        scaler_(emitter) {
    if (world() == 1) return;
    holds_buffers = true;
    ddp_.emplace(emitter, DdpGradients{trained_, gradients_, views_}, model.parameters.size(),
                 DdpFacts{job.training.ddp, world(), job.training.torch});
  }

  void initialise(const std::vector<BufferId>& buffers) override {
    loading_.each_moved([&](const NamedParameter& p) {
      parameters_[at(p.id)] = loading_.load(p, {Role::Parameters, "parameter"});
    });
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const ModelBuffer& buffer = model_.buffers[i];
      if (buffers[i] == kNoBuffer || of_reference(model_, buffer.module) || is_packing_state(model_, buffer)) continue;
      buffers_.push_back(buffers[i]);
    }
    for (const NamedParameter& p : trained_) {
      if (!shares_.updates(p.id)) continue;
      const BufferId buffer = parameters_[at(p.id)].id();
      emitter_.promise_update(buffer, Bytes(0), emitter_.size(buffer));
    }
    if (training().model_code != ModelCode::Torchtitan) make_reducer();
    optimizer_.construct(all_parameters(true));
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId buffer = parameters_[at(parameter)].id();
    return {buffer, Bytes(0), emitter_.size(buffer)};
  }

  // _pre_forward: buffers are sent again behind a backward outside of no_sync(), and at the very first forward.
  void forward_begins() override {
    if (!ddp_) return;
    make_reducer();
    ddp_->rebuild_buckets();
    if (!require_forward_param_sync_ || !training().ddp.broadcast_buffers || buffers_.empty()) return;
    ddp_->unstash();
    broadcast_coalesced(eager_, buffers_, world());
  }

  void backward_begins(bool boundary) override {
    require_forward_param_sync_ = boundary;
    if (ddp_) ddp_->prepare_for_backward(boundary);
    if (training().grad_scaler) scaler_.scale();
  }

  void backward_ends(bool /*boundary*/) override {
    if (training().grad_scaler) scaler_.backward_done();
  }

  void exit(ModuleId module, Pass /*pass*/) override {
    if (module == kNone && ddp_) ddp_->end_backward();
  }

  [[nodiscard]] bool holds_gradient(ParameterId parameter) const override {
    return views_.is_view(parameter) || gradients_.holds(parameter);
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    if (views_.is_view(parameter)) {
      Variable added(emitter_, gradient, Reason::AutogradGraph);
      eager_.add(views_.part(parameter), added, "accumulate gradient");
    } else {
      gradients_.accumulate(parameter, gradient);
    }
    if (ddp_) ddp_->mark_variable_ready(parameter);
  }

  void step(bool /*first*/) override {
    listed_.reset(Reason::Loop);
    const std::vector<StepParameter> all = all_parameters();
    if (training().gradient_clipping > 0) {
      clip_.forget();
      if (training().grad_scaler) scaler_.unscale(all);
      clip_.run(all, keeps_norm());
    }
    if (training().grad_scaler) scaler_.before_step(all, fused_in_torch(training().optimizer));
    for (const ParameterGroup& group : parameter_groups(model_, training(), trained_)) {
      optimizer_.step(step_parameters(shares_.own_of(group.members)), group.weight_decay);
    }
    shares_.each_sent(
        [this](ParameterId id, std::int64_t from) { eager_.broadcast(parameters_[at(id)], from, world()); });
    if (training().grad_scaler) scaler_.after_step();
    if (training().loop == LoopKind::Torchtitan) clip_.forget();
    zero_grad();
  }

 private:
  // DistributedDataParallel.__init__; torchtitan's replicate calls it from the hook before the first forward
  // (torch/distributed/_composable/replicate.py, lazy_init).
  void make_reducer() {
    if (!ddp_ || std::exchange(has_reducer_, true)) return;
    std::vector<BufferId> states;
    for (const NamedParameter& p : named_) {
      if (!of_reference(model_, model_.parameter_at(p.id).module)) states.push_back(parameters_[at(p.id)].id());
    }
    if (training().ddp.broadcast_buffers) states.insert(states.end(), buffers_.begin(), buffers_.end());
    broadcast_coalesced(eager_, states, world());
    ddp_->initialize_buckets();
  }

  // `.grad`; kNoBuffer: None.
  [[nodiscard]] Part gradient(ParameterId parameter) const {
    return views_.is_view(parameter) ? views_.part(parameter) : Part(gradients_[parameter]);
  }

  // `.grad` of everything that is trained, by parameter group: one, or as transformers' Trainer makes them.
  [[nodiscard]] std::vector<StepParameter> step_parameters(const std::vector<const NamedParameter*>& group) const {
    std::vector<StepParameter> made;
    for (const NamedParameter* p : group) {
      const Parameter& parameter = model_.parameter_at(p->id);
      const Module& module = model_.module_at(parameter.module);
      const bool hidden = parameter.shape.rank == 2 && parameter.split != Split::Vocabulary && module.layer != kNone;
      made.push_back({p->id, parameters_[at(p->id)].id(), gradient(p->id), parameter.shape, p->dtype, hidden,
                      module.type == "Embedding", parameter.split == Split::Replicated});
    }
    return made;
  }

  // `own`: as this rank's optimizer is given them.
  [[nodiscard]] std::vector<StepParameter> all_parameters(bool own = false) const {
    std::vector<const NamedParameter*> all;
    for (const NamedParameter& p : trained_) all.push_back(&p);
    return step_parameters(own ? shares_.own_of(all) : all);
  }

  // To None, or to zeros by one multi-tensor launch.
  void zero_grad() {
    if (training().zero_grad_to_none) {
      views_.drop();
      if (training().loop == LoopKind::FactoryV1) keep_listed();
      return gradients_.drop(trained_);
    }
    std::vector<BufferId> held;
    for (const NamedParameter& p : trained_) {
      if (views_.is_view(p.id)) eager_.zero(gradient(p.id), "zero gradient");
      if (!gradients_.holds(p.id)) continue;
      held.push_back(gradients_[p.id]);
      emitter_.rename(held.back(), {Role::Gradients, "gradient"});  // A tied weight's was made as a sum.
    }
    if (!held.empty()) eager_.zero(held, "zero gradients");
  }

  // LLaMA-Factory v1's fit has a list of the gradients that it took the norm of, until it makes the next one.
  void keep_listed() {
    for (const NamedParameter& p : trained_) {
      if (gradients_.holds(p.id)) listed_.append(gradients_.take(p.id));
    }
  }

  std::vector<Variable> parameters_;  // By ParameterId.
  Variables listed_;
  std::vector<BufferId> buffers_;  // The model's.
  bool require_forward_param_sync_ = true;
  bool has_reducer_ = false;
  SeparateGradients gradients_;
  BucketViews views_;
  SharedUpdates shares_;
  OptimizerStep optimizer_;
  GradientClip clip_;
  LossScaler scaler_;
  std::optional<DdpReducer> ddp_;  // With more than one rank.
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_pytorch_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                      Emitter& emitter) {
  return std::make_unique<PyTorchRuntime>(job, model, rank, emitter);
}

}  // namespace dsplan
