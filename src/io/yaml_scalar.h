// What a plain YAML scalar means. Not for use outside io's readers.
#pragma once

#include <string>
#include <string_view>

#include "core/document.h"

namespace dsplan::detail {

struct Scalar {
  Value value;          // Kind and content; no offset.
  std::string refusal;  // Not empty: why this scalar is not read.
};

// By the implicit resolvers of YAML 1.1 as PyYAML has them (yaml.org/type, PyYAML 6 resolver.py): null, bool, int with
// underscores and bases 2, 8 and 16, float. Wider: a float needs neither a dot nor a signed exponent. Refused:
// infinities and NaN, base-60 numbers, timestamps, the merge key and "=".
[[nodiscard]] Scalar resolve_plain(std::string_view text);

}  // namespace dsplan::detail
