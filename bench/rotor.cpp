#include "rotor.h"

#include <algorithm>
#include <limits>

#include "planner/plan/recompute/flat.h"

namespace dsplan::detail {
namespace {

// Intervals [s, t] with s <= t, packed.
std::size_t interval(std::size_t s, std::size_t t) { return t * (t + 1) / 2 + s; }

std::int64_t need_all(const ChainCosts& costs, std::size_t s, std::size_t t) {
  const StageCost& stage = costs.stages[s];
  return stage.saved + std::max(costs.stages[t].gradient + stage.forward_temporary,
                                stage.gradient + stage.gradient_before + stage.backward_temporary);
}

// Running forward from s without saving, stage by stage, on behalf of an interval that ends at t.
class FirstPass {
 public:
  FirstPass(const ChainCosts& costs, std::size_t s, std::size_t t)
      : costs_(costs), first_(s), gradient_(costs.stages[t].gradient) {}
  void extend(std::size_t k) {
    const StageCost& stage = costs_.stages[k];
    const std::int64_t reads = k == first_ ? 0 : costs_.stages[k - 1].output;
    need_ = std::max(need_, gradient_ + reads + stage.output + stage.forward_temporary);
    time_ += stage.forward_time;
  }
  [[nodiscard]] std::int64_t need() const { return need_; }
  [[nodiscard]] std::int64_t time() const { return time_; }

 private:
  const ChainCosts& costs_;
  std::size_t first_;
  std::int64_t gradient_;
  std::int64_t need_ = 0, time_ = 0;
};

// Where an interval splits: its first stage is saved (0), or the stage from which the rest runs first.
template <class SplitOf>
void write(std::size_t s, std::size_t t, std::int64_t m, const SplitOf& split_of, std::vector<ChainOperation>& into) {
  const auto say = [&](ChainStep step, std::size_t stage) {
    into.push_back({step, static_cast<std::int32_t>(stage + 1), kNoOption});
  };
  std::int64_t inner = m, outer = m;
  const std::size_t split = s == t ? 0 : split_of(s, t, m, inner, outer);
  if (split == 0) {
    say(ChainStep::ForwardSave, s);
    if (s < t) write(s + 1, t, inner, split_of, into);
    say(ChainStep::Backward, s);
    return;
  }
  say(ChainStep::ForwardKeepInput, s);
  for (std::size_t k = s + 1; k < split; ++k) say(ChainStep::ForwardNone, k);
  write(split, t, inner, split_of, into);
  write(s, split - 1, outer, split_of, into);
}

template <class Real>
class Table {
 public:
  Table(const ChainCosts& costs, std::int64_t capacity, std::int64_t unit, bool save_single)
      : costs_(costs),
        unit_(unit),
        save_single_(save_single),
        width_(capacity / unit + 1),
        cells_(interval(0, costs.size()) * static_cast<std::size_t>(width_), kNever) {
    for (std::size_t length = 0; length < costs.size(); ++length) {
      for (std::size_t s = 0; s + length < costs.size(); ++s) fill(s, s + length);
    }
  }

  [[nodiscard]] std::optional<std::int64_t> extra() const {
    const Real best = row(0, costs_.size() - 1)[width_ - 1];
    return best == kNever ? std::nullopt : std::optional(static_cast<std::int64_t>(best));
  }

  [[nodiscard]] std::vector<ChainOperation> operations() const {
    std::vector<ChainOperation> list;
    const auto split_of = [this](std::size_t s, std::size_t t, std::int64_t m, std::int64_t& inner,
                                 std::int64_t& outer) { return split(s, t, m, inner, outer); };
    write(0, costs_.size() - 1, width_ - 1, split_of, list);
    return list;
  }

 private:
  static constexpr Real kNever = std::numeric_limits<Real>::infinity();

  [[nodiscard]] std::int64_t slots(std::int64_t bytes) const { return (bytes + unit_ - 1) / unit_; }
  [[nodiscard]] Real* row(std::size_t s, std::size_t t) {
    return cells_.data() + interval(s, t) * static_cast<std::size_t>(width_);
  }
  [[nodiscard]] const Real* row(std::size_t s, std::size_t t) const {
    return cells_.data() + interval(s, t) * static_cast<std::size_t>(width_);
  }

