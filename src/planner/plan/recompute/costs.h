// A chain as the solvers count: plain integers in arrays, sums over prefixes, and what a segment of it needs. The
// reader of chains has bounded all sums, so that nothing here can overflow.
//
// "Need" is always beyond what the stages before hold: the input of the segment belongs to its caller. "Extra" is the
// time beyond every forward and every backward once.
#pragma once

#include <cstdint>
#include <vector>

#include "core/chain.h"

namespace dsplan::detail {

// One way to store a stage.
struct StoreCost {
  std::int64_t saved = 0;
  std::int64_t backward_temporary = 0;
  std::int64_t need = 0;  // While the stage itself runs, forward or backward.
  std::int64_t extra = 0;
  std::int32_t option = kNoOption;
};

struct StageCost {
  std::int64_t output = 0, saved = 0, gradient = 0;
  std::int64_t gradient_before = 0;                            // Of the stage before: what the backward makes.
  std::int64_t forward_temporary = 0, backward_temporary = 0;  // Without gathered weights.
  std::int64_t gathered = 0;
  std::int64_t forward_time = 0, gather_time = 0, spared_time = 0;
  std::vector<StoreCost> stores;  // The whole first.
};

struct ChainCosts {
  explicit ChainCosts(const Chain& chain);

  [[nodiscard]] std::size_t size() const { return stages.size(); }
  std::vector<StageCost> stages;  // From 0: stage i of the file is stages[i - 1].
  std::int64_t input = 0;
  std::int64_t seed = 0;  // The gradient of the last output, alive from the start.
  bool gathers = false;
  bool spares = false;
};

// The segment [first, last] computed again as a whole, grown stage by stage; section 6.1 of the literature's notation:
// bw, fw, nul. Both ways of ZeRO-3 are kept: `held` keeps the weights of the recomputation until the backward.
class Recomputed {
 public:
  Recomputed(const ChainCosts& costs, std::size_t first) : costs_(&costs), first_(first) {}
  void extend(std::size_t last);

  // All that the segment's backward reads, once it is there; no way to run it needs less.
  [[nodiscard]] std::int64_t tapes() const { return tapes_; }
  [[nodiscard]] std::int64_t need(bool held) const;
  [[nodiscard]] std::int64_t extra(bool held) const { return forward_ - spared_ + (held ? 0 : regathered_); }

 private:
  const ChainCosts* costs_;
  std::size_t first_;
  std::int64_t tapes_ = 0, weights_ = 0;
  std::int64_t first_pass_ = 0;              // Without saving.
  std::int64_t again_ = 0, again_held_ = 0;  // With saving, without the gradient of the segment's output.
  std::int64_t backward_ = 0, backward_held_ = 0;
  std::int64_t forward_ = 0, spared_ = 0, regathered_ = 0, last_gather_ = 0;
  std::int64_t gradient_ = 0;
};

// Segments as the list of operations that a framework would run: forward through all of them, then backward, each
// recomputed one run forward again first.
[[nodiscard]] std::vector<ChainOperation> operations_of(const Chain& chain, const std::vector<ChainSegment>& segments);

// Segments of neighbours that are stored whole, put together.
[[nodiscard]] std::vector<ChainSegment> merged(const std::vector<ChainSegment>& segments);

}  // namespace dsplan::detail
