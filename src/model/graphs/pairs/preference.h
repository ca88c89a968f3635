// Losses of trainers over whole logits, most of them of pairs; for src/model/graphs/*.cpp only.
#pragma once

#include <functional>

#include "model/graphs/builder.h"
#include "model/graphs/trl.h"

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

// Nodes that lead to no loss die with the trainer's variables.
void forget_all_but(GraphBuilder& g, TensorId loss);

// Tokens, ones and what is told of each, [B, S] of whole numbers, as inputs of the batch.
[[nodiscard]] PairBatch rows_of_batch(GraphBuilder& g, const Shape& shape);
// The logarithm of the odds of the chosen rows over those of the rejected ones: `log_of_rest` is log(1 - exp(x)).
[[nodiscard]] TensorId log_odds(GraphBuilder& g, const Halves& rows,
                                TensorId (*log_of_rest)(GraphBuilder& g, TensorId x));

// get_batch_logps of LLaMA-Factory: of each row the sum, and how many tokens counted.
struct RowSums {
  TensorId log_probs = kNone;
  TensorId lengths = kNone;
};
[[nodiscard]] RowSums sums_of(GraphBuilder& g, TensorId logits, TensorId labels);

// CustomDPOTrainer.compute_loss of LLaMA-Factory, the whole forward. Every token counts. `answering` is called once for
// each model that is asked.
[[nodiscard]] Graph whole_preference_model(GraphBuilder& g, const Answering& answering);

// CustomKTOTrainer.compute_loss of LLaMA-Factory. `answering` is called twice for each model.
[[nodiscard]] Graph whole_tagged_model(GraphBuilder& g, const Answering& answering);

// What a language model that keeps all its states says of a batch with labels.
struct Told {
  TensorId loss = kNone;
  TensorId logits = kNone;
  TensorId last = kNone;         // Its last hidden state, normed.
  std::vector<TensorId> states;  // What came out of the embedding and of each layer but the last.
};
using Telling = std::function<Told(const PairBatch& batch)>;

// PairwiseTrainer.compute_loss of LLaMA-Factory: a value of each token, and beside it the model's own loss, for which
// nobody asks.
[[nodiscard]] Graph valued_model(GraphBuilder& g, const Telling& telling);

// What LLaMA-Factory v1's trainer hands to a model by name: positions, and a weight of each token, of which the model
// makes nothing.
struct WeighedBatch {
  PairBatch rows;
  TensorId positions = kNone;
  TensorId weights = kNone;
};
// Its SFTTrainer.compute_loss, the whole forward.
[[nodiscard]] Graph weighed_model(GraphBuilder& g, const std::function<Told(const WeighedBatch& batch)>& telling);

// The same of TRL's DPOTrainer before it had a fused head, as axolotl runs it: log-probabilities a row at a time.
[[nodiscard]] Graph rowwise_preference_model(GraphBuilder& g, const Answering& answering);

// The same of its KTOTrainer: four forwards, of which one has gradients.
[[nodiscard]] Graph rowwise_tagged_model(GraphBuilder& g, const Answering& answering);

// Of TRL's experimental ORPOTrainer, and of its CPOTrainer with the loss "simpo": no reference is asked.
[[nodiscard]] Graph rowwise_model_alone(GraphBuilder& g, const Answering& answering);

// What was chosen, of fp32 logits, less the logarithm of the sum of all.
[[nodiscard]] TensorId selected_log_probs(GraphBuilder& g, TensorId part, TensorId labels);

}  // namespace dsplan
