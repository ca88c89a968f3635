#include "report/comparison_report.h"

#include <map>

#include "core/format.h"
#include "io/json_text.h"
#include "report/cells.h"

namespace dsplan {
namespace {

using detail::cell;
using detail::quoted;
using detail::signed_number;

Json value_of(const ComparedRow& row) {
  const bool verdict = row.kind == RowKind::Verdict;
  const bool both = is_said(row) && !verdict;
  return {{"row", row.path},
          {"kind", name(row.kind)},
          {"predicted", verdict ? Json(row.predicted_text) : Json(row.predicted)},
          {"measured", verdict ? Json(row.measured_text) : Json(row.measured)},
          {"explained", both ? Json(row.explained) : Json(nullptr)},
          {"by", row.reasons},
          {"unexplained", both ? Json(row.unexplained) : Json(nullptr)},
          {"tolerance", both ? Json(row.tolerance) : Json(nullptr)},
          {"state", name(row.state)},
          {"note", row.note}};
}

Json value_of(const RankComparison& rank) {
  std::map<ComparedRow::State, std::int64_t> counts;
  Json rows = Json::array();
  for (const ComparedRow& row : rank.rows) {
    ++counts[row.state];
    rows.push_back(value_of(row));
  }
  Json states = Json::object();
  for (const auto state : {ComparedRow::State::Equal, ComparedRow::State::Within, ComparedRow::State::Differs,
                           ComparedRow::State::NotMeasured, ComparedRow::State::NotPredicted}) {
    states.set(name(state), counts[state]);
  }
  return {{"rank", rank.rank}, {"counts", std::move(states)}, {"rows", std::move(rows)}};
}

Json value_of(const ReceiptComparison& comparison) {
  Json ranks = Json::array();
  for (const RankComparison& rank : comparison.ranks) ranks.push_back(value_of(rank));
  return {{"receipt", comparison.receipt},       {"path", comparison.path},
          {"source", comparison.source},         {"level", name(comparison.level)},
          {"device", name(comparison.device)},   {"part", name(comparison.part)},
          {"strata", comparison.strata},         {"fingerprint", comparison.fingerprint},
          {"complete", comparison.complete},     {"outcome", name(comparison.outcome)},
          {"verdict", name(comparison.verdict)}, {"refused", comparison.refused},
          {"differs", differs(comparison)},      {"notes", comparison.notes},
          {"stale", comparison.stale},           {"ranks", std::move(ranks)}};
}

Json value_of(const StratumRow& row) {
  const bool enough = row.cases >= kLeastCases && row.row != "verdict";
  return {{"stratum", row.stratum},
          {"device", name(row.device)},
          {"row", row.row},
          {"cases", row.cases},
          {"equal", row.equal},
          {"unexplained", row.unexplained},
          {"median_percent", enough ? Json(row.median_percent) : Json(nullptr)},
          {"worst_percent", enough ? Json(row.worst_percent) : Json(nullptr)},
          {"evidence", row.cases >= kLeastCases ? "sufficient" : "insufficient"}};
}

std::string number(const std::optional<std::int64_t>& value) { return value ? grouped(*value) : "-"; }

}  // namespace

std::string comparisons_json(const std::vector<ReceiptComparison>& comparisons, const std::vector<StratumRow>& strata) {
  Json receipts = Json::array();
  for (const ReceiptComparison& comparison : comparisons) receipts.push_back(value_of(comparison));
  Json by_stratum = Json::array();
  for (const StratumRow& row : strata) by_stratum.push_back(value_of(row));
  const Json value = {{"schema", "dsplan.comparison/1"},
                      {"differs", differs(comparisons)},
                      {"receipts", std::move(receipts)},
                      {"strata", std::move(by_stratum)}};
  return json_text(value, 2) + "\n";
}

std::string comparisons_csv(const std::vector<ReceiptComparison>& comparisons) {
  std::string text = "receipt,rank,row,kind,predicted,measured,explained,unexplained,tolerance,state,note\n";
  const auto plain = [](const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : ""; };
  for (const ReceiptComparison& comparison : comparisons) {
    for (const RankComparison& rank : comparison.ranks) {
      for (const ComparedRow& row : rank.rows) {
        const bool verdict = row.kind == RowKind::Verdict;
        const auto if_both = [&](std::int64_t value) {
          return is_said(row) && !verdict ? std::to_string(value) : std::string();
        };
        const std::string why = row.note.empty() ? formatted("{}", joined(row.reasons, "; ")) : row.note;
        text += formatted("{},{},{},{},{},{},{},{},{},{},{}\n", quoted(comparison.receipt), rank.rank, quoted(row.path),
                          name(row.kind), verdict ? row.predicted_text : plain(row.predicted),
                          verdict ? row.measured_text : plain(row.measured), if_both(row.explained),
                          if_both(row.unexplained), if_both(row.tolerance), name(row.state), quoted(why));
      }
    }
  }
  return text;
}

std::string comparisons_markdown(const std::vector<ReceiptComparison>& comparisons,
                                 const std::vector<StratumRow>& strata) {
  std::string text =
      "| receipt | rank | row | predicted | measured | explained | unexplained | |\n"
      "|:--|--:|:--|--:|--:|--:|--:|:--|\n";
  for (const ReceiptComparison& comparison : comparisons) {
    if (comparison.refused) {
      text += formatted("| {} | | | | | | | refused: {} |\n", cell(comparison.receipt), cell(*comparison.refused));
    }
    for (const RankComparison& rank : comparison.ranks) {
      for (const ComparedRow& row : rank.rows) {
        const bool differs = row.state == ComparedRow::State::Differs;
        if (!is_said(row) || (!stands_for_the_run(row) && !differs && row.explained == 0)) continue;
        const bool verdict = row.kind == RowKind::Verdict;
        text += formatted("| {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(comparison.receipt), rank.rank,
                          cell(row.path), verdict ? cell(row.predicted_text) : number(row.predicted),
                          verdict ? cell(row.measured_text) : number(row.measured),
                          row.explained == 0 ? "" : signed_number(row.explained),
                          verdict ? "" : signed_number(row.unexplained), cell(name(row.state)));
      }
    }
  }
  if (strata.empty()) return text;
  text +=
      "\n| stratum | device | row | cases | equal | unexplained | median error | worst error |\n"
      "|:--|:--|:--|--:|--:|--:|--:|--:|\n";
  for (const StratumRow& row : strata) {
    const bool enough = row.cases >= kLeastCases;
    const std::string median = enough ? formatted("{:+.3f} %", row.median_percent) : "insufficient evidence";
    const std::string worst = enough ? formatted("{:+.3f} %", row.worst_percent) : "";
    const bool verdict = row.row == "verdict";
    text += formatted("| {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(row.stratum), name(row.device), cell(row.row),
                      row.cases, row.equal, row.unexplained, verdict ? "" : median, verdict ? "" : worst);
  }
  return text;
}

std::string verdicts_json(const VerdictCases& cases) {
  Json rows = Json::array();
  std::int64_t right = 0;
  std::map<std::pair<Verdict, Receipt::Outcome>, std::int64_t> counts;
  for (const VerdictCase& one : cases.rows) {
    ++counts[{one.verdict, one.outcome}];
    if (one.right()) ++right;
  }
  for (const Verdict verdict : {Verdict::Fits, Verdict::Tight, Verdict::FitsWithRetries, Verdict::DoesNotFit}) {
    rows.push_back({{"predicted", name(verdict)},
                    {"ran", counts[{verdict, Receipt::Outcome::Ran}]},
                    {"out_of_memory", counts[{verdict, Receipt::Outcome::OutOfMemory}]}});
  }
  Json wrong = Json::array();
  for (const VerdictCase& one : cases.rows) {
    if (!one.right()) wrong.push_back({{"name", one.name}, {"factor_permille", one.permille}});
  }
  const Json value = {{"schema", "dsplan.confusion/1"}, {"source", cases.source},
                      {"cases", cases.rows.size()},     {"right", right},
                      {"matrix", std::move(rows)},      {"wrong", std::move(wrong)}};
  return json_text(value, 2) + "\n";
}

}  // namespace dsplan
