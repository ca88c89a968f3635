// What BERT's kin make of a text's ids before their layers.
#pragma once

#include <cstdint>

#include "model/graphs/builder.h"

namespace dsplan {

enum class TextTables : std::uint8_t {
  Whole,         // Words, kinds of tokens, positions from a buffer.
  Counted,       // The same, but positions are counted behind padding (roberta).
  WithoutTypes,  // No kinds of tokens (distilbert).
};
// The embeddings' module: tables, their sum, norm and dropout.
[[nodiscard]] TensorId embedded_text(GraphBuilder& g, ModuleId module, TensorId ids, TextTables tables);

}  // namespace dsplan
