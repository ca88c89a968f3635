// ZeRO-3's hooks around modules (DeepSpeed runtime/zero/parameter_offload.py): what the coordinator decides at each
// boundary is done to the parameters here.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/zero3/coordinator.h"
#include "planner/lower/runtimes/zero3/parameter_gather.h"
#include "planner/lower/runtimes/zero3/parameter_store.h"
#include "planner/lower/runtimes/zero3/partition_home.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {

class ModuleHooks {
 public:
  ModuleHooks(const Training& training, const ModelSpec& model, const Sharding& sharding, PartitionHome& home,
              ParameterStore& store, Emitter& emitter);

  // PostBackwardFunctionModule, on the tensors that a module is called with.
  [[nodiscard]] ModuleId wraps_input(ModuleId module) const { return wraps_[static_cast<std::size_t>(module)]; }
  // z3_leaf: the module is fetched whole, and reduced whole; kNone: the parameter lies in none.
  [[nodiscard]] bool is_leaf(ModuleId module) const { return coordinator_.module(module).leaf; }
  [[nodiscard]] ModuleId leaf_of(ParameterId parameter) const { return leaf_of_[static_cast<std::size_t>(parameter)]; }
  [[nodiscard]] std::vector<ParameterId> own(ModuleId module) const;  // By id.

  void begin_forward();
  void enter(ModuleId module, Pass pass);
  void ask(ParameterId parameter);
  void exit(ModuleId module, Pass pass);
  void end_backward();
  // The optimizer step begins, or the model is saved. Behind that persistent parameters come back, and the secondary
  // shards of what has changed go.
  void release_all();
  void gather_persistent();
  void drop_secondary();
  [[nodiscard]] std::vector<FrameworkCount> counts() const;

 private:
  enum class From : std::uint8_t { Fetch, Elsewhere, Outside };  // Outside: of any module.
  void apply(From from = From::Elsewhere);
  void act(const Coordinator::Action& action, From from);
  void compare_trace();

  const Sharding& sharding_;
  PartitionHome& home_;
  ParameterStore& store_;
  ParameterGathers gathers_;
  Eager eager_;
  StreamId gather_stream_;
  Coordinator coordinator_;
  std::vector<ModuleId> wraps_;                        // By module.
  std::vector<bool> carries_;                          // By module: whether it has hooks of its own.
  std::vector<ModuleId> leaf_of_;                      // By parameter.
  std::vector<bool> by_keyword_;                       // By module.
  std::vector<bool> left_;                             // By module, in backward: since its last call.
  std::vector<std::vector<ParameterId>> read_before_;  // By module.
};

}  // namespace dsplan
