#include "planner/plan/recompute/baselines.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "planner/plan/recompute/costs.h"
#include "planner/plan/recompute/replay.h"

namespace dsplan::detail {
namespace {

using Mode = ChainSegment::Mode;

constexpr std::int64_t kChenSteps = 128;

class Cutter {
 public:
  explicit Cutter(std::int64_t stages) : stages_(stages) {}

  void recompute(std::int64_t size) { add(size, Mode::Recompute); }
  void store(std::int64_t size) { add(size, Mode::Store); }
  void store_rest() { store(stages_ - done_); }
  [[nodiscard]] bool done() const { return done_ == stages_; }
  [[nodiscard]] std::vector<ChainSegment> take() { return std::move(segments_); }

 private:
  void add(std::int64_t size, Mode mode) {
    size = std::min(size, stages_ - done_);
    if (size == 0) return;
    segments_.push_back(
        {static_cast<std::int32_t>(done_ + 1), static_cast<std::int32_t>(done_ + size), mode, kNoOption});
    done_ += size;
  }
  std::int64_t stages_;
  std::int64_t done_ = 0;
  std::vector<ChainSegment> segments_;
};

// The K-th of kChenSteps thresholds, from the largest stage to all of them, in equal ratios.
std::vector<ChainSegment> chen(std::int64_t k, const Chain& chain) {
  Bytes largest(1), sum;
  for (const ChainStage& stage : chain.stages) {
    largest = std::max(largest, stage.saved);
    sum += stage.saved;
  }
  const double ratio = static_cast<double>(sum.value()) / static_cast<double>(largest.value());
  const double threshold = static_cast<double>(largest.value()) *
                           std::pow(std::max(ratio, 1.0), static_cast<double>(k) / static_cast<double>(kChenSteps));
  Cutter cutter(static_cast<std::int64_t>(chain.stages.size()));
  std::int64_t size = 0;
  double bytes = 0;
  for (const ChainStage& stage : chain.stages) {
    ++size;
    bytes += static_cast<double>(stage.saved.value());
    if (bytes <= threshold) continue;
    cutter.recompute(size);
    size = 0;
    bytes = 0;
  }
  cutter.recompute(size);
  return cutter.take();
}

}  // namespace

const std::vector<RuleRow>& rules() {
  static const std::vector<RuleRow> kRules = {
      {"none", Rule::None, -1},
      {"full", Rule::Full, -1},
      {"every", Rule::Every, 1},
      {"segments", Rule::Segments, 1},
      {"checkpoint_sequential", Rule::Segments, 1},
      {"nth", Rule::Nth, 1},
      {"sqrt", Rule::Sqrt, -1},
      {"chen", Rule::Chen, -1},
      {"megatron-block", Rule::MegatronBlock, 0},
      {"megatron-uniform", Rule::MegatronUniform, 1},
  };
  return kRules;
}

std::optional<std::vector<ChainSegment>> cut(Rule rule, std::int64_t k, const Chain& chain) {
  const auto n = static_cast<std::int64_t>(chain.stages.size());
  Cutter cutter(n);
  const auto groups = [&](std::int64_t size) {
    while (!cutter.done()) cutter.recompute(size);
  };
  switch (rule) {
    case Rule::None: break;
    case Rule::Full: groups(1); break;
    case Rule::Every:
    case Rule::MegatronUniform: groups(k); break;
    case Rule::Sqrt: groups(static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(n))))); break;
    case Rule::Segments:
      if (k > n) return std::nullopt;
      for (std::int64_t i = 1; i < k; ++i) cutter.recompute(n / k);
      break;
    case Rule::Nth:
      while (!cutter.done()) {
        cutter.recompute(1);
        cutter.store(k - 1);
      }
      break;
    case Rule::Chen: return chen(k, chain);
    case Rule::MegatronBlock:
      for (std::int64_t i = 0; i < std::min(k, n); ++i) cutter.recompute(1);
      break;
  }
  cutter.store_rest();
  return cutter.take();
}

RuleAnswer try_rule(const Chain& chain, const RuleRow& rule, std::optional<std::int64_t> k,
                    std::optional<Bytes> budget) {
  RuleAnswer answer;
  const auto consider = [&](std::int64_t at, std::vector<ChainSegment> segments) {
    const ChainReplay run = replay(chain, operations_of(chain, segments));
    DSPLAN_CHECK(run.fault.empty(), run.fault);
    RuleTry one{at, std::move(segments), run.time, run.peak};
    const auto order = [](const RuleTry& t) { return std::tie(t.time, t.peak, t.k); };
    const auto by_peak = [](const RuleTry& t) { return std::tie(t.peak, t.time, t.k); };
    if (!answer.least || by_peak(one) < by_peak(*answer.least)) answer.least = one;
    if (!budget || one.peak > *budget) return;
    if (!answer.best || order(one) < order(*answer.best)) answer.best = std::move(one);
  };
  const auto both_ways = [&](std::int64_t at) {
    std::optional<std::vector<ChainSegment>> segments = cut(rule.rule, at, chain);
    if (!segments) return;
    consider(at, *segments);
    if (!chain.gathers()) return;
    for (ChainSegment& segment : *segments) {
      if (segment.mode == Mode::Recompute) segment.mode = Mode::RecomputeHeld;
    }
    consider(at, std::move(*segments));
  };
  const auto n = static_cast<std::int64_t>(chain.stages.size());
  if (rule.rule == Rule::Chen) {
    for (std::int64_t step = 0; step <= kChenSteps; ++step) both_ways(step);
  } else if (rule.least < 0 || k) {
    both_ways(k.value_or(-1));
  } else {
    for (std::int64_t at = rule.least; at <= n; ++at) both_ways(at);
  }
  return answer;
}

}  // namespace dsplan::detail
