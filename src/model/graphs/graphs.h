// Operator graphs of the families that have one: what transformers' forward runs, operator by operator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/graph.h"
#include "core/model.h"
#include "core/training.h"
#include "model/graphs/builder.h"

namespace dsplan {

// Why activations of this model under this training cannot be modelled yet ("the t5 family has no operator graph
// yet"), or nullopt. States stay exact in either case.
[[nodiscard]] std::optional<std::string> graph_unsupported(const ModelSpec& model, const Training& training,
                                                           std::int64_t tp);

// Why TRL's trainers of language models cannot be predicted with their own head; nullopt: they can.
[[nodiscard]] std::optional<std::string> fused_head_unsupported(const ModelSpec& model);

// One training forward with loss, `micro_batch` rows of `seq` tokens, no padding mask, use_cache = False.
// Shapes are those of one of GraphOptions::tp ranks. InternalError where `graph_unsupported` had a reason.
// Source: transformers 5.17.0, models/<family>/modeling_<family>.py and loss/loss_utils.py.
[[nodiscard]] Graph build_graph(const ModelSpec& model, const GraphOptions& options);

}  // namespace dsplan
