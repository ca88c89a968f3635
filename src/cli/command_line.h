// The words of one command, read by CLI11. Only the command that was named is set up, so that `dsplan` starts fast.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsplan {

using Words = std::vector<std::string>;

// What --help lists of an option; completions and the manual page are made of the same.
struct OptionHelp {
  std::string name;
  std::string type;  // Empty: a flag.
  std::string help;
};

// Thrown for --help: what to print before leaving with 0, and what it is made of.
struct HelpAsked {
  std::string text;
  std::string description = {};
  std::vector<std::string> positionals = {};
  std::vector<OptionHelp> options = {};
  std::string footer = {};
};

// Every value arrives as text: whoever asked for it says what it must look like. The references must outlive `parse`.
class CommandLine {
 public:
  CommandLine(std::string command, std::string description, std::string footer = {});
  ~CommandLine();

  void positional(std::string name, std::string help, std::optional<std::string>& into);
  // All words that are no options.
  void positionals(std::string name, std::string help, std::vector<std::string>& into);
  // `listed`: --help shows it. What is always refused is not listed, and is refused by its own name all the same.
  void option(const std::string& name, std::string type, std::string help, std::optional<std::string>& into,
              bool listed = true);
  void list(const std::string& name, std::string type, std::string help, std::vector<std::string>& into);
  void flag(const std::string& name, std::string help, bool& into);

  // Refuses unknown options (with the nearest one), surplus words, missing and repeated values, all together.
  void parse(const Words& words);

 private:
  struct App;  // CLI11 stays in one translation unit.
  std::unique_ptr<App> app_;
};

// Refusals for words that are missing or unknown, with the nearest of `choices`.
[[nodiscard]] std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& choices);

// A line as a shell splits it: quotes, and a backslash before one character. `what` is the line's name in a refusal.
[[nodiscard]] Words shell_words(const std::string& line, const std::string& what);

}  // namespace dsplan
