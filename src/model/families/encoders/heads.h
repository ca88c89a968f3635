// What BERT's kin have in common: which class is trained, and the modules that all of them build alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/families/builder.h"

namespace dsplan {

// Answer: where the answer to a question begins in a text and where it ends.
enum class EncoderHead : std::uint8_t { None, MaskedLm, Text, Token, Answer };

// By `architectures`. None for what has no loss of its own, and for the class of both pretraining tasks, whose body it
// is. `prefix`: of the classes' names, "Bert". `answers`: the family's class with that head is built.
[[nodiscard]] EncoderHead read_encoder_head(ConfigReader& config, std::string_view prefix, bool answers = false);
// "BertForMaskedLM"; "BertModel" without a head.
[[nodiscard]] std::string encoder_class(std::string_view prefix, EncoderHead head);

// Projection, norm and dropout behind attention and MLP alike.
void register_output(ModelBuilder& b, const std::string& type, std::int64_t out, std::int64_t in, Cut cut);
// The head of masked words, whose bias is a parameter beside the projection. `words`: the table that it is tied to, or
// kNone. Returns its forward, in text.
[[nodiscard]] std::string register_word_predictions(ModelBuilder& b, const Dimensions& d, std::string_view prefix,
                                                    ParameterId words);

}  // namespace dsplan
