// `dsplan plan`: which activations of a chain to keep. The search over configurations of a model is refused by name.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_chain.h"
#include "core/error.h"
#include "io/chain.h"
#include "io/locate.h"
#include "io/write_chain.h"
#include "planner/segmentation/plan_chain.h"

namespace dsplan {
namespace {

constexpr const char* kFooter =
    "A chain (docs/segmentation.md) takes --budget, --method, --minimum, --format and\n"
    "--out. Methods: flat, flat:N (slots), selective, uniform, rotor, and the rules\n"
    "none, full, every, segments, nth, sqrt, chen, megatron-block, megatron-uniform;\n"
    "those with a number take it after a colon, or the best one within the budget.\n"
    "Exit codes: 0 a plan, 2 refused, 5 no plan fits.";

struct PlanWords {
  SimulateWords said;
  std::optional<std::string> budget, method;
  std::optional<std::string> maximize, minimize, emit, timeout;
  bool minimum = false, pareto = false;
};

PlanWords parse_plan(const Words& words) {
  PlanWords plan;
  CommandExtras extras;
  extras.description = "Finds which activations to keep and which to compute again.";
  extras.footer = kFooter;
  extras.add = [&plan](CommandLine& line) {
    line.option("--budget", "SIZE", "Memory: 70GiB; of a chain also plain bytes", plan.budget);
    line.option("--method", "NAME", "How to choose; default: flat", plan.method);
    line.flag("--minimum", "The smallest budget that has a plan, and that plan", plan.minimum);
    line.option("--maximize", "WHAT", "Objective (not modelled yet)", plan.maximize);
    line.option("--minimize", "WHAT", "Objective (not modelled yet)", plan.minimize);
    line.flag("--pareto", "All trade-offs (not modelled yet)", plan.pareto);
    line.option("--emit", "WHAT", "deepspeed (not modelled yet)", plan.emit);
    line.option("--timeout", "SECONDS", "Limit of the search (not modelled yet)", plan.timeout);
  };
  plan.said = parse_simulate("plan", words, extras);
  return plan;
}

void refuse_what_means_nothing(const PlanWords& plan, Diagnostics& diagnostics) {
  constexpr std::array<std::string_view, 2> kMeaningful = {"--format", "--out"};
  const Request nothing;
  for_each_setting(plan.said.options, nothing, [&](const auto& setting, const auto&) {
    if (!setting.given()) return;
    if (std::find(kMeaningful.begin(), kMeaningful.end(), setting.place.text()) != kMeaningful.end()) return;
    diagnostics.add(setting.place.says("has no meaning for a chain"));
  });
  if (!plan.said.launch.empty()) diagnostics.add({"--", 0, 0, {}, "a launch line has no meaning for a chain", {}});
  if (!plan.said.explain.empty()) diagnostics.add({"--explain", 0, 0, {}, "has no meaning for a chain", {}});
  const auto later = [&diagnostics](const char* option, bool given) {
    if (given) diagnostics.add({option, 0, 0, {}, "is not modelled yet for a chain", {}});
  };
  later("--maximize", plan.maximize.has_value());
  later("--minimize", plan.minimize.has_value());
  later("--pareto", plan.pareto);
  later("--emit", plan.emit.has_value());
  later("--timeout", plan.timeout.has_value());
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
    diagnostics.add(format.place.says(fmt::format("no format \"{}\"", text), "formats are table, json, csv, md"));
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
    say(fmt::format("{}: note: the times have more digits than fit together; they are rounded to 1e{}\n", chain.name,
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
  throw Refusal("dsplan plan", fmt::format("searching the configurations of {} is not modelled yet", files.name),
                "chain files are (docs/segmentation.md)");
}

}  // namespace dsplan
