// Gathers under way: calls that were launched for several parameters, and are waited for one by one (the AllGather
// handles of DeepSpeed runtime/zero/partition_parameters.py).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtimes/zero3/parameter_store.h"
#include "planner/lower/runtimes/zero3/quantized_gather.h"

namespace dsplan {

// What a call's handle holds.
struct Gather {
  std::vector<ParameterId> parameters;
  std::size_t left = 0;  // Of these, how many have not been asked for.
  bool waited = false;
  bool secondary = false;                          // Of secondary shards, among the ranks inside.
  bool copies = false;                             // Parameters are copied out of what arrived.
  std::vector<QuantizedGather> quantized;          // Of each parameter, or of all of them.
  std::vector<std::vector<ParameterId>> by_dtype;  // Of a coalesced one: those of each of `held`.
  std::vector<Variable> held;                      // Until the last one has been asked for; what arrived first.
  std::vector<Variable> sent;                      // Until the collective is over.
};

class ParameterGathers {
 public:
  ParameterGathers(const Training& training, const ModelSpec& model, const Sharding& sharding, ParameterStore& store,
                   Emitter& emitter);

  // One call for all of them.
  void launch(const std::vector<ParameterId>& parameters, bool secondary);
  // The call that brings it; its parameters get tensors of their own, once.
  void wait(ParameterId id);
  // Its handle; the last one of a call takes along what the call holds.
  void forget(ParameterId id);
  void begin_pass() { gathers_.clear(); }

 private:
  void launch_coalesced(Gather& gather);
  void launch_all_reduce(Gather& gather);
  void launch_quantized(Gather& gather);
  void copy_out(const Gather& gather);
  [[nodiscard]] Variable make_flat(const std::vector<ParameterId>& list);
  [[nodiscard]] std::vector<ByteRange> among_zeros(const Gather& gather, const std::vector<Part>& parts);

  const Training& training_;
  const Sharding& sharding_;
  ParameterStore& store_;
  QuantizedGathers quantized_;
  Eager eager_;
  std::vector<Gather> gathers_;          // Of this pass.
  std::vector<std::int32_t> gather_of_;  // By parameter.
};

}  // namespace dsplan
