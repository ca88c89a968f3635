#include "cli/commands.h"

#include <algorithm>
#include <array>

#include "cli/machine.h"
#include "cli/output.h"
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
    Command{"show", show_command, "models, hardware, clusters, operators, formulas, estimators, ..."},
    Command{"explain", explain_command, "an out-of-memory message against the prediction"},
    Command{"emit", emit_command, "a prediction in other tools' formats"},
    Command{"replay", replay_command, "replay an allocator trace or a memory snapshot"},
    Command{"compare", compare_command, "a prediction against a receipt"},
    Command{"check", check_command, "predictions against committed baselines"},
    Command{"plan", plan_command, "which activations of a chain to keep (models: not yet)"},
    Command{"doctor", doctor_command, "what is installed"},
    Command{"run", run_command, "execute a plan and write a receipt"},
    Command{"calibrate", calibrate_command, "measure this machine into a hardware file"},
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

int print(std::string_view text) {
  Output output("");
  output.add(text);
  output.finish();
  return kDone;
}

}  // namespace

int run(const Words& words) {
  if (words.empty()) throw Refusal("dsplan", "COMMAND is missing", "`dsplan --help` lists them");
  const std::string& word = words.front();
  if (word == "--help" || word == "-h" || word == "help") return print(help());
  if (word == "--version") return print("dsplan " DSPLAN_VERSION "\n");
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

// The small commands: doctor.

int doctor_command(const Words& words) {
  CommandLine line("dsplan doctor", "Says what is installed.");
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
