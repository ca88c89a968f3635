// The causal loss at the end of a model; for src/model/graphs/*.cpp only.
#pragma once

#include <functional>

#include "model/graphs/builder.h"

namespace dsplan {

// A label that does not count (torch.nn.functional.cross_entropy, ignore_index).
inline constexpr double kIgnoredLabel = -100;

// From hidden states to logits: the model's lm_head.
using Head = std::function<TensorId(TensorId hidden)>;

// cross_entropy(logits.view(-1, C), labels.view(-1)), in fp32 if `widens`; both stay the caller's.
[[nodiscard]] TensorId class_loss(GraphBuilder& g, TensorId logits, TensorId labels, bool widens = false,
                                  Reduction reduction = Reduction::Mean);
// ForCausalLMLoss, of logits that stay the caller's.
[[nodiscard]] TensorId loss_of_whole(GraphBuilder& g, TensorId logits, TensorId labels);
// The mean of the squared distances of one number a row.
[[nodiscard]] TensorId squared_loss(GraphBuilder& g, TensorId logits, TensorId labels);
// rows[:, 1:] = source[:, :-1].clone(), of whole numbers.
void copy_behind(GraphBuilder& g, TensorId rows, TensorId source);
// What the decoder behind an encoder is given: labels, one place later (shift_tokens_right).
[[nodiscard]] TensorId shifted_right(GraphBuilder& g, TensorId labels);
// The end of the model's forward: leaves module 0; logits and loss are its outputs. Returns the loss as the caller gets
// it. `others` are outputs beside them, and so is what `cache` holds, which nobody casts or copies.
[[nodiscard]] TensorId end_model(GraphBuilder& g, TensorId logits, TensorId loss,
                                 const std::vector<TensorId>& others = {}, const std::vector<TensorId>& cache = {});

// Head and loss as GraphOptions::loss has it, then the end of the model's forward: leaves module 0 and lets go of
// `hidden` and of the logits where they are the model's output. `local`: a variable of its forward besides, of hf's
// loss alone, or kNone.
[[nodiscard]] TensorId causal_loss(GraphBuilder& g, TensorId hidden, TensorId labels, const Head& head,
                                   const std::vector<TensorId>& others = {}, const std::vector<TensorId>& cache = {},
                                   TensorId local = kNone);

// The same from logits that a model inside of the root has returned: `locals` are variables of the root's forward.
[[nodiscard]] TensorId returned_loss(GraphBuilder& g, TensorId logits, TensorId labels,
                                     const std::vector<TensorId>& locals, const std::vector<TensorId>& others);

// A whole language model with a plain lm_head: ids and labels as its batch, `body` from ids to hidden states, the loss.
[[nodiscard]] Graph language_model(GraphBuilder& g, const std::function<TensorId(TensorId ids)>& body,
                                   const std::vector<TensorId>& cache = {});

}  // namespace dsplan
