// The training file, TrainingArguments (JSON or YAML) and launch lines: refused, or read; never a crash. The first byte
// chooses the reader.
#include "io/launch_line.h"
#include "io/text.h"
#include "io/training_arguments.h"
#include "io/training_file.h"
#include "property.h"

using namespace dsplan;

namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (char c : text) {
    if (c == ' ' || c == '\n') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  Request request;
  const bool accepted = fuzz::accepts([&] {
    switch (data[0] % 4) {
      case 0: request = read_training_file(parse_json("training.json", text)); break;
      case 1: request = read_training_arguments(parse_json("arguments.json", text)); break;
      case 2: request = read_training_arguments(parse_yaml("arguments.yaml", text)); break;
      default: request = read_launch_line(words_of(text)); break;
    }
  });
  if (accepted && request.gpus.given()) fuzz::require(*request.gpus >= 1, "at least one GPU");
  return 0;
}
