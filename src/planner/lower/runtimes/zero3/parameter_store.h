// The parameters of a sharded model: each in its rank's partition (partition_home.h), and whole on the device while it
// is needed (DeepSpeed runtime/zero/partition_parameters.py). With hpZ a parameter that is let go of leaves a second
// shard of A / h elements, from which it is gathered among h ranks until the next step.
#pragma once

#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/zero3/partition_home.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {

class ParameterStore {
 public:
  ParameterStore(const Training& training, const ModelSpec& model, const Sharding& sharding, PartitionHome& home,
                 Emitter& emitter);

  // `whole` becomes partitions; `tied`: to another, afterwards.
  void cut(const NamedParameter& p, Variable whole, bool tied);

  // Where it can be read now.
  [[nodiscard]] ParameterPlace place(ParameterId id) const;
  // A tensor for it, or what stands in for one from `offset` on.
  const Variable& make_full(ParameterId id, std::int64_t elements);
  void set_full(ParameterId id, Variable full, Bytes offset = Bytes(0));
  // This rank's partition, or with `secondary` its secondary shard, where it lies.
  [[nodiscard]] Part shard(ParameterId id, bool secondary) const;
  // What this rank sends for it: the same on the device; where it had to be brought to the device, `brought` gets a
  // variable for it.
  [[nodiscard]] Part sent(ParameterId id, bool secondary, std::vector<Variable>& brought);
  // Among the ranks that have shards: all, or with `secondary` those inside.
  void all_gather(const Part& to, std::span<const Part> from, bool secondary);
  void all_gather(const Part& to, const Part& from, bool secondary) { all_gather(to, {&from, 1}, secondary); }

  // Into a tensor of its own, of which the parameter is a view.
  void gather_alone(ParameterId id, bool secondary, std::vector<Variable>& brought);
  // NoGatherHandle: what a single rank has is the parameter.
  void take_whole(ParameterId id);
  // param.all_gather(), waited for: one, into a tensor of its own whatever the number of ranks; or a list, never
  // through a flat buffer.
  void gather_whole(ParameterId id);
  void gather_in_place(const std::vector<ParameterId>& list);
  // Back to its partition: what was gathered goes. Before, that partition is cut anew where the parameter changed.
  // Not read: it waits for all that the compute stream was given all the same.
  void release(ParameterId id, Reason reason, bool was_read = true);
  void partition_again(ParameterId id);
  // What was gathered goes, and leaves nothing. Nobody has read it where there are codes.
  void drop_full(ParameterId id);
  // Of what the optimizer has changed.
  void drop_secondary();

 private:
  struct State {
    Variable full;         // Gathered,
    Bytes offset;          // from here on.
    bool aliased = false;  // Available where it lies: a single rank has nothing to gather.
    Variable secondary;
    // Of LLM.int8: Linear8bitLt keeps the weight that it was given, whole, and multiplies by that (bitsandbytes
    // nn/modules.py, init_8bit_state).
    Variable codes;
  };
  [[nodiscard]] State& at(ParameterId id) { return states_[static_cast<std::size_t>(id)]; }
  void leave_secondary(ParameterId id);
  [[nodiscard]] Variable make_secondary(const Shard& of, const Part& whole);
  void synchronize();

  const Training& training_;
  const ModelSpec& model_;
  const Sharding& sharding_;
  PartitionHome& home_;
  Eager eager_;
  std::vector<State> states_;  // By ParameterId.
};

}  // namespace dsplan
