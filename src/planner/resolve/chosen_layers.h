// Segmentations in the words in which dsplan names those that it chose, so that they can be asked for by name.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/inputs.h"
#include "core/training.h"

namespace dsplan {

// "auto:0-27/7,28-31" (checkpointing_text): layers 0 to 27 in checkpoints of seven, 28 to 31 each its own; "auto:0-5
// keep:linear+scaled_dot_product_attention" keeps these operators' results. nullopt for any other word. Refused: what
// is no such list, with its place in the text; layers that the model does not have; runs that are not ascending;
// operators that do not exist.
[[nodiscard]] std::optional<std::vector<CheckpointGroup>> chosen_layers(const Setting<std::string>& wished,
                                                                        std::int64_t layers);

}  // namespace dsplan
