// FSDP1: torch.distributed.fsdp.FullyShardedDataParallel (torch/distributed/fsdp/_runtime_utils.py). When the hooks of
// each unit run is here; what they do is the unit's (flat_handle.h).
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "planner/lower/runtimes/fsdp1/flat_handle.h"
#include "planner/lower/runtimes/runtime_base.h"

namespace dsplan {
namespace {

constexpr std::size_t kInflight = 2;  // _limiter_utils.py, _max_num_inflight_all_gathers

class Fsdp1Runtime final : public RuntimeBase {
 public:
  Fsdp1Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);
  ~Fsdp1Runtime() noexcept override = default;

  void build(ModelInit where, const BuffersOf& buffers_of) override;
  void initialise(const std::vector<BufferId>& buffers) override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  void enter(ModuleId module, Pass pass) override;
  void exit(ModuleId module, Pass pass) override;
  void backward_begins(bool boundary) override { reduces_ = boundary || training().fsdp.sync_every; }
  // It goes into the flat parameter's as it is.
  [[nodiscard]] bool holds_gradient(ParameterId) const override { return true; }
  [[nodiscard]] StreamId sums_gradients_on() const override { return kGatherStream; }
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void step(bool first) override;

 private:
  using Handle = FlatHandle;

  void root_pre_forward();
  void pre_forward(Handle& handle);
  void post_forward(Handle& handle);
  void pre_backward(Handle& handle);
  void post_backward(Handle& handle);
  void end_backward();
  void unshard(Handle& handle);
  void free_event(StreamId on);
  void prefetch_backward(const Handle& handle, BackwardPrefetch now);
  [[nodiscard]] bool is_root(const Handle& handle) const { return handle.unit().module == 0; }

  struct Place {
    Handle* handle = nullptr;
    std::size_t piece = 0;
  };

  std::vector<FlatUnit> units_;                   // In the order of modules.
  std::vector<std::unique_ptr<Handle>> handles_;  // Likewise.
  std::vector<Handle*> of_module_;                // By ModuleId.
  std::vector<Place> places_;                     // By ParameterId.
  OptimizerStep optimizer_;
  const BuffersOf* move_buffers_ = nullptr;
  std::optional<BuffersOf> moves_;
  std::deque<std::optional<ContentId>> free_events_;  // _FreeEventQueue
  std::vector<Handle*> forward_order_;                // handles_pre_forward_order, of the first iteration.
  std::vector<Handle*> post_forward_order_;
  bool lazy_ = true;         // No forward yet.
  bool first_pass_ = true;   // No backward yet.
  bool reduces_ = true;
  bool stale_ = false;       // The views' gradients are None, and the flat ones wait for the next forward.
};

Fsdp1Runtime::Fsdp1Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
    : RuntimeBase(job, model, rank, emitter),
      units_(flat_units(model, job)),
      of_module_(model.modules.size(), nullptr),
      places_(model.parameters.size()),
      optimizer_(job.training.optimizer, emitter, model.parameters.size()) {
  for (const FlatUnit& unit : units_) {
    handles_.push_back(std::make_unique<Handle>(unit, job_, model_, rank, emitter));
    of_module_[static_cast<std::size_t>(unit.module)] = handles_.back().get();
    for (std::size_t piece = 0; piece < unit.pieces.size(); ++piece) {
      if (unit.pieces[piece].id != kNone) places_[at(unit.pieces[piece].id)] = {handles_.back().get(), piece};
    }
  }
}

void Fsdp1Runtime::build(ModelInit where, const BuffersOf& buffers_of) {
  if (where == ModelInit::Device) return RuntimeBase::build(where, buffers_of);
  moves_.emplace(buffers_of);
  move_buffers_ = &*moves_;
  loading_.build_on_host();
}

// _recursive_wrap: units inside come first.
void Fsdp1Runtime::initialise(const std::vector<BufferId>& /*buffers*/) {
  emitter_.use_streams();
  std::vector<Handle*> order;
  for (const auto& handle : handles_) order.push_back(handle.get());
  std::sort(order.begin(), order.end(),
            [](const Handle* a, const Handle* b) { return a->unit().order < b->unit().order; });
  for (Handle* handle : order) handle->flatten(loading_, move_buffers_);
  move_buffers_ = nullptr;
}

ParameterPlace Fsdp1Runtime::place(ParameterId parameter) const {
  const Place& place = places_[at(parameter)];
  return place.handle->place(place.piece);
}

void Fsdp1Runtime::enter(ModuleId module, Pass pass) {
  if (pass == Pass::Forward && module == 0) root_pre_forward();
  Handle* const handle = of_module_[static_cast<std::size_t>(module)];
  if (handle == nullptr) return;
  if (pass == Pass::Forward) pre_forward(*handle);
  if (pass == Pass::Backward) pre_backward(*handle);
}

void Fsdp1Runtime::exit(ModuleId module, Pass pass) {
  if (module == kNone) return end_backward();
  Handle* const handle = of_module_[static_cast<std::size_t>(module)];
  if (handle == nullptr) return;
  if (pass == Pass::Forward) post_forward(*handle);
  if (pass == Pass::Backward && !is_root(*handle)) post_backward(*handle);
}

void Fsdp1Runtime::root_pre_forward() {
  if (std::exchange(lazy_, false)) {
    for (const auto& handle : handles_) handle->init_attributes();
  }
  for (const auto& handle : handles_) {
    if (training().fsdp.forward_prefetch == 0) break;
    handle->hooks.needs_unshard = true;
    handle->hooks.prefetched = false;
  }
  emitter_.wait_stream(kGatherStream, kComputeStream);
  emitter_.wait_stream(kCopyInStream, kComputeStream);
  if (std::exchange(stale_, false)) {  // _reset_flat_param_grad_info_if_needed
    for (const auto& handle : handles_) handle->drop_gradient();
  }
}

// _unshard. The host waits until so many of what was gathered before have been let go of.
void Fsdp1Runtime::unshard(Handle& handle) {
  bool ran = false;
  {
    const OnStream on(emitter_, kCopyInStream);
    ran = handle.pre_unshard();
  }
  if (ran) emitter_.wait_stream(kGatherStream, kCopyInStream);
  if (training().fsdp.limit_all_gathers && free_events_.size() >= kInflight) {
    emitter_.wait_event(kHostSync, free_events_.front());
    free_events_.pop_front();
  }
  const OnStream on(emitter_, kGatherStream);
  handle.unshard();
}

void Fsdp1Runtime::free_event(StreamId on) {
  if (training().fsdp.limit_all_gathers) free_events_.push_back(emitter_.record_event(on));
}

void Fsdp1Runtime::pre_forward(Handle& handle) {
  if (first_pass_) forward_order_.push_back(&handle);
  if (!handle.hooks.prefetched) unshard(handle);
  handle.hooks.needs_unshard = false;
  emitter_.wait_stream(kComputeStream, kGatherStream);
  if (training().fsdp.forward_prefetch == 0) return;
  const auto found = std::find(forward_order_.begin(), forward_order_.end(), &handle);
  if (found + 1 == forward_order_.end()) return;
  Handle& next = **(found + 1);
  if (!next.hooks.needs_unshard || next.hooks.prefetched) return;
  unshard(next);
  next.hooks.prefetched = true;
}

// The root's is kept, as backward begins with it.
void Fsdp1Runtime::post_forward(Handle& handle) {
  if (!handle.hooks.forward_index) handle.hooks.forward_index = post_forward_order_.size();
  post_forward_order_.push_back(&handle);
  if (!is_root(handle) && training().fsdp.reshard_after_forward == 1) {
    handle.free_whole();
    free_event(kComputeStream);
  }
  handle.hooks.prefetched = false;
  handle.hooks.needs_unshard = true;
  handle.hooks.ran_pre_backward = false;
}

void Fsdp1Runtime::pre_backward(Handle& handle) {
  if (handle.hooks.ran_pre_backward) return;
  if (handle.hooks.needs_unshard) {
    if (!handle.hooks.prefetched) unshard(handle);
    emitter_.wait_stream(kComputeStream, kGatherStream);
  }
  handle.hooks.needs_unshard = false;
  prefetch_backward(handle, BackwardPrefetch::Pre);
  handle.hooks.ran_pre_backward = true;
}

void Fsdp1Runtime::prefetch_backward(const Handle& handle, BackwardPrefetch now) {
  if (training().fsdp.backward() != now || handle.hooks.forward_index.value_or(0) == 0) return;
  Handle& next = *post_forward_order_[*handle.hooks.forward_index - 1];
  if (!next.hooks.needs_unshard || next.hooks.prefetched) return;
  unshard(next);
  next.hooks.prefetched = true;
}

void Fsdp1Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  const Place& place = places_[at(parameter)];
  place.handle->take_gradient(place.piece, gradient);
}

