// What BERT's kin are given, and make of a text's ids before their layers.
#pragma once

#include <cstdint>

#include "model/graphs/builder.h"

namespace dsplan {

// A batch of texts, with a label for each text or for each of its tokens: as the class says that is trained.
struct TextBatch {
  TensorId ids = kNone;
  TensorId labels = kNone;  // Of answers: where they begin,
  TensorId ends = kNone;    // and where they end.
  bool of_text = false;     // The class tells texts apart.
  bool words = false;       // It is asked for words that are masked.
  bool number = false;      // Of a text it gives one number.
};
// The model is entered with it.
[[nodiscard]] TextBatch begin_text(GraphBuilder& g);
// The loss of what the batch asks for: that of classes, or that of one number. `widens`: logits of classes are brought
// to fp32.
[[nodiscard]] TensorId loss_of_text(GraphBuilder& g, const TextBatch& batch, TensorId logits, bool widens = false);

enum class TextTables : std::uint8_t {
  Whole,         // Words, kinds of tokens, positions from a buffer.
  Counted,       // The same, but positions are counted behind padding (roberta).
  WithoutTypes,  // No kinds of tokens (distilbert).
};
// The embeddings' module: tables, their sum, norm and dropout.
[[nodiscard]] TensorId embedded_text(GraphBuilder& g, ModuleId module, TensorId ids, TextTables tables);

}  // namespace dsplan
