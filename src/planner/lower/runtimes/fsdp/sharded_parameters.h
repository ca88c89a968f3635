// The parameters of a model under fully_shard: each rank's rows of each, padded, and the whole ones while they are
// gathered (torch/distributed/fsdp/_fully_shard/_fsdp_param.py). When they are is the group's (param_group.h).
#pragma once

#include <functional>
#include <vector>

#include "planner/fsdp/fsdp_facts.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {

// Ranks among which shards are gathered.
struct ShardRanks {
  std::int64_t ranks = 1;
  std::int64_t rank = 0;
  Group group = Group::DataParallel;
};

// Before PyTorch 2.10 FSDPParamGroup.lazy_init does not see that a shard is padded already.
[[nodiscard]] inline bool is_padded_twice(const Training& training, const FsdpShard& shard) {
  return training.torch < Version{2, 10, 0} && shard.real != shard.padded;
}

class ShardedParameters {
 public:
  ShardedParameters(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  [[nodiscard]] const ShardRanks& mesh() const { return mesh_; }
  [[nodiscard]] const FsdpShard& of(ParameterId id) const { return shards_[static_cast<std::size_t>(id)]; }

  // In which it is kept, and in which it is gathered.
  [[nodiscard]] const Parameter& parameter(ParameterId id) const { return model_.parameter_at(id); }
  [[nodiscard]] DType kept(ParameterId id) const { return training_.made_dtype(parameter(id)); }
  [[nodiscard]] DType gathered(ParameterId id) const { return training_.dtype_of(parameter(id)); }

  // fully_shard is given it whole: this rank's rows are copied into a padded tensor.
  // `sent`: to a rank that called fully_shard before; under CPUOffloadPolicy pad has yet to come. What pads the other
  // ranks' rows goes when these are there. `rows_alone`: a copy without padding takes their place then.
  void cut(ParameterId id, const Variable& whole, std::vector<Variable>* sent = nullptr, bool rows_alone = false);
  // to_empty: this rank's rows, unpadded; what was there goes.
  void make_empty(ParameterId id);
  // What has been made, or cut, is copied into a padded tensor, but for what was made that large or this did before
  // (reset_sharded_param); on the host it is pinned. `again`: whatever it is. Returns what was there.
  Variable pad(ParameterId id, bool again = false);

  // What is sent, with padding; and what the optimizer updates.
  [[nodiscard]] Part padded(ParameterId id) const { return own_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Part real(ParameterId id) const;

  [[nodiscard]] ParameterPlace place(ParameterId id) const;
  // The whole parameter, and the padding of all ranks behind it; or `there`, which is each rank's own for good.
  void make_whole(ParameterId id, Variable there = {});
  [[nodiscard]] const Variable& whole(ParameterId id) const { return whole_[static_cast<std::size_t>(id)]; }
  void drop_whole(ParameterId id) { whole_[static_cast<std::size_t>(id)].reset(Reason::ModuleExit); }

 private:
  [[nodiscard]] Bytes kept(ParameterId id, Elements elements) const { return storage(elements, kept(id)); }

  const Training& training_;
  const ModelSpec& model_;
  Eager eager_;
  Space space_;  // In which shards are made: under CPUOffloadPolicy the host's, where they are pinned.
  ShardRanks mesh_;
  std::vector<FsdpShard> shards_;  // By ParameterId, as are the next.
  std::vector<Variable> own_;
  std::vector<bool> made_;  // There may be nothing in it.
  Variable replaced_;       // Of a tied weight made under its second name: its group has it until that is padded.
  std::vector<Variable> whole_;
};

}  // namespace dsplan
