#include "cli/command_line.h"

#include <utility>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/document.h"
#include "core/error.h"
#include "core/format.h"

namespace dsplan {

namespace {

// CLI11 says "--seq: 1 required N missing" and "--seq: At Most 1 required but received 2".
Refusal said_plainly(const std::string& command, const std::string& text) {
  const std::size_t colon = text.find(": ");
  if (text.starts_with("--") && colon != std::string::npos) {
    std::string option = text.substr(0, colon);
    if (text.ends_with("missing")) return {std::move(option), "needs a value"};
    if (text.find("At Most 1 required") != std::string::npos) return {std::move(option), "is given more than once"};
  }
  return {command, text, formatted("`{} --help` lists the options", command)};
}

constexpr std::size_t kWide = 80;     // Columns of a screen.
constexpr std::size_t kNames = 34;    // What options take of them.
constexpr std::size_t kShortest = 4;  // Of what is taken for the beginning of a name.

// In lines of at most `width` columns, broken at blanks.
std::string lines_of_help(std::string text, std::size_t width) {
  for (std::size_t start = 0; text.size() - start > width;) {
    std::size_t blank = text.rfind(' ', start + width);
    if (blank == std::string::npos || blank < start) blank = text.find(' ', start + width);
    if (blank == std::string::npos) break;
    text[blank] = '\n';
    start = blank + 1;
  }
  return text;
}
std::string beside_name(std::string help) { return lines_of_help(std::move(help), kWide - kNames); }

std::string sorted(std::string_view text) {
  std::string letters(text);
  std::sort(letters.begin(), letters.end());
  return letters;
}

// What other programs call what has another name here.
struct Elsewhere {
  std::string_view name;
  std::string_view here;
};
constexpr Elsewhere kElsewhere[] = {
    {"--offload-optimizer", "a DeepSpeed JSON says it: \"zero_optimization\": {\"offload_optimizer\": ...}"},
    {"--offload-param", "a DeepSpeed JSON says it: \"zero_optimization\": {\"offload_param\": ...}"},
    {"--offload", "a DeepSpeed JSON says it; of fully_shard --set fsdp.cpu_offload=true"},
    {"--cpu-offload", "a DeepSpeed JSON says it; of fully_shard --set fsdp.cpu_offload=true"},
    {"--batch-size", "rows per rank are --micro-batch"},
    {"--per-device-train-batch-size", "rows per rank are --micro-batch"},
    {"--gradient-accumulation-steps", "it is --grad-accum"},
    {"--gradient-checkpointing", "it is --checkpoint full"},
    {"--world-size", "it is --gpus"},
    {"--nproc-per-node", "it is --gpus, or the launch line after --"},
    {"--num-gpus", "it is --gpus"},
    {"--device", "it is --hardware"},
    {"--max-length", "it is --seq"},
    {"--sequence-length", "it is --seq"},
    {"--seq-len", "it is --seq"},
    {"--bf16", "it is --dtype bf16, or --autocast bf16"},
    {"--fp16", "it is --dtype fp16, or --autocast fp16"},
    {"--load-in-4bit", "it is --quantization nf4"},
    {"--load-in-8bit", "it is --quantization int8"},
    {"--fsdp", "it is --runtime fsdp2"},
    {"--ddp", "it is --runtime ddp"},
    {"--lr", "learning rates change no size: leave it out"},
    {"--epochs", "how long a job trains changes no size: leave it out"},
    {"--zero", "it is --zero-stage"},
    {"--zero3", "it is --zero-stage 3"},
    {"--stage", "it is --zero-stage"},
    {"--gpu", "how many is --gpus, which one is --hardware"},
    {"--gpu-type", "it is --hardware"},
    {"--gpu-memory", "it is --capacity"},
    {"--memory", "of a GPU it is --capacity, of a node --host-memory"},
    {"--vram", "it is --capacity"},
    {"--nodes", "all ranks are --gpus, those of a node --gpus-per-node"},
    {"--nnodes", "all ranks are --gpus, those of a node --gpus-per-node"},
    {"--tensor-parallel", "it is --tp"},
    {"--tensor-parallel-size", "it is --tp"},
    {"--qlora", "it is --quantization nf4 --lora r=16"},
    {"--lora-r", "it is --lora r=16"},
    {"--lora-rank", "it is --lora r=16"},
    {"--precision", "it is --dtype, or --autocast for weights in fp32"},
    {"--mixed-precision", "it is --autocast; under DeepSpeed --dtype"},
    {"--allocator-conf", "it is --alloc-conf, or PYTORCH_CUDA_ALLOC_CONF=... before the command after --"},
    {"--pytorch-cuda-alloc-conf", "it is --alloc-conf, or PYTORCH_CUDA_ALLOC_CONF=... before the command after --"},
    {"--attn-implementation", "it is --attention"},
    {"--flash-attn", "it is --attention flash"},
    {"--flash-attention", "it is --attention flash"},
    {"--model", "MODEL stands without an option: dsplan simulate llama-3-8b"},
    {"--model-name-or-path", "MODEL stands without an option, or in the launch line after --"},
};
std::string called_here(std::string_view name) {
  for (const Elsewhere& one : kElsewhere) {
    if (one.name == name) return std::string(one.here);
  }
  return {};
}

}  // namespace

struct CommandLine::App {
  std::string command;
  CLI::App app;
  std::vector<std::string> names{"--help"};
  HelpAsked help;

