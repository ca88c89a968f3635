#include "planner/lower/autograd/activation_profile.h"

#include <algorithm>
#include <utility>

#include "model/parts.h"
#include "planner/lower/autograd/tape.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {
namespace {

// Holds the parameters and forgets every gradient.
class SilentRuntime final : public TrainingRuntime {
 public:
  SilentRuntime(const Job& job, const ModelSpec& model, Emitter& emitter)
      : emitter_(emitter), places_(model.parameters.size(), kNoBuffer), own_(model.modules.size()) {
    const Training& t = job.training;
    holds_buffers = true;  // Only activations are read off.
    const bool stage3 = t.runtime == Runtime::DeepSpeed && t.zero.stage == 3;
    gathers_ = stage3 && job.parallelism.dp > 1;
    keeps_last_ = t.zero.max_reuse_distance > Elements(0);
    if (stage3) bucket_ = t.zero.reduce_bucket_size;
    for (const NamedParameter& p : named_parameters(model, t)) {
      named_.push_back(p);
      const bool large = p.elements > t.zero.param_persistence_threshold.value();
      if (gathers_ && large) add_gathered(model, p);
    }
    gathered_.resize(model.parameters.size(), kNoBuffer);
  }

  void initialise(const std::vector<BufferId>& /*buffers*/) override {
    for (const NamedParameter& p : named_) {
      Variable parameter =
          Eager(emitter_).empty(storage(Elements(p.elements), p.dtype), p.dtype, {Role::Parameters, "parameter"});
      Work(emitter_).write(parameter).run(Body::LoadParameter, "load parameter");
      places_[static_cast<std::size_t>(p.id)] = parameter.hand_over();
    }
  }
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const BufferId buffer = places_[static_cast<std::size_t>(parameter)];
    return {buffer, Bytes(0), emitter_.size(buffer)};
  }
  // So that no gradient is cloned which another runtime would add to what it has.
  [[nodiscard]] bool holds_gradient(ParameterId) const override { return true; }

  void enter(ModuleId module, Pass) override {
    if (last_ != kNone && last_ != module && !own_[static_cast<std::size_t>(module)].empty()) release(last_);
    for (const NamedParameter& p : own_[static_cast<std::size_t>(module)]) {
      BufferId& buffer = gathered_[static_cast<std::size_t>(p.id)];
      if (buffer != kNoBuffer) continue;
      buffer = emitter_.allocate(storage(Elements(p.elements), p.dtype), p.dtype,
                                 {Role::RuntimeBuffers, "gathered parameter"});
    }
  }
  // What the trace shows to come back next is kept: at the least the parameters of the last module of a forward.
  void exit(ModuleId module, Pass pass) override {
    if (module == kNone) return;
    if (own_[static_cast<std::size_t>(module)].empty()) return;
    if (pass == Pass::Forward && keeps_last_) {
      if (last_ != kNone && last_ != module) release(last_);
      last_ = module;
    } else {
      release(module);
    }
  }

