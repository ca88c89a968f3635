#include "planner/lower/runtimes/fsdp1/unit_hooks.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

constexpr std::size_t kInflight = 2;  // _limiter_utils.py, _max_num_inflight_all_gathers

bool is_root(const FlatHandle& handle) { return handle.unit().module == 0; }

}  // namespace

void UnitHooks::root_pre_forward() {
  if (std::exchange(lazy_, false)) {
    for (const auto& handle : handles_) handle->init_attributes();
  }
  for (const auto& handle : handles_) {
    if (training_.fsdp.forward_prefetch == 0) break;
    handle->hooks.needs_unshard = true;
    handle->hooks.prefetched = false;
  }
  emitter_.wait_stream(kGatherStream, kComputeStream);
  emitter_.wait_stream(kCopyInStream, kComputeStream);
  const bool stale = std::exchange(stale_, false);
  for (const auto& handle : handles_) {  // _reset_flat_param_grad_info_if_needed
    if (stale) handle->gradient.drop();
    if (training_.fsdp.use_orig_params) handle->gradient.drop_unseen();
  }
}

// _unshard. The host waits until so many of what was gathered before have been let go of.
void UnitHooks::unshard(FlatHandle& handle) {
  bool ran = false;
  {
    const OnStream on(emitter_, kCopyInStream);
    ran = handle.pre_unshard();
  }
  if (ran) emitter_.wait_stream(kGatherStream, kCopyInStream);
  if (training_.fsdp.limit_all_gathers && free_events_.size() >= kInflight) {
    emitter_.wait_event(kHostSync, free_events_.front());
    free_events_.pop_front();
  }
  const OnStream on(emitter_, kGatherStream);
  handle.unshard();
}

void UnitHooks::free_event(StreamId on) {
  if (training_.fsdp.limit_all_gathers) free_events_.push_back(emitter_.record_event(on));
}

void UnitHooks::pre_forward(FlatHandle& handle) {
  if (first_pass_) forward_order_.push_back(&handle);
  handle.hooks.splits.clear();
  if (!handle.hooks.prefetched) {
    unshard(handle);
    handle.hooks.splits.push_back(&handle);
  }
  handle.hooks.needs_unshard = false;
  emitter_.wait_stream(kComputeStream, kGatherStream);
  if (training_.fsdp.forward_prefetch == 0) return;
  const auto found = std::find(forward_order_.begin(), forward_order_.end(), &handle);
  if (found + 1 == forward_order_.end()) return;
  FlatHandle& next = **(found + 1);
  if (!next.hooks.needs_unshard || next.hooks.prefetched) return;
  unshard(next);
  next.hooks.prefetched = true;
  handle.hooks.splits.push_back(&next);
}

// The root's is kept, as backward begins with it.
void UnitHooks::post_forward(FlatHandle& handle) {
  if (!handle.hooks.forward_index) handle.hooks.forward_index = post_forward_order_.size();
  post_forward_order_.push_back(&handle);
  const bool reshards = training_.fsdp.reshard_after_forward == 1;
  if (reshards) handle.use_sharded_views();
  if (!is_root(handle) && reshards) {
    handle.free_whole();
    free_event(kComputeStream);
  }
  handle.hooks.prefetched = false;
  handle.hooks.needs_unshard = true;
  handle.hooks.ran_pre_backward = false;
}

void UnitHooks::pre_backward(FlatHandle& handle) {
  if (handle.hooks.ran_pre_backward) return;
  if (handle.hooks.needs_unshard) {
    if (!handle.hooks.prefetched) unshard(handle);
    emitter_.wait_stream(kComputeStream, kGatherStream);
  }
  handle.hooks.needs_unshard = false;
  prefetch_backward(handle, BackwardPrefetch::Pre);
  handle.hooks.ran_pre_backward = true;
}

void UnitHooks::prefetch_backward(const FlatHandle& handle, BackwardPrefetch now) {
  if (training_.fsdp.backward() != now || handle.hooks.forward_index.value_or(0) == 0) return;
  FlatHandle& next = *post_forward_order_[*handle.hooks.forward_index - 1];
  if (!next.hooks.needs_unshard || next.hooks.prefetched) return;
  unshard(next);
  next.hooks.prefetched = true;
}

// torch.split runs where a unit is gathered: before the module's forward, or, prefetched, before the one that runs
// first. Autograd takes nodes from the latest to the first, so that its node comes after all of that module's.
void UnitHooks::exit_backward(FlatHandle& handle) {
  if (handle.hooks.nested || !handle.unit().trains) post_backward(handle);
  for (auto split = handle.hooks.splits.rbegin(); split != handle.hooks.splits.rend(); ++split) {
    if ((*split)->unit().trains) post_backward(**split);
  }
}

// _post_backward_hook, which hangs on the flat parameter's AccumulateGrad, and runs on the stream of torch.split's
// node.
void UnitHooks::post_backward(FlatHandle& handle) {
  if (!handle.unit().trains) return reshard_only(handle);
  if (!handle.gradient.join()) return;
  handle.use_sharded_views();
  if (reduces_ || training_.fsdp.reshard_after_forward == 1) {  // _should_free_in_backward
    handle.free_whole(false);
    free_event(kGatherStream);
  }
  handle.hooks.prefetched = false;
  prefetch_backward(handle, BackwardPrefetch::Post);
  if (reduces_) handle.gradient.reduce();
  if (!reduces_ && training_.fsdp.use_orig_params) handle.gradient.use_whole_views();
  handle.gradient.hook_returns();
}

// _post_backward_reshard_only_hook, or _catch_all_reshard: nothing of the unit is trained.
void UnitHooks::reshard_only(FlatHandle& handle) {
  handle.use_sharded_views();
  if (reduces_ || training_.fsdp.reshard_after_forward == 1) {
    handle.free_whole();
    free_event(kComputeStream);
  }
  handle.hooks.prefetched = false;
}

// Units whose inputs want no gradient; then _post_backward_final_callback.
void UnitHooks::end_backward() {
  for (auto handle = handles_.rbegin(); handle != handles_.rend(); ++handle) {
    if ((*handle)->unit().trains || is_root(**handle)) post_backward(**handle);
  }
  emitter_.wait_stream(kComputeStream, kGatherStream);  // The engine waits for the streams of leaves.
  if (reduces_) {
    emitter_.wait_stream(kComputeStream, kReduceStream);
    emitter_.wait_stream(kComputeStream, kReplicaStream);
  }
  if (reduces_ && training_.fsdp.cpu_offload) emitter_.wait_stream(kHostSync, kComputeStream);
  for (const auto& handle : handles_) {
    if (reduces_ && training_.fsdp.cpu_offload) handle->gradient.drop();  // prepare_gradient_for_optim
    handle->hooks = {};
  }
  post_forward_order_.clear();
  first_pass_ = false;
}

// What views have is dropped by name alone: the flat gradient waits for the next forward.
void UnitHooks::drop_gradients() {
  stale_ = training_.fsdp.use_orig_params;
  if (stale_) return;
  for (const auto& handle : handles_) handle->gradient.drop();
}

}  // namespace dsplan
