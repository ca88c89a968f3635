#include "cli/report_comparison.h"

#include <map>

#include "cli/wrap.h"
#include "core/format.h"

namespace dsplan {
namespace {

using State = ComparedRow::State;

std::string number(const std::optional<std::int64_t>& value) { return value ? grouped(*value) : "-"; }

std::string signed_number(std::int64_t value) {
  return value < 0 ? "-" + grouped(-value) : (value > 0 ? "+" : "") + grouped(value);
}

bool is_said(const ComparedRow& row) { return row.state != State::NotMeasured && row.state != State::NotPredicted; }

bool stands_for_the_run(const ComparedRow& row) {
  return row.path.starts_with("memory.peak.") || row.path.starts_with("memory.persistent.") || row.path == "verdict";
}

// The row's name on a line of its own where it is long.
std::string row_lines(const ComparedRow& row) {
  constexpr std::size_t kName = 29;
  std::string name = "  " + row.path;
  if (name.size() >= kName) name += "\n";
  const std::size_t width = name.back() == '\n' ? kName : kName - name.size();
  std::string text = name + std::string(width, ' ');
  if (row.kind == RowKind::Verdict) {
    return text + formatted("{}, {}: {}\n", row.predicted_text, row.measured_text, dsplan::name(row.state));
  }
  text +=
      formatted("{:>17}{:>17}{:>16}\n", number(row.predicted), number(row.measured), signed_number(row.unexplained));
  if (row.explained != 0) {
    std::string why;
    for (const std::string& reason : row.reasons) why += (why.empty() ? "" : "; ") + reason;
    text += wrapped(formatted("      explained {}: ", signed_number(row.explained)), why, 8);
  }
  if (row.state == State::Within) {
    text += formatted("      within the tolerance of {} bytes\n", grouped(row.tolerance));
  }
  return text;
}

std::string counts_line(const RankComparison& rank) {
  std::map<State, int> counts;
  for (const ComparedRow& row : rank.rows) ++counts[row.state];
  return formatted("  rank {}: {} rows equal, {} within, {} differ, {} not measured, {} not predicted\n", rank.rank,
                   counts[State::Equal], counts[State::Within], counts[State::Differs], counts[State::NotMeasured],
                   counts[State::NotPredicted]);
}

std::string rank_lines(const RankComparison& rank) {
  std::string text = counts_line(rank);
  text += formatted("{:<29}{:>17}{:>17}{:>16}\n", "  bytes", "predicted", "measured", "unexplained");
  for (const ComparedRow& row : rank.rows) {
    if (!is_said(row)) continue;
    if (stands_for_the_run(row) || row.state == State::Differs || row.explained != 0) text += row_lines(row);
  }
  std::map<std::string, std::vector<std::string>> unsaid;  // By the reason.
  for (const ComparedRow& row : rank.rows) {
    if (is_said(row) || !(stands_for_the_run(row) || row.path.starts_with("communication"))) continue;
    unsaid[formatted("{}: {}", row.state == State::NotMeasured ? "not measured" : "not predicted", row.note)].push_back(
        row.path);
  }
  for (const auto& [why, paths] : unsaid) {
    const std::size_t colon = why.find(": ");
    text += listed("  " + why.substr(0, colon + 2), paths, 4);
    text += wrapped("    ", why.substr(colon + 2), 4);
  }
  return text;
}

std::string_view verdict_of(const ReceiptComparison& comparison) {
  if (differs(comparison)) return "differs";
  return comparison.refused ? "not compared" : "agrees";
}

std::string receipt_lines(const ReceiptComparison& comparison) {
  std::string text = wrapped("",
                             formatted("{}: {} ({}, {})", comparison.receipt, verdict_of(comparison),
                                       name(comparison.device), name(comparison.level)),
                             2);
  if (comparison.refused) text += wrapped("  ", *comparison.refused, 4);
  if (!comparison.complete) {
    text += formatted("  the run ended early: {}\n", name(comparison.outcome));
  }
  for (const std::string& note : comparison.notes) text += wrapped("  note: ", note, 4);
  for (const std::string& stale : comparison.stale) text += wrapped("  no longer explained: ", stale, 4);
  for (const RankComparison& rank : comparison.ranks) text += rank_lines(rank);
  return text;
}

std::string one_line(const ReceiptComparison& comparison) {
  std::int64_t rows = 0;
  std::int64_t apart = 0;
  for (const RankComparison& rank : comparison.ranks) {
    for (const ComparedRow& row : rank.rows) {
      if (is_said(row)) ++rows;
      if (row.state == State::Differs) ++apart;
    }
  }
  std::string text = wrapped(formatted("{:<14}", verdict_of(comparison)),
                             formatted("{}: {} of {} rows differ", comparison.receipt, apart, rows), 14);
  if (comparison.refused) text += wrapped("              ", *comparison.refused, 14);
  return text;
}

std::string strata_lines(const std::vector<StratumRow>& strata) {
  if (strata.empty()) return {};
  std::string text =
      formatted("\n{:<22}{:<22}{:>4}{:>6}{:>12}{:>12}\n", "stratum", "row", "n", "equal", "median", "worst");
  for (const StratumRow& row : strata) {
    const bool enough = row.cases >= kLeastCases;
    const bool verdict = row.row == "verdict";
    const std::string label = formatted("{} ({})", row.stratum, name(row.device));
    const std::string path = row.row.starts_with("memory.") ? row.row.substr(7) : row.row;
    text += formatted("{:<22}{:<22}{:>4}{:>6}", label, path, row.cases, row.equal);
    if (!enough) {
      text += "  insufficient evidence\n";
    } else if (verdict) {
      text += "\n";
    } else {
      text += formatted("{:>12}{:>12}\n", formatted("{:+.3f} %", row.median_percent),
                        formatted("{:+.3f} %", row.worst_percent));
    }
  }
  return text;
}

}  // namespace

std::string report(const std::vector<ReceiptComparison>& comparisons, const std::vector<StratumRow>& strata) {
  std::string text;
  if (comparisons.size() == 1) return receipt_lines(comparisons.front());
  for (const ReceiptComparison& comparison : comparisons) {
    if (differs(comparison)) text += receipt_lines(comparison) + "\n";
  }
  for (const ReceiptComparison& comparison : comparisons) text += one_line(comparison);
  return text + strata_lines(strata);
}

std::string report(const VerdictCases& cases) {
  std::string text = formatted("{} verdicts put to the test on {}\n", cases.rows.size(),
                               cases.environment.gpu.value_or("no GPU that the file names"));
  text += formatted("  {:<20}{:>8}{:>16}\n", "predicted", "ran", "out of memory");
  for (const Verdict verdict : {Verdict::Fits, Verdict::FitsWithRetries, Verdict::DoesNotFit}) {
    std::map<Receipt::Outcome, int> counts;
    for (const VerdictCase& one : cases.rows) {
      if (one.verdict == verdict) ++counts[one.outcome];
    }
    text += formatted("  {:<20}{:>8}{:>16}\n", name(verdict), counts[Receipt::Outcome::Ran],
                      counts[Receipt::Outcome::OutOfMemory]);
  }
  for (const VerdictCase& one : cases.rows) {
    if (one.right()) continue;
    text += wrapped("  wrong: ",
                    formatted("{} at {} permille of the need: {}, and it {}", one.name, one.permille, name(one.verdict),
                              one.outcome == Receipt::Outcome::Ran ? "ran" : "ran out of memory"),
                    4);
  }
  return text;
}

}  // namespace dsplan
