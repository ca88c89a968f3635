// The experts of a mixture layer as transformers' experts_implementation runs them (integrations/moe.py of 5.17, and
// each class's own loop); for src/model/graphs/mixtures only.
#pragma once

#include "model/graphs/builder.h"
#include "model/parts.h"

namespace dsplan {

// What a router chose.
struct Routed {
  TensorId logits;   // Held by the block until it returns.
  TensorId weights;  // [tokens, k]
  TensorId experts;  // int64 [tokens, k]
};

// The experts' module called on rows of tokens, as GraphOptions::experts says.
[[nodiscard]] TensorId run_experts(GraphBuilder& g, const ExpertParts& parts, ModuleId experts, TensorId hidden,
                                   const Routed& routed);

// softmax(logits, dtype=float32).
[[nodiscard]] TensorId wide_probabilities(GraphBuilder& g, TensorId logits);
// weights /= weights.sum(-1, keepdim=True), rebinding the variable.
[[nodiscard]] TensorId divided_by_sum(GraphBuilder& g, TensorId weights);

// sampled.cpp: Router::Sampled.
[[nodiscard]] Routed route_by_chance(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden);

}  // namespace dsplan
