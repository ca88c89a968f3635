// The words of `dsplan plan`, for a chain and for a model.

#include <algorithm>
#include <array>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/emitting/emit.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/report_plan.h"
#include "cli/saved_plan.h"
#include "core/format.h"
#include "io/locate.h"
#include "io/plan_inputs.h"
#include "io/text.h"
#include "model/families.h"
#include "model/with_layers.h"
#include "planner/plan/recompute/plan_chain.h"
#include "planner/plan/search.h"
#include "planner/resolve/resolve.h"
#include "report/search_report.h"

namespace dsplan {

struct PlanWords {
  SimulateWords said;
  Words typed;
  std::optional<std::string> budget, method;
  std::optional<std::string> maximize, minimize, emit, timeout, space, global_batch;
  std::vector<std::string> vary;
  bool minimum = false, pareto = false;
};

// `dsplan plan MODEL`: the search. Exit codes: 0 a plan, 5 none fits, 130 interrupted before there was one.
[[nodiscard]] int plan_model(const PlanWords& words);

// `dsplan plan MODEL`: from words to a search, and from its answer to what is printed.

namespace {

Place said_at(const char* option) { return {option, 0, 0, {}}; }

Objective objective_of(const PlanWords& words, Diagnostics& faults) {
  if (words.maximize && words.minimize) {
    faults.add(said_at("--minimize").says("stands beside --maximize", "a search has one objective"));
  }
  if (words.minimize) {
    if (*words.minimize == "gpus") return Objective::Gpus;
    faults.add(said_at("--minimize").says(formatted("cannot minimize \"{}\"", *words.minimize), "it is gpus"));
  }
  if (!words.maximize) return Objective::TokensPerSecond;
  for (const Objective one : {Objective::TokensPerSecond, Objective::MicroBatch, Objective::Seq, Objective::Layers}) {
    if (*words.maximize == name(one)) return one;
  }
  faults.add(said_at("--maximize")
                 .says(formatted("cannot maximize \"{}\"", *words.maximize),
                       "it is one of tokens_per_second, micro_batch, seq, layers"));
  return Objective::TokensPerSecond;
}

// An option that pins what the objective is to find. Files may say what they say today.
void refuse_what_is_sought(const PlanWords& words, Objective objective, Diagnostics& faults) {
  const auto refuse = [&](const auto& setting) {
    if (setting.given()) faults.add(setting.place.says("is what --maximize seeks", "say one of them"));
  };
  if (objective == Objective::MicroBatch) refuse(words.said.options.micro_batch);
  if (objective == Objective::Seq) refuse(words.said.options.seq);
}

// "zero_stage=2,3"
void add_varied(const std::string& text, ListedSpace& space, Diagnostics& faults) {
  const Place place = said_at("--vary");
  const std::size_t equals = text.find('=');
  const std::string_view key = std::string_view(text).substr(0, equals);
  const std::optional<Axis> axis = axis_named(key);
  if (!axis || equals == std::string::npos) {
    faults.add(place.says(formatted("\"{}\" is no AXIS=V1,V2", text),
                          axis ? "values come after \"=\"" : did_you_mean(nearest(key, axis_names()))));
    return;
  }
  ListedAxis listed{*axis, {}, place};
  std::size_t at = equals + 1;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) listed.values.push_back({text.substr(at, comma - at), place});
    at = comma + 1;
  }
  space.axes.push_back(std::move(listed));
}

ListedSpace listed_by(const PlanWords& words, Diagnostics& faults) {
  ListedSpace space;
  if (words.space) attempt(faults, [&] { space = read_space(read_document(*words.space)); });
  for (const std::string& text : words.vary) add_varied(text, space, faults);
  if (!words.global_batch) return space;
  const auto rows = whole_number("--global-batch", *words.global_batch, faults);
  if (rows && *rows < 1) faults.add(said_at("--global-batch").says("must be at least 1"));
  if (rows && *rows >= 1) space.global_batch = {*rows, said_at("--global-batch")};
  return space;
}

// A budget of the process is a capacity of which the rest is reserved: the verdict then holds the process to it.
void apply_budget(Bytes budget, Inputs& inputs) {
  Request& request = inputs.request;
  const Place place = said_at("--budget");
  std::optional<Bytes> capacity;
  if (request.capacity.given()) {
    capacity = *request.capacity;
  } else if (inputs.hardware) {
    capacity = inputs.hardware->capacity;
  }
  if (!capacity) {
    request.capacity = {budget, place};
    return;
  }
  if (budget >= *capacity) {
    if (budget > *capacity) say(formatted("--budget: {} is more than the device has\n", human(budget)));
    return;
  }
  const Bytes kept = *capacity - budget;
  if (kept > request.reserve.value_or(Bytes(0))) request.reserve = {kept, place};
}