  App(std::string name, const std::string& description)
      : command(std::move(name)), app(lines_of_help(description, kWide), command) {}
};

CommandLine::CommandLine(std::string command, std::string description, std::string footer)
    : app_(std::make_unique<App>(std::move(command), description)) {
  app_->app.allow_extras();
  app_->help.description = std::move(description);
  app_->help.footer = footer;
  app_->app.footer(std::move(footer));
  app_->app.get_formatter()->column_width(kNames);
}

CommandLine::~CommandLine() = default;

void CommandLine::positional(std::string name, std::string help, std::optional<std::string>& into) {
  app_->help.positionals.push_back(name);
  app_->app.add_option(std::move(name), into, beside_name(std::move(help)))->type_name("");
}

void CommandLine::positionals(std::string name, std::string help, std::vector<std::string>& into) {
  app_->help.positionals.push_back(name + "...");
  app_->app.add_option(std::move(name), into, beside_name(std::move(help)))->type_name("")->allow_extra_args();
}

void CommandLine::option(const std::string& name, std::string type, std::string help, std::optional<std::string>& into,
                         bool listed) {
  app_->names.push_back(name);
  if (listed) app_->help.options.push_back({name, type, help});
  auto* made = app_->app
                   .add_option(
                       name,
                       [&into](const CLI::results_t& results) {
                         into = results.front();
                         return true;
                       },
                       beside_name(std::move(help)))
                   ->type_name(std::move(type));
  if (!listed) made->group("");
}

void CommandLine::list(const std::string& name, std::string type, std::string help, std::vector<std::string>& into) {
  app_->names.push_back(name);
  app_->help.options.push_back({name, type, help});
  app_->app
      .add_option(
          name,
          [&into](const CLI::results_t& results) {
            into = results;
            return true;
          },
          beside_name(std::move(help)))
      ->type_name(std::move(type))
      ->expected(1)
      ->take_all();
}

void CommandLine::flag(const std::string& name, std::string help, bool& into) {
  app_->names.push_back(name);
  app_->help.options.push_back({name, {}, help});
  app_->app.add_flag(name, into, beside_name(std::move(help)));
}

void CommandLine::parse(const Words& words) {
  try {
    app_->app.parse(Words(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    app_->help.text = app_->app.help();
    throw std::move(app_->help);
  } catch (const CLI::ParseError& error) {
    throw said_plainly(app_->command, error.what());
  }
  const std::vector<std::string_view> names(app_->names.begin(), app_->names.end());
  Diagnostics diagnostics;
  std::string surplus;
  for (const std::string& word : app_->app.remaining()) {
    if (!word.starts_with('-') || word == "-") {
      if (surplus.empty()) surplus = word;
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    std::string hint = called_here(name);
    if (hint.empty()) hint = did_you_mean(name, names);
    if (hint.empty()) hint = formatted("`{} --help` lists the options", app_->command);
    diagnostics.add({name, 0, 0, {}, formatted("no such option of `{}`", app_->command), std::move(hint)});
  }
  // A word left over beside an unknown option is most likely its value.
  if (!surplus.empty() && !diagnostics.any()) {
    diagnostics.add({app_->command, 0, 0, {}, formatted("surplus word \"{}\"", surplus), {}});
  }
  diagnostics.throw_if_any();
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& choices) {
  // Swapped letters are the commonest slip, and plain edit distance counts them twice.
  const auto swapped = std::find_if(choices.begin(), choices.end(), [&word](std::string_view choice) {
    return choice.size() == word.size() && edit_distance(word, choice) <= 2 && sorted(choice) == sorted(word);
  });
  const std::string_view near = swapped != choices.end() ? *swapped : nearest(word, choices);
  if (!near.empty()) return formatted("did you mean {}?", near);
  std::string longer;  // "--quant" is what two options begin with, however many letters they add.
  for (const std::string_view choice : choices) {
    if (word.size() < kShortest || !choice.starts_with(std::string(word) + "-")) continue;
    longer += formatted("{}{}", longer.empty() ? "" : " or ", choice);
  }
  return longer.empty() ? std::string() : formatted("did you mean {}?", longer);
}

Words shell_words(const std::string& line, const std::string& what) {
  Words words;
  std::string word;
  bool any = false;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else if (c == '\\' && quote == '"' && i + 1 < line.size()) {
        word += line[++i];
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      any = true;
    } else if (c == '\\' && i + 1 < line.size()) {
      word += line[++i];
      any = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (any) words.push_back(std::exchange(word, {}));
      any = false;
    } else {
      word += c;
      any = true;
    }
  }
  if (quote != 0) throw Refusal(what, formatted("a quote {} is not closed", std::string(1, quote)));
  if (any) words.push_back(word);
  return words;
}

}  // namespace dsplan
