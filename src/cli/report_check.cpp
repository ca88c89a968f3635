#include "cli/report_check.h"

#include <algorithm>
#include <map>

#include "cli/wrap.h"
#include "core/format.h"
#include "report/check_report.h"

namespace dsplan {
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

std::string one_line(const CheckedBaseline& checked) {
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
  for (const CheckedBaseline& one : checked) text += one_line(one);
  return text + formatted("{}\n", totals_words(checked));
}

}  // namespace dsplan
