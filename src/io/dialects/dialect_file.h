// Reads files of other projects, and the arguments of their programs, by the rows of core/dialects.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dialects/dialects.h"
#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

// An argument of a program: "--lora_r 8" as key and value. Values are texts, as a shell hands them over.
struct DialectArgument {
  std::string path;
  Value value;
  Place place;
};

// What a file says, and below it (the file gives way) what arguments say.
struct DialectWords {
  const Document* file = nullptr;
  std::vector<DialectArgument> arguments;
};

// Whose file this is, by the keys that it has: a key that one table alone knows decides; else the first table that
// knows most of them. Refused, with the nearest known name: a file of which no table knows a key, and one with keys
// of two tables.
[[nodiscard]] const DialectTable& recognise(const Document& document);
// The same for arguments of a script that nobody knows; the first table where nothing decides.
[[nodiscard]] const DialectTable& recognise(const std::vector<DialectArgument>& arguments);

// Every key by its row. Faults: keys that no row knows, values of the wrong type, environment variables in a value
// ("${VAR}") that are not set. What is not modelled lands in Request::not_modelled.
[[nodiscard]] Said read_dialect(const DialectTable& table, const DialectWords& words);

// Any file that says how a model is trained: our own training file, one of a dialect, or a DeepSpeed JSON, which then
// is Request::inline_deepspeed.
[[nodiscard]] Said read_training_document(const Document& document);

// TrainingArguments, whatever keys there are.
[[nodiscard]] Request read_training_arguments(const Document& document);

}  // namespace dsplan
