// What comes of holding measured operators against the catalogue. Made by planner/compare_operators, printed by `cli`,
// written as JSON by `io`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/operator_runs.h"

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

}  // namespace dsplan
