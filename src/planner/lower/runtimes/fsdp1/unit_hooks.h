// The hooks of all units, in the words of torch/distributed/fsdp/_runtime_utils.py.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "planner/lower/runtimes/fsdp1/flat_handle.h"

namespace dsplan {

class UnitHooks {
 public:
  UnitHooks(const Training& training, Emitter& emitter) : training_(training), emitter_(emitter) {}

  void add(std::unique_ptr<FlatHandle> handle) { handles_.push_back(std::move(handle)); }
  // In the order of modules.
  [[nodiscard]] const std::vector<std::unique_ptr<FlatHandle>>& handles() const { return handles_; }

  void root_pre_forward();
  void pre_forward(FlatHandle& handle);
  void post_forward(FlatHandle& handle);
  void backward_begins(bool reduces) { reduces_ = reduces; }
  void pre_backward(FlatHandle& handle);
  // Of the module: after everything inside.
  void exit_backward(FlatHandle& handle);
  void end_backward();
  // zero_grad.
  void drop_gradients();

 private:
  void unshard(FlatHandle& handle);
  void free_event(StreamId on);
  void post_backward(FlatHandle& handle);
  void reshard_only(FlatHandle& handle);
  void prefetch_backward(const FlatHandle& handle, BackwardPrefetch now);

  const Training& training_;
  Emitter& emitter_;
  std::vector<std::unique_ptr<FlatHandle>> handles_;
  std::deque<std::optional<ContentId>> free_events_;  // _FreeEventQueue
  std::vector<FlatHandle*> forward_order_;            // handles_pre_forward_order, of the first iteration.
  std::vector<FlatHandle*> post_forward_order_;
  bool lazy_ = true;        // No forward yet.
  bool first_pass_ = true;  // No backward yet.
  bool reduces_ = true;
  bool stale_ = false;  // The views' gradients are None, and the flat ones wait for the next forward.
};

}  // namespace dsplan
