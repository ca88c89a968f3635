// `dsplan check`: the CI gate. Predictions against committed baselines.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/assemble.h"
#include "cli/check_baseline.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_comparison.h"
#include "core/format.h"
#include "io/locate.h"
#include "io/text.h"
#include "report/baseline.h"
#include "report/check_report.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultFolder = "baselines";

constexpr const char* kCheckFooter =
    "BASELINE is a file that --add wrote, or a folder of such files at any\n"
    "depth; without one, the folder baselines. What today's files predict is\n"
    "held against it, apart from what a newer dsplan predicts otherwise.\n"
    "Every assumed input is refused, as --strict does.\n"
    "dsplan check --add FILE MODEL [options of simulate] makes a new one; --init does\n"
    "the same in one try: what is assumed is recorded as given.\n"
    "Example: dsplan check --init baselines/8b.json llama-3-8b --gpus 8 \\\n"
    "           --zero-stage 3 --hardware h100-sxm --at-most 72GiB\n"
    "KIND is requested, allocated, active, reserved, process, host, calls,\n"
    "payload, wire or parameters; N is bytes, or a percentage (1%).\n"
    "Exit codes: 0 all agree, 2 something was refused, 4 something differs.";

struct CheckWords {
  std::vector<std::string> files;
  bool update = false;
  std::vector<std::string> tolerances;
  std::optional<std::string> at_most;
  std::optional<std::string> format;
  std::optional<std::string> out;
};

CheckWords parse_check(const Words& words) {
  CheckWords said;
  CommandLine line("dsplan check", "Holds predictions against committed baselines.", kCheckFooter);
  line.positionals("BASELINE", "Baselines, or folders of them", said.files);
  line.flag("--update", "Rewrite them with what is predicted now", said.update);
  line.list("--tolerance", "KIND=N", "Bytes or percent, 0 by default; may be repeated", said.tolerances);
  line.option("--at-most", "SIZE", "What the process may take, such as 72GiB", said.at_most);
  line.option("--format", "table|json|junit|github|md", "How to print", said.format);
  line.option("--out", "FILE", "Print to a file, which appears when complete", said.out);
  line.parse(words);
  const std::vector<std::string_view> formats = {"table", "json", "junit", "github", "md"};
  if (said.format && std::find(formats.begin(), formats.end(), *said.format) == formats.end()) {
    throw Refusal("--format", formatted("no format \"{}\"", *said.format), did_you_mean(*said.format, formats));
  }
  if (said.update && !said.tolerances.empty()) {
    throw Refusal("--tolerance", "has no meaning beside --update, which rewrites every figure");
  }
  if (said.files.empty()) {
    std::error_code failed;
    if (!fs::is_directory(kDefaultFolder, failed)) {
      throw Refusal("dsplan check", "BASELINE is missing, and there is no folder baselines",
                    "`dsplan check --add baselines/NAME.json MODEL ...` makes a first one");
    }
    said.files.emplace_back(kDefaultFolder);
  }
  return said;
}

bool looks_like_a_baseline(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return is_baseline(parse_json(path, text));
  } catch (const Refusal&) {
    // A damaged baseline must not pass unseen: it is refused when it is checked.
    return text.find("\"baseline\"") != std::string::npos;
  }
}

// From folders, every JSON file that is a baseline, in order of their paths.
std::vector<std::string> baselines_in(const std::vector<std::string>& arguments) {
  std::vector<std::string> paths;
  for (const std::string& argument : arguments) {
    std::error_code failed;
    if (!fs::is_directory(argument, failed)) {
      paths.push_back(argument);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry :
         fs::recursive_directory_iterator(argument, fs::directory_options::skip_permission_denied)) {
      if (!entry.is_regular_file() || entry.path().extension() != ".json") continue;
      std::string path = entry.path().lexically_normal().string();
      if (looks_like_a_baseline(path)) {
        inside.push_back(std::move(path));
      } else {
        say(formatted("{}: note: passed over, it is no baseline\n", path));
      }
    }
    std::sort(inside.begin(), inside.end());
    if (inside.empty()) throw Refusal(argument, "holds no baseline");
    paths.insert(paths.end(), inside.begin(), inside.end());
  }
  return paths;
}

