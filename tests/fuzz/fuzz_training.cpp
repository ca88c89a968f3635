// The training file, files of other projects (JSON, YAML or TOML) and launch lines: refused, or read; never a crash.
// The first byte chooses the reader. Every table takes a file of its own; a launch line that names a file gets the same
// bytes.
#include "io/dialects/dialect_file.h"
#include "io/launch_line.h"
#include "io/text.h"
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
    switch (data[0] % 8) {
      case 0: request = read_training_file(parse_json("training.json", text)); break;
      case 1: request = read_training_document(parse_json("arguments.json", text)).request; break;
      case 2: request = read_training_document(parse_yaml("arguments.yaml", text)).request; break;
      case 3: {
        const std::size_t line = text.find('\n');
        const std::string file = line == std::string::npos ? std::string() : text.substr(line + 1);
        const auto open = [&file](const std::string& path) { return parse_yaml(path, file); };
        request = read_launch(words_of(text.substr(0, line)), open).request;
        break;
      }
      default: {
        const Document document = data[0] < 128 ? parse_yaml("any.yaml", text) : parse_toml("any.toml", text);
        const std::span<const DialectTable> all = dialects();
        request = read_dialect(all[data[0] % all.size()], {&document, {}}).request;
        break;
      }
    }
  });
  if (accepted && request.gpus.given()) fuzz::require(*request.gpus >= 1, "at least one GPU");
  return 0;
}
