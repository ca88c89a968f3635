#include "cli/screen/completion.h"

#include <algorithm>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

constexpr const char* kMade = "Made by `dsplan completion`; do not edit.";

// The words of "auto|always|never"; none where a type is no list of words.
std::vector<std::string> choices_in(const std::string& type) {
  std::vector<std::string> words;
  if (type.find('|') == std::string::npos) return words;
  for (std::size_t at = 0; at <= type.size();) {
    const std::size_t bar = std::min(type.find('|', at), type.size());
    const std::string word = type.substr(at, bar - at);
    // "NAME|FILE" names kinds of values, not values.
    const bool kind = std::all_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
    if (kind) return {};
    words.push_back(word);
    at = bar + 1;
  }
  return words;
}

// Which of dsplan's own lists has the values: `dsplan show ...`.
std::string list_of(const OptionHelp& option) {
  if (option.name == "--hardware") return "hardware";
  if (option.name == "--cluster") return "clusters";
  if (option.name == "--deepspeed") return "deepspeed";
  return {};
}

bool takes_model(const CommandHelp& command) {
  const auto& names = command.help.positionals;
  return std::find(names.begin(), names.end(), "MODEL") != names.end();
}

std::string names_in(const std::vector<OptionHelp>& options) {
  std::string text;
  for (const OptionHelp& option : options) text += (text.empty() ? "" : " ") + option.name;
  return text;
}

// Inside single quotes of a shell.
std::string quoted(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result;
}

std::string without(std::string text, std::string_view characters) {
  std::erase_if(text, [characters](char c) { return characters.find(c) != std::string_view::npos; });
  return text;
}

}  // namespace

std::string bash_completion(const std::vector<CommandHelp>& tree) {
  std::string text = formatted("# bash completion of dsplan. {}\n", kMade);
  text +=
      "_dsplan_list() { dsplan show \"$1\" 2>/dev/null | awk 'NR > 1 || NF == 1 { print $1 }'; }\n"
      "_dsplan() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD - 1]}\" "
      "command=\"${COMP_WORDS[1]}\"\n"
      "  local words=\"\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n";
  std::string names;
  for (const CommandHelp& command : tree) names += command.name + " ";
  text += formatted("    COMPREPLY=($(compgen -W '{}--help --version' -- \"$word\"))\n    return\n  fi\n", names);
  text += "  case \"$before\" in\n";
  std::vector<std::string> seen;
  for (const CommandHelp& command : tree) {
    for (const OptionHelp& option : command.help.options) {
      const std::string list = list_of(option);
      const std::vector<std::string> choices = choices_in(option.type);
      if ((list.empty() && choices.empty()) || std::find(seen.begin(), seen.end(), option.name) != seen.end()) continue;
      seen.push_back(option.name);
      const std::string values =
          list.empty() ? formatted("{}", joined(choices, " ")) : formatted("$(_dsplan_list {})", list);
      text += formatted("    {}) COMPREPLY=($(compgen -f -W \"{}\" -- \"$word\")); return ;;\n", option.name, values);
    }
  }
  text += "  esac\n  case \"$command\" in\n";
  for (const CommandHelp& command : tree) {
    text += formatted("    {}) words='{} --help' ;;\n", command.name, names_in(command.help.options));
  }
  text +=
      "  esac\n  if [[ \"$word\" == -* ]]; then\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n    return\n  "
      "fi\n";
  std::string models;
  for (const CommandHelp& command : tree) {
    if (takes_model(command)) models += (models.empty() ? "" : "|") + command.name;
  }
  text += formatted(
      "  case \"$command\" in\n    {}) [ \"$COMP_CWORD\" -eq 2 ] && words=\"$(_dsplan_list models)\" || words=\"\" "
      ";;\n    "
      "*) words=\"\" ;;\n  esac\n",
      models);
  return text + "  COMPREPLY=($(compgen -f -W \"$words\" -- \"$word\"))\n}\ncomplete -o filenames -F _dsplan dsplan\n";
}

std::string zsh_completion(const std::vector<CommandHelp>& tree) {
  std::string text = formatted("#compdef dsplan\n# zsh completion of dsplan. {}\n", kMade);
  text +=
      "_dsplan_list() { compadd -- ${(f)\"$(dsplan show $1 2>/dev/null | awk 'NR > 1 || NF == 1 { print $1 }')\"} }\n";
  text += "_dsplan() {\n  local -a commands\n  commands=(\n";
  for (const CommandHelp& command : tree)
    text += formatted("    '{}:{}'\n", command.name, quoted(without(command.does, ":")));
  text +=
      "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n  local command=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n  case $command in\n";
  for (const CommandHelp& command : tree) {
    text += formatted("    {})\n      _arguments \\\n", command.name);
    for (const OptionHelp& option : command.help.options) {
      const std::string help = quoted(without(option.help, "[]:"));
      if (option.type.empty()) {
        text += formatted("        '{}[{}]' \\\n", option.name, help);
        continue;
      }
      const std::vector<std::string> choices = choices_in(option.type);
      const std::string list = list_of(option);
      const std::string values = !list.empty()      ? formatted("{{_dsplan_list {}; _files}}", list)
                                 : !choices.empty() ? formatted("({})", joined(choices, " "))
                                                    : std::string("_files");
      text += formatted("        '*{}[{}]:{}:{}' \\\n", option.name, help, without(option.type, ":[]'"), values);
    }
    text += takes_model(command) ? "        '1:MODEL:{_dsplan_list models; _files}' '*:FILE:_files' ;;\n"
                                 : "        '*:FILE:_files' ;;\n";
  }
  return text + "  esac\n}\n_dsplan \"$@\"\n";
}