void say_refused(const std::vector<CheckResult>& results) {
  for (const CheckResult& result : results) {
    if (!result.checked.refused.empty()) say(Refusal(result.checked.refused).what());
  }
}

std::string printed(const std::vector<CheckedBaseline>& checked, const std::string& format) {
  if (format == "json") return check_json(checked);
  if (format == "github") return check_github(checked);
  if (format == "md") return check_markdown(checked);
  if (format == "table") return report(checked);
  std::vector<std::string> details;
  for (const CheckedBaseline& one : checked) details.push_back(check_details(one));
  return check_junit(checked, details);
}

std::vector<CheckedBaseline> checked_of(const std::vector<CheckResult>& results) {
  std::vector<CheckedBaseline> checked;
  for (const CheckResult& result : results) checked.push_back(result.checked);
  return checked;
}

// Those whose text is another one; all of them are opened before the first is replaced.
std::vector<std::string> rewrite(const std::vector<CheckResult>& results) {
  std::vector<std::unique_ptr<Output>> outputs;
  std::vector<std::string> rewritten;
  for (const CheckResult& result : results) {
    const std::string text = baseline_json(*result.renewed);
    if (text == read_file(result.checked.path)) continue;
    outputs.push_back(std::make_unique<Output>(result.checked.path, "--update"));
    outputs.back()->add(text);
    rewritten.push_back(result.checked.path);
  }
  for (const auto& output : outputs) output->finish();
  return rewritten;
}

std::optional<Bytes> threshold_in(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  Diagnostics faults;
  const std::optional<Bytes> size = labelled_size("--at-most", *text, faults);
  faults.throw_if_any();
  return size;
}

int update(const std::vector<CheckResult>& results, const std::string& format, Output& output) {
  const bool all =
      std::all_of(results.begin(), results.end(), [](const CheckResult& result) { return result.renewed.has_value(); });
  if (!all) {
    say("dsplan check: nothing is rewritten, because not every baseline can be\n");
    return kRefused;
  }
  for (const CheckResult& result : results) refuse_unknown_verdict(result);
  const std::vector<std::string> rewritten = rewrite(results);
  output.add(printed(checked_of(results), format));
  output.finish();
  for (const std::string& path : rewritten) say(formatted("{}: rewritten\n", path));
  if (rewritten.empty()) say("dsplan check: every baseline is as it would be written\n");
  return kDone;
}

int check(const Words& words) {
  const CheckWords said = parse_check(words);
  const Tolerances tolerances = read_tolerances(said.tolerances);
  const std::optional<Bytes> at_most = threshold_in(said.at_most);
  const std::vector<std::string> paths = baselines_in(said.files);
  const std::string format = said.format.value_or("table");
  Output output(said.out.value_or(""));
  std::vector<CheckResult> results;
  for (const std::string& path : paths) {
    results.push_back(check_baseline(path, tolerances));
    std::optional<Bytes>& limit = results.back().checked.at_most;
    if (at_most) limit = std::min(limit.value_or(*at_most), *at_most);
  }
  say_refused(results);
  if (said.update) return update(results, format, output);
  const std::vector<CheckedBaseline> checked = checked_of(results);
  output.add(printed(checked, format));
  output.finish();
  const auto any = [&](std::string_view word) {
    return std::any_of(checked.begin(), checked.end(), [&](const CheckedBaseline& one) { return state(one) == word; });
  };
  if (any("differs")) return kDiffers;
  return any("refused") ? kRefused : kDone;
}

// ---- --add

bool is_add(const Words& words) {
  for (const std::string& word : words) {
    if (word == "--") return false;
    if (word == "--add" || word.starts_with("--add=")) return true;
    if (word == "--init" || word.starts_with("--init=")) return true;
  }
  return false;
}