void refuse_what_a_model_has_not(const PlanWords& words, Diagnostics& faults) {
  if (words.method) faults.add(said_at("--method").says("is of chains; --checkpoint pins a model's recompute plan"));
  if (words.minimum) faults.add(said_at("--minimum").says("is of chains", "--maximize and --minimize are of models"));
  if (!words.said.explain.empty()) faults.add(said_at("--explain").says("is of simulate"));
  constexpr std::array<std::string_view, 6> kEmitted = {"deepspeed", "accelerate", "torchtitan",
                                                        "plan",      "launch",     "checkpointing"};
  if (words.emit && std::find(kEmitted.begin(), kEmitted.end(), *words.emit) == kEmitted.end()) {
    faults.add(said_at("--emit").says(formatted("nothing is called \"{}\"", *words.emit),
                                      formatted("it is one of {}", joined(kEmitted, ", "))));
  }
}

// fully_shard as torchtitan calls it, where nobody says otherwise.
void shard_as_torchtitan(Request& request) {
  const Place place = said_at("--emit");
  const auto usually = [&](Setting<std::string>& setting, std::string value) {
    if (!setting.mentioned()) setting = {std::move(value), place};
  };
  usually(request.fsdp.wrap, "ends");
  usually(request.fsdp.gradient_sync, "every");
  usually(request.fsdp.param_dtype, request.dtype.value_or("bf16"));
  usually(request.fsdp.reduce_dtype, "fp32");
  usually(request.model_init, "meta");
  usually(request.model_code, "torchtitan");
  if (!request.max_grad_norm.mentioned()) request.max_grad_norm = {1.0, place};
  request.dtype = {"fp32", place};
}

// A file of one framework is of no other one's plan.
void pin_by_emitted(const PlanWords& words, const ListedSpace& space, Request& request) {
  const bool listed = std::any_of(space.axes.begin(), space.axes.end(),
                                  [](const ListedAxis& one) { return one.axis == Axis::ZeroStage; });
  if (!words.emit || listed || request.runtime.mentioned() || request.zero_stage.mentioned()) return;
  if (*words.emit == "deepspeed") request.runtime = {"deepspeed", said_at("--emit")};
  if (*words.emit == "accelerate" || *words.emit == "torchtitan") request.runtime = {"fsdp2", said_at("--emit")};
  if (*words.emit == "torchtitan") shard_as_torchtitan(request);
}

// Called by the search: what it was, with another number of layers.
std::function<ModelSpec(std::int64_t)> layers_of(const std::string& model, const Request& request) {
  return [model, &request](std::int64_t layers) {
    const ModelFiles files = locate_model(model);
    return model_of(build_model(with_layers(files.document, layers), files.name), request);
  };
}

std::string printed(const PlanAnswer& answer, const PlanWords& words, const std::string& format, double seconds,
                    bool colour) {
  if (format == "html") {
    const std::string screen = plan_screen(answer, words.said.model, seconds, false);
    return plans_page(answer, screen.substr(0, screen.find("\n  ")), command_line("plan", words.typed));
  }
  if (format == "table" && !words.said.verbose) return plan_screen(answer, words.said.model, seconds, colour);
  if (format == "json") return plan_answer_json(answer);
  if (format == "csv") return plan_answer_csv(answer);
  if (format == "md") return plan_answer_markdown(answer);
  return report_plan(answer, colour);
}

std::string format_of(const Request& request, Diagnostics& faults) {
  const std::string format = request.format.value_or("table");
  for (const char* known : {"table", "json", "csv", "md", "html"}) {
    if (format == known) return format;
  }
  faults.add(
      request.format.place.says(formatted("no format \"{}\"", format), "formats are table, json, csv, md, html"));
  return format;
}

PlanAnswer searched(const SearchInputs& inputs, const ListedSpace& space, SearchOptions& options,
                    PlanProgress& progress) {
  options.go_on = [&progress](const SearchProgress& seen) { return progress.show(seen) && !Interrupt::asked(); };
  const Interrupt interrupt;
  PlanAnswer answer = search(inputs, space, options);
  progress.clear();
  return answer;
}

}  // namespace

