// What is known of a candidate: whether it is possible at all, a lower bound of its memory, its time, and at last its
// full simulation. What candidates share (a resolved job, a graph) is made once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/search.h"
#include "planner/lower/shapes.h"
#include "planner/plan/plan_graphs.h"
#include "planner/plan/space.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/time/estimate.h"

namespace dsplan::detail {

// Everything but micro-batch and checkpointing.
struct PlanFamily {
  Settings settings;    // Without those two.
  std::string refusal;  // Empty: possible.
  Job job;              // Of one row, with every layer checkpointed.
  Bytes persistent;     // Of the worst rank.
  Bytes beside;         // Context, communicators and reserve.
  Bytes host;           // Lower bound of what a node's ranks keep in its memory.
  Bytes files;          // Of a node's ranks.
  bool host_unknown = false;
  std::optional<Rates> rates;
};

// What walks over one model share, each by what it depends on.
struct SharedGraphs {
  explicit SharedGraphs(const ModelSpec& model, std::optional<FewLayers> few = std::nullopt)
      : graphs(model, std::move(few)), shapes(model) {}

  PlanGraphs graphs;
  SharedShapes shapes;
  std::map<std::string, PlanFamily> families;
};

struct Candidate {
  std::size_t family = 0;
  std::int64_t micro_batch = 1;
  std::int64_t grad_accum = 1;
  std::string checkpoint;  // The value of the axis.
  // Null: `auto`, which stands for many. Bound and time are then those that none of them is below.
  std::shared_ptr<const Checkpointing> segmented;
  bool from_front = false;  // One of those that `auto` stood for.
  bool seen = false;        // Judged by simulation.
  PlanGraph* graph = nullptr;
  Bytes least;  // Lower bound of the process; 0 where `bounded` is false.
  bool bounded = false;
  std::optional<StepTime> time;  // Absent: not needed, as `least` is too much.
};

struct Simulated {
  Fate fate = Fate::Unknown;
  std::string reason;
  Job job;
  Prediction prediction;
};

class Evaluator {
 public:
  // `thinned`: how many recompute plans `auto` stands for, at most.
  Evaluator(const SearchInputs& inputs, const SearchSpace& space, std::size_t thinned);

  [[nodiscard]] const std::vector<PlanFamily>& families() const { return families_; }
  // What the process may take. 0 where no family is possible.
  [[nodiscard]] Bytes limit() const { return limit_; }

  // Tokens per second that none of a family's candidates exceeds: with nothing computed again. Of several families at
  // once.
  [[nodiscard]] double fastest(std::size_t family);
  // What candidates of a family with these micro-batches share, at once.
  void profile_ahead(std::size_t family, std::span<const std::int64_t> batches);
  // All candidates of a family with this micro-batch, with their bounds, and their times as far as the bound leaves
  // them open. One with a refusal of its own is counted in `refusals` instead.
  [[nodiscard]] std::vector<Candidate> candidates(std::size_t family, std::int64_t micro_batch,
                                                  std::map<std::string, std::int64_t>& refusals);
  // What an `auto` stands for: recompute plans of the front at the smallest micro-batch, as sizes and times grow alike
  // with it, each with its bound and its time. Without those that have the groups of a listed one. `others`: of which
  // that is likely to be asked next.
  [[nodiscard]] std::vector<Candidate> expanded(const Candidate& candidate,
                                                std::span<const Candidate* const> others = {});
  // One with a recompute plan of its own; `label` names it. Bounded only if it makes more than `speed` tokens per
  // second. Absent: refused, `refusal` says why.
  [[nodiscard]] std::optional<Candidate> candidate(std::size_t family, std::int64_t micro_batch, std::string label,
                                                   const std::shared_ptr<const Checkpointing>& segmented, double speed,
                                                   std::string& refusal);
  // The time of one whose bound was too much for anybody to ask.
  void add_time(Candidate& candidate) const;
  // Why its memory cannot suffice, and what is missing; nullopt where the bound leaves that open.
  [[nodiscard]] std::optional<Bytes> missing(const Candidate& candidate) const;
  // Lower bound of what one rank sends in a step.
  [[nodiscard]] Bytes least_wire(const Candidate& candidate) const;
  // nullopt: not what is wanted (planner/predict/predict.h), or needless.
  [[nodiscard]] std::optional<Simulated> simulate(const Candidate& candidate, Detail detail, Wanted wanted,
                                                  const std::atomic<bool>* needless = nullptr) const;
  [[nodiscard]] PlanRow row(const Candidate& candidate) const;

 private:
  [[nodiscard]] Job job_of(const Candidate& candidate) const;
  [[nodiscard]] std::optional<Candidate> blank(std::size_t family, std::int64_t micro_batch,
                                               std::string& refusal) const;
  using Plans = std::vector<std::shared_ptr<const Checkpointing>>;
  [[nodiscard]] PlanGraphs::Front front_of(const Candidate& candidate) const;
  [[nodiscard]] const Plans& unlisted(const Candidate& candidate, std::span<const Candidate* const> others);
  [[nodiscard]] std::shared_ptr<const Checkpointing> segmentation(const PlanFamily& family, const std::string& value,
                                                                  std::string& refusal) const;
  // `family.job` is the candidate's; for `auto` without checkpoints.
  void judge_by_formula(const PlanFamily& family, Candidate& candidate, bool always_time) const;

  const SearchInputs& inputs_;
  const SearchSpace& space_;
  std::size_t thinned_;
  std::int64_t smallest_batch_ = INT64_MAX;
  Bytes limit_;
  std::vector<PlanFamily> families_;
  SharedGraphs own_;  // Where nobody shares any.
  PlanGraphs& graphs_;
  SharedShapes& shapes_;                   // Of what is simulated.
  std::map<std::string, Plans> unlisted_;  // By the front's name.
};

}  // namespace dsplan::detail