  // ZeRO-3 leaves a gradient that is larger than its bucket where it is, until the next one is ready.
  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    arrived_.push_back({parameter, emitter_.next_event()});
    drop_large();
    if (bucket_ > Elements(0) && size(parameter) > storage(bucket_, emitter_.dtype(gradient))) {
      large_ = gradient;
    } else {
      emitter_.release(gradient, Reason::GradientHeld);
    }
  }
  void drop_large() {
    if (large_ != kNoBuffer) emitter_.release(std::exchange(large_, kNoBuffer), Reason::GradientHeld);
  }
  void step(bool /*first*/) override {}

  [[nodiscard]] const std::vector<std::pair<ParameterId, std::size_t>>& arrived() const { return arrived_; }
  [[nodiscard]] Bytes size(ParameterId parameter) const {
    return emitter_.size(places_[static_cast<std::size_t>(parameter)]);
  }

 private:
  void release(ModuleId module) {
    if (last_ == module) last_ = kNone;
    for (const NamedParameter& p : own_[static_cast<std::size_t>(module)]) {
      BufferId& buffer = gathered_[static_cast<std::size_t>(p.id)];
      if (buffer != kNoBuffer) emitter_.release(std::exchange(buffer, kNoBuffer), Reason::ModuleExit);
    }
  }

  // By the module that owns it, and by those that are tied to it.
  void add_gathered(const ModelSpec& model, const NamedParameter& p) {
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      const Parameter& parameter = model.parameters[at];
      if (static_cast<ParameterId>(at) != p.id && parameter.tied_to != p.id) continue;
      own_[static_cast<std::size_t>(parameter.module)].push_back(p);
    }
  }

  Emitter& emitter_;
  std::vector<NamedParameter> named_;
  std::vector<BufferId> places_;  // By ParameterId, as is the next.
  std::vector<BufferId> gathered_;
  std::vector<std::vector<NamedParameter>> own_;              // By module: what is gathered for it.
  std::vector<std::pair<ParameterId, std::size_t>> arrived_;  // And before which event.
  Elements bucket_;                                           // ZeRO-3's; 0: there is none.
  BufferId large_ = kNoBuffer;
  ModuleId last_ = kNone;  // Left in forward, its parameters kept.
  bool gathers_ = false;
  bool keeps_last_ = false;
};

// Largest live bytes by place. What an operator allocates is there when its kernel runs.
class ProfileReader : public Ignores<Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  ProfileReader(const Schedule& schedule, const ModelSpec& model, std::int64_t layers, ActivationProfile& into)
      : schedule_(schedule), model_(model), into_(into) {
    const auto count = static_cast<std::size_t>(layers);
    into_.forward.resize(count);
    into_.recomputation.resize(count);
    into_.backward.resize(count);
    into_.gradients.resize(count);
  }

  using Ignores<Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t, const Allocate& event) {
    if (schedule_.buffers[event.buffer].space == Space::Device) live_ += schedule_.buffers[event.buffer].size;
  }
  void on(std::size_t, const Release& event) {
    if (schedule_.buffers[event.buffer].space == Space::Device) live_ -= schedule_.buffers[event.buffer].size;
  }
  void on(std::size_t, const Mark& event) {
    if (event.moment == Moment::ForwardBegins) base_ = live_;
  }
  void on(std::size_t at, const Compute& event) {
    Bytes* const place = place_of(event);
    if (place != nullptr) *place = std::max(*place, live_ - base_);
    where_.push_back(at);
    places_.push_back(gradient_place(event));
  }

  // Where the gradient that was ready before event `at` belongs.
  [[nodiscard]] Bytes& gradients_at(std::size_t at) {
    const auto next = std::lower_bound(where_.begin(), where_.end(), at) - where_.begin();
    return *places_[static_cast<std::size_t>(std::max<std::ptrdiff_t>(next, 1) - 1)];
  }

 private:
  [[nodiscard]] std::int32_t layer_of(ModuleId module) const {
    return module == kNone ? kNone : model_.module_at(module).layer;
  }

  Bytes* place_of(const Compute& event) {
    const std::int32_t layer = layer_of(event.module);
    const auto at = static_cast<std::size_t>(layer);
    if (event.pass == Pass::Forward) {
      if (layer != kNone) in_layers_ = true;
      return layer != kNone ? &into_.forward[at] : in_layers_ ? &into_.head_forward : nullptr;
    }
    if (event.pass == Pass::Recompute || event.pass == Pass::Backward) {
      if (layer != kNone) back_in_layers_ = true;
      if (layer == kNone) return back_in_layers_ ? &into_.end : &into_.head_backward;
      return event.pass == Pass::Recompute ? &into_.recomputation[at] : &into_.backward[at];
    }
    return nullptr;
  }
  Bytes* gradient_place(const Compute& event) {
    const std::int32_t layer = layer_of(event.module);
    if (layer != kNone) return &into_.gradients[static_cast<std::size_t>(layer)];
    return back_in_layers_ ? &into_.end_gradients : &into_.head_gradients;
  }

  const Schedule& schedule_;
  const ModelSpec& model_;
  ActivationProfile& into_;
  Bytes live_;
  Bytes base_;
  bool in_layers_ = false;
  bool back_in_layers_ = false;
  std::vector<std::size_t> where_;  // Computes, and where a gradient that follows one belongs.
  std::vector<Bytes*> places_;
};

}  // namespace

