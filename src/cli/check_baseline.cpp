#include "cli/check_baseline.h"

#include <algorithm>
#include <filesystem>

#include "cli/assemble.h"
#include "core/format.h"
#include "core/sha256.h"
#include "io/text.h"
#include "planner/predict/predict.h"
#include "report/baseline.h"
#include "report/kept_figures.h"

namespace dsplan {
namespace {

namespace fs = std::filesystem;

struct Side {
  SimulateWords said;
  Sources sources;
  Job job;
  FiguresOfRanks ranks;
  std::string fingerprint;
  std::optional<std::string> unknown;  // The first verdict that is, and why.
};

// "" for the current one.
std::string folder_of(const Baseline& baseline) {
  std::string folder = (fs::path(baseline.path).parent_path() / baseline.folder).lexically_normal().string();
  if (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder == "." ? std::string() : folder;
}

void refuse_reporting(const SimulateWords& said, const Place& place) {
  Diagnostics faults;
  const auto refuse = [&](bool given, const char* option) {
    if (given) faults.add(place.says(formatted("{} says what to print, and has no place in a baseline", option)));
  };
  refuse(said.options.format.given(), "--format");
  refuse(said.options.out.given(), "--out");
  refuse(said.options.phase.given(), "--phase");
  refuse(!said.explain.empty(), "--explain");
  faults.throw_if_any();
}

SimulateWords said_at(const Words& command, const Place& place) {
  SimulateWords said = words_at(command, place);
  refuse_reporting(said, place);
  return said;
}

// What is assumed must be what was accepted.
void refuse_other_assumptions(const Job& job, const std::vector<ResolvedInput>& accepted) {
  Diagnostics faults;
  for (const ResolvedInput& input : job.assumptions()) {
    const auto known = std::find_if(accepted.begin(), accepted.end(),
                                    [&](const ResolvedInput& one) { return one.name == input.name; });
    const std::string settle = formatted("say it with {}", input.option);
    if (known == accepted.end()) {
      faults.add({"dsplan check",
                  0,
                  0,
                  {},
                  formatted("{} is assumed to be {} ({}), which a baseline does not allow", input.name, input.value,
                            input.reason),
                  settle});
    } else if (known->value != input.value) {
      faults.add(
          {"dsplan check",
           0,
           0,
           {},
           formatted("{} was accepted as {}, and is now assumed to be {}", input.name, known->value, input.value),
           settle});
    }
  }
  faults.throw_if_any();
}

Side predict_side(Sources sources, SimulateWords said, bool strict, const std::vector<ResolvedInput>& accepted = {}) {
  Side side{std::move(said), std::move(sources), {}, {}, {}, {}};
  Inputs inputs = gather(side.sources, side.said);
  const bool nothing_accepted = strict && accepted.empty();
  inputs.request.strict = nothing_accepted ? Setting<bool>(true, option("dsplan check")) : Setting<bool>();
  side.job = resolve(inputs);
  if (strict && !accepted.empty()) refuse_other_assumptions(side.job, accepted);
  for (const Prediction& prediction : predict_asked(inputs.model, side.job)) {
    side.ranks.push_back(figure_rows(prediction));
    side.fingerprint = prediction.fingerprint;
    if (prediction.verdict == Verdict::Unknown && !side.unknown) {
      side.unknown = formatted("the verdict of rank {} is unknown: {}", prediction.rank, prediction.verdict_reason);
    }
  }
  return side;
}

// A fault of an option stands in the command; a fault of a file where it is.
std::vector<Diagnostic> placed(const Refusal& refusal, const Place& place) {
  std::vector<Diagnostic> faults;
  for (const Diagnostic& fault : refusal.diagnostics()) {
    const bool of_an_option = fault.line == 0 && fault.path.starts_with("--");
    faults.push_back(of_an_option ? place.says(formatted("{}: {}", fault.path, fault.message), fault.hint) : fault);
  }
  return faults;
}

// These are chosen by an option's value: another name is another command, another content is another file.
bool named_by_an_option(SourceKind kind) {
  return kind == SourceKind::Checkpoint || kind == SourceKind::Routing || kind == SourceKind::Hardware ||
         kind == SourceKind::Cluster || kind == SourceKind::Calibration;
}

bool part_of_command(SourceKind kind, const Sources& before, const Sources& after) {
  if (!named_by_an_option(kind)) return false;
  const auto& was = before[kind];
  const auto& is = after[kind];
  return was.has_value() != is.has_value() || (was && (was->name != is->name || was->bundled != is->bundled));
}

std::optional<SourceChange> file_change(SourceKind kind, const Side& before, const Side& after) {
  const auto& was = before.sources[kind];
  const auto& is = after.sources[kind];
  if ((!was && !is) || part_of_command(kind, before.sources, after.sources)) return std::nullopt;
  SourceChange change;
  change.kind = kind;
  change.name = is ? is->content.path : was->name;
  if (was && is) {
    change.keys = changes_of(was->content, is->content);
  } else {
    const Place place = is ? Place{is->content.path, 1, 1, {}} : Place{was->name, 0, 0, {}};
    change.keys.push_back({{}, was ? was->name : std::string(), is ? is->name : std::string(), place});
  }
  return change.keys.empty() ? std::nullopt : std::optional(std::move(change));
}

std::optional<SourceChange> command_change(const Side& before, const Side& after, const Place& place) {
  const auto was = options_in(before.said);
  const auto is = options_in(after.said);
  SourceChange change;
  change.kind = SourceKind::Command;
  change.name = "command";
  for (const auto& [name, value] : is) {
    const std::string old = value_in(was, name);
    if (old != value) change.keys.push_back({name, old, value, place});
  }
  for (const auto& [name, value] : was) {
    if (value_in(is, name).empty()) change.keys.push_back({name, value, {}, place});
  }
  return change.keys.empty() ? std::nullopt : std::optional(std::move(change));
}

std::vector<SourceChange> changes_between(const Side& before, const Side& after, const Place& command) {
  std::vector<SourceChange> changes;
  for (std::size_t i = 0; i < kSourceFiles; ++i) {
    if (auto change = file_change(static_cast<SourceKind>(i), before, after)) changes.push_back(std::move(*change));
  }
  if (auto change = command_change(before, after, command)) changes.push_back(std::move(*change));
  return changes;
}

// The sources of `before` with one of them as it is in `after`.
Sources with_one(SourceKind changed, const Side& before, const Side& after) {
  Sources mixed = before.sources;
  if (changed != SourceKind::Command) {
    mixed[changed] = after.sources[changed];
    return mixed;
  }
  mixed.command = after.sources.command;
  for (std::size_t i = 0; i < kSourceFiles; ++i) {
    const auto kind = static_cast<SourceKind>(i);
    if (part_of_command(kind, before.sources, after.sources)) mixed[kind] = after.sources[kind];
  }
  return mixed;
}

std::vector<std::optional<FiguresOfRanks>> predict_alone(std::vector<SourceChange>& changes, const Side& before,
                                                         const Side& after) {
  std::vector<std::optional<FiguresOfRanks>> alone;
  for (SourceChange& change : changes) {
    if (changes.size() == 1) return {after.ranks};
    const SimulateWords& said = change.kind == SourceKind::Command ? after.said : before.said;
    try {
      alone.emplace_back(predict_side(with_one(change.kind, before, after), said, false).ranks);
    } catch (const Refusal& refusal) {
      alone.emplace_back();
      change.refused_alone = refusal.diagnostics().front().message;
    }
  }
  return alone;
}

BaselineVersions versions_of(const Job& job) {
  const Training& training = job.training;
  return {DSPLAN_VERSION, training.torch.text(), training.transformers.text(), training.deepspeed.text()};
}

std::string model_hash(const Sources& sources) {
  return sha256(canonical_json(sources[SourceKind::Model]->content.root));
}

Baseline renewed(const Baseline& old, const Side& now) {
  Baseline baseline = old;
  baseline.written = versions_of(now.job);
  baseline.fingerprint = now.fingerprint;
  baseline.model_sha256 = model_hash(now.sources);
  baseline.ranks = now.ranks;
  baseline.resolved = now.job.inputs;
  baseline.inputs = now.sources;
  return baseline;
}

Side predict_now(const Baseline& baseline) {
  SimulateWords said = said_at(baseline.command, baseline.command_place);
  Sources sources = read_sources(baseline.command, said, folder_of(baseline));
  return predict_side(std::move(sources), std::move(said), true, baseline.accepted);
}

Side predict_stored(const Baseline& baseline) {
  Sources sources = baseline.inputs;
  read_bundled(sources);
  return predict_side(std::move(sources), said_at(baseline.inputs.command, baseline.inputs_place), false);
}

void hold_against(const Baseline& baseline, const Side& replayed, const Side& now, const Tolerances& tolerances,
                  CheckedBaseline& into) {
  into.model_differs = model_hash(replayed.sources) != baseline.model_sha256;
  into.newer_inputs = changes_of(baseline.resolved, replayed.job.inputs);
  into.your_inputs = changes_of(replayed.job.inputs, now.job.inputs);
  into.changes = changes_between(replayed, now, baseline.command_place);
  const auto alone = predict_alone(into.changes, replayed, now);
  into.ranks = lay_over(baseline.ranks, replayed.ranks, now.ranks, alone, tolerances);
}

}  // namespace

CheckResult check_baseline(const std::string& path, const Tolerances& tolerances) {
  CheckResult result;
  CheckedBaseline& checked = result.checked;
  checked.path = path;
  checked.place = {path, 1, 1, {}};
  try {
    const Baseline baseline = read_baseline(read_document(path));
    checked.at_most = baseline.at_most;
    checked.place = baseline.command_place;
    checked.written = baseline.written;
    const Side now = predict_now(baseline);
    checked.here = versions_of(now.job);
    result.notices = now.job.notices;
    result.unknown = now.unknown;
    result.renewed = renewed(baseline, now);
    std::optional<Side> replayed;
    try {
      replayed = predict_stored(baseline);
    } catch (const Refusal& refusal) {
      checked.refused = placed(refusal, baseline.inputs_place);
      for (Diagnostic& fault : checked.refused) {
        fault.message = "what it was predicted from is refused by this dsplan: " + fault.message;
      }
      return result;
    }
    hold_against(baseline, *replayed, now, tolerances, checked);
  } catch (const Refusal& refusal) {
    checked.refused = placed(refusal, checked.place);
  }
  return result;
}

namespace {

// "adamw (fused)" is "adamw:fused" where an option says it. What DeepSpeed takes on the host is no form that an option
// names: its offload decides that.
std::string as_option_value(const ResolvedInput& input) {
  const std::string& value = input.value;
  const std::size_t bracket = value.find(" (");
  if (input.option != "--optimizer" || bracket == std::string::npos || !value.ends_with(')')) return value;
  const std::string optimizer = value.substr(0, bracket);
  const std::string form = value.substr(bracket + 2, value.size() - bracket - 3);
  return form.starts_with("DeepSpeed") ? optimizer : optimizer + ":" + form;
}

// The command with what it assumes said by options, as far as there are any.
Words said_whole(const Words& command, const std::vector<ResolvedInput>& assumed) {
  Words words = command;
  for (const ResolvedInput& input : assumed) {
    const bool one_option = input.option.starts_with("--") && input.option.find(' ') == std::string::npos;
    if (!one_option) continue;
    const auto end = std::find(words.begin(), words.end(), "--");
    if (input.name == "model_init") {
      words.insert(end, {"--set", "model_init=" + input.value});
    } else {
      words.insert(end, {input.option, as_option_value(input)});
    }
  }
  return words;
}

// `command` and `baseline.accepted` leave nothing assumed, and decide what the words as they were said decide.
void record_assumptions(Words& command, Baseline& baseline) {
  const SimulateWords said = parse_simulate("check", command);
  const Side before = predict_side(read_sources(command, said, {}), said, false);
  const Words whole = said_whole(command, before.job.assumptions());
  const SimulateWords said_so = parse_simulate("check", whole);
  const Side after = predict_side(read_sources(whole, said_so, {}), said_so, false);
  const bool same = after.fingerprint == before.fingerprint;
  if (same) command = whole;
  for (const ResolvedInput& input : (same ? after : before).job.assumptions()) {
    baseline.accepted.push_back({input.name, input.value, Origin::Given, {}, {}});
  }
}

}  // namespace

void refuse_unknown_verdict(const CheckResult& result) {
  if (!result.unknown) return;
  throw Refusal("dsplan check", *result.unknown, "no gate can hold anything against it");
}

CheckResult new_baseline(const std::string& path, const Words& said_command, bool init) {
  Baseline baseline;
  baseline.path = path;
  baseline.source = init ? "dsplan check --init" : "dsplan check --add";
  Words command = said_command;
  refuse_reporting(parse_simulate("check", command), option("dsplan check --add"));
  if (init) record_assumptions(command, baseline);
  baseline.command = command;
  std::error_code failed;
  const fs::path here = fs::current_path(failed);
  const fs::path there = fs::weakly_canonical(fs::absolute(path), failed).parent_path();
  baseline.folder = fs::weakly_canonical(here, failed).lexically_relative(there).string();
  const SimulateWords said = parse_simulate("check", command);
  const Side now = predict_side(read_sources(command, said, {}), said, true, baseline.accepted);
  CheckResult result;
  result.checked.path = path;
  result.checked.here = versions_of(now.job);
  result.notices = now.job.notices;
  result.renewed = renewed(baseline, now);
  result.unknown = now.unknown;
  refuse_unknown_verdict(result);
  return result;
}

}  // namespace dsplan
