// Which layers are checkpointed, from the words of --checkpoint.
#pragma once

#include <string_view>
#include <vector>

#include "core/inputs.h"
#include "core/training.h"

namespace dsplan {

// none, full (each layer its own group), every:K (consecutive groups of K, the last possibly shorter), segments:K
// (checkpoint_sequential: K - 1 groups of layers / K, rounded down, and the rest stored), nth:K (layers whose index is
// a multiple of K, each its own group). Refused: "auto" (not modelled yet), K below 1, more segments than layers, any
// other word that is no file, which `entries` must then hold (interface.md, Commands).
[[nodiscard]] Checkpointing resolve_checkpointing(const Setting<std::string>& wished,
                                                  const Setting<std::vector<CheckpointEntry>>& entries,
                                                  std::int64_t layers);

}  // namespace dsplan
