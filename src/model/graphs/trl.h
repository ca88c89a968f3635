// What TRL's trainers make of a decoder; for src/model/graphs/*.cpp only.
#pragma once

#include <functional>

#include "model/graphs/builder.h"

namespace dsplan {

// The backbone's forward, from ids and the mask of ones (or kNone) to the last hidden state.
using Backbone = std::function<TensorId(TensorId ids, TensorId ones)>;

// SFTTrainer.compute_loss and DPOTrainer._compute_loss with the fused head, the whole forward. Every token counts but
// the first of each row. `backbone` is called once for each model that is asked; it follows GraphBuilder::causal().
[[nodiscard]] Graph trl_model(GraphBuilder& g, const Backbone& backbone);

// RewardTrainer.compute_loss: `scored` makes of ids and the mask of ones the rewards, [rows, 1], chosen rows first.
[[nodiscard]] Graph reward_model(GraphBuilder& g, const Backbone& scored);

}  // namespace dsplan
