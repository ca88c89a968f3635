#include "report/write_plan.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/format.h"
#include "report/write_cells.h"
#include "report/write_value.h"

namespace dsplan {
namespace {

using detail::Json;

Json bytes(const std::optional<Bytes>& value) { return value ? Json(value->value()) : Json(nullptr); }

// Numbers as numbers, words as words.
Json setting(const std::string& text) {
  std::int64_t number = 0;
  const auto [at, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc() && at == text.data() + text.size() ? Json(number) : Json(text);
}

Json settings(const PlanRow& row) {
  Json value = Json::object();
  for (std::size_t i = 0; i < kAxes; ++i) value[std::string(name(static_cast<Axis>(i)))] = setting(row.settings[i]);
  value["grad_accum"] = row.grad_accum;
  value["seq"] = row.seq;
  return value;
}

Json time_of(const std::optional<StepTime>& time) {
  if (!time) return nullptr;
  Json value;
  value["total_s"] = time->total;
  value["low_s"] = time->low;
  value["high_s"] = time->high;
  value["tokens_per_second"] = time->tokens_per_second;
  value["mfu"] = time->mfu;
  value["hfu"] = time->hfu;
  value["kind"] = time->calibrated ? "calibrated" : "estimated";
  return value;
}

Json row_value(const PlanRow& row) {
  Json value;
  value["settings"] = settings(row);
  value["world_size"] = row.world;
  value["dp"] = row.dp;
  value["fate"] = name(row.fate);
  value["reason"] = row.reason;
  value["time"] = time_of(row.time);
  value["least_process_bytes"] = bytes(row.least);
  value["process_bytes"] = bytes(row.process);
  value["missing_bytes"] = bytes(row.missing);
  value["host_bytes_per_node"] = bytes(row.host);
  value["nvme_bytes_per_node"] = bytes(row.nvme);
  value["wire_bytes_per_step"] = bytes(row.wire);
  return value;
}

Json rows_value(const std::vector<PlanRow>& rows) {
  Json value = Json::array();
  for (const PlanRow& row : rows) value.push_back(row_value(row));
  return value;
}

Json changes_value(const std::vector<PlanChange>& changes) {
  Json value = Json::array();
  for (const PlanChange& change : changes) {
    Json one;
    one["changed"] = Json::array();
    for (const Axis axis : change.axes) one["changed"].push_back(name(axis));
    one["speed"] = change.speed;
    one.update(row_value(change.row));
    value.push_back(std::move(one));
  }
  return value;
}

Json space_value(const SearchSpace& space) {
  Json value = Json::object();
  for (std::size_t i = 0; i < kAxes; ++i) {
    const AxisValues& axis = space.axes[i];
    Json one;
    one["values"] = Json::array();
    for (const std::string& text : axis.values) one["values"].push_back(setting(text));
    one["origin"] = name(axis.origin);
    one["reason"] = axis.reason;
    value[std::string(name(static_cast<Axis>(i)))] = std::move(one);
  }
  value["global_batch"] = space.global_batch ? Json(*space.global_batch) : Json(nullptr);
  return value;
}

Json counts_value(const PlanAnswer& answer) {
  const SearchCounts& counts = answer.counts;
  Json value;
  value["candidates"] = counts.candidates;
  value["impossible"] = counts.refused;
  value["too_large_by_bound"] = counts.bounded;
  value["slower"] = counts.slower;
  value["simulated"] = counts.simulated;
  value["why_impossible"] = Json::array();
  for (const RefusalCount& one : answer.refusals) {
    value["why_impossible"].push_back({{"why", one.why}, {"count", one.count}});
  }
  return value;
}

Json advice_value(const std::vector<Advice>& advice) {
  Json value = Json::array();
  for (const Advice& one : advice) {
    value.push_back({{"rule", one.rule}, {"key", one.key}, {"costs_bytes", one.costs.value()}, {"text", one.text}});
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
  Json value;
  value["schema"] = "dsplan.search/1";
  value["model"] = answer.model;
  value["objective"] = name(answer.objective);
  value["found"] = answer.found ? Json(*answer.found) : Json(nullptr);
  value["feasible"] = answer.chosen.has_value();
  value["complete"] = answer.complete;
  value["budget_bytes"] = bytes(answer.budget);
  value["limit_bytes"] = answer.limit.value();
  value["space"] = space_value(answer.space);
  value["counts"] = counts_value(answer);
  value["chosen"] = answer.chosen ? row_value(*answer.chosen) : Json(nullptr);
  value["prediction"] =
      answer.prediction && answer.job ? detail::prediction_value(*answer.prediction, *answer.job) : Json(nullptr);
  value["next"] = rows_value(answer.next);
  value["neighbours"] = changes_value(answer.neighbours);
  value["front"] = rows_value(answer.front);
  value["nearest"] = answer.nearest ? row_value(*answer.nearest) : Json(nullptr);
  value["states"] = answer.states;
  value["remedies"] = changes_value(answer.remedies);
  value["advice"] = advice_value(answer.advice);
  return value.dump(2) + "\n";
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
