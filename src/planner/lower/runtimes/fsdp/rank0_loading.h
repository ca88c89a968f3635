// accelerate's cpu_ram_efficient_loading: rank 0 has the weights on the host, and sends each rank its rows of each
// (accelerate 1.15.0, utils/fsdp_utils.py, fsdp2_load_full_state_dict).
#pragma once

#include <functional>
#include <vector>

#include "planner/lower/runtimes/fsdp/sharded_parameters.h"
#include "planner/lower/runtimes/model_loading.h"

namespace dsplan {

class Rank0Loading {
 public:
  // All must outlive this. `rank`: of the data-parallel group.
  Rank0Loading(const ModelSpec& model, ShardedParameters& parameters, ModelLoading& loading, Emitter& emitter,
               std::int64_t rank, const Fsdp& fsdp)
      : model_(model), parameters_(parameters), loading_(loading), eager_(emitter), rank_(rank), fsdp_(fsdp) {}

  // Afterwards every parameter has its rows. `move_buffers`: of a module, to the device, once all weights are there.
  void run(const std::function<void(ModuleId)>& move_buffers);

 private:
  void send(ParameterId id, ParameterId weight);
  void cut(ParameterId id, ParameterId weight);
  void unpad_again(const FsdpShard& shard, DType kept);
  void pad_again();

  const ModelSpec& model_;
  ShardedParameters& parameters_;
  ModelLoading& loading_;
  Eager eager_;
  std::int64_t rank_;
  const Fsdp& fsdp_;
  std::vector<Variable> host_;   // Of rank 0: original_sd, which fsdp2_prepare_model has until it returns.
  Variable whole_;               // What was sent last.
  std::vector<Variable> again_;  // Rows that came under a tied name, until it is tied again.
};

}  // namespace dsplan
