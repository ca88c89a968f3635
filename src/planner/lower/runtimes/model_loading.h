// How a whole model comes to a rank's device: made there or moved from the host, and sent by rank 0.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/kernel_scratch.h"
#include "core/model.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {

// peft's, which come to a model that is there.
[[nodiscard]] bool is_adapter(const Parameter& parameter);

// Acts on each parameter, in an order of its own.
using MovedWalk = std::function<void(const std::function<void(const NamedParameter&)>&)>;
// `.to(device)`: parameters of the modules inside first, then a module's own and its buffers
// (torch/nn/modules/module.py, _apply). The model and the list must outlive it.
[[nodiscard]] MovedWalk moves_with_buffers(const ModelSpec& model, const std::vector<NamedParameter>& named,
                                           const BuffersOf& buffers_of);

// Whose buffers come behind its children, and with which module: those of a root behind the model inside of it
// (modeling_bart.py, BartForConditionalGeneration), and a model's triangle of flags behind its last norm
// (modeling_gpt_bigcode.py). kNone: nobody's, or a recording does not say.
struct LateBuffers {
  ModuleId of = kNone;
  ModuleId with = kNone;
  Bytes triangle = Bytes(0);
};
[[nodiscard]] LateBuffers late_buffers(const ModelSpec& model);
// A triangle is made of ones; when its model has all its parts, it is made anew of others and copied (_init_weights).
void make_late(Eager& eager, Bytes triangle, const std::function<void()>& buffers);

class ModelLoading {
 public:
  // `job` and `named` must outlive this.
  ModelLoading(Emitter& emitter, const Job& job, const std::vector<NamedParameter>& named, std::size_t parameters);

  // As from_pretrained does: in the dtype asked for, and without tied tensors of their own.
  // `moves`: how they come to the device then, one after the other as they are where it is empty.
  void build_on_host(MovedWalk moves = {});
  // Parameters in the order in which they come to the device.
  void each_moved(const std::function<void(const NamedParameter&)>& act);
  // As constructors do under `with torch.device("cuda")`: module by module, and what will be tied is made as well and
  // goes when it is tied, after all else (transformers modeling_utils.py, tie_weights). Adapters come after that.
  // `before_product` is called where that multiplies for the first time, and then again.
  void build_on_device(const ModelSpec& model, const BuffersOf& buffers_of,
                       const std::function<void()>& before_product = {});
  // DeepSpeed's engine is given the model (engine.py, _configure_distributed_model): whole parameters, by ParameterId,
  // sent by rank 0.
  [[nodiscard]] std::vector<BufferId> give_to_engine(What what);
  // Under zero.Init, where the model is cut already: peft's adapters alone, which are whole, in the weights' dtype or
  // fp32.
  void build_adapters(const ModelSpec& model);
  [[nodiscard]] std::vector<std::pair<NamedParameter, BufferId>> give_adapters_to_engine(What what);
  // One whole parameter: made here, or moved from where build_on_host made it.
  [[nodiscard]] Variable load(const NamedParameter& parameter, What what);
  // What build_on_host made, by ParameterId, which `load` knows no more.
  [[nodiscard]] std::vector<Variable> take_from_host() { return std::exchange(on_host_, {}); }
  // Rank 0 sends what `buffer` holds to all; nothing where there is one rank. Since DeepSpeed 0.19.8 as bytes
  // (engine.py, _broadcast_model).
  void broadcast(BufferId buffer, DType type);

 private:
  Eager eager_;
  const Training& training_;
  const std::vector<NamedParameter>& named_;
  std::size_t parameters_;
  std::int64_t ranks_;    // Of the data-parallel group.
  std::int64_t world_;    // All of them.
  DeviceThreads device_;  // None where kernels' temporaries are not asked for.
  [[nodiscard]] Variable make(const NamedParameter& p, What what, Space space = Space::Device);
  // `reads_weights`: they are there, and DoRA's magnitudes are computed from them.
  void make_adapters(const ModelSpec& model, DType beside, DType beside_copies, bool reads_weights = false);
  void cast(ParameterId id, DType to);  // `parameter.data = parameter.data.to(...)` of what is on the device.
  // As from_pretrained does with packed weights: in the order of their names, each loaded whole and packed; adapters
  // come after that.
  void build_packed(const ModelSpec& model, const BuffersOf& buffers_of);
  // As LLaMA-Factory v1 does: in the checkpoint's dtype, in the order of names, and where all is trained cast then.
  void build_stored(const ModelSpec& model, const BuffersOf& buffers_of);
  void prepare(const ModelSpec& model);

  std::function<void()> before_product_;
  MovedWalk moves_;
  std::vector<Variable> on_host_;    // By ParameterId, before they are moved; empty where the host has no model.
  std::vector<Variable> on_device_;  // Likewise, before they are loaded.
};

}  // namespace dsplan
