#include "cli/report_comparison.h"

#include <algorithm>
#include <map>

#include "cli/wrap.h"
#include "core/format.h"
#include "report/cells.h"
#include "report/check_report.h"

namespace dsplan {
namespace {

using State = ComparedRow::State;

std::string number(const std::optional<std::int64_t>& value) { return value ? grouped(*value) : "-"; }

using detail::signed_number;

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
  if (comparison.refused) return "not compared";
  return comparison.complete ? "agrees" : "agrees so far";
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

std::string summary_line(const ReceiptComparison& comparison) {
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
  for (const ReceiptComparison& comparison : comparisons) text += summary_line(comparison);
  return text + strata_lines(strata);
}

std::string report(const VerdictCases& cases) {
  std::string text = formatted("{} verdicts put to the test on {}\n", cases.rows.size(),
                               cases.environment.gpu.value_or("no GPU that the file names"));
  text += formatted("  {:<20}{:>8}{:>16}\n", "predicted", "ran", "out of memory");
  for (const Verdict verdict : {Verdict::Fits, Verdict::Tight, Verdict::FitsWithRetries, Verdict::DoesNotFit}) {
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

namespace {

// The row's name without what all rows of memory begin with; on a line of its own where it is long.
std::string row_lines(const CheckedRow& row, const std::vector<SourceChange>& changes) {
  constexpr std::size_t kName = 22;
  std::string text = "  " + (row.path.starts_with("memory.") ? row.path.substr(7) : row.path);
  if (text.size() > kName) text += "\n";
  text += std::string(text.back() == '\n' ? kName : kName - text.size(), ' ');
  if (row.kind == RowKind::Verdict) {
    if (!row.moved()) return text + formatted(" {}\n", figure_words(row.now));
    return text + formatted(" {} -> {}\n", figure_words(row.stored), figure_words(row.now)) + by_whom(row);
  }
  text += formatted(" {:>14} {:>13} {:>13} {:>14}\n", figure_words(row.stored), moved_words(row.stored, row.replayed),
                    moved_words(row.replayed, row.now), figure_words(row.now));
  const std::vector<std::string> shares = shares_of(row, changes);
  if (!shares.empty()) text += listed("      ", shares, 6);
  if (row.within()) text += formatted("      within the tolerance of {}\n", grouped(row.tolerance));
  return text;
}

std::string rank_lines(const CheckedRank& rank, const std::vector<SourceChange>& changes) {
  std::string text = formatted("\n  {:<20} {:>14} {:>13} {:>13} {:>14}\n", formatted("rank {}", rank.now), "baseline",
                               "newer dsplan", "your change", "now");
  if (rank.stored != rank.now) {
    text += wrapped("  note: ", formatted("the rank that is reported was {}, and is {}", rank.stored, rank.now), 4);
  }
  for (const CheckedRow& row : rank.rows) {
    if (stands_for_the_run(row) || row.moved() || row.within()) text += row_lines(row, changes);
  }
  return text;
}

std::string change_lines(const CheckedBaseline& checked) {
  std::string text = "\n  your change\n";
  for (const SourceChange& change : checked.changes) {
    for (const KeyChange& key : change.keys) text += wrapped("    ", key_words(key), 6);
    if (change.refused_alone) {
      text += wrapped("      ", formatted("alone it is refused: {}", *change.refused_alone), 6);
    }
  }
  if (checked.changes.empty()) text += "    no input has changed\n";
  if (!checked.your_inputs.empty()) text += "    which decides\n";
  for (const InputChange& input : checked.your_inputs) text += wrapped("      ", input_words(input), 8);
  return text;
}

std::string newer_lines(const CheckedBaseline& checked) {
  const std::vector<std::string> words = newer_words(checked);
  std::string text;
  if (!words.empty()) text += "\n  a newer dsplan\n";
  for (const std::string& one : words) text += wrapped("    ", one, 6);
  return text;
}

std::string summary_line(const CheckedBaseline& checked) {
  return wrapped(formatted("{:<9}", state(checked)), formatted("{}: {}", checked.path, summary_words(checked)), 9);
}

}  // namespace

std::string check_details(const CheckedBaseline& checked) {
  std::string text = wrapped("", formatted("{}: {}", checked.path, state(checked)), 2);
  for (const Diagnostic& fault : checked.refused) text += wrapped("  ", fault_words(fault), 4);
  if (!checked.refused.empty()) return text;
  text += wrapped("  ", summary_words(checked), 4);
  if (!differs(checked) && checked.changes.empty()) return text;
  text += newer_lines(checked);
  if (!checked.changes.empty() || counts(checked).yours > 0) text += change_lines(checked);
  for (const CheckedRank& rank : checked.ranks) text += rank_lines(rank, checked.changes);
  return text;
}

std::string report(const std::vector<CheckedBaseline>& checked) {
  if (checked.size() == 1) return check_details(checked.front());
  std::string text;
  for (const CheckedBaseline& one : checked) {
    if (state(one) != "agrees") text += check_details(one) + "\n";
  }
  for (const CheckedBaseline& one : checked) text += summary_line(one);
  return text + formatted("{}\n", totals_words(checked));
}

namespace {

constexpr std::size_t kMostShown = 4;  // Of one row; --format json has all.

std::string difference_text(const OperatorDifference& difference) {
  std::string text = wrapped("  ", difference.title, 4);
  text += formatted("    {} ({})\n", difference.part, name(difference.kind));
  text += wrapped("      predicted  ", difference.predicted.empty() ? "-" : difference.predicted, 17);
  return text + wrapped("      measured   ", difference.measured.empty() ? "-" : difference.measured, 17);
}

std::string row_text(const OperatorRow& row) {
  std::string text = formatted("\n{}: {} of {} cases equal{}\n", name(row.op), row.equal, row.cases,
                               row.failed > 0 ? formatted(", {} could not run", row.failed) : "");
  for (std::size_t i = 0; i < row.differences.size() && i < kMostShown; ++i) {
    text += difference_text(row.differences[i]);
  }
  if (row.differences.size() > kMostShown) text += formatted("  and {} more\n", row.differences.size() - kMostShown);
  return text;
}

std::string optimizers_text(const OperatorComparison& comparison) {
  if (comparison.optimizer_cases == 0) return "";
  std::string text =
      formatted("\noptimizer steps: {} of {} equal\n", comparison.optimizers_equal, comparison.optimizer_cases);
  for (const OperatorDifference& difference : comparison.optimizer_differences) text += difference_text(difference);
  return text;
}

}  // namespace

std::string operators_report(const OperatorComparison& comparison) {
  std::vector<std::string> equal;
  std::vector<std::string> confirmed;
  std::vector<std::string> without;
  std::string different;
  std::size_t rows_different = 0;
  std::size_t cases = 0;
  for (const OperatorRow& row : comparison.rows) {
    cases += row.cases;
    if (row.cases + row.failed == 0) without.emplace_back(name(row.op));
    if (row.confirmed()) confirmed.emplace_back(name(row.op));
    if (row.cases > 0 && row.equal == row.cases) equal.emplace_back(name(row.op));
    if (row.differs()) ++rows_different;
    if (!row.differences.empty() || row.failed > 0) different += row_text(row);
  }
  std::string text =
      formatted("{}: {} cases of {}, torch {}, {} level{}\n", rows_different == 0 ? "agrees" : "differs", cases,
                comparison.device, comparison.torch, comparison.level == RunLevel::Kernel ? "kernel" : "dispatch",
                comparison.complete ? "" : "; the run ended early");
  if (cases > 0) {
    text += formatted("{} rows equal, {} different, {} without a case\n", equal.size(), rows_different, without.size());
  }
  text += different + optimizers_text(comparison);
  if (cases > 0 && !without.empty()) text += "\n" + listed("without a case: ", without, 2);
  const bool on_cuda = comparison.device == "cuda" && comparison.level == RunLevel::Kernel;
  if (on_cuda && !confirmed.empty()) text += "\n" + listed("may be marked cuda: ", confirmed, 2);
  return text;
}

}  // namespace dsplan
