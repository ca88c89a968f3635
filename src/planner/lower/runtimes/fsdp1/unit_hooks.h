// The hooks of all units, in the words of torch/distributed/fsdp/_runtime_utils.py.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "planner/lower/runtimes/fsdp1/flat_handle.h"

namespace dsplan {

class UnitHooks {
 public:
  UnitHooks(const Training& training, Emitter& emitter) : training_(training), emitter_(emitter) {}

  // In the order of modules.
  [[nodiscard]] std::vector<std::unique_ptr<FlatHandle>>& handles() { return handles_; }

  void root_pre_forward();
  // A unit's forward: autograd records it; or not, as a reentrant checkpoint runs what is inside first; such a
  // checkpoint recomputes it; or a non-reentrant one does, for what was saved, whose graph is nobody's.
  enum class Run : std::uint8_t { Recorded, Unrecorded, Recomputed, RecomputedForSaved };
  void pre_forward(FlatHandle& handle, Run run);
  void post_forward(FlatHandle& handle, Run run);
  void backward_begins(bool reduces) { reduces_ = reduces; }
  void pre_backward(FlatHandle& handle);
  // Of the module: after everything inside.
  void leave_backward(FlatHandle& handle);
  // Nothing of the unit is trained, and its input has a gradient. `behind`: the input is what another unit has made,
  // whose own hook on it comes first.
  void input_has_gradient(FlatHandle& handle, bool behind);
  void end_backward();
  // zero_grad.
  void drop_gradients();

 private:
  void unshard(FlatHandle& handle);
  void free_event(StreamId on);
  void post_backward(FlatHandle& handle);
  void reshard_only(FlatHandle& handle, bool prefetches);
  void prefetch_backward(const FlatHandle& handle, BackwardPrefetch now);

  const Training& training_;
  Emitter& emitter_;
  std::vector<std::unique_ptr<FlatHandle>> handles_;
  std::deque<std::optional<ContentId>> free_events_;  // _FreeEventQueue
  std::vector<FlatHandle*> forward_order_;            // handles_pre_forward_order, of the first iteration.
  std::vector<FlatHandle*> post_forward_order_;
  FlatHandle* waiting_ = nullptr;  // To be resharded behind the next unit's hook.
  bool lazy_ = true;               // No forward yet.
  bool first_pass_ = true;         // No backward yet.
  bool reduces_ = true;
  bool stale_ = false;  // The views' gradients are None, and the flat ones wait for the next forward.
};

}  // namespace dsplan