  void fill(std::size_t s, std::size_t t) {
    Real* const __restrict into = row(s, t);
    const std::int64_t all = slots(need_all(costs_, s, t));
    if (s == t) {
      for (std::int64_t m = all; m < width_; ++m) into[m] = 0;
      return;
    }
    if (!save_single_) {
      const std::int64_t shift = slots(costs_.stages[s].saved);
      const Real* const __restrict rest = row(s + 1, t);
      for (std::int64_t m = std::max(all, shift); m < width_; ++m) into[m] = rest[m - shift];
    }
    FirstPass pass(costs_, s, t);
    for (std::size_t split = s + 1; split <= t; ++split) {
      pass.extend(split - 1);
      const std::int64_t shift = slots(costs_.stages[split - 1].output);
      const std::int64_t from = std::max(slots(pass.need()), shift);
      const auto time = static_cast<Real>(pass.time());
      const Real* const __restrict right = row(split, t) - shift;
      const Real* const __restrict left = row(s, split - 1);
      for (std::int64_t m = from; m < width_; ++m) {
        const Real offered = time + right[m] + left[m];
        into[m] = offered < into[m] ? offered : into[m];
      }
    }
  }

  // The choices are not kept: the one that gives the cell its value is looked for again.
  [[nodiscard]] std::size_t split(std::size_t s, std::size_t t, std::int64_t m, std::int64_t& inner,
                                  std::int64_t& outer) const {
    const Real wanted = row(s, t)[m];
    const std::int64_t saved = slots(costs_.stages[s].saved);
    if (!save_single_ && m >= std::max(slots(need_all(costs_, s, t)), saved) && row(s + 1, t)[m - saved] == wanted) {
      inner = m - saved;
      return 0;
    }
    FirstPass pass(costs_, s, t);
    for (std::size_t at = s + 1; at <= t; ++at) {
      pass.extend(at - 1);
      const std::int64_t shift = slots(costs_.stages[at - 1].output);
      if (m < std::max(slots(pass.need()), shift)) continue;
      if (static_cast<Real>(pass.time()) + row(at, t)[m - shift] + row(s, at - 1)[m] != wanted) continue;
      inner = m - shift;
      outer = m;
      return at;
    }
    return 0;
  }

  const ChainCosts& costs_;
  std::int64_t unit_;
  bool save_single_;
  std::int64_t width_;
  std::vector<Real> cells_;
};

template <class Real>
std::optional<RotorPlan> solve(const ChainCosts& costs, std::int64_t capacity, std::int64_t unit, bool exact,
                               bool save_single) {
  const Table<Real> table(costs, capacity, unit, save_single);
  const std::optional<std::int64_t> extra = table.extra();
  if (!extra) return std::nullopt;
  return RotorPlan{*extra, exact, table.operations()};
}

}  // namespace

std::optional<RotorPlan> rotor(const ChainCosts& costs, std::int64_t capacity, const RotorRules& rules) {
  const std::int64_t gcd = unit_of(costs);
  const bool exact = capacity / gcd <= rules.slots;
  const std::int64_t unit = exact ? gcd : (capacity + rules.slots - 1) / rules.slots;
  // No forward runs more often than there are stages; a float holds whole numbers below 2^24 exactly.
  std::int64_t most = 0;
  for (const StageCost& stage : costs.stages) most += stage.forward_time;
  const bool small = most < (std::int64_t{1} << 24) / static_cast<std::int64_t>(costs.size());
  return small ? solve<float>(costs, capacity, unit, exact, rules.save_single)
               : solve<double>(costs, capacity, unit, exact, rules.save_single);
}

RotorMinimum rotor_minimum(const ChainCosts& costs) {
  const std::size_t n = costs.size();
  std::vector<std::int64_t> needs(interval(0, n), 0);
  std::vector<std::size_t> splits(interval(0, n), 0);
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t s = t + 1; s-- > 0;) {
      std::int64_t& best = needs[interval(s, t)];
      best = need_all(costs, s, t);
      if (s == t) continue;
      best = std::max(best, costs.stages[s].saved + needs[interval(s + 1, t)]);
      FirstPass pass(costs, s, t);
      for (std::size_t at = s + 1; at <= t; ++at) {
        pass.extend(at - 1);
        const std::int64_t need =
            std::max({pass.need(), costs.stages[at - 1].output + needs[interval(at, t)], needs[interval(s, at - 1)]});
        if (need >= best) continue;
        best = need;
        splits[interval(s, t)] = at;
      }
    }
  }
  RotorMinimum minimum{needs[interval(0, n - 1)], {}};
  const auto split_of = [&](std::size_t s, std::size_t t, std::int64_t, std::int64_t&, std::int64_t&) {
    return splits[interval(s, t)];
  };
  write(0, n - 1, 0, split_of, minimum.operations);
  return minimum;
}

}  // namespace dsplan::detail
