#include "cli/report_operators.h"

#include "cli/wrap.h"
#include "core/format.h"

namespace dsplan {
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
