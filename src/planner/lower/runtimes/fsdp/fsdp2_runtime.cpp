// FSDP2 and HSDP: torch.distributed.fsdp.fully_shard (torch/distributed/fsdp/_fully_shard/_fsdp_state.py). When each
// group's hooks run is here; what they do is the group's (param_group.h), with the shards and their gradients.
#include <memory>
#include <set>
#include <utility>

#include "planner/lower/runtimes/fsdp/param_group.h"
#include "planner/lower/runtimes/fsdp/rank0_loading.h"
#include "planner/lower/runtimes/fsdp/state_dict.h"
#include "planner/lower/runtimes/gradient_scaling.h"
#include "planner/lower/runtimes/optimizer_step.h"
#include "planner/lower/runtimes/runtime_base.h"

namespace dsplan {
namespace {

constexpr What kPlaceholder{Role::Temporaries, "an optimizer's parameter, until it is cut",
                            "accelerate: accelerator.py, _prepare_fsdp2"};

// A loss that the model computed is one of the outputs that are cast.
bool casts_loss(const Training& training) { return is_of_model(training.loss) && training.fsdp.casts_outputs; }

// Of what the optimizer makes: CPUOffloadPolicy's parameters are on the host.
Space space_of(const Training& training) { return training.fsdp.cpu_offload ? Space::Pageable : Space::Device; }

void promise_update(Emitter& emitter, const ShardedParameters& parameters, ParameterId id) {
  const Part real = parameters.real(id);
  if (real.bytes > Bytes(0)) emitter.promise_update(real.buffer, real.offset, real.bytes);
}

// set_modules_to_forward_prefetch and _backward_prefetch, as PyTorch's own example calls them: layers that lack so many
// neighbours on that side are left as they are.
void set_prefetches(const Fsdp& fsdp, const std::vector<ParamGroup*>& layers) {
  const auto forward = static_cast<std::size_t>(fsdp.forward_prefetch);
  const auto backward = static_cast<std::size_t>(fsdp.backward_prefetch);
  for (std::size_t at = 0; at < layers.size(); ++at) {
    std::vector<ParamGroup*> next;
    std::vector<ParamGroup*> last;
    for (std::size_t ahead = 1; ahead <= forward && at + forward < layers.size(); ++ahead) {
      next.push_back(layers[at + ahead]);
    }
    for (std::size_t ahead = 1; ahead <= backward && at >= backward; ++ahead) last.push_back(layers[at - ahead]);
    layers[at]->gather_ahead(std::move(next), std::move(last));
  }
}

// What fully_shard is told to ignore is on the device by then, or moved there as accelerate moves it.
Variable load_ignored(ModelLoading& loading, const Parameter& parameter, ParameterId id, DType kept) {
  const NamedParameter p{id, parameter.shape.elements().value(), true, kept};
  return loading.load(p, {Role::Parameters, "parameter that is not sharded"});
}

std::vector<StepParameter> step_parameters(const std::vector<const NamedParameter*>& group,
                                           const ShardedParameters& parameters, const ShardGradients& gradients) {
  std::vector<StepParameter> made;
  for (const NamedParameter* p : group) {
    made.push_back({p->id, parameters.real(p->id), gradients.of(p->id), parameters.of(p->id).local, p->dtype});
  }
  return made;
}

std::vector<const NamedParameter*> all_of(const std::vector<NamedParameter>& list) {
  std::vector<const NamedParameter*> all;
  for (const NamedParameter& p : list) all.push_back(&p);
  return all;
}

// The optimizer was made of whole parameters, and has tensors of one element in their places meanwhile
// (accelerate 1.13, accelerator.py, _prepare_fsdp2).
std::vector<Variable> empty_parameters(const std::vector<NamedParameter>& trained, Eager& eager) {
  std::vector<Variable> made;
  for (const NamedParameter& p : trained) {
    made.push_back(eager.scratch(storage(Elements(1), p.dtype), p.dtype, kPlaceholder));
    eager.work().write(made.back()).run(Body::Clear, "stand for a parameter");
  }
  return made;
}

// FSDP2Engine._warmup_grad_norm of LLaMA-Factory v1: the norm of gradients of zeros.
void warm_up_norm(std::vector<StepParameter> all, GradientClip& clip, Eager& eager) {
  std::vector<Variable> zeros;
  for (StepParameter& one : all) {
    const Bytes bytes = storage(one.shape.elements(), one.dtype);
    zeros.push_back(eager.scratch(bytes, one.dtype, {Role::Gradients, "gradient of zeros"}));
    eager.zero(zeros.back(), "zeros");
    one.gradient = Part(zeros.back().id(), Bytes(0), bytes);
  }
  clip.run(all, false);
  let_go(zeros, Reason::Loop);
}

class Fsdp2Runtime final : public RuntimeBase {
 public:
  Fsdp2Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);
  ~Fsdp2Runtime() noexcept override = default;

