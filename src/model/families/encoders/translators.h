// What tells bart and its relatives apart, as transformers 5.17.0 has them (models/<family>/modeling_<family>.py): the
// parameters' places and the graph's statements are made from these.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsplan {

enum class Places : std::uint8_t {
  Learned,  // Two rows more than there are positions.
  Plain,    // Learned, a row for each position.
  Frozen,   // Sinusoids as an embedding's weight.
  Counted,  // Sinusoids in a buffer, of which tokens that are no padding take rows in turn.
};

struct Translator {
  std::string_view family;
  std::string_view prefix;  // Of its classes.
  std::string_view whole;   // The class that translates.
  Places places = Places::Learned;
  bool norms_first = true;     // A sublayer's norm is before it; otherwise behind the sum.
  bool norms_words = false;    // A norm behind the embeddings.
  bool norms_last = true;      // A norm behind the last layer.
  bool scales_inside = true;   // The word table's module scales what it gives.
  bool wraps_last = false;     // What is shifted right begins with each row's last token.
  bool biases_logits = true;   // A buffer is added to the logits.
  bool keeps_ones = true;      // The decoder's mask of ones has a name until it returns,
  bool keeps_numbers = false;  // and so have its numbers of places.
  bool keeps_last = false;     // What the decoder's last layer returned has a name beside the running one.
};

// Null: none of them.
[[nodiscard]] const Translator* translator_of(std::string_view family);

}  // namespace dsplan
