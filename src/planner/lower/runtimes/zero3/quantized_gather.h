// qwZ (zero_quantized_weights): partitions travel as int8 with one fp32 scale per group, and become fp16 again behind
// the wire (DeepSpeed runtime/zero/partition_parameters.py, CUDAQuantizer; csrc/quantization).
#pragma once

#include <vector>

#include "planner/lower/runtimes/zero3/parameter_store.h"

namespace dsplan {

struct QuantizedGather {
  std::vector<ParameterId> parameters;
  BufferId arrived = kNoBuffer;
  BufferId scales = kNoBuffer;
};

class QuantizedGathers {
 public:
  QuantizedGathers(const Training& training, const ModelSpec& model, const Sharding& sharding, ParameterStore& store,
                   Emitter& emitter);

  // `held` and `sent` get what stays until parameters have been asked for, and until the collective is over.
  [[nodiscard]] QuantizedGather launch(const std::vector<ParameterId>& list, bool secondary,
                                       std::vector<Variable>& held, std::vector<Variable>& sent);
  // What arrived becomes the parameter, or all parameters of the list.
  void take_one(const QuantizedGather& gather);
  void take_all(const QuantizedGather& gather, std::int64_t ranks, std::vector<Variable>& held);

 private:
  struct Sent {
    Variable values;
    Variable scales;
  };
  [[nodiscard]] Sent quantize(const std::vector<ParameterId>& list, bool secondary);
  [[nodiscard]] std::int64_t groups_of(const std::vector<ParameterId>& list, std::int64_t elements) const;
  [[nodiscard]] Variable make_half(ParameterId id);
  void take_half(ParameterId id, Variable half);

  const Training& training_;
  const ModelSpec& model_;
  const Sharding& sharding_;
  ParameterStore& store_;
  Eager eager_;
};

// A gather buffer holds, rank by rank, the partitions of all of `list`, cut among `ranks`: where those of `wanted` are,
// or of each where it is kNone. For an executor.
[[nodiscard]] std::vector<ByteRange> coalesced(Emitter& emitter, const Sharding& sharding,
                                               const std::vector<ParameterId>& list, std::int64_t ranks,
                                               const Variable& flat, ParameterId wanted = kNone);

}  // namespace dsplan
