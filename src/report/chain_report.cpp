#include "report/chain_report.h"

#include "core/format.h"
#include "io/json_text.h"
#include "io/own_file.h"
#include "report/cells.h"

namespace dsplan {
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
