#include "report/operators_report.h"

#include "core/format.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

Json made_value(const std::vector<OperatorEntry::Made>& made) {
  Json list = Json::array();
  for (const OperatorEntry::Made& one : made) {
    list.push_back({{"size", one.what}, {"seen_by", one.kernel ? "kernel" : "dispatch"}});
  }
  return list;
}

std::string made_text(const std::vector<OperatorEntry::Made>& made) {
  std::string text;
  for (std::size_t at = 0; at < made.size();) {
    std::size_t end = at;
    while (end < made.size() && made[end].what == made[at].what && made[end].kernel == made[at].kernel) ++end;
    const std::string one = end - at > 1 ? formatted("{} x {}", end - at, made[at].what) : made[at].what;
    text += formatted("{}{}", text.empty() ? "" : ", ", made[at].kernel ? formatted("*{}*", one) : one);
    at = end;
  }
  return text.empty() ? "-" : text;
}

std::string saved_text(const OperatorEntry& entry) {
  std::string text;
  for (const OperatorEntry::Kept& kept : entry.saved) {
    text += formatted("{}`{}` = {}{}", text.empty() ? "" : ", ", kept.name, kept.what,
                      kept.when.empty() ? "" : formatted(" if {} needs a gradient", kept.when));
  }
  return text.empty() ? "-" : text;
}

Json differences_value(const std::vector<OperatorDifference>& differences) {
  Json list = Json::array();
  for (const OperatorDifference& one : differences) {
    list.push_back({{"case", one.title},
                    {"part", one.part},
                    {"kind", name(one.kind)},
                    {"predicted", one.predicted},
                    {"measured", one.measured}});
  }
  return list;
}

}  // namespace

std::string operators_json(const std::vector<OperatorEntry>& entries, const std::string& torch) {
  Json list = Json::array();
  for (const OperatorEntry& entry : entries) {
    Json saved = Json::array();
    for (const OperatorEntry::Kept& kept : entry.saved) {
      saved.push_back(
          {{"name", kept.name}, {"tensor", kept.what}, {"when", kept.when.empty() ? Json(nullptr) : Json(kept.when)}});
    }
    list.push_back({{"name", entry.name},
                    {"inputs", entry.inputs},
                    {"saved", std::move(saved)},
                    {"forward_temporaries", made_value(entry.forward)},
                    {"backward_temporaries", made_value(entry.backward)},
                    {"not_modelled", entry.unknown.empty() ? Json(nullptr) : Json(entry.unknown)},
                    {"flops", entry.flops},
                    {"witness", entry.witness},
                    {"since", entry.since.empty() ? Json(nullptr) : Json(entry.since)},
                    {"source", entry.source}});
  }
  const Json value = {{"schema", "dsplan.operators/1"}, {"torch", torch}, {"operators", std::move(list)}};
  return json_text(value, 2) + "\n";
}

std::string operator_comparison_json(const OperatorComparison& comparison) {
  Json rows = Json::array();
  Json without = Json::array();
  Json confirmed = Json::array();
  for (const OperatorRow& row : comparison.rows) {
    if (row.confirmed()) confirmed.push_back(name(row.op));
    if (row.cases + row.failed == 0) {
      without.push_back(name(row.op));
      continue;
    }
    rows.push_back({{"name", name(row.op)},
                    {"cases", row.cases},
                    {"equal", row.equal},
                    {"failed", row.failed},
                    {"differences", differences_value(row.differences)}});
  }
  const Json optimizers = {{"cases", comparison.optimizer_cases},
                           {"equal", comparison.optimizers_equal},
                           {"differences", differences_value(comparison.optimizer_differences)}};
  const Json value = {{"schema", "dsplan.operator_comparison/1"},
                      {"device", comparison.device},
                      {"level", comparison.level == RunLevel::Kernel ? "kernel" : "dispatch"},
                      {"torch", comparison.torch},
                      {"complete", comparison.complete},
                      {"agrees", !comparison.differs()},
                      {"rows", std::move(rows)},
                      {"optimizers", optimizers},
                      {"without_case", std::move(without)},
                      {"confirmed", std::move(confirmed)}};
  return json_text(value, 2) + "\n";
}

std::string operators_markdown(const std::vector<OperatorEntry>& entries) {
  std::string text =
      "| operator | saved for backward | forward temporaries | backward temporaries | FLOPs | witness | source |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const OperatorEntry& entry : entries) {
    std::string forward = entry.forward.empty() && !entry.unknown.empty() ? std::string() : made_text(entry.forward);
    if (!entry.unknown.empty()) forward += formatted("{}{}: not modelled", forward.empty() ? "" : ", ", entry.unknown);
    text += formatted("| {}{} | {} | {} | {} | {} | {} | {} |\n", entry.name,
                      entry.since.empty() ? "" : formatted(" (torch {})", entry.since), saved_text(entry), forward,
                      made_text(entry.backward), entry.flops, entry.witness, entry.source);
  }
  return text;
}

}  // namespace dsplan
