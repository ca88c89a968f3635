// The flat parameter of one wrapped module: its shard, and the whole of it while it is gathered
// (torch/distributed/fsdp/_flat_param.py, FlatParamHandle). When what happens is the runtime's (fsdp1_runtime.cpp).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/fsdp/flat_facts.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/fsdp1/flat_gradient.h"
#include "planner/lower/runtimes/model_loading.h"
#include "planner/lower/runtimes/optimizer_step.h"

namespace dsplan {

class FlatHandle {
 public:
  // All references must outlive it, and it stays where it is.
  FlatHandle(const FlatUnit& unit, const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  // Of the runtime's hooks.
  struct Hooks {
    bool needs_unshard = false;  // _needs_pre_backward_unshard; before forward _needs_pre_forward_unshard.
    bool prefetched = false;
    bool ran_pre_backward = false;
    std::optional<std::size_t> forward_index;  // _post_forward_index
    std::vector<FlatHandle*> splits;           // Whose torch.split ran before the module's forward, in order.
    bool nested = false;                       // Its gradients come within a reentrant checkpoint's own backward.
  };
  Hooks hooks;
  const FlatShare share;
  FlatGradient gradient;

  [[nodiscard]] const FlatUnit& unit() const { return share.unit; }

  // Flattened from whole parameters, which go, and cut. `sync`: what is done to them before (sync_module_states).
  using Sync = std::function<void(const FlatUnit&, std::vector<BufferId> whole)>;
  void flatten(ModelLoading& loading, const std::function<void(ModuleId)>& move_buffers, const Sync& sync);
  // accelerate casts the shard. Views of it are the ones of before until they are made anew.
  void widen();
  // init_flat_param_attributes: what will be gathered into is made once, and let go of at once.
  void init_attributes();

  // What is sent is made in the dtype that is gathered. False: there was nothing to do.
  bool pre_unshard();
  void unshard();
  [[nodiscard]] bool is_whole() const { return static_cast<bool>(whole_); }
  void use_sharded_views();
  // `told`: the allocator learns of what streams did with it; on the stream that gathers it does not.
  void free_whole(bool told = true);
  [[nodiscard]] ParameterPlace place(std::size_t piece) const;

  // What the optimizer is given: the shard, or views of it.
  [[nodiscard]] std::vector<StepParameter> step_parameters() const;

 private:
  const ModelSpec& model_;
  bool mixes_;  // It is gathered in another dtype.
  Eager eager_;
  Variable shard_;  // _local_shard
  Variable stale_;  // What views still show where accelerate has cast the shard.
  bool written_back_ = false;
  Variable moved_;  // Of a shard on the host what views show while the unit is gathered.
  Variable cast_;   // _mp_shard
  Variable whole_;  // _full_param_padded
  Variable shown_;  // Of NO_SHARD what views show until they are made anew: nobody lets go of them before.
};

}  // namespace dsplan