// _post_backward_hook, which hangs on the flat parameter's AccumulateGrad: torch.split ran as the module began, so that
// its node runs after all of the module's and before what lies before. The hook runs on that node's stream.
void Fsdp1Runtime::post_backward(Handle& handle) {
  if (!handle.join_gradients()) return;
  if (reduces_ || training().fsdp.reshard_after_forward == 1) {  // _should_free_in_backward
    handle.free_whole_untold();
    free_event(kGatherStream);
  }
  handle.hooks.prefetched = false;
  prefetch_backward(handle, BackwardPrefetch::Post);
  if (reduces_) handle.reduce_gradient();
}

// The root's inputs want no gradient; then _post_backward_final_callback.
void Fsdp1Runtime::end_backward() {
  if (Handle* const root = of_module_.front()) post_backward(*root);
  emitter_.wait_stream(kComputeStream, kGatherStream);  // The engine waits for the streams of leaves.
  if (reduces_) {
    emitter_.wait_stream(kComputeStream, kReduceStream);
    emitter_.wait_stream(kComputeStream, kReplicaStream);
  }
  for (const auto& handle : handles_) handle->hooks = {};
  post_forward_order_.clear();
  first_pass_ = false;
}

void Fsdp1Runtime::step(bool /*first*/) {
  std::vector<StepParameter> all;
  for (const auto& handle : handles_) {
    for (const StepParameter& p : handle->step_parameters()) all.push_back(p);
  }
  optimizer_.step(all, training().optimizer.weight_decay);
  stale_ = training().fsdp.use_orig_params;
  if (stale_) return;
  for (const auto& handle : handles_) handle->drop_gradient();
}

}  // namespace

std::unique_ptr<TrainingRuntime> make_fsdp1_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                    Emitter& emitter) {
  return std::make_unique<Fsdp1Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
