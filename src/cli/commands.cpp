#include "cli/commands.h"

#include <array>
#include <exception>

#include "cli/output.h"
#include "cli/running/machine.h"
#include "cli/screen/completion.h"
#include "core/error.h"
#include "core/format.h"
#include "core/training.h"
#include "io/locate.h"

namespace dsplan {
namespace {

struct Command {
  std::string_view name;
  int (*run)(const Words& words);
  std::string_view does;
};

constexpr std::array kCommands = {
    Command{"simulate", simulate_command, "predict one configuration"},
    Command{"sweep", sweep_command, "predict many configurations along axes"},
    Command{"diff", diff_command, "two configurations: which input differs and what it moves"},
    Command{"show", show_command, "models, hardware, clusters, operators, formulas, estimators, ..."},
    Command{"explain", explain_command, "an out-of-memory message against the prediction"},
    Command{"emit", emit_command, "a prediction in other tools' formats"},
    Command{"replay", replay_command, "replay an allocator trace or a memory snapshot"},
    Command{"compare", compare_command, "a prediction against a receipt"},
    Command{"check", check_command, "predictions against committed baselines"},
    Command{"plan", plan_command, "the fastest configuration that fits; what of a chain to keep"},
    Command{"doctor", doctor_command, "what is installed"},
    Command{"run", run_command, "execute a plan and write a receipt"},
    Command{"measure", measure_command, "what a training command takes, on the dry device or a GPU"},
    Command{"calibrate", calibrate_command, "measure this machine into a hardware file"},
    Command{"completion", completion_command, "a shell's completions, or the manual page"},
};

std::string help() {
  std::string text =
      "dsplan: memory and traffic of large-model training, before the job starts\n\n"
      "Usage: dsplan COMMAND MODEL [options] [-- launch line]\n\n";
  for (const Command& command : kCommands) {
    text += formatted("  {:<11}{}\n", command.name, command.does);
  }
  return text +
         "\n`dsplan COMMAND --help` lists a command's options; `dsplan --version`.\n"
         "Try: dsplan simulate llama-3-8b --zero-stage 3 --gpus 8 --hardware h100-sxm\n";
}

// The first line is for scripts; the others say what a report of a bug needs.
std::string version_text() {
  std::string text = "dsplan " DSPLAN_VERSION "\n";
#if defined(__clang__)
  text += formatted("built with clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  text += "built with gcc " __VERSION__;
#endif
#if defined(NDEBUG)
  text += ", optimised";
#else
  text += ", with assertions";
#endif
#if defined(__x86_64__)
  text += ", x86_64";
#elif defined(__aarch64__)
  text += ", aarch64";
#endif
#if defined(__GLIBC__)
  text += formatted(", glibc {}.{}", __GLIBC__, __GLIBC_MINOR__);
#endif
  text += "\n";
  text += formatted("models torch {}, transformers {}, deepspeed {}\n", kTorchVersion, kTransformersVersion,
                    kDeepSpeedVersion);
  return text;
}

int print(std::string_view text) {
  Output output("");
  output.add(text);
  output.finish();
  return kDone;
}

}  // namespace

std::vector<CommandHelp> command_tree() {
  std::vector<CommandHelp> tree;
  for (const Command& command : kCommands) {
    CommandHelp one{std::string(command.name), std::string(command.does), {}};
    try {
      (void)command.run({"--help"});
    } catch (const HelpAsked& asked) {
      one.help = asked;
    }
    tree.push_back(std::move(one));
  }
  return tree;
}

int run(const Words& words) {
  if (words.empty()) return print(help());
  const std::string& word = words.front();
  if (word == "--help" || word == "-h" || word == "help") return print(help());
  if (word == "--version" || word == "-V") return print(version_text());
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) {
    names.push_back(command.name);
    if (command.name != word) continue;
    try {
      return command.run(Words(words.begin() + 1, words.end()));
    } catch (const HelpAsked& asked) {
      return print(asked.text);
    }
  }
  std::string hint = did_you_mean(word, names);
  if (hint.empty()) hint = "`dsplan --help` lists them";
  throw Refusal("dsplan", formatted("no command \"{}\"", word), std::move(hint));
}

int exit_code_of(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Refusal& refusal) {
    say(refusal.what());
    return kRefused;
  } catch (const Unavailable& missing) {
    say(missing.what());
    return kUnavailable;
  } catch (const std::exception& error) {
    say("dsplan: a bug, please report it with the command and its files: " + std::string(error.what()) + "\n");
    return kBug;
  }
}

// The small commands: doctor.

int doctor_command(const Words& words) {
  CommandLine line("dsplan doctor", "Says what is installed.", "Example: dsplan doctor");
  line.parse(words);
  Output output("");
  output.add(formatted("dsplan        {}\n", DSPLAN_VERSION));
  output.add(formatted("modelled      torch {}, transformers {}, deepspeed {}\n", kTorchVersion, kTransformersVersion,
                       kDeepSpeedVersion));
  const std::optional<std::string> data = find_data_dir();
  output.add(data ? formatted("data          {} ({} models)\n", *data, list_bundled(Bundled::Model).size())
                  : std::string("data          missing\n"));
  output.add(formatted("CUDA          {}\n", describe_cuda()));
  output.add(formatted("NCCL          {}\n", describe_nccl()));
  output.finish();
  if (!data) (void)data_dir();  // Refuses, and says where it looked.
  return kDone;
}

}  // namespace dsplan
