#include "model/families/encoders/translators.h"

#include <array>

namespace dsplan {

const Translator* translator_of(std::string_view family) {
  static constexpr std::array<Translator, 7> kAll{{
      {.family = "bart",
       .prefix = "Bart",
       .whole = "BartForConditionalGeneration",
       .norms_first = false,
       .norms_words = true,
       .norms_last = false,
       .keeps_ones = false,
       .keeps_numbers = true},
      {.family = "mbart",
       .prefix = "MBart",
       .whole = "MBartForConditionalGeneration",
       .norms_words = true,
       .wraps_last = true},
      {.family = "plbart",
       .prefix = "PLBart",
       .whole = "PLBartForConditionalGeneration",
       .norms_first = false,
       .norms_words = true,
       .norms_last = false,
       .wraps_last = true,
       .keeps_ones = false,
       .keeps_numbers = true},
      {.family = "blenderbot",
       .prefix = "Blenderbot",
       .whole = "BlenderbotForConditionalGeneration",
       .places = Places::Plain,
       .keeps_last = true},
      {.family = "marian",
       .prefix = "Marian",
       .whole = "MarianMTModel",
       .places = Places::Frozen,
       .norms_first = false,
       .norms_last = false,
       .scales_inside = false},
      {.family = "m2m_100",
       .prefix = "M2M100",
       .whole = "M2M100ForConditionalGeneration",
       .places = Places::Counted,
       .biases_logits = false,
       .keeps_ones = false},
      {.family = "pegasus",
       .prefix = "Pegasus",
       .whole = "PegasusForConditionalGeneration",
       .places = Places::Frozen,
       .scales_inside = false,
       .keeps_numbers = true},
  }};
  for (const Translator& one : kAll) {
    if (one.family == family) return &one;
  }
  return nullptr;
}

}  // namespace dsplan
