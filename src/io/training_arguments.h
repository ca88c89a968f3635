// Hugging Face's TrainingArguments, from a file or one by one from a launch line.
#pragma once

#include <string_view>

#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

// JSON or YAML. Fields that decide bytes are read; those that would change bytes in a way not modelled yet land in
// Request::not_modelled; the rest become notices (inert, or unknown with the nearest name). "deepspeed" may be a path
// or the configuration itself. Names of common training scripts for the sequence length, the attention and the dtype
// are understood as well.
[[nodiscard]] Request read_training_arguments(const Document& document);

// One argument; underscores in `key`. `value` may be text, as on a command line. Returns false where nobody knows
// the key (nothing is recorded then).
bool apply_training_argument(std::string_view key, const Value& value, const Place& place, Request& request,
                             Diagnostics& diagnostics);

// The known argument nearest to `key`, or empty.
[[nodiscard]] std::string_view nearest_training_argument(std::string_view key);

}  // namespace dsplan
