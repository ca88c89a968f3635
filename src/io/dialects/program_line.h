// The part of a launch line behind the launcher: a program and its arguments.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/dialects/dialect_file.h"

namespace dsplan {

// Opens a file that a launch line names.
using ReadNamed = std::function<Document(const std::string& path)>;

// A word of a command line as the value that it stands for: null for "None".
[[nodiscard]] Value word_value(const std::string& text);
// The place of a word of a launch line.
[[nodiscard]] Place word_place(const std::string& word);
// "--lora-r" without dashes in front, underscores inside.
[[nodiscard]] std::string argument_name(const std::string& word);

// `words` begin with the program: a script, "-m" and a module, or one of the programs that have a dialect of their own
// (axolotl train, llamafactory-cli train, trl sft). The file that is its configuration is read, arguments stand above
// it. Faults: arguments and positional words that no row knows, programs that do something else than train.
struct ProgramLine {
  Said said;
  std::vector<std::string> launcher;  // What is for a launcher inside: `axolotl train F --launcher torchrun -- ...`.
  bool takes_all_devices = false;     // It starts a process for each visible device by itself.
};
// What `trl sft --accelerate_config NAME` means where NAME is no file; none: nothing.
[[nodiscard]] std::optional<Document> launch_file_of_trl(const std::string& name);
// A name that is none of them, and no file that could be opened here.
[[nodiscard]] Diagnostic no_launch_file(const Setting<std::string>& named);
[[nodiscard]] ProgramLine read_program_line(const std::vector<std::string>& words, const ReadNamed& read);

}  // namespace dsplan
