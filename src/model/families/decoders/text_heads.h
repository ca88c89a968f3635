// What lies behind a decoder's last norm: words, or classes of a text or of its tokens. Families with layers of their
// own and those made of parts have the same heads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/families/builder.h"
#include "model/parts.h"

namespace dsplan {

// "LlamaForCausalLM", or its class with another head; `causal`: of the class over words, where it has another name.
[[nodiscard]] std::string class_with_head(std::string_view prefix, TextHead head, std::string_view causal = {});

// What a family's class does where the config says nothing.
struct HeadDefaults {
  std::optional<std::int64_t> padding = std::nullopt;
  double dropout = 0.1;  // Before classes of tokens.
  bool tokens = true;    // There is a class for them.
};
// Which head `architectures` asks for, with the keys of its config.
void read_text_head(ConfigReader& config, std::string_view prefix, const HeadDefaults& defaults, DecoderParts& parts,
                    Dimensions& dims);

struct WordsHead {
  ParameterId table = kNone;  // To which it is tied; kNone: to none.
  bool bias = false;
  std::int64_t width = 0;  // Of what it reads, and a head over classes as well; 0: hidden.
};
// Registers the head; its part of the model's forward.
[[nodiscard]] std::string register_text_head(ModelBuilder& b, const DecoderParts& parts, const Dimensions& dims,
                                             const WordsHead& words);
// A model with layers of its own, of which nobody asks for parts unless there is a head over classes.
[[nodiscard]] ModelSpec finish_with_text_head(ModelBuilder& b, const DecoderParts& parts, const Dimensions& dims,
                                              const WordsHead& words, std::string_view body);

}  // namespace dsplan
