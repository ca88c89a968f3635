// FSDP1: torch.distributed.fsdp.FullyShardedDataParallel (torch/distributed/fsdp/_runtime_utils.py). When the hooks of
// each unit run is here; what they do is the unit's (flat_handle.h).
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "model/quantized.h"
#include "planner/lower/runtimes/ddp_reducer.h"
#include "planner/lower/runtimes/fsdp1/flat_clip.h"
#include "planner/lower/runtimes/fsdp1/unit_hooks.h"
#include "planner/lower/runtimes/runtime_base.h"

namespace dsplan {
namespace {

Space of_optimizer(const Job& job) { return job.training.fsdp.cpu_offload ? Space::Pageable : Space::Device; }

bool recomputes_nested(const Training& training) {
  const std::vector<CheckpointGroup>& groups = training.checkpoint.groups;
  return std::any_of(groups.begin(), groups.end(),
                     [](const CheckpointGroup& group) { return group.kind == CheckpointKind::Reentrant; });
}

class Fsdp1Runtime final : public RuntimeBase {
 public:
  Fsdp1Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);
  ~Fsdp1Runtime() noexcept override = default;

  void build(ModelInit where, const BuffersOf& buffers_of) override;
  void initialise(const std::vector<BufferId>& buffers) override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  void enter(ModuleId module, Pass pass) override;
  void exit(ModuleId module, Pass pass) override;
  void backward_begins(bool boundary) override {
    hooks_.backward_begins(boundary || training().fsdp.sync_every);
    if (training().grad_scaler) scaler_.scale();
  }
  void backward_ends(bool /*boundary*/) override { scaler_.backward_done(); }
  // It goes into the flat parameter's as it is.
  [[nodiscard]] bool holds_gradient(ParameterId) const override { return true; }
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void step(bool first) override;

 private:
  [[nodiscard]] bool hybrid() const { return training().fsdp.replicate > 1 && !keeps_whole(job_); }
  struct Place {
    FlatHandle* handle = nullptr;
    std::size_t piece = 0;
  };

  void sync_module_states(const FlatUnit& unit, std::vector<BufferId> whole, const std::vector<BufferId>& buffers);
  void cast_buffers(std::vector<BufferId>& buffers);
  [[nodiscard]] std::vector<StepParameter> step_parameters();

