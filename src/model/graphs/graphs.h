// Operator graphs of the families that have one: what transformers' forward runs, operator by operator.
#pragma once

#include <optional>
#include <string>

#include "core/graph.h"
#include "core/model.h"
#include "core/training.h"
#include "model/graphs/builder.h"

namespace dsplan {

// Why activations of this model under this training cannot be modelled yet ("the bloom family has no operator graph
// yet"), or nullopt. States stay exact in either case.
[[nodiscard]] std::optional<std::string> graph_obstacle(const ModelSpec& model, const Training& training,
                                                        std::int64_t tp);

// One training forward with loss, `micro_batch` rows of `seq` tokens, no padding mask, use_cache = False.
// Shapes are those of one rank without tensor parallelism. InternalError where `graph_obstacle` had a reason.
// Source: transformers 5.17.0, models/<family>/modeling_<family>.py and loss/loss_utils.py.
[[nodiscard]] Graph build_graph(const ModelSpec& model, const GraphOptions& options);

// By family; called by build_graph.
[[nodiscard]] Graph build_decoder_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_gpt2_graph(const ModelSpec& model, const GraphOptions& options);

// Shared pieces.
// A batch without mask is searched for several sequences in one row (masking_utils.py, find_packed_sequence_indices).
void look_for_packed_sequences(GraphBuilder& g, TensorId position_ids);
// Causal loss with fp32 upcast: labels shifted by padding (loss/loss_utils.py, ForCausalLMLoss).
[[nodiscard]] TensorId causal_loss(GraphBuilder& g, TensorId logits, TensorId labels);
// What follows the model's forward: the training loop keeps the loss and drops the outputs, then the autocast region
// ends. accelerate's region ends first, and its outputs become fp32 (accelerate, operations.py, convert_to_fp32).
[[nodiscard]] Graph finish_model(GraphBuilder& g, TensorId loss, TensorId logits);
// The experts of a mixture layer through one grouped product: every shape depends on tokens * experts_per_token only.
[[nodiscard]] TensorId moe_block(GraphBuilder& g, ModuleId mlp, TensorId hidden);

}  // namespace dsplan
