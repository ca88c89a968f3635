// How the rows of a comparison are made. Not for use outside planner/compare*.cpp.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "core/document.h"
#include "report/comparison.h"

namespace dsplan::detail {

inline constexpr const char* kEndedEarly = "the run ended early: what it would have come to is unknown";

// "communication.all_gather.dp.forward.bf16.data"
[[nodiscard]] std::string traffic_path(const TrafficFigure& row);

// Fills `unexplained` and `state` of a row that both sides say.
void settle(ComparedRow& row);

// "*" in `pattern` stands for any text, also none.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view text);

class RowMaker {
 public:
  RowMaker(const Receipt& receipt, const RankFigures& predicted, const RankFigures& measured,
           const Tolerances& tolerances)
      : receipt_(receipt), predicted_(predicted), measured_(measured), tolerances_(tolerances) {}

  [[nodiscard]] std::vector<ComparedRow> all(Verdict verdict_of_prediction);

 private:
  void add(std::string path, RowKind kind, std::optional<std::int64_t> predicted, std::optional<std::int64_t> measured);
  void counters(const std::string& prefix, const Counters& predicted, const Counters& measured,
                std::initializer_list<Counter> which);
  // What was measured is listed from row `from` on, and not compared.
  void set_aside(std::size_t from, const std::string& why);
  void phases();
  void phase(const FigurePhase& predicted, const FigurePhase& measured);
  void host();
  void communication();
  void verdict(Verdict predicted);

  const Receipt& receipt_;
  const RankFigures& predicted_;
  const RankFigures& measured_;
  const Tolerances& tolerances_;
  std::vector<ComparedRow> rows_;
};

}  // namespace dsplan::detail

namespace dsplan {

// Differences between prediction and measurement that are known, with their reasons.

// {"schema": "dsplan.explained/1", "source": "...", "differences": [{"receipt", "rank", "row", "bytes", "reason"}]}:
// `bytes` is measured less predicted, never 0; "*" in `row` stands for any part of it. Faults: missing and unknown
// keys, an entry without a reason.
[[nodiscard]] std::vector<KnownDifference> read_known_differences(const Document& document);

}  // namespace dsplan
