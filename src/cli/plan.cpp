// `dsplan plan`: which activations of a chain to keep. What it does with a model is in plan_model.cpp.
#include <algorithm>
#include <array>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/plan_words.h"
#include "cli/report_chain.h"
#include "core/error.h"
#include "core/format.h"
#include "core/settings.h"
#include "io/chain.h"
#include "io/locate.h"
#include "planner/plan/recompute/plan_chain.h"
#include "report/chain_report.h"

namespace dsplan {
namespace {

constexpr const char* kPlanFooter =
    "A model (docs/planning.md) takes all options of simulate, which pin what they say,\n"
    "and --space, --vary, --global-batch, --maximize, --minimize, --pareto, --timeout,\n"
    "--emit. A chain (docs/segmentation.md) takes --budget, --method, --minimum,\n"
    "--format and --out. Methods: flat, flat:N (slots), selective, uniform, rotor, and\n"
    "the rules none, full, every, segments, nth, sqrt, chen, megatron-block,\n"
    "megatron-uniform; those with a number take it after a colon, or the best one\n"
    "within the budget.\n"
    "Exit codes: 0 a plan, 2 refused, 5 no plan fits, 130 interrupted.";

PlanWords parse_plan(const Words& words) {
  PlanWords plan;
  CommandExtras extras;
  extras.description = "Finds the fastest configuration of a model that fits, or which activations of a chain to keep.";
  extras.footer = kPlanFooter;
  extras.add = [&plan](CommandLine& line) {
    line.option("--budget", "SIZE", "What the process may take: 70GiB; of a chain also plain bytes", plan.budget);
    line.option("--space", "FILE", "What may be chosen from (docs/planning.md)", plan.space);
    line.list("--vary", "AXIS=V1,V2", "One axis of the space; repeatable", plan.vary);
    line.option("--global-batch", "ROWS", "Of one optimizer step; accumulation follows", plan.global_batch);
    line.option("--maximize", "WHAT", "tokens_per_second (default), micro_batch, seq or layers", plan.maximize);
    line.option("--minimize", "WHAT", "gpus", plan.minimize);
    line.flag("--pareto", "Also the front of memory, time and traffic", plan.pareto);
    line.option("--emit", "WHAT", "Of the chosen plan: deepspeed, plan, launch or checkpointing", plan.emit);
    line.option("--timeout", "SECONDS", "Then the best plan so far", plan.timeout);
    line.option("--method", "NAME", "Of a chain: how to choose; default: flat", plan.method);
    line.flag("--minimum", "Of a chain: the smallest budget that has a plan, and that plan", plan.minimum);
  };
  plan.said = parse_simulate("plan", words, extras);
  return plan;
}

void refuse_what_means_nothing(const PlanWords& plan, Diagnostics& diagnostics) {
  constexpr std::array<std::string_view, 2> kMeaningful = {"--format", "--out"};
  const Request nothing;
  visit_settings(plan.said.options, nothing, [&](const auto& setting, const auto&) {
    if (!setting.given()) return;
    if (std::find(kMeaningful.begin(), kMeaningful.end(), setting.place.text()) != kMeaningful.end()) return;
    diagnostics.add(setting.place.says("has no meaning for a chain"));
  });
  if (!plan.said.launch.empty()) diagnostics.add({"--", 0, 0, {}, "a launch line has no meaning for a chain", {}});
  if (!plan.said.explain.empty()) diagnostics.add({"--explain", 0, 0, {}, "has no meaning for a chain", {}});
  const auto of_models = [&diagnostics](const char* option, bool given) {
    if (given) diagnostics.add({option, 0, 0, {}, "has no meaning for a chain", {}});
  };
  of_models("--maximize", plan.maximize.has_value());
  of_models("--minimize", plan.minimize.has_value());
  of_models("--pareto", plan.pareto);
  of_models("--emit", plan.emit.has_value());
  of_models("--timeout", plan.timeout.has_value());
  of_models("--space", plan.space.has_value());
  of_models("--vary", !plan.vary.empty());
  of_models("--global-batch", plan.global_batch.has_value());
}

// The sizes of a chain file are plain numbers, so that a plain number is taken here, too: it counts what they count.
std::optional<Bytes> budget_of(const PlanWords& plan, Diagnostics& diagnostics) {
  if (!plan.budget) {
    if (!plan.minimum) {
      diagnostics.add({"--budget", 0, 0, {}, "is missing", "or --minimum: the smallest that has a plan"});
    }
    return std::nullopt;
  }
  const std::string& text = *plan.budget;
  const bool plain = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  std::optional<Bytes> budget;
  if (plain) {
    if (const auto number = whole_number("--budget", text, diagnostics)) budget = Bytes(*number);
  } else {
    budget = labelled_size("--budget", text, diagnostics);
  }
  // More than any chain can hold is as good as the most that one may hold.
  return budget ? std::optional(std::min(*budget, Bytes(2 * kMostChainBytes))) : std::nullopt;
}

std::string format_of(const PlanWords& plan, Diagnostics& diagnostics) {
  const Setting<std::string>& format = plan.said.options.format;
  std::string text = format.value_or("table");
  constexpr std::array<std::string_view, 4> kFormats = {"table", "json", "csv", "md"};
  if (std::find(kFormats.begin(), kFormats.end(), text) == kFormats.end()) {
    diagnostics.add(format.place.says(formatted("no format \"{}\"", text), "formats are table, json, csv, md"));
  }
  return text;
}

int plan_for(const Chain& chain, const PlanWords& said) {
  Diagnostics diagnostics;
  refuse_what_means_nothing(said, diagnostics);
  const std::optional<Bytes> budget = budget_of(said, diagnostics);
  const std::string format = format_of(said, diagnostics);
  diagnostics.throw_if_any();
  Output output(said.said.options.out.value_or(""));
  const ChainPlan plan = plan_chain(chain, {said.method.value_or("flat"), budget});
  if (chain.times_rounded) {
    say(formatted("{}: note: the times have more digits than fit together; they are rounded to 1e{}\n", chain.name,
                  -chain.digits));
  }
  if (format == "json") {
    output.add(chain_plan_json(plan, chain));
  } else if (format == "csv") {
    output.add(chain_plan_csv(plan, chain));
  } else if (format == "md") {
    output.add(chain_plan_markdown(plan, chain));
  } else {
    output.add(chain_report(plan, chain, output.colour()));
  }
  output.finish();
  return plan.feasible ? kDone : kNoPlanFits;
}

}  // namespace

int plan_command(const Words& words) {
  const PlanWords said = parse_plan(words);
  ModelFiles files = locate_model(said.said.model);
  if (files.kind == ModelFiles::Kind::Chain) return plan_for(read_chain(files.document, files.name), said);
  return plan_model(said);
}

}  // namespace dsplan
