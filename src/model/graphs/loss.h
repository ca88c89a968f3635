// The causal loss at the end of a model; for src/model/graphs/*.cpp only.
#pragma once

#include <functional>

#include "model/graphs/builder.h"

namespace dsplan {

// From hidden states to logits: the model's lm_head.
using Head = std::function<TensorId(TensorId hidden)>;

// Head and loss as GraphOptions::loss has it, then the end of the model's forward: leaves module 0 and lets go of
// `hidden` and of the logits where they are the model's output.
[[nodiscard]] TensorId causal_loss(GraphBuilder& g, TensorId hidden, TensorId labels, const Head& head);

}  // namespace dsplan
