// FSDP1: torch.distributed.fsdp.FullyShardedDataParallel (torch/distributed/fsdp/_runtime_utils.py). When the hooks of
// each unit run is here; what they do is the unit's (flat_handle.h).
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "planner/lower/runtimes/fsdp1/unit_hooks.h"
#include "planner/lower/runtimes/runtime_base.h"

namespace dsplan {
namespace {

class Fsdp1Runtime final : public RuntimeBase {
 public:
  Fsdp1Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);
  ~Fsdp1Runtime() noexcept override = default;

  void build(ModelInit where, const BuffersOf& buffers_of) override;
  void initialise(const std::vector<BufferId>& buffers) override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  void enter(ModuleId module, Pass pass) override;
  void exit(ModuleId module, Pass pass) override;
  void backward_begins(bool boundary) override { hooks_.backward_begins(boundary || training().fsdp.sync_every); }
  // It goes into the flat parameter's as it is.
  [[nodiscard]] bool holds_gradient(ParameterId) const override { return true; }
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void step(bool first) override;

 private:
  struct Place {
    FlatHandle* handle = nullptr;
    std::size_t piece = 0;
  };

  std::vector<FlatUnit> units_;  // In the order of modules.
  UnitHooks hooks_;
  std::vector<FlatHandle*> of_module_;  // By ModuleId.
  std::vector<Place> places_;           // By ParameterId.
  OptimizerStep optimizer_;
  std::function<void(ModuleId)> move_buffers_;  // While the model is on the host.
};

Fsdp1Runtime::Fsdp1Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      units_(flat_units(model, job)),
      hooks_(job.training, emitter),
      of_module_(model.modules.size(), nullptr),
      places_(model.parameters.size()),
      optimizer_(job.training.optimizer, emitter, model.parameters.size()) {
  sums_gradients_on = kGatherStream;
  for (const FlatUnit& unit : units_) {
    hooks_.add(std::make_unique<FlatHandle>(unit, job_, model_, rank, emitter));
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

// _recursive_wrap: units inside come first.
void Fsdp1Runtime::initialise(const std::vector<BufferId>& /*buffers*/) {
  emitter_.use_streams();
  std::vector<FlatHandle*> order;
  for (const auto& handle : hooks_.handles()) order.push_back(handle.get());
  std::sort(order.begin(), order.end(),
            [](const FlatHandle* a, const FlatHandle* b) { return a->unit().order < b->unit().order; });
  for (FlatHandle* handle : order) handle->flatten(loading_, move_buffers_);
  move_buffers_ = nullptr;
}

ParameterPlace Fsdp1Runtime::place(ParameterId parameter) const {
  const Place& place = places_[at(parameter)];
  return place.handle->place(place.piece);
}

void Fsdp1Runtime::enter(ModuleId module, Pass pass) {
  if (pass == Pass::Forward && module == 0) hooks_.root_pre_forward();
  FlatHandle* const handle = of_module_[static_cast<std::size_t>(module)];
  if (handle == nullptr) return;
  if (pass == Pass::Forward) hooks_.pre_forward(*handle);
  if (pass == Pass::Backward) hooks_.pre_backward(*handle);
}

void Fsdp1Runtime::exit(ModuleId module, Pass pass) {
  if (module == kNone) return hooks_.end_backward();
  FlatHandle* const handle = of_module_[static_cast<std::size_t>(module)];
  if (handle == nullptr) return;
  if (pass == Pass::Forward) hooks_.post_forward(*handle);
  if (pass == Pass::Backward && module != 0) hooks_.post_backward(*handle);
}

void Fsdp1Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  const Place& place = places_[at(parameter)];
  place.handle->take_gradient(place.piece, gradient);
}

void Fsdp1Runtime::step(bool /*first*/) {
  std::vector<StepParameter> all;
  for (const auto& handle : hooks_.handles()) {
    for (const StepParameter& p : handle->step_parameters()) all.push_back(p);
  }
  optimizer_.step(all, training().optimizer.weight_decay);
  hooks_.drop_gradients();
}

}  // namespace

std::unique_ptr<TrainingRuntime> make_fsdp1_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                    Emitter& emitter) {
  return std::make_unique<Fsdp1Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
