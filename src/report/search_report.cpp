#include "report/search_report.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/format.h"
#include "io/fields.h"
#include "io/json_text.h"
#include "io/text.h"
#include "report/cells.h"
#include "report/prediction_file.h"

namespace dsplan {
namespace {

constexpr const char* kSearchSchema = "dsplan.search/1";

// Numbers as numbers, words as words.
Json setting(const std::string& text) {
  std::int64_t number = 0;
  const auto [at, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc() && at == text.data() + text.size() ? Json(number) : Json(text);
}

// Of which type an axis's values are, in the words of a schema.
Json type_of(Axis axis) {
  switch (axis) {
    case Axis::ZeroStage: return Json::array({"integer", "string"});  // Or fsdp2, hsdp.
    case Axis::Offload:
    case Axis::Loss:
    case Axis::Checkpoint: return "string";
    default: return "integer";
  }
}

void describe_settings(Fields& fields, PlanRow& row) {
  for (std::size_t i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    fields.other(name(axis), setting(row.settings[i]), {{"type", type_of(axis)}});
  }
  fields("grad_accum", row.grad_accum);
  fields("seq", row.seq);
}

void describe(Fields& fields, StepTime& time) {
  fields("total_s", time.total);
  fields("low_s", time.low);
  fields("high_s", time.high);
  fields("tokens_per_second", time.tokens_per_second);
  fields("mfu", time.mfu);
  fields("hfu", time.hfu);
  std::string kind = time.calibrated ? "calibrated" : "estimated";
  fields.word("kind", kind, {"estimated", "calibrated"});
}

void describe(Fields& fields, PlanRow& row) {
  fields.object("settings", {"a plan's settings"}, [&] { describe_settings(fields, row); });
  fields("world_size", row.world);
  fields("dp", row.dp);
  fields.named("fate", row.fate, all_up_to(Fate::Slower));
  fields("reason", row.reason);
  fields.object("time", row.time, {"a step's time"}, [&](StepTime& time) { describe(fields, time); });
  fields("least_process_bytes", row.least);
  fields("process_bytes", row.process);
  fields("missing_bytes", row.missing);
  fields("host_bytes_per_node", row.host);
  fields("nvme_bytes_per_node", row.nvme);
  fields("wire_bytes_per_step", row.wire);
}

void describe(Fields& fields, PlanChange& change) {
  std::vector<std::string> axes;
  for (const Axis axis : change.axes) axes.emplace_back(name(axis));
  fields.texts("changed", axes, "an axis");
  fields("speed", change.speed);
  describe(fields, change.row);
}

template <class T>
void describe_all(Fields& fields, const Key& key, std::vector<T>& rows) {
  fields.list(key, rows, {"a plan"}, [&](T& row) { describe(fields, row); });
}

void describe_one(Fields& fields, const Key& key, std::optional<PlanRow>& row) {
  fields.object(key, row, {"a plan"}, [&](PlanRow& plan) { describe(fields, plan); });
}

void describe(Fields& fields, SearchSpace& space) {
  for (std::size_t i = 0; i < kAxes; ++i) {
    AxisValues& axis = space.axes[i];
    fields.object(name(static_cast<Axis>(i)), {"an axis"}, [&] {
      Json values = Json::array();
      for (const std::string& text : axis.values) values.push_back(setting(text));
      fields.other("values", values, {{"type", "array"}, {"items", {{"type", Json::array({"string", "integer"})}}}});
      fields.named("origin", axis.origin, {Origin::Given, Origin::Derived, Origin::Assumed});
      fields("reason", axis.reason);
    });
  }
  fields("global_batch", space.global_batch);
}

void describe_counts(Fields& fields, PlanAnswer& answer) {
  fields("candidates", answer.counts.candidates);
  fields("impossible", answer.counts.refused);
  fields("too_large_by_bound", answer.counts.bounded);
  fields("slower", answer.counts.slower);
  fields("simulated", answer.counts.simulated);
  fields.list("why_impossible", answer.refusals, {"a reason"}, [&](RefusalCount& one) {
    fields("why", one.why);
    fields("count", one.count);
  });
}

void describe(Fields& fields, FittingChange& way) {
  fields("options", way.options);
  fields.named("verdict", way.verdict, all_up_to(Verdict::Unknown));
  fields("process_bytes", way.process);
  fields("note", way.note);
}

void describe(Fields& fields, Advice& one) {
  fields("rule", one.rule);
  fields("key", one.key);
  fields("costs_bytes", one.costs);
  fields("text", one.text);
}

void describe_answer(Fields& fields, PlanAnswer& answer, const Json& prediction) {
  fields.constant("schema", kSearchSchema);
  fields("model", answer.model);
  fields.named("objective", answer.objective, all_up_to(Objective::Layers));
  fields("found", answer.found);
  fields.derived("feasible", answer.chosen.has_value());
  fields("complete", answer.complete);
  fields("budget_bytes", answer.budget);
  fields("limit_bytes", answer.limit);
  fields.object("space", {"a space"}, [&] { describe(fields, answer.space); });
  fields.object("counts", {"counts"}, [&] { describe_counts(fields, answer); });
  describe_one(fields, "chosen", answer.chosen);
  fields.other("prediction", prediction, {{"$ref", kPredictionSchema}});
  describe_one(fields, "tight", answer.tight);
  describe_all(fields, "next", answer.next);
  describe_all(fields, "neighbours", answer.neighbours);
  describe_all(fields, "front", answer.front);
  describe_one(fields, "nearest", answer.nearest);
  fields("states", answer.states);
  describe_all(fields, "remedies", answer.remedies);
  fields.list("other_ways", answer.offers, {"another way"}, [&](FittingChange& way) { describe(fields, way); });
  fields.texts("assumed", answer.assumed, "an assumption");
  fields.texts("not_searched", answer.not_searched, "what is left out");
  fields.list("advice", answer.advice, {"advice"}, [&](Advice& one) { describe(fields, one); });
}

// The rows that a table of all named plans has, with what each is.
struct Named {
  std::string what;
  const PlanRow* row;
  double speed = 0;
};

std::vector<Named> named_rows(const PlanAnswer& answer) {
  std::vector<Named> rows;
  const double base = answer.chosen ? answer.chosen->tokens_per_second() : 0;
  const auto speed = [base](const PlanRow& row) { return base > 0 ? row.tokens_per_second() / base : 0; };
  if (answer.chosen) rows.push_back({"chosen", &*answer.chosen, 1});
  if (answer.nearest) rows.push_back({"nearest", &*answer.nearest, 1});
  for (const PlanRow& row : answer.front) rows.push_back({"front", &row, speed(row)});
  if (answer.tight) rows.push_back({"tight", &*answer.tight, speed(*answer.tight)});
  for (const PlanRow& row : answer.next) rows.push_back({"next", &row, speed(row)});
  for (const PlanChange& change : answer.neighbours) rows.push_back({"neighbour", &change.row, change.speed});
  for (const PlanChange& change : answer.remedies) rows.push_back({"remedy", &change.row, change.speed});
  return rows;
}

std::vector<std::string> columns() {
  std::vector<std::string> names = {"what"};
  for (std::size_t i = 0; i < kAxes; ++i) names.emplace_back(name(static_cast<Axis>(i)));
  for (const char* more : {"grad_accum", "seq", "fate", "tokens_per_second", "step_s", "speed", "least_process_bytes",
                           "process_bytes", "missing_bytes", "wire_bytes_per_step", "reason"}) {
    names.emplace_back(more);
  }
  return names;
}

std::vector<std::string> cells(const Named& named) {
  const PlanRow& row = *named.row;
  std::vector<std::string> made = {named.what};
  made.insert(made.end(), row.settings.begin(), row.settings.end());
  const auto text = [](const std::optional<Bytes>& value) {
    return value ? std::to_string(value->value()) : std::string();
  };
  made.push_back(std::to_string(row.grad_accum));
  made.push_back(std::to_string(row.seq));
  made.emplace_back(name(row.fate));
  made.push_back(row.time ? formatted("{:.1f}", row.time->tokens_per_second) : "");
  made.push_back(row.time ? formatted("{:.4g}", row.time->total) : "");
  made.push_back(formatted("{:.4f}", named.speed));
  made.push_back(text(row.least));
  made.push_back(text(row.process));
  made.push_back(text(row.missing));
  made.push_back(text(row.wire));
  made.push_back(row.reason);
  return made;
}

}  // namespace

std::string plan_answer_json(const PlanAnswer& answer) {
  Json prediction;
  if (answer.prediction && answer.job) {
    prediction = parse_json({}, prediction_json(*answer.prediction, *answer.job)).root;
  }
  return written([&](Fields& fields) { describe_answer(fields, described(answer), prediction); });
}

std::string plan_answer_schema() {
  return schema_of(kSearchSchema,
                   "What `dsplan plan MODEL --format json` prints (docs/planning.md). \"prediction\" is of the schema "
                   "dsplan.prediction/1. All sizes are bytes of one rank.",
                   [](Fields& fields) {
                     PlanAnswer any;
                     describe_answer(fields, any, nullptr);
                   });
}

std::string plan_answer_csv(const PlanAnswer& answer) {
  std::string text = formatted("{}\n", joined(columns(), ","));
  for (const Named& named : named_rows(answer)) {
    std::vector<std::string> row = cells(named);
    std::transform(row.begin(), row.end(), row.begin(), detail::quoted);
    text += formatted("{}\n", joined(row, ","));
  }
  return text;
}

std::string plan_answer_markdown(const PlanAnswer& answer) {
  const std::vector<std::string> names = columns();
  std::string text = formatted("| {} |\n|{}\n", joined(names, " | "), [&names] {
    std::string rule;
    for (std::size_t i = 0; i < names.size(); ++i) rule += "---|";
    return rule;
  }());
  for (const Named& named : named_rows(answer)) {
    std::vector<std::string> row = cells(named);
    std::transform(row.begin(), row.end(), row.begin(), [](const std::string& one) { return detail::cell(one); });
    text += formatted("| {} |\n", joined(row, " | "));
  }
  return text;
}

namespace {

// Whole times without a point, as the file has them.
Json time_value(const Chain& chain, Ticks ticks) {
  const double time = chain.time(ticks);
  const auto whole = static_cast<std::int64_t>(time);
  return static_cast<double>(whole) == time ? Json(whole) : Json(time);
}

Json time_value(const Chain& chain, const std::optional<Ticks>& ticks) {
  return ticks ? time_value(chain, *ticks) : Json(nullptr);
}

const std::string& option_name(const Chain& chain, std::int32_t stage, std::int32_t option) {
  return chain.stages[static_cast<std::size_t>(stage - 1)].options[static_cast<std::size_t>(option)].name;
}

constexpr const char* kChainSchema = "dsplan.chain/1";

Json segments_value(const ChainPlan& plan, const Chain& chain) {
  Json list = Json::array();
  for (const ChainSegment& segment : plan.segments) {
    Json row = Json::array({segment.first, segment.last, name(segment.mode)});
    if (segment.option != kNoOption) row.push_back(option_name(chain, segment.first, segment.option));
    list.push_back(std::move(row));
  }
  return list;
}

Json operations_value(const ChainPlan& plan, const Chain& chain) {
  Json list = Json::array();
  for (const ChainOperation& operation : plan.operations) {
    Json row = Json::array({name(operation.step), operation.stage});
    if (operation.option != kNoOption) row.push_back(option_name(chain, operation.stage, operation.option));
    list.push_back(std::move(row));
  }
  return list;
}

std::optional<double> gap_of(const ChainPlan& plan) {
  if (!plan.time || !plan.lower_bound || *plan.lower_bound <= Ticks(0)) return std::nullopt;
  return static_cast<double>((*plan.time - *plan.lower_bound).value()) / static_cast<double>(plan.lower_bound->value());
}

void describe_figures(Fields& fields, ChainPlan& plan, const Chain& chain) {
  const auto time = [&](const char* key, const std::optional<Ticks>& ticks) {
    fields.other(key, time_value(chain, ticks), {{"type", Json::array({"number", "null"})}});
  };
  fields.constant("schema", kChainSchema);
  fields("feasible", plan.feasible);
  fields("method", plan.method);
  time("time", plan.time);
  time("time_without_recompute", plan.time_without_recompute);
  time("lower_bound", plan.lower_bound);
  fields.derived("gap", gap_of(plan));
  fields.derived("optimal", plan.feasible ? std::optional(plan.optimal) : std::nullopt);
  time("method_bound", plan.method_bound);
  fields("budget_bytes", plan.budget);
  fields("peak_bytes", plan.peak);
  fields("minimum_bytes", plan.minimum);
  fields.object("memory_bound", {"a bound"}, [&] {
    fields("bytes", plan.memory_bound);
    fields("stage", plan.culprit);
  });
  fields.derived("times_rounded", chain.times_rounded);
  fields.texts("fitting", plan.fitting, "a method");
}

// The figures as JSON without the two lists.
std::string figures_text(const ChainPlan& plan, const Chain& chain) {
  return written([&](Fields& fields) { describe_figures(fields, described(plan), chain); });
}

Value figures(const ChainPlan& plan, const Chain& chain) { return parse_json({}, figures_text(plan, chain)).root; }

std::string in_words(const Value& value) {
  if (value.is(Value::Kind::String)) return value.string;
  if (!value.is(Value::Kind::Array)) return json_text(value);
  std::string text;
  for (const Value& item : value.items) text += (text.empty() ? "" : " ") + in_words(item);
  return text;
}

std::string field(const Value& value) {
  return value.is(Value::Kind::Null) ? std::string() : detail::quoted(in_words(value));
}

}  // namespace

std::string chain_plan_json(const ChainPlan& plan, const Chain& chain) {
  const std::string head = figures_text(plan, chain);
  // One segment or operation to a line: a chain has thousands.
  const auto lines = [](const Json& list) {
    std::string text;
    for (const Value& row : list.value().items) {
      text += formatted("{}\n    {}", text.empty() ? "" : ",", json_text(row));
    }
    return text.empty() ? std::string("[]") : formatted("[{}\n  ]", text);
  };
  constexpr std::string_view kEnd = "\n}\n";
  return formatted("{},\n  \"segments\": {},\n  \"operations\": {}{}", head.substr(0, head.size() - kEnd.size()),
                   lines(segments_value(plan, chain)), lines(operations_value(plan, chain)), kEnd);
}

std::string chain_plan_schema() {
  return schema_of(
      kChainSchema,
      "What `dsplan plan CHAIN --format json` prints (docs/recompute-plans.md). A segment is [first, last, "
      "mode] and may name an option, an operation [step, stage] likewise; stages count from 1. Times are in "
      "the chain's own unit, sizes bytes.",
      [](Fields& fields) {
        const Json rows = {{"type", "array"},
                           {"items", {{"type", "array"}, {"items", {{"type", Json::array({"integer", "string"})}}}}}};
        ChainPlan any;
        describe_figures(fields, any, Chain());
        fields.other("segments", nullptr, rows);
        fields.other("operations", nullptr, rows);
      });
}

std::string chain_plan_csv(const ChainPlan& plan, const Chain& chain) {
  std::string text = "path,value\n";
  for (const Member& member : figures(plan, chain).members) {
    if (!member.value.is(Value::Kind::Object)) text += formatted("{},{}\n", member.key, field(member.value));
    for (const Member& part : member.value.members) {
      text += formatted("{}.{},{}\n", member.key, part.key, field(part.value));
    }
  }
  const auto rows = [&text](std::string_view list, const Json& items) {
    std::size_t index = 0;
    for (const Value& row : items.value().items)
      text += formatted("{}.{},{}\n", list, ++index, detail::quoted(in_words(row)));
  };
  rows("segments", segments_value(plan, chain));
  rows("operations", operations_value(plan, chain));
  return text;
}

std::string chain_plan_markdown(const ChainPlan& plan, const Chain& chain) {
  std::string text = formatted("## {}\n\n| figure | value |\n|:--|--:|\n", detail::cell(chain.name));
  const Value value = figures(plan, chain);
  for (const char* key : {"method", "feasible", "time", "time_without_recompute", "lower_bound", "gap", "budget_bytes",
                          "peak_bytes", "minimum_bytes"}) {
    const Value& item = *value.find(key);
    text +=
        formatted("| {} | {} |\n", detail::cell(key), item.is(Value::Kind::Null) ? "-" : detail::cell(in_words(item)));
  }
  if (plan.segments.empty()) return text;
  text += "\n| stages | mode |\n|:--|:--|\n";
  for (const ChainSegment& segment : plan.segments) {
    const bool option = segment.option != kNoOption;
    text += formatted("| {} to {} | {}{}{} |\n", segment.first, segment.last, detail::cell(name(segment.mode)),
                      option ? " " : "",
                      option ? detail::cell(option_name(chain, segment.first, segment.option)) : std::string());
  }
  return text;
}

}  // namespace dsplan
