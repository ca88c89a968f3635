// Which layers are checkpointed, from the words of --checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/inputs.h"
#include "core/training.h"

namespace dsplan {

// none, full (each layer its own group), every:K (consecutive groups of K, the last possibly shorter), segments:K
// (checkpoint_sequential: K - 1 groups of layers / K, rounded down, and the rest stored), nth:K (layers whose index is
// a multiple of K, each its own group). "auto" is left as that word, without groups. Refused: K below 1, more segments
// than layers, any other word that is no file, which `entries` must then hold (interface.md, Commands).
// groups:FIRST-LAST,...: consecutive runs of layers, in ascending order, each its own checkpoint; a single layer may
// stand alone. Behind a run "=reentrant" or "=non_reentrant" is its own implementation, "=keep+OP+OP" what it keeps.
//
// Selective forms: keep:OP+OP (each layer its own checkpoint that keeps the results of these operators;
// torch.utils.checkpoint.create_selective_checkpoint_contexts) and modules:NAME+NAME (each call of such a module its
// own checkpoint). NAME is the last part of a module's path, or one of Megatron's words for recompute_modules:
// core_attn, layernorm, mlp, moe. Refused: names that the model does not have; keep: with the reentrant form.
[[nodiscard]] Checkpointing resolve_checkpointing(const Request& request, const ModelSpec& model, CheckpointKind kind);

// Checkpoint groups in the words in which dsplan names those that it chose, so that they can be asked for by name.

// "auto:0-27/7,28-31" (checkpointing_text): layers 0 to 27 in checkpoints of seven, 28 to 31 each its own; "auto:0-5
// keep:linear+scaled_dot_product_attention" keeps these operators' results. nullopt for any other word. Refused: what
// is no such list, with its place in the text; layers that the model does not have; runs that are not ascending;
// operators that do not exist.
[[nodiscard]] std::optional<std::vector<CheckpointGroup>> chosen_layers(const Setting<std::string>& wished,
                                                                        std::int64_t layers);

}  // namespace dsplan
