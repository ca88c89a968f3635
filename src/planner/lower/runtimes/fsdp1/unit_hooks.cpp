#include "planner/lower/runtimes/fsdp1/unit_hooks.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

constexpr std::size_t kInflight = 2;  // _limiter_utils.py, _max_num_inflight_all_gathers

bool is_root(const FlatHandle& handle) { return handle.unit().module == 0; }

// Whom forward_prefetch gathers ahead.
FlatHandle* following(const std::vector<FlatHandle*>& order, const FlatHandle& handle) {
  const auto found = std::find(order.begin(), order.end(), &handle);
  if (found + 1 == order.end()) return nullptr;
  FlatHandle* const next = *(found + 1);
  return next->hooks.needs_unshard && !next->hooks.prefetched ? next : nullptr;
}

// _should_free_in_backward. What NO_SHARD has cast goes in any case (post_reshard), but it counts for no limit.
bool frees_in_backward(const FlatHandle& handle, bool reduces) {
  return reduces || handle.share.training.fsdp.reshard_after_forward == 1 || handle.share.whole;
}

bool is_recomputed(UnitHooks::Run run) {
  return run == UnitHooks::Run::Recomputed || run == UnitHooks::Run::RecomputedForSaved;
}

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

// The unit whose hook has run is gathered, and in the state in which nothing is done.
void UnitHooks::pre_forward(FlatHandle& handle, Run run) {
  if (is_recomputed(run) && handle.hooks.ran_pre_backward) return;
  if (first_pass_) forward_order_.push_back(&handle);
  std::vector<FlatHandle*> splits;
  if (!handle.hooks.prefetched) {
    unshard(handle);
    splits.push_back(&handle);
  }
  handle.hooks.needs_unshard = false;
  emitter_.wait_stream(kComputeStream, kGatherStream);
  FlatHandle* const next = training_.fsdp.forward_prefetch > 0 ? following(forward_order_, handle) : nullptr;
  if (next != nullptr) {
    unshard(*next);
    next->hooks.prefetched = true;
    splits.push_back(next);
  }
  if (run != Run::RecomputedForSaved) handle.hooks.splits = std::move(splits);
}

// The root's is kept, as backward begins with it. Of a unit that was called before PyTorch asks whether its place is
// there, and takes the very first for none (_exec_order_utils.py, record_post_forward).
void UnitHooks::post_forward(FlatHandle& handle, Run run) {
  if (is_recomputed(run) && handle.hooks.ran_pre_backward) return;
  if (handle.hooks.forward_index.value_or(0) == 0) handle.hooks.forward_index = post_forward_order_.size();
  post_forward_order_.push_back(&handle);
  const bool reshards = training_.fsdp.reshard_after_forward == 1 || handle.share.whole;
  if (reshards) handle.use_sharded_views();
  if (reshards && (handle.share.whole || !is_root(handle))) {
    handle.free_whole();
    if (!handle.share.whole) free_event(kComputeStream);
  }
  handle.hooks.prefetched = false;
  if (run == Run::Unrecorded) return;
  handle.hooks.needs_unshard = true;
  handle.hooks.ran_pre_backward = false;
}

void UnitHooks::pre_backward(FlatHandle& handle) {
  if (!handle.hooks.ran_pre_backward) {
    if (handle.hooks.needs_unshard) {
      if (!handle.hooks.prefetched) unshard(handle);
      emitter_.wait_stream(kComputeStream, kGatherStream);
    }
    handle.hooks.needs_unshard = false;
    prefetch_backward(handle, BackwardPrefetch::Pre);
    handle.hooks.ran_pre_backward = true;
  }
  if (waiting_ != nullptr) reshard_only(*std::exchange(waiting_, nullptr), true);
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
void UnitHooks::leave_backward(FlatHandle& handle) {
  if (handle.hooks.nested && handle.unit().trains) post_backward(handle);
  for (auto split = handle.hooks.splits.rbegin(); split != handle.hooks.splits.rend(); ++split) {
    if ((*split)->unit().trains) post_backward(**split);
  }
}

void UnitHooks::input_has_gradient(FlatHandle& handle, bool behind) {
  if (behind) {
    waiting_ = &handle;
  } else {
    reshard_only(handle, true);
  }
}

// _post_backward_hook, which hangs on the flat parameter's AccumulateGrad, and runs on the stream of torch.split's
// node.
void UnitHooks::post_backward(FlatHandle& handle) {
  if (!handle.gradient.join()) return;
  handle.use_sharded_views();
  if (frees_in_backward(handle, reduces_)) {
    handle.free_whole(false);
    if (!handle.share.whole) free_event(kGatherStream);
  }
  handle.hooks.prefetched = false;
  prefetch_backward(handle, BackwardPrefetch::Post);
  if (reduces_) handle.gradient.reduce();
  if (!reduces_ && training_.fsdp.use_orig_params) handle.gradient.use_whole_views();
  handle.gradient.hook_returns();
}

// _post_backward_reshard_only_hook, or _catch_all_reshard, which gathers nothing ahead.
void UnitHooks::reshard_only(FlatHandle& handle, bool prefetches) {
  handle.use_sharded_views();
  if (frees_in_backward(handle, reduces_)) {
    handle.free_whole();
    if (!handle.share.whole) free_event(kComputeStream);
  }
  handle.hooks.prefetched = false;
  if (prefetches) prefetch_backward(handle, BackwardPrefetch::Post);
}

// _post_backward_final_callback.
void UnitHooks::end_backward() {
  for (auto handle = handles_.rbegin(); handle != handles_.rend(); ++handle) {
    if ((*handle)->unit().trains) post_backward(**handle);
  }
  emitter_.wait_stream(kComputeStream, kGatherStream);  // The engine waits for the streams of leaves.
  if (reduces_) {
    emitter_.wait_stream(kComputeStream, kReduceStream);
    emitter_.wait_stream(kComputeStream, kReplicaStream);
  }
  if (reduces_ && training_.fsdp.cpu_offload) emitter_.wait_stream(kHostSync, kComputeStream);
  for (const auto& handle : handles_) {
    if (!handle->unit().trains && handle->is_whole()) reshard_only(*handle, false);
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