int plan_model(const PlanWords& words) {
  Diagnostics faults;
  refuse_what_a_model_has_not(words, faults);
  SearchOptions options;
  options.objective = objective_of(words, faults);
  refuse_what_is_sought(words, options.objective, faults);
  options.front = words.pareto;
  const ListedSpace space = listed_by(words, faults);
  std::optional<Bytes> budget;
  if (words.budget) budget = labelled_size("--budget", *words.budget, faults);
  std::optional<std::int64_t> seconds;
  if (words.timeout) seconds = whole_number("--timeout", *words.timeout, faults);
  const std::string format = format_of(words.said.options, faults);
  options.whole = !words.emit && (format != "table" || words.said.verbose);  // The screen shows neither.
  Sources sources;
  Inputs inputs;
  attempt(faults, [&] {
    sources = read_sources({}, words.said, {});
    inputs = gather(sources, words.said);
  });
  if (!faults.any() && !inputs.hardware) {
    faults.add(
        said_at("--hardware")
            .says("is missing: a search compares times, which need the device's rates", "name it, or a --cluster"));
  }
  faults.throw_if_any();
  Output output(inputs.request.out.value_or(""));
  if (budget) apply_budget(*budget, inputs);
  pin_by_emitted(words, space, inputs.request);
  if (inputs.request.model_code.value_or("") == "torchtitan" && inputs.model.code != ModelCode::Torchtitan) {
    inputs.model = model_of(std::move(inputs.model), inputs.request);
  }
  options.with_layers = layers_of(sources[SourceKind::Model]->name, inputs.request);
  const SearchInputs asked = search_inputs(inputs);
  PlanProgress progress(seconds);
  PlanAnswer answer = searched(asked, space, options, progress);
  answer.budget = budget;
  if (!answer.chosen && answer.complete) answer.offers = other_ways_of(inputs, answer.space);
  if (words.emit) {
    say(plan_screen(answer, words.said.model, progress.seconds(), false));
    if (answer.job) {
      output.add(emitted(*words.emit, plan_parts(sources, "dsplan plan"), inputs.model, *answer.job, "--emit"));
    }
  } else {
    output.add(printed(answer, words, format, progress.seconds(), output.colour(words.said.color)));
  }
  if (!words.emit || answer.job) output.finish();
  if (answer.chosen && answer.chosen->fate == Fate::FitsWithRetries) {
    say("warning: it fits only after the allocator has given cached memory back, which costs time\n");
  } else if (answer.chosen && answer.chosen->fate == Fate::Tight) {
    say("warning: every plan that fits has less to spare than the prediction may be off\n");
  }
  if (Interrupt::asked()) return kInterrupted;
  return answer.chosen ? kDone : kNoPlanFits;
}

// `dsplan plan CHAIN`: which activations of a chain to keep.

namespace {

constexpr const char* kPlanFooter =
    "A model (docs/planning.md) takes all options of simulate, which pin what they\n"
    "say, and --space, --vary, --global-batch, --maximize, --minimize, --pareto,\n"
    "--timeout, --emit. A chain (docs/recompute-plans.md) takes --budget, --method,\n"
    "--minimum, --format and --out. Methods: flat, flat:N (slots), selective, and\n"
    "the rules\n"
    "none, full, every, segments, nth, sqrt, chen, megatron-block, megatron-uniform;\n"
    "those with a number take it after a colon, or the best one within the budget.\n"
    "Example: dsplan plan llama-3-8b --gpus 8 --hardware h100-sxm --seq 4096\n"
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
    line.option("--emit", "WHAT",
                "Of the chosen plan: deepspeed, accelerate, torchtitan, plan, launch or checkpointing", plan.emit);
    line.option("--timeout", "SECONDS", "Then the best plan so far", plan.timeout);
    line.option("--method", "NAME", "Of a chain: how to choose; default: flat", plan.method);
    line.flag("--minimum", "Of a chain: the smallest budget that has a plan, and that plan", plan.minimum);
  };
  extras.without = {"--phase", "--rank"};
  plan.said = parse_simulate("plan", words, extras);
  return plan;
}

void refuse_what_means_nothing(const PlanWords& plan, Diagnostics& diagnostics) {
  constexpr std::array<std::string_view, 2> kMeaningful = {"--format", "--out"};
  refuse_all_but(kMeaningful, plan.said.options, "a chain", diagnostics);
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
    output.add(chain_report(plan, chain, output.colour(said.said.color)));
  }
  output.finish();
  return plan.feasible ? kDone : kNoPlanFits;
}

}  // namespace

int plan_command(const Words& words) {
  PlanWords said = parse_plan(words);
  said.typed = words;
  if (said.said.model.empty()) return plan_model(said);  // A training file or a launch line names it.
  ModelFiles files = locate_model(said.said.model);
  if (files.kind == ModelFiles::Kind::Chain) return plan_for(read_chain(files.document, files.name), said);
  return plan_model(said);
}

}  // namespace dsplan
