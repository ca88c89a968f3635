#include "planner/lower/runtimes/fsdp/state_dict.h"

#include <utility>
#include <vector>

namespace dsplan {
namespace {

constexpr What kSaved{Role::Temporaries, "weight to save",
                      "torch/distributed/_state_dict_utils.py, _gather_state_dict"};
constexpr What kPadded{Role::Temporaries, "padded shard to save", "torch/distributed/tensor/placement_types.py"};

// redistribute to Replicate: a shard that lacks rows is padded anew, and all ranks' come in one tensor
// (torch/distributed/tensor/placement_types.py, _to_replicate_tensor).
Variable gathered(Eager& eager, const ShardedParameters& parameters, ParameterId id) {
  const FsdpShard& shard = parameters.of(id);
  const ShardRanks& mesh = parameters.mesh();
  const DType dtype = parameters.kept(id);
  Variable padded;
  if (shard.real != shard.padded) {
    padded = eager.empty(storage(shard.padded, dtype), dtype, kPadded, id);
    eager.copy(padded, parameters.padded(id), "pad shard");
  }
  Variable whole = eager.empty(storage(shard.padded * mesh.ranks, dtype), dtype, kSaved, id);
  whole.mark_scratch();
  const Part from = padded ? Part(padded.id()) : parameters.padded(id);
  eager.all_gather(whole, from, mesh.ranks, mesh.group);
  return whole;
}

}  // namespace

void save_whole(const ModelSpec& model, const Training& training, const ShardedParameters& parameters,
                std::int64_t rank, Emitter& emitter) {
  Eager eager(emitter);
  std::vector<Variable> held;
  for (std::size_t at = 0; at < model.parameters.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    const ParameterId id = parameter.tied_to != kNone ? parameter.tied_to : static_cast<ParameterId>(at);
    if (training.is_ignored(model.parameter_at(id))) continue;
    Variable whole = gathered(eager, parameters, id);
    if (training.fsdp.state_dict == "full-device") {
      held.push_back(std::move(whole));
    } else if (rank == 0) {
      const DType dtype = parameters.kept(id);
      const Bytes bytes = storage(parameter.shape.elements(), dtype);
      held.push_back(eager.empty(bytes, dtype, {Role::Parameters, "weight to save", ""}, id, Space::Pageable));
      held.back().mark_scratch();
      eager.copy(held.back(), Part(whole.id(), Bytes(0), bytes), "copy weight to host");
    }
  }
  let_go(held);
}

}  // namespace dsplan
