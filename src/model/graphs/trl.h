// What TRL's trainers make of a decoder; for src/model/graphs/*.cpp only.
#pragma once

#include <functional>
#include <vector>

#include "model/graphs/builder.h"

namespace dsplan {

// The backbone's forward, from ids and the mask of ones (or kNone) to the last hidden state.
using Backbone = std::function<TensorId(TensorId ids, TensorId ones)>;

// The two halves of what a row comes to: chosen rows, and rejected ones.
struct Halves {
  TensorId chosen = kNone;
  TensorId rejected = kNone;
};
[[nodiscard]] Halves halves_of(GraphBuilder& g, TensorId x);

// DPOTrainer's loss of the kind "sigmoid", weighted; what it was made of stays until `drop_margin`.
struct MarginLoss {
  TensorId loss = kNone;
  TensorId losses = kNone;
  TensorId difference = kNone;
  Halves ratios;
  std::vector<TensorId> others;
};
[[nodiscard]] MarginLoss margin_loss(GraphBuilder& g, const Halves& own, const Halves& reference);
void drop_margin(GraphBuilder& g, const MarginLoss& made);

// SFTTrainer.compute_loss and DPOTrainer._compute_loss with the fused head, the whole forward. Every token counts but
// the first of each row. `backbone` is called once for each model that is asked; it follows GraphBuilder::causal().
[[nodiscard]] Graph trl_model(GraphBuilder& g, const Backbone& backbone);

// RewardTrainer.compute_loss: `scored` makes of ids and the mask of ones the rewards, [rows, 1], chosen rows first.
[[nodiscard]] Graph reward_model(GraphBuilder& g, const Backbone& scored);

}  // namespace dsplan