  void build(ModelInit where, const BuffersOf& buffers_of) override;
  void initialise(const std::vector<BufferId>& buffers) override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override { return parameters_.place(parameter); }
  [[nodiscard]] ModuleId wraps_input(ModuleId module) const override {
    return wraps_[static_cast<std::size_t>(module)];
  }
  void enter(ModuleId module, Pass pass) override;
  void exit(ModuleId module, Pass pass) override;
  void forward_returns(bool with_outputs) override;
  void backward_begins(bool boundary) override { reduces_ = boundary || training().fsdp.sync_every; }
  [[nodiscard]] bool holds_gradient(ParameterId parameter) const override { return gradients_.holds(parameter); }
  void gradient_ready(ParameterId parameter, BufferId gradient) override { gradients_.accumulate(parameter, gradient); }
  void step(bool first) override;
  [[nodiscard]] bool saves() const override { return training().fsdp.saves_whole(); }
  void save() override;

 private:
  void shard_whole_model();
  void end_backward();

  CommContext context_;
  ShardedParameters parameters_;
  SeparateGradients gradients_;
  SeparateGradients sums_;
  ShardGradients reducer_;
  OptimizerStep optimizer_;
  GradientClip clip_;
  Variables listed_;
  std::vector<FsdpGroup> facts_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;  // Of those with parameters, in the order of fully_shard's calls.
  std::vector<ParamGroup*> states_;                  // The same in the order of modules.
  std::vector<ParamGroup*> of_module_;               // By ModuleId; null: none, or without parameters.
  std::vector<ParamGroup*> by_hand_;  // By ModuleId of what holds one factor, which nobody calls: the factor's.
  std::vector<ModuleId> wraps_;       // By ModuleId: the nearest group's module whose input is wrapped.
  std::function<void(ModuleId)> move_buffers_;  // While the model is on the host.
  bool reduces_ = true;
  std::vector<ParamGroup*> uninitialised_;  // Before the first forward all of them.
};

Fsdp2Runtime::Fsdp2Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      parameters_(job, model, rank, emitter),
      gradients_(emitter, model.parameters.size()),
      sums_(emitter, model.parameters.size()),
      reducer_(job, model, parameters_, context_, emitter),
      optimizer_(job.training.optimizer, emitter, model.parameters.size(), {}, space_of(job.training)),
      clip_(emitter, job.training.level, 1,
            {parameters_.mesh().ranks, parameters_.mesh().group, space_of(job.training)}),
      facts_(fsdp_groups(model, job.training.fsdp)),
      of_module_(model.modules.size(), nullptr),
      by_hand_(model.modules.size(), nullptr),
      wraps_(model.modules.size(), kNone) {
  for (const FsdpGroup& facts : facts_) {
    if (facts.parameters.empty()) continue;
    groups_.push_back(std::make_unique<ParamGroup>(
        facts, GroupParts{job_, parameters_, gradients_, sums_, reducer_, context_}, emitter));
    for (const ModuleId module : facts.modules) of_module_[static_cast<std::size_t>(module)] = groups_.back().get();
    if (is_factor(model, facts)) by_hand_[at(model.module_at(facts.modules.front()).parent)] = groups_.back().get();
  }
  std::set<ParamGroup*> seen;
  for (std::size_t at = 0; at < of_module_.size(); ++at) {
    ParamGroup* const group = of_module_[at];
    if (group != nullptr && seen.insert(group).second) states_.push_back(group);
    const bool first = group != nullptr && group->facts().first == static_cast<ModuleId>(at);
    if (first) {
      wraps_[at] = static_cast<ModuleId>(at);
    } else if (at > 0) {
      wraps_[at] = wraps_[static_cast<std::size_t>(model.modules[at].parent)];
    }
  }
  uninitialised_ = states_;
  std::vector<ParamGroup*> layers;
  for (const std::size_t at : layer_groups(model, facts_)) {
    layers.push_back(of_module_[static_cast<std::size_t>(facts_[at].modules.front())]);
  }
  set_prefetches(job.training.fsdp, layers);
}

// to_empty goes through children first, then through a module's own parameters and buffers (torch/nn/modules/module.py,
// _apply); a tied weight is made under each of its names. What a module with a group has then is padded.
void Fsdp2Runtime::build(ModelInit where, const BuffersOf& buffers_of) {
  if (where == ModelInit::Device) return RuntimeBase::build(where, buffers_of);
  if (where == ModelInit::Host || where == ModelInit::Rank0) {
    move_buffers_ = buffers_of;
    if (where == ModelInit::Host || rank() == 0) loading_.build_on_host();
    return;
  }
  std::vector<std::vector<ParameterId>> own(model_.modules.size());
  for (std::size_t at = 0; at < model_.parameters.size(); ++at) {
    const Parameter& parameter = model_.parameters[at];
    const ParameterId id = parameter.tied_to != kNone ? parameter.tied_to : static_cast<ParameterId>(at);
    own[static_cast<std::size_t>(parameter.module)].push_back(id);
  }
  children_first(model_, [&](ModuleId module) {
    for (const ParameterId id : own[static_cast<std::size_t>(module)]) {
      const Parameter& parameter = model_.parameter_at(id);
      if (!training().is_ignored(parameter)) {
        parameters_.make_empty(id);
      } else if (parameter.module == module) {
        parameters_.make_whole(id, load_ignored(loading_, parameter, id, parameters_.kept(id)));
      }
    }
    buffers_of(module);
    if (const ParamGroup* group = of_module_[at(module)]) {  // FSDPModule._apply.
      for (const ParameterId id : group->facts().parameters) parameters_.pad(id);
    }
  });
}

void Fsdp2Runtime::initialise(const std::vector<BufferId>& /*buffers*/) {
  emitter_.use_streams();
  const ModelInit where = training().model_init;
  if (where == ModelInit::Rank0) {
    Rank0Loading(model_, parameters_, loading_, emitter_, rank(), training().fsdp)
        .run(std::exchange(move_buffers_, nullptr));
  } else if (where != ModelInit::Meta) {
    shard_whole_model();
  }
  for (const NamedParameter& p : trained_) {
    if (!is_padded_twice(training(), parameters_.of(p.id))) promise_update(emitter_, parameters_, p.id);
  }
  if (training().loop == LoopKind::FactoryV1) {
    warm_up_norm(step_parameters(all_of(trained_), parameters_, reducer_), clip_, eager_);
  }
  optimizer_.construct(step_parameters(all_of(trained_), parameters_, reducer_));
}

// fully_shard by fully_shard: what it manages is moved to the device, then cut; the whole ones go when it returns.
void Fsdp2Runtime::shard_whole_model() {
  for (std::size_t at = 0; at < model_.parameters.size(); ++at) {
    const Parameter& parameter = model_.parameters[at];
    const auto id = static_cast<ParameterId>(at);
    if (parameter.tied_to != kNone || !training().is_ignored(parameter)) continue;
    parameters_.make_whole(id, load_ignored(loading_, parameter, id, parameters_.kept(id)));
  }
  const bool holds_all = prepared_by_axolotl(training().fsdp.wrap) && training().model_init == ModelInit::Device;
  std::vector<Variable> placeholders = holds_all ? empty_parameters(trained_, eager_) : std::vector<Variable>();
  std::vector<Variable> held;
  for (const FsdpGroup& facts : facts_) {
    std::vector<Variable> whole;
    for (const ParameterId id : facts.parameters) {
      const NamedParameter p{id, model_.parameter_at(id).shape.elements().value(), true, parameters_.kept(id)};
      whole.push_back(loading_.load(p, {Role::Parameters, "whole parameter"}));
      whole.back().mark_scratch();  // The rows of other ranks are theirs.
    }
    if (move_buffers_) {
      for (const ModuleId module : facts.managed) move_buffers_(module);
    }
    std::size_t next = 0;
    for (const ParameterId id : facts.parameters) {
      parameters_.cut(id, whole[next]);
      if (holds_all || is_held(model_, training().fsdp, id)) held.push_back(std::move(whole[next]));
      ++next;
    }
    let_go(whole, Reason::PythonFrame);
  }
  let_go(held, Reason::PythonFrame);
  let_go(placeholders, Reason::PythonFrame);
  move_buffers_ = nullptr;
}

// The recomputation of a non-reentrant checkpoint finds its group gathered by the hook of its output, and runs no
// hooks.
void Fsdp2Runtime::enter(ModuleId module, Pass pass) {
  if (pass == Pass::Forward && module == 0) {                            // _root_pre_forward.
    for (const ParamGroup* group : std::exchange(uninitialised_, {})) {  // FSDPParamGroup.lazy_init
      for (const ParameterId id : group->facts().parameters) {
        if (!is_padded_twice(training(), parameters_.of(id))) continue;
        (void)parameters_.pad(id, true);
        if (trained_index_[at(id)] >= 0) promise_update(emitter_, parameters_, id);
      }
    }
    emitter_.wait_stream(kCopyInStream, kComputeStream);
    emitter_.wait_stream(kGatherStream, kComputeStream);
  }
  if (ParamGroup* const factor = by_hand_[at(module)]; factor != nullptr && pass != Pass::Backward) {
    return factor->unshard_by_hand();
  }
  ParamGroup* const group = of_module_[at(module)];
  if (group == nullptr) return;
  if (pass == Pass::Forward && group->facts().first == module) group->pre_forward();
  if (pass == Pass::Recompute) group->recompute();
  if (pass == Pass::Backward && group->facts().last == module) group->pre_backward();
}

void Fsdp2Runtime::exit(ModuleId module, Pass pass) {
  if (module == kNone) return end_backward();
  if (ParamGroup* const group = of_module_[at(module)]) {
    if (pass == Pass::Forward && group->facts().last == module) group->post_forward();
    if (pass == Pass::Recompute) group->recomputed();
    if (pass == Pass::Backward && group->facts().first == module) group->post_backward(reduces_);
  }
  if (pass != Pass::Forward || module != 0 || !context_.gathered.tensor) return;
  emitter_.wait_event(kCopyInStream, context_.gathered.event);
  emitter_.wait_event(kGatherStream, context_.gathered.event);
  if (!casts_loss(training())) context_.gathered.tensor.reset(Reason::RuntimeBucket);
}

// _post_forward has a name for what was gathered last, and lets go of it when it has cast the outputs.
void Fsdp2Runtime::forward_returns(bool with_outputs) {
  if (with_outputs) context_.gathered.tensor.reset(Reason::RuntimeBucket);
}

// _root_post_backward_final_callback: groups none of whose inputs wanted a gradient come last.
void Fsdp2Runtime::end_backward() {
  for (ParamGroup* group : states_) {
    if (!group->had_post_backward()) group->post_backward(reduces_);
    group->finalize_backward();
  }
  context_.post_forward_order.clear();
  emitter_.wait_event(kComputeStream, std::exchange(context_.reduced.event, std::nullopt));
  context_.reduced.tensor.reset(Reason::RuntimeBucket);
}

void Fsdp2Runtime::step(bool /*first*/) {
  listed_.reset(Reason::Loop);
  if (training().gradient_clipping > 0) {
    clip_.forget();
    clip_.run(step_parameters(all_of(trained_), parameters_, reducer_), keeps_norm());
  }
  for (const ParameterGroup& group : parameter_groups(model_, training(), trained_)) {
    optimizer_.step(step_parameters(group.members, parameters_, reducer_), group.weight_decay);
  }
  if (training().loop == LoopKind::Torchtitan) clip_.forget();
  if (training().loop == LoopKind::FactoryV1) {  // Its fit has a list of them until it makes the next one.
    for (const NamedParameter& p : trained_) {
      if (Variable one = reducer_.take(p.id)) listed_.append(std::move(one));
    }
  }
  for (const NamedParameter& p : trained_) reducer_.drop(p.id);
}

void Fsdp2Runtime::save() { save_whole(model_, training(), parameters_, rank(), emitter_); }

}  // namespace

std::unique_ptr<TrainingRuntime> make_fsdp2_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                    Emitter& emitter) {
  return std::make_unique<Fsdp2Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
