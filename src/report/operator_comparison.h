// What comes of holding measured operators against the catalogue. Made by planner/compare_operators, printed by `cli`,
// written as JSON by `io`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/operator_runs.h"
#include "core/schedule.h"
#include "model/catalogue/describe.h"

namespace dsplan {

// One part of one case that is not as the catalogue says.
struct OperatorDifference {
  // Order: the same words in another order. Unmodelled: only temporaries differ, and the row says that what a library
  // takes there is not modelled. Contents: anything else.
  enum class Kind : std::uint8_t { Contents, Order, Unmodelled };
  Kind kind = Kind::Contents;
  std::string title;  // Of the case.
  std::string part;   // "forward", "backward", "saved" or "passes".
  std::string predicted;
  std::string measured;
};

[[nodiscard]] constexpr std::string_view name(OperatorDifference::Kind kind) {
  switch (kind) {
    case OperatorDifference::Kind::Contents: return "contents";
    case OperatorDifference::Kind::Order: return "order";
    case OperatorDifference::Kind::Unmodelled: return "not_modelled";
  }
  return "";
}

struct OperatorRow {
  Op op = Op::Input;
  std::size_t cases = 0;
  std::size_t equal = 0;
  std::size_t failed = 0;  // Cases that could not run.
  bool artefact = false;   // Some case's backward was not compared.
  std::vector<OperatorDifference> differences;

  // Some case ran, and all of them agree in everything.
  [[nodiscard]] bool confirmed() const { return cases > 0 && equal == cases && failed == 0 && !artefact; }
  // Something disagrees that the row claims to know.
  [[nodiscard]] bool differs() const {
    return std::any_of(differences.begin(), differences.end(), [](const OperatorDifference& difference) {
      return difference.kind != OperatorDifference::Kind::Unmodelled;
    });
  }
};

struct OperatorComparison {
  RunLevel level = RunLevel::Dispatch;
  std::string device;
  std::string torch;  // Of the first file: whose rows were asked for.
  bool complete = true;
  // Optimizer steps: parts are "constructed", "first" and "second".
  std::size_t optimizer_cases = 0;
  std::size_t optimizers_equal = 0;
  std::vector<OperatorDifference> optimizer_differences;
  std::vector<OperatorRow> rows;  // Of every operator, in the order of Op; `cases` may be 0.

  [[nodiscard]] bool differs() const {
    return !optimizer_differences.empty() ||
           std::any_of(rows.begin(), rows.end(), [](const OperatorRow& row) { return row.differs(); });
  }
};

// Measured optimizer steps, clipping and the loss scaler held against what is predicted of them.

// The run as dsplan does it: a mark StepBegins before the constructor and before each of the two steps. At
// RunLevel::Kernel scratch of kernels is in it. Not for zero_grad, which is the loop's.
[[nodiscard]] Schedule optimizer_schedule(const OptimizerRun& run, RunLevel level);

// The allocations and frees among the events from `first` up to `last`; `live` is carried from one call to the next.
[[nodiscard]] OptimizerLog optimizer_log(const Schedule& schedule, std::size_t first, std::size_t last, RunLevel level,
                                         std::int64_t& live);

// All of such a schedule: the constructor and the two steps.
[[nodiscard]] OptimizerLogs optimizer_logs(const Schedule& schedule, RunLevel level);

// What the schedule, or of zero_grad the rule, says, written as the run's own logs are.
[[nodiscard]] OptimizerLogs predicted_logs(const OptimizerRun& run, RunLevel level);

// Adds the file's optimizer steps to the comparison. A step is equal if all three logs and both peaks are.
void compare_optimizers(const OperatorRuns& file, OperatorComparison& comparison);

// Measured operators held against the catalogue, row by row.

// Several files of one level are one measurement: a row needs every case of all of them. The rows are those of the
// torch that the file names. Throws InternalError for files of different levels; the caller keeps them apart. Refuses a
// version of torch that cannot be read, and an operator that it does not have.
[[nodiscard]] OperatorComparison compare_operators(std::span<const OperatorRuns> files);

// The rows that may say Witness::Cuda: confirmed by files whose device is "cuda".
[[nodiscard]] std::vector<Op> confirmed_on_cuda(std::span<const OperatorRuns> files);

// The operator catalogue as JSON and as Markdown.

// {"schema": "dsplan.operators/1", "torch", "operators": [{"name", "inputs", "saved", "forward", "backward", ...}]}.
[[nodiscard]] std::string operators_json(const std::vector<OperatorEntry>& entries, const std::string& torch);

// A table with one row for each operator; kernel temporaries are in italics.
[[nodiscard]] std::string operators_markdown(const std::vector<OperatorEntry>& entries);

// "dsplan.operator_comparison/1": per row with cases "name", "cases", "equal", "failed" and "differences" (each with
// "case", "part", "kind", "predicted", "measured"), the same of "optimizers", then "without_case" and "confirmed",
// names.
[[nodiscard]] std::string operator_comparison_json(const OperatorComparison& comparison);

}  // namespace dsplan
