#include "report/page/measured.h"

#include <cstddef>
#include <map>

#include "core/format.h"
#include "report/cells.h"
#include "report/page/markup.h"

namespace dsplan {
namespace {

constexpr std::size_t kMostRows = 40;

bool of_the_run(const ComparedRow& row) {
  const bool of_a_phase = row.path.starts_with("memory.phases.") && row.path.find(".peak_") != std::string::npos;
  return of_a_phase || (stands_for_the_run(row) && row.kind != RowKind::Verdict);
}

std::string row_text(const ComparedRow& row) {
  const bool counted = row.predicted && row.measured;
  const std::string predicted = counted ? grouped(*row.predicted) : row.predicted_text;
  const std::string measured = counted ? grouped(*row.measured) : row.measured_text;
  const std::string apart =
      counted ? detail::signed_number(*row.measured - *row.predicted) : std::string(name(row.state));
  const bool bad = row.state == ComparedRow::State::Differs;
  return formatted("<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}</td></tr>\n", in_html(row.path),
                   in_html(predicted), in_html(measured), bad ? "bad" : "good", apart);
}

std::string rank_text(const RankComparison& rank) {
  std::map<ComparedRow::State, std::size_t> counts;
  for (const ComparedRow& row : rank.rows) ++counts[row.state];
  std::string text = formatted(
      "<p class=\"soft\">Rank {}: {} rows equal, {} within tolerance, {} differ, {} not measured.</p>\n"
      "<div class=\"wide\"><table class=\"measured\"><tr><th>bytes</th><th>predicted</th><th>measured</th>"
      "<th>measured more</th></tr>\n",
      rank.rank, counts[ComparedRow::State::Equal], counts[ComparedRow::State::Within],
      counts[ComparedRow::State::Differs], counts[ComparedRow::State::NotMeasured]);
  std::size_t shown = 0;
  for (const bool first : {true, false}) {  // What stands for the run, then what else differs.
    for (const ComparedRow& row : rank.rows) {
      const bool wanted = first ? of_the_run(row) : !of_the_run(row) && row.state == ComparedRow::State::Differs;
      if (!is_said(row) || !wanted || shown++ >= kMostRows) continue;
      text += row_text(row);
    }
  }
  text += "</table></div>\n";
  if (shown > kMostRows) text += formatted("<p class=\"soft\">{} rows more: dsplan compare</p>\n", shown - kMostRows);
  return text;
}

}  // namespace

std::string measured_part(const ReceiptComparison& comparison) {
  std::string text =
      formatted("<h2>Predicted and measured</h2>\n<p class=\"soft\">{}: {}, {}, {}</p>\n", in_html(comparison.receipt),
                in_html(comparison.source), name(comparison.device), name(comparison.outcome));
  for (const RankComparison& rank : comparison.ranks) text += rank_text(rank);
  return text;
}

}  // namespace dsplan
