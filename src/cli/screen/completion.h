// What completions and the manual page are made of: every command with its options, as --help lists them.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace dsplan {

struct CommandHelp {
  std::string name;
  std::string does;
  HelpAsked help;
};

// All commands, in the order of `dsplan --help`.
[[nodiscard]] std::vector<CommandHelp> command_tree();

[[nodiscard]] std::string bash_completion(const std::vector<CommandHelp>& tree);
[[nodiscard]] std::string zsh_completion(const std::vector<CommandHelp>& tree);
[[nodiscard]] std::string fish_completion(const std::vector<CommandHelp>& tree);
[[nodiscard]] std::string manual_page(const std::vector<CommandHelp>& tree);

}  // namespace dsplan
