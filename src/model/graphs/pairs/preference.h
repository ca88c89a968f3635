// Losses of pairs over whole logits; for src/model/graphs/*.cpp only.
#pragma once

#include <functional>

#include "model/graphs/builder.h"

namespace dsplan {

// A language model's forward, from ids and the mask of ones to its logits.
using Answering = std::function<TensorId(TensorId ids, TensorId ones)>;

// What collator and trainer hand to a model; the third says what counts.
struct PairBatch {
  TensorId ids = kNone;
  TensorId ones = kNone;
  TensorId told = kNone;
};

// The model's forward; accelerate's fp32 and DistributedDataParallel's copy of its outputs; `.to(torch.float32)`.
[[nodiscard]] TensorId whole_logits(GraphBuilder& g, const Answering& answering, const PairBatch& given);

// CustomDPOTrainer.compute_loss of LLaMA-Factory, the whole forward. Every token counts. `answering` is called once for
// each model that is asked.
[[nodiscard]] Graph whole_preference_model(GraphBuilder& g, const Answering& answering);

// The same of TRL's DPOTrainer before it had a fused head, as axolotl runs it: log-probabilities a row at a time.
[[nodiscard]] Graph rowwise_preference_model(GraphBuilder& g, const Answering& answering);

}  // namespace dsplan