  std::vector<FlatUnit> units_;  // In the order of modules.
  UnitHooks hooks_;
  std::vector<FlatHandle*> of_module_;  // By ModuleId.
  std::vector<Place> places_;           // By ParameterId.
  std::vector<bool> synced_;            // By buffer of the model.
  OptimizerStep optimizer_;
  FlatClip clip_;
  LossScaler scaler_;
  std::function<void(ModuleId)> move_buffers_;  // While the model is on the host.
};

Fsdp1Runtime::Fsdp1Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      units_(flat_units(model, job)),
      hooks_(job.training, emitter),
      of_module_(model.modules.size(), nullptr),
      places_(model.parameters.size()),
      synced_(model.buffers.size(), false),
      optimizer_(job.training.optimizer, emitter, model.parameters.size(), {}, of_optimizer(job)),
      clip_(emitter, gradient_norms_, job, of_optimizer(job)),
      scaler_(emitter, job.parallelism.dp) {
  sums_gradients_on = kGatherStream;
  leave = [this](ModuleId module) {
    FlatHandle* const handle = of_module_[static_cast<std::size_t>(module)];
    if (handle != nullptr && module != 0) hooks_.leave_backward(*handle);
  };
  if (job.training.fsdp.casts_buffers) {
    replace_buffers = [this](std::vector<BufferId>& buffers) { cast_buffers(buffers); };
  }
  for (const FlatUnit& unit : units_) {
    hooks_.handles().push_back(std::make_unique<FlatHandle>(unit, job_, model_, rank, emitter));
    FlatHandle* const handle = hooks_.handles().back().get();
    of_module_[static_cast<std::size_t>(unit.module)] = handle;
    for (std::size_t piece = 0; piece < unit.pieces.size(); ++piece) {
      if (unit.pieces[piece].id != kNone) places_[at(unit.pieces[piece].id)] = {handle, piece};
    }
  }
}

void Fsdp1Runtime::build(ModelInit where, const BuffersOf& buffers_of) {
  if (where == ModelInit::Device) return RuntimeBase::build(where, buffers_of);
  move_buffers_ = buffers_of;
  loading_.build_on_host();
}

// _recursive_wrap: units inside come first. When all are wrapped, accelerate goes through them from the outermost.
void Fsdp1Runtime::initialise(const std::vector<BufferId>& buffers) {
  emitter_.use_streams();
  FlatHandle::Sync sync;
  if (training().fsdp.sync_module_states) {
    sync = [&](const FlatUnit& unit, std::vector<BufferId> whole) {
      sync_module_states(unit, std::move(whole), buffers);
    };
  }
  std::vector<FlatHandle*> order;
  for (const auto& handle : hooks_.handles()) order.push_back(handle.get());
  std::sort(order.begin(), order.end(),
            [](const FlatHandle* a, const FlatHandle* b) { return a->unit().order < b->unit().order; });
  for (FlatHandle* handle : order) handle->flatten(loading_, move_buffers_, sync);
  move_buffers_ = nullptr;
  for (const auto& handle : hooks_.handles()) handle->widen();
  std::vector<StepParameter> all = step_parameters();
  if (training().fsdp.use_orig_params) {
    std::sort(all.begin(), all.end(), [](const StepParameter& a, const StepParameter& b) { return a.id < b.id; });
  }
  optimizer_.construct(all);
}

// _sync_module_params_and_buffers: buffers that nobody has sent yet, of nested units too, and the unit's parameters. It
// is called once more for the replicas, when all buffers have been sent.
void Fsdp1Runtime::sync_module_states(const FlatUnit& unit, std::vector<BufferId> whole,
                                      const std::vector<BufferId>& buffers) {
  std::vector<BufferId> states;
  for (std::size_t at = 0; at < buffers.size(); ++at) {
    if (buffers[at] == kNoBuffer || synced_[at] || !model_.lies_in(model_.buffers[at].module, unit.module)) continue;
    if (is_packing_state(model_, model_.buffers[at])) continue;
    synced_[at] = true;
    states.push_back(buffers[at]);
  }
  states.insert(states.end(), whole.begin(), whole.end());
  const std::int64_t replicas = hybrid() ? training().fsdp.replicate : 1;
  broadcast_coalesced(eager_, states, world() / replicas, hybrid() ? Group::DataParallelInside : Group::DataParallel);
  if (hybrid()) broadcast_coalesced(eager_, whole, replicas, Group::Replicas);
}

// _cast_buffers_to_dtype_and_device, of the first forward.
void Fsdp1Runtime::cast_buffers(std::vector<BufferId>& buffers) {
  emitter_.at(Pass::Forward);
  for (std::size_t at = 0; at < buffers.size(); ++at) {
    if (buffers[at] == kNoBuffer || !is_floating(emitter_.dtype(buffers[at]))) continue;
    if (emitter_.dtype(buffers[at]) == dtype() || is_packing_state(model_, model_.buffers[at])) continue;
    const Variable wide(emitter_, buffers[at]);
    buffers[at] = eager_.cast(wide, dtype(), {Role::ModuleBuffers, "buffer"}, "cast buffer").hand_over();
  }
}

ParameterPlace Fsdp1Runtime::place(ParameterId parameter) const {
  const Place& place = places_[at(parameter)];
  return place.handle->place(place.piece);
}

void Fsdp1Runtime::enter(ModuleId module, Pass pass) {
  using Run = UnitHooks::Run;
  if (pass == Pass::Forward && module == 0) hooks_.root_pre_forward();
  FlatHandle* const handle = of_module_[static_cast<std::size_t>(module)];
  if (handle == nullptr) return;
  if (pass == Pass::Forward) hooks_.pre_forward(*handle, Run::Recorded);
  if (pass == Pass::Backward) hooks_.pre_backward(*handle);
  if (pass != Pass::Recompute) return;
  const bool nested = recomputes_nested(training());
  if (handle->unit().within_layer)
    return hooks_.pre_forward(*handle, nested ? Run::Recomputed : Run::RecomputedForSaved);
  // A checkpoint lies inside the unit, whose hook hangs on its output: it comes before a reentrant one runs again.
  hooks_.pre_backward(*handle);
  handle->hooks.nested = nested;
}

void Fsdp1Runtime::exit(ModuleId module, Pass pass) {
  using Run = UnitHooks::Run;
  if (module == kNone) return hooks_.end_backward();
  FlatHandle* const handle = of_module_[static_cast<std::size_t>(module)];
  if (handle == nullptr) return;
  const FlatUnit& unit = handle->unit();
  if (pass == Pass::Forward) {
    hooks_.post_forward(*handle, unit.within_layer && recomputes_nested(training()) ? Run::Unrecorded : Run::Recorded);
  }
  if (pass == Pass::Recompute && unit.within_layer) hooks_.post_forward(*handle, Run::Recomputed);
  if (pass == Pass::Backward && module != 0 && !unit.trains) hooks_.input_has_gradient(*handle, unit.follows_unit);
}

void Fsdp1Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  const Place& place = places_[at(parameter)];
  place.handle->gradient.take(place.piece, gradient);
}

std::vector<StepParameter> Fsdp1Runtime::step_parameters() {
  std::vector<StepParameter> all;
  for (const auto& handle : hooks_.handles()) {
    for (const StepParameter& p : handle->step_parameters()) all.push_back(p);
  }
  return all;
}

// Of flat parameters' names no pattern of the Trainer's finds one: they all decay.
void Fsdp1Runtime::step(bool /*first*/) {
  const std::vector<StepParameter> all = step_parameters();
  if (training().gradient_clipping > 0) {
    if (training().grad_scaler) scaler_.unscale(all);
    clip_.forget();
    clip_.run(all, training().loop == LoopKind::Trainer);
  }
  if (training().grad_scaler) scaler_.before_step(all, fused_in_torch(training().optimizer));
  if (!training().fsdp.use_orig_params) {
    optimizer_.step(all, training().optimizer.weight_decay);
  } else {
    for (const ParameterGroup& group : parameter_groups(model_, training(), trained_)) {
      std::vector<StepParameter> members;
      for (const NamedParameter* named : group.members) {
        const auto found =
            std::find_if(all.begin(), all.end(), [&](const StepParameter& p) { return p.id == named->id; });
        if (found != all.end()) members.push_back(*found);
      }
      optimizer_.step(members, group.weight_decay);
    }
  }
  scaler_.after_step();
  hooks_.drop_gradients();
}

}  // namespace

std::unique_ptr<TrainingRuntime> make_fsdp1_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                    Emitter& emitter) {
  return std::make_unique<Fsdp1Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
