#include "report/search_report.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/format.h"
#include "io/json_text.h"
#include "io/own_file.h"
#include "io/text.h"
#include "report/cells.h"
#include "report/prediction_file.h"

namespace dsplan {
namespace {

// Numbers as numbers, words as words.
Json setting(const std::string& text) {
  std::int64_t number = 0;
  const auto [at, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc() && at == text.data() + text.size() ? Json(number) : Json(text);
}

Json settings(const PlanRow& row) {
  Json value = Json::object();
  for (std::size_t i = 0; i < kAxes; ++i) value.set(name(static_cast<Axis>(i)), setting(row.settings[i]));
  value.set("grad_accum", row.grad_accum);
  value.set("seq", row.seq);
  return value;
}

Json time_of(const std::optional<StepTime>& time) {
  if (!time) return nullptr;
  return {{"total_s", time->total},
          {"low_s", time->low},
          {"high_s", time->high},
          {"tokens_per_second", time->tokens_per_second},
          {"mfu", time->mfu},
          {"hfu", time->hfu},
          {"kind", time->calibrated ? "calibrated" : "estimated"}};
}

Json row_value(const PlanRow& row) {
  return {{"settings", settings(row)},
          {"world_size", row.world},
          {"dp", row.dp},
          {"fate", name(row.fate)},
          {"reason", row.reason},
          {"time", time_of(row.time)},
          {"least_process_bytes", row.least},
          {"process_bytes", row.process},
          {"missing_bytes", row.missing},
          {"host_bytes_per_node", row.host},
          {"nvme_bytes_per_node", row.nvme},
          {"wire_bytes_per_step", row.wire}};
}

Json rows_value(const std::vector<PlanRow>& rows) {
  Json value = Json::array();
  for (const PlanRow& row : rows) value.push_back(row_value(row));
  return value;
}

Json changes_value(const std::vector<PlanChange>& changes) {
  Json value = Json::array();
  for (const PlanChange& change : changes) {
    Json axes = Json::array();
    for (const Axis axis : change.axes) axes.push_back(name(axis));
    Json one = {{"changed", std::move(axes)}, {"speed", change.speed}};
    one.update(row_value(change.row));
    value.push_back(std::move(one));
  }
  return value;
}

Json space_value(const SearchSpace& space) {
  Json value = Json::object();
  for (std::size_t i = 0; i < kAxes; ++i) {
    const AxisValues& axis = space.axes[i];
    Json values = Json::array();
    for (const std::string& text : axis.values) values.push_back(setting(text));
    value.set(name(static_cast<Axis>(i)),
              {{"values", std::move(values)}, {"origin", name(axis.origin)}, {"reason", axis.reason}});
  }
  value.set("global_batch", space.global_batch);
  return value;
}

Json counts_value(const PlanAnswer& answer) {
  const SearchCounts& counts = answer.counts;
  Json why = Json::array();
  for (const RefusalCount& one : answer.refusals) why.push_back({{"why", one.why}, {"count", one.count}});
  return {{"candidates", counts.candidates}, {"impossible", counts.refused},  {"too_large_by_bound", counts.bounded},
          {"slower", counts.slower},         {"simulated", counts.simulated}, {"why_impossible", std::move(why)}};
}

Json ways_value(const std::vector<FittingChange>& ways) {
  Json value = Json::array();
  for (const FittingChange& way : ways) {
    value.push_back(
        {{"options", way.options}, {"verdict", name(way.verdict)}, {"process_bytes", way.process}, {"note", way.note}});
  }
  return value;
}

Json advice_value(const std::vector<Advice>& advice) {
  Json value = Json::array();
  for (const Advice& one : advice) {
    value.push_back({{"rule", one.rule}, {"key", one.key}, {"costs_bytes", one.costs}, {"text", one.text}});
  }
  return value;
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
  const Json value = {{"schema", "dsplan.search/1"},
                      {"model", answer.model},
                      {"objective", name(answer.objective)},
                      {"found", answer.found},
                      {"feasible", answer.chosen.has_value()},
                      {"complete", answer.complete},
                      {"budget_bytes", answer.budget},
                      {"limit_bytes", answer.limit},
                      {"space", space_value(answer.space)},
                      {"counts", counts_value(answer)},
                      {"chosen", answer.chosen ? row_value(*answer.chosen) : Json()},
                      {"prediction", std::move(prediction)},
                      {"next", rows_value(answer.next)},
                      {"neighbours", changes_value(answer.neighbours)},
                      {"front", rows_value(answer.front)},
                      {"nearest", answer.nearest ? row_value(*answer.nearest) : Json()},
                      {"states", answer.states},
                      {"remedies", changes_value(answer.remedies)},
                      {"other_ways", ways_value(answer.offers)},
                      {"assumed", answer.assumed},
                      {"not_searched", answer.not_searched},
                      {"advice", advice_value(answer.advice)}};
  return json_text(value, 2) + "\n";
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

Json figures(const ChainPlan& plan, const Chain& chain) {
  Json gap = nullptr;
  if (plan.time && plan.lower_bound && *plan.lower_bound > Ticks(0)) {
    gap =
        static_cast<double>((*plan.time - *plan.lower_bound).value()) / static_cast<double>(plan.lower_bound->value());
  }
  return {{"schema", "dsplan.chain/1"},
          {"feasible", plan.feasible},
          {"method", plan.method},
          {"time", time_value(chain, plan.time)},
          {"time_without_recompute", time_value(chain, plan.time_without_recompute)},
          {"lower_bound", time_value(chain, plan.lower_bound)},
          {"gap", gap},
          {"optimal", plan.feasible ? Json(plan.optimal) : Json(nullptr)},
          {"method_bound", time_value(chain, plan.method_bound)},
          {"budget_bytes", plan.budget.value()},
          {"peak_bytes", plan.peak},
          {"minimum_bytes", plan.minimum.value()},
          {"memory_bound", {{"bytes", plan.memory_bound.value()}, {"stage", plan.culprit}}},
          {"times_rounded", chain.times_rounded},
          {"fitting", plan.fitting}};
}

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
  Json value = figures(plan, chain);
  const std::string head = json_text(value, 2);
  // One segment or operation to a line: a chain has thousands.
  const auto lines = [](const Json& list) {
    std::string text;
    for (const Value& row : list.value().items) {
      text += formatted("{}\n    {}", text.empty() ? "" : ",", json_text(row));
    }
    return text.empty() ? std::string("[]") : formatted("[{}\n  ]", text);
  };
  return formatted("{},\n  \"segments\": {},\n  \"operations\": {}\n}}\n", head.substr(0, head.size() - 2),
                   lines(segments_value(plan, chain)), lines(operations_value(plan, chain)));
}

std::string chain_plan_csv(const ChainPlan& plan, const Chain& chain) {
  std::string text = "path,value\n";
  const Json value = figures(plan, chain);
  for (const Member& member : value.value().members) {
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
  const Json value = figures(plan, chain);
  for (const char* key : {"method", "feasible", "time", "time_without_recompute", "lower_bound", "gap", "budget_bytes",
                          "peak_bytes", "minimum_bytes"}) {
    const Value& item = *value.value().find(key);
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

std::string chain_json(const Chain& chain) {
  Json stages = Json::array();
  for (const ChainStage& stage : chain.stages) {
    Json row = {{"output", stage.output.value()},
                {"saved", stage.saved.value()},
                {"gradient", stage.gradient.value()},
                {"forward_time", time_value(chain, stage.forward_time)},
                {"backward_time", time_value(chain, stage.backward_time)},
                {"forward_temporary", stage.forward_temporary.value()},
                {"backward_temporary", stage.backward_temporary.value()}};
    if (stage.gathered > Bytes(0)) row.set("gathered", stage.gathered);
    if (stage.gather_time > Ticks(0)) row.set("gather_time", time_value(chain, stage.gather_time));
    Json options = Json::array();
    for (const ChainOption& option : stage.options) {
      options.push_back({{"name", option.name},
                         {"saved", option.saved.value()},
                         {"time", time_value(chain, option.time)},
                         {"forward_temporary", option.forward_temporary.value()},
                         {"backward_temporary", option.backward_temporary.value()}});
    }
    if (!stage.options.empty()) row.set("options", std::move(options));
    stages.push_back(std::move(row));
  }
  std::string text = formatted(
      "{{\n  \"dsplan\": {}, \"kind\": \"chain\", \"source\": {},\n  \"input_bytes\": {}, \"input_gradient\": {},\n"
      "  \"stages\": [",
      kFileVersion, json_text(Json(chain.source)), chain.input.value(), chain.input_gradient.value());
  const std::vector<Value>& rows = stages.value().items;
  for (std::size_t i = 0; i < rows.size(); ++i) text += formatted("{}\n    {}", i == 0 ? "" : ",", json_text(rows[i]));
  return text + "\n  ]\n}\n";
}

}  // namespace dsplan
