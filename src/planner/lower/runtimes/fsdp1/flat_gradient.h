// The gradient of a flat parameter: from what modules leave of it to what the optimizer is given
// (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook and _reduce_grad).
#pragma once

#include <vector>

#include "planner/fsdp/flat_facts.h"
#include "planner/lower/eager.h"

namespace dsplan {

// What a rank is to a unit.
struct FlatShare {
  FlatShare(const FlatUnit& of, const Job& job, std::int64_t of_all);

  const FlatUnit& unit;
  const Training& training;
  DType kept;          // Of its shard.
  std::int64_t ranks;  // That have other shards each.
  std::int64_t rank;   // Among these.
  Group group;
  bool whole;           // NO_SHARD: the rank keeps all of it,
  std::int64_t copies;  // as do so many.
};

class FlatGradient {
 public:
  // `share` must outlive this.
  FlatGradient(const FlatShare& share, const ModelSpec& model, Emitter& emitter)
      : share_(share), model_(model), eager_(emitter), parts_(share.unit.pieces.size()) {}

  // Under CPUOffload: what sharded gradients are copied into.
  void make_on_host();
  void take(std::size_t piece, BufferId gradient);
  // The nodes of torch.split and of the flat parameter. False: no gradient came.
  [[nodiscard]] bool join();
  void reduce();
  // Under no_sync(): views' gradients are set to views of the whole one.
  void use_whole_views();
  // The hook behind AccumulateGrad has returned.
  void hook_returns() { added_.reset(Reason::AutogradGraph); }
  void drop();
  // Of use_orig_params: no view has it, so that nobody keeps it.
  void drop_unseen();
  [[nodiscard]] const Variable& for_step() const {
    return share_.training.fsdp.cpu_offload ? on_host_ : share_.whole ? whole_ : sharded_;
  }

 private:
  void accumulate(Variable shard);
  void reduce_whole();

  const FlatShare& share_;
  const ModelSpec& model_;
  Eager eager_;
  std::vector<Variable> parts_;  // By piece: on their way into the flat one.
  Variable whole_;               // `.grad`, whole.
  Variable added_;               // What AccumulateGrad has added to it: the engine keeps it for the hook.
  Variable sharded_;             // _saved_grad_shard, then `.grad`.
  Variable on_host_;             // _cpu_grad
  bool views_have_ = false;      // A `.grad`.
};

}  // namespace dsplan
