// What no schedule can beat, nested or not, whatever it deletes and when.
//
// Time: when the backward of stage l starts, every stage before it whose forward runs only once has its saved bytes in
// memory, beside what that backward itself takes. So at least those forwards run again that do not fit in the rest: a
// knapsack, relaxed to the continuous one, which is solved by sorting ("turn-point knapsack"; l = n is the turn from
// forward to backward). A stage with options may instead keep less and lose an option's time: the continuous relaxation
// of the multiple-choice knapsack, by the convex hull of each stage's choices.
//
// Memory: the backward of a stage holds its input, what it reads, two gradients and its temporaries.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/plan/recompute/costs.h"

namespace dsplan::detail {

// The knapsack over the first stages of a chain.
class PrefixBound {
 public:
  explicit PrefixBound(const ChainCosts& costs);

  // Looks at the stages before `end` (from 0) from now on.
  void set_end(std::size_t end);
  // The least extra time of those stages where `capacity` bytes are there for what they keep. capacity >= 0.
  [[nodiscard]] std::int64_t extra(std::int64_t capacity) const;
  // With nothing kept at all.
  [[nodiscard]] std::int64_t most() const { return base_; }

 private:
  struct Piece {  // Keeping `bytes` more of a stage gains `gain` of time.
    std::size_t stage = 0;
    std::int64_t bytes = 0;
    std::int64_t gain = 0;
  };
  void add_stage(std::size_t index, const StageCost& stage);

  std::vector<Piece> pieces_;        // Best gain for its bytes first.
  std::vector<std::int64_t> bases_;  // Sums over prefixes of stages.
  std::int64_t base_ = 0;
  std::vector<std::int64_t> bytes_, gains_;  // Sums over the pieces of the stages looked at.
};

struct ChainBound {
  std::int64_t memory = 0;            // Without the chain's input.
  std::size_t culprit = 0;            // The stage whose backward takes that, from 0.
  std::optional<std::int64_t> extra;  // Absent: nothing runs in `capacity`.
};

// `capacity` is the budget without the chain's input.
[[nodiscard]] ChainBound bound_of(const ChainCosts& costs, std::int64_t capacity);

}  // namespace dsplan::detail