namespace {

// An option with its commands: many commands have the same ones.
struct SharedOption {
  OptionHelp option;
  std::vector<std::string> commands;
};

std::vector<SharedOption> shared_options(const std::vector<CommandHelp>& tree) {
  std::vector<SharedOption> list;
  for (const CommandHelp& command : tree) {
    for (const OptionHelp& option : command.help.options) {
      const auto same = std::find_if(list.begin(), list.end(), [&](const SharedOption& one) {
        return one.option.name == option.name && one.option.type == option.type && one.option.help == option.help;
      });
      if (same == list.end()) {
        list.push_back({option, {command.name}});
      } else {
        same->commands.push_back(command.name);
      }
    }
  }
  return list;
}

}  // namespace

std::string fish_completion(const std::vector<CommandHelp>& tree) {
  std::string text = formatted("# fish completion of dsplan. {}\n", kMade);
  text += "function __dsplan_list\n  dsplan show $argv[1] 2>/dev/null | awk 'NR > 1 || NF == 1 { print $1 }'\nend\n";
  std::vector<std::string> of_models;
  for (const CommandHelp& command : tree) {
    text +=
        formatted("complete -c dsplan -n __fish_use_subcommand -f -a {} -d '{}'\n", command.name, quoted(command.does));
    if (takes_model(command)) of_models.push_back(command.name);
  }
  const auto when = [](const std::vector<std::string>& commands) {
    return formatted("complete -c dsplan -n '__fish_seen_subcommand_from {}'", joined(commands, " "));
  };
  text += when(of_models) + " -a '(__dsplan_list models)'\n";
  for (const auto& [option, commands] : shared_options(tree)) {
    text += formatted("{} -l {}", when(commands), option.name.substr(2));
    const std::vector<std::string> choices = choices_in(option.type);
    const std::string list = list_of(option);
    if (!option.type.empty()) text += " -r";
    if (!list.empty()) text += formatted(" -a '(__dsplan_list {})'", list);
    if (list.empty() && !choices.empty()) text += formatted(" -f -a '{}'", joined(choices, " "));
    text += formatted(" -d '{}'\n", quoted(option.help));
  }
  return text;
}

namespace {

// A line of roff: no control character at its beginning, hyphens that stay.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

std::string roff_lines(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result += roff(text.substr(at, end - at)) + "\n";
    at = end + 1;
  }
  return result;
}

}  // namespace

std::string manual_page(const std::vector<CommandHelp>& tree) {
  std::string text = formatted(".\\\" {}\n.TH DSPLAN 1 \"\" \"dsplan " DSPLAN_VERSION "\" \"User Commands\"\n", kMade);
  text += ".SH NAME\ndsplan \\- memory and traffic of large-model training, before the job starts\n";
  text += ".SH SYNOPSIS\n.B dsplan\n.I COMMAND MODEL\n[options] [\\-\\- launch line]\n";
  text +=
      ".SH DESCRIPTION\nPredicts, to the byte, what each rank of a training job will hold, when the peak is, what is "
      "alive "
      "then and what goes over the wire. MODEL is a bundled name, a config.json, a folder with one, an id in the local "
      "Hugging Face cache, a plan, or \\- for standard input.\n.SH COMMANDS\n";
  for (const CommandHelp& command : tree) {
    text += formatted(".SS {}\n{}\n", roff(command.name),
                      roff(command.help.description.empty() ? command.does : command.help.description));
    for (const OptionHelp& option : command.help.options) {
      text += formatted(".TP\n.B {}{}\n{}\n", roff(option.name),
                        option.type.empty() ? "" : " \\fI" + roff(option.type) + "\\fR", roff(option.help));
    }
    if (!command.help.footer.empty()) text += ".PP\n.nf\n" + roff_lines(command.help.footer) + ".fi\n";
  }
  text +=
      ".SH EXIT STATUS\n0 done, it fits; 1 a bug in dsplan; 2 wrong usage, invalid or not modelled; 3 it does not fit; "
      "4 "
      "prediction and measurement, or baseline, differ; 5 no plan fits; 6 the machine lacks what a run needs; 130 "
      "interrupted.\n";
  text +=
      ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nNo colour, whatever the terminal.\n.TP\n.B DSPLAN_DATA\nThe folder of models "
      "and configs.\n.TP\n.B HF_HOME\nWhere models of the Hugging Face hub are cached.\n";
  return text;
}

int completion_command(const Words& words) {
  std::optional<std::string> shell;
  CommandLine line("dsplan completion", "Prints the completions of a shell, or the manual page.",
                   "SHELL is bash, zsh, fish or man. An installation has them all in their folders.\n"
                   "Example: source <(dsplan completion bash)");
  line.positional("SHELL", "bash, zsh, fish or man", shell);
  line.parse(words);
  if (!shell) throw Refusal("dsplan completion", "SHELL is missing", "it is one of bash, zsh, fish, man");
  const std::vector<CommandHelp> tree = command_tree();
  Output output("");
  if (*shell == "bash") {
    output.add(bash_completion(tree));
  } else if (*shell == "zsh") {
    output.add(zsh_completion(tree));
  } else if (*shell == "fish") {
    output.add(fish_completion(tree));
  } else if (*shell == "man") {
    output.add(manual_page(tree));
  } else {
    std::string hint = did_you_mean(*shell, {"bash", "zsh", "fish", "man"});
    throw Refusal("dsplan completion", formatted("no shell \"{}\"", *shell),
                  hint.empty() ? "it is one of bash, zsh, fish, man" : std::move(hint));
  }
  output.finish();
  return kDone;
}

}  // namespace dsplan
