#include "report/search_report.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/format.h"
#include "io/json_text.h"
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

}  // namespace dsplan