// The words after `simulate`: without what is of the baseline, and without --strict, which it always is.
Words command_in(const Words& words) {
  Words command;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {
      command.insert(command.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const auto with_value = [&](std::string_view name) { return words[i].starts_with(std::string(name) + "="); };
    if (words[i] == "--add" || words[i] == "--init" || words[i] == "--at-most") {
      ++i;
    } else if (words[i] != "--strict" && !with_value("--add") && !with_value("--init") && !with_value("--at-most")) {
      command.push_back(words[i]);
    }
  }
  return command;
}

void write_new(const Baseline& baseline, const char* option) {
  std::error_code failed;
  const fs::path folder = fs::path(baseline.path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, failed);
  if (failed) throw Refusal(option, formatted("{}: {}", folder.string(), failed.message()));
  Output output(baseline.path, option);
  output.add(baseline_json(baseline));
  output.finish();
}

// --init may stand without FILE, which is then called as MODEL is: a bundled name, an id of the hub, a folder, a
// config.
constexpr std::string_view kUnnamed = "baselines/.json";
bool says_model(const std::string& word) {
  if (is_bundled(Bundled::Model, word) || fs::path(word).filename() == "config.json") return true;
  std::error_code failed;
  return !word.ends_with(".json") && (word.find('/') != std::string::npos || fs::exists(word, failed));
}
Words with_file(Words words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  const auto init = std::find(words.begin(), end, "--init");
  if (init == end) return words;
  const auto next = init + 1;
  const bool named = next != end && !next->starts_with("-") && !says_model(*next);
  if (!named) words.insert(next, std::string(kUnnamed));
  return words;
}
std::string named_as(const std::string& model) {
  fs::path path(model);
  if (path.filename() == "config.json") path = path.parent_path();
  const std::string name = path.filename().string();
  return formatted("{}/{}.json", kDefaultFolder, name.empty() ? "baseline" : name);
}

// A gate that is closed from its first day on is seldom meant.
void warn_of_threshold(const Baseline& baseline) {
  if (!baseline.at_most) return;
  for (const BaselineRank& rank : baseline.ranks) {
    for (const FigureRow& row : rank.rows) {
      if (row.path != "memory.peak.process" || !row.value.number || Bytes(*row.value.number) <= *baseline.at_most) {
        continue;
      }
      return say(
          formatted("--at-most: warning: rank {} takes {} and may take {}: `dsplan check` fails from the start\n",
                    rank.rank, human(Bytes(*row.value.number)), human(*baseline.at_most)));
    }
  }
}

int add(const Words& given) {
  const Words words = with_file(given);
  std::optional<std::string> path, init, at_most;
  CommandExtras extras;
  extras.description = "Writes a baseline: one prediction with everything that it is made from.";
  extras.footer = kCheckFooter;
  extras.add = [&](CommandLine& line) {
    line.option("--add", "FILE", "The baseline to write, a .json file that is not there yet", path);
    line.option("--init", "[FILE]", "The same; what is assumed is recorded as given", init);
    line.option("--at-most", "SIZE", "What the process may take from now on, such as 72GiB", at_most);
  };
  extras.without = {"--verbose", "--color"};
  const SimulateWords said = parse_simulate("check", words, extras);
  if (path && init) throw Refusal("--init", "stands beside --add", "one baseline at a time");
  const std::optional<Bytes> limit = threshold_in(at_most);
  const char* const option = init ? "--init" : "--add";
  if (init) path = *init == kUnnamed ? named_as(said.model) : *init;
  std::error_code failed;
  if (!path->ends_with(".json")) throw Refusal(option, formatted("\"{}\" does not end in .json", *path));
  if (fs::exists(*path, failed)) {
    throw Refusal(option, formatted("{} is there already", *path),
                  formatted("edit its \"command\", then `dsplan check --update {}`", *path));
  }
  CheckResult result = new_baseline(*path, command_in(words), init.has_value());
  result.renewed->at_most = limit;
  warn_of_threshold(*result.renewed);
  say(render(result.notices));
  for (const std::optional<SourceFile>& file : result.renewed->inputs.files) {
    if (!file || file->bundled || !fs::path(file->name).is_absolute()) continue;
    say(formatted("{}: note: an absolute path, which other machines may not have\n", file->name));
  }
  write_new(*result.renewed, option);
  Output output("");
  output.add(formatted("{}: written, {} rows of {} rank{}\n", *path, result.renewed->ranks.front().rows.size(),
                       result.renewed->ranks.size(), result.renewed->ranks.size() == 1 ? "" : "s"));
  output.finish();
  return kDone;
}

}  // namespace

int check_command(const Words& words) { return is_add(words) ? add(words) : check(words); }

}  // namespace dsplan