ModelSpec with_few_layers(const ModelSpec& model) {
  ModelSpec few;
  few.name = model.name;
  few.family = model.family;
  few.graph_class = model.graph_class;
  few.code = model.code;
  few.dims = model.dims;
  few.parts = model.parts;
  const bool two_kinds = model.parts != nullptr && model.parts->tower != nullptr;  // A tower's layers, and a text's.
  few.dims.layers = two_kinds ? model.dims.layers : std::min(model.dims.layers, kProfiledLayers);
  few.has_graph = model.has_graph;
  std::vector<ModuleId> modules(model.modules.size(), kNone);
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    const Module& module = model.modules[at];
    if (module.layer != kNone && module.layer >= few.dims.layers) continue;
    modules[at] = static_cast<ModuleId>(few.modules.size());
    few.modules.push_back(module);
    if (module.parent != kNone) few.modules.back().parent = modules[static_cast<std::size_t>(module.parent)];
  }
  few.causal = modules[static_cast<std::size_t>(model.causal)];
  std::vector<ParameterId> parameters(model.parameters.size(), kNone);
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    if (modules[static_cast<std::size_t>(parameter.module)] == kNone) continue;
    parameters[at] = static_cast<ParameterId>(few.parameters.size());
    few.parameters.push_back(parameter);
    few.parameters.back().module = modules[static_cast<std::size_t>(parameter.module)];
    if (parameter.tied_to != kNone)
      few.parameters.back().tied_to = parameters[static_cast<std::size_t>(parameter.tied_to)];
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (modules[static_cast<std::size_t>(buffer.module)] == kNone) continue;
    few.buffers.push_back(buffer);
    few.buffers.back().module = modules[static_cast<std::size_t>(buffer.module)];
  }
  return few;
}

ActivationProfile profile_activations(const ModelSpec& model, const Job& job, const Graph& graph,
                                      const RecipeBook& recipes, const Checkpointing& checkpoint) {
  Emitter emitter(graph.nodes.size() * 14 + model.parameters.size() * 3);
  emitter.at(Pass::Setup);
  SilentRuntime runtime(job, model, emitter);
  runtime.initialise({});
  std::vector<BufferId> buffers;
  for (const ModelBuffer& buffer : model.buffers) {
    if (!buffer_exists(buffer, job.training.transformers)) {
      buffers.push_back(kNoBuffer);
      continue;
    }
    Variable table = Eager(emitter).empty(storage(shape_of(buffer, job.training).elements(), buffer.dtype),
                                          buffer.dtype, {Role::ModuleBuffers, "buffer"});
    Work(emitter).write(table).run(Body::LoadBuffer, "load buffer");
    buffers.push_back(table.hand_over());
  }
  const GraphFacts facts(model, graph, recipes);
  Tape tape(facts, checkpoint, emitter, runtime, buffers, {});
  tape.make_batch();
  emitter.mark(Moment::ForwardBegins, Stretch::FirstStep);
  tape.forward();
  tape.backward();
  runtime.drop_large();
  Variables none;
  tape.drop_loss(none);
  std::vector<std::pair<Bytes, std::size_t>> gradients;
  for (const auto& [parameter, event] : runtime.arrived()) gradients.emplace_back(runtime.size(parameter), event);
  const Schedule schedule = emitter.finish();
  ActivationProfile profile;
  ProfileReader reader(schedule, model, model.dims.layers, profile);
  replay(schedule, reader);
  for (const auto& [bytes, event] : gradients) reader.gradients_at(event) += bytes;
  return profile;
}

}  // namespace dsplan
