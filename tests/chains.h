// Chains for tests, and oracles that try everything: slow, short, and sharing nothing with the solvers but the replay.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/chain.h"
#include "planner/plan/recompute/costs.h"
#include "planner/plan/recompute/plan_chain.h"
#include "planner/plan/recompute/replay.h"

namespace dsplan::test {

inline constexpr std::size_t kAllPlans = 1'000'000;  // Of a front: more than any has.

inline ChainStage stage(std::int64_t output, std::int64_t saved, std::int64_t gradient, std::int64_t forward,
                        std::int64_t backward) {
  ChainStage made;
  made.output = Bytes(output);
  made.saved = Bytes(saved);
  made.gradient = Bytes(gradient);
  made.forward_time = Ticks(forward);
  made.backward_time = Ticks(backward);
  return made;
}

// The chain of the literature's figures: a = 2, a-bar = 34, delta = 2.
inline Chain uniform_chain(std::size_t stages, std::int64_t input = 2) {
  Chain chain;
  chain.name = "uniform";
  chain.input = Bytes(input);
  chain.input_gradient = Bytes(2);
  chain.stages.assign(stages, stage(2, 34, 2, 1, 2));
  return chain;
}

struct Kinds {
  bool temporaries = false;
  bool options = false;
  bool gathers = false;
  bool spares = false;
};

inline Chain random_chain(std::mt19937& random, std::size_t stages, Kinds kinds = {}) {
  const auto draw = [&random](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  Chain chain;
  chain.name = "random";
  chain.input = Bytes(draw(0, 5));
  chain.input_gradient = Bytes(draw(0, 5));
  for (std::size_t i = 0; i < stages; ++i) {
    const int output = draw(0, 6);
    ChainStage made = stage(output, output + draw(0, 30), draw(0, 6), draw(0, 9), draw(0, 9));
    if (kinds.temporaries) made.forward_temporary = Bytes(draw(0, 20));
    if (kinds.temporaries) made.backward_temporary = Bytes(draw(0, 20));
    for (int k = kinds.options ? draw(0, 3) : 0; k > 0; --k) {
      made.options.push_back({"o" + std::to_string(k), Bytes(output + draw(0, 30)), Ticks(draw(0, 6)),
                              Bytes(draw(0, 40)), Bytes(draw(0, 40))});
    }
    if (kinds.gathers) made.gathered = Bytes(draw(0, 12));
    if (kinds.gathers) made.gather_time = Ticks(draw(0, 4));
    if (kinds.spares) made.spared_time = Ticks(draw(0, static_cast<int>(made.forward_time.value())));
    chain.stages.push_back(std::move(made));
  }
  return chain;
}

struct Point {
  Bytes peak;
  Ticks time;
};

// Every flat plan, segments up to the last stage included, each replayed.
inline void every_flat_plan(const Chain& chain, bool recompute, std::vector<ChainSegment>& begun,
                            std::vector<Point>& into) {
  using Mode = ChainSegment::Mode;
  const auto n = static_cast<std::int32_t>(chain.stages.size());
  const std::int32_t first = begun.empty() ? 1 : begun.back().last + 1;
  if (first > n) {
    const ChainReplay run = replay(chain, detail::operations_of(chain, begun));
    if (run.fault.empty()) into.push_back({run.peak, run.time});
    return;
  }
  const auto go_on = [&](const ChainSegment& segment) {
    begun.push_back(segment);
    every_flat_plan(chain, recompute, begun, into);
    begun.pop_back();
  };
  const auto options = static_cast<std::int32_t>(chain.stages[static_cast<std::size_t>(first - 1)].options.size());
  for (std::int32_t option = kNoOption; option < options; ++option) go_on({first, first, Mode::Store, option});
  for (std::int32_t last = first; recompute && last <= n; ++last) {
    go_on({first, last, Mode::Recompute, kNoOption});
    if (chain.gathers()) go_on({first, last, Mode::RecomputeHeld, kNoOption});
  }
}

inline std::vector<Point> every_flat_plan(const Chain& chain, bool recompute = true) {
  std::vector<ChainSegment> begun;
  std::vector<Point> points;
  every_flat_plan(chain, recompute, begun, points);
  return points;
}

// The least time of those that fit.
inline std::optional<Ticks> best_within(const std::vector<Point>& points, Bytes budget) {
  std::optional<Ticks> best;
  for (const Point& point : points) {
    if (point.peak <= budget && (!best || point.time < *best)) best = point.time;
  }
  return best;
}

inline ChainPlan planned(const Chain& chain, const std::string& method, std::optional<Bytes> budget = {}) {
  return plan_chain(chain, {method, budget});
}

// Budgets at which something may change: every peak of a flat plan, and one byte less.
inline std::vector<Bytes> budgets_of(const std::vector<Point>& points) {
  std::set<Bytes> budgets;
  for (const Point& point : points) {
    budgets.insert(point.peak);
    budgets.insert(point.peak - Bytes(1));
  }
  return {budgets.begin(), budgets.end()};
}

// From the least peak of any flat plan to what everything stored takes.
inline std::vector<Bytes> sweep(const Chain& chain, int steps) {
  const Bytes least = planned(chain, "flat").peak.value();
  const Bytes most = planned(chain, "none").peak.value() + Bytes(1);
  std::vector<Bytes> budgets;
  for (int i = 0; i <= steps; ++i) {
    const std::int64_t between = (most - least).value() * i / steps;
    budgets.push_back(least + Bytes(between));
  }
  return budgets;
}

inline constexpr Kinds kAllKinds[] = {{false, false, false}, {true, false, false}, {true, true, false},
                                      {true, false, true},   {true, true, true},   {true, true, false, true}};

// Dijkstra's search over everything that may be in memory: the least time of any schedule at all, with arbitrary
// deletions. No options, no gathered weights; up to about 7 stages.
class AnySchedule {
 public:
  explicit AnySchedule(const Chain& chain) : chain_(chain), n_(chain.stages.size()) {}

  [[nodiscard]] std::optional<Ticks> within(Bytes budget) const {
    using Entry = std::pair<std::int64_t, State>;
    std::map<State, std::int64_t> best;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto reach = [&](const State& state, std::int64_t time, Bytes held) {
      if (held > budget) return;
      const auto [at, fresh] = best.try_emplace(state, time);
      if (!fresh && at->second <= time) return;
      at->second = time;
      queue.emplace(time, state);
    };
    reach({0, 0, n_}, 0, live({0, 0, n_}));
    while (!queue.empty()) {
      const auto [time, state] = queue.top();
      queue.pop();
      if (best.at(state) < time) continue;
      if (std::get<2>(state) == 0) return Ticks(time);
      moves(state, time, reach);
    }
    return std::nullopt;
  }

 private:
  using State = std::tuple<unsigned, unsigned, std::size_t>;  // Outputs, tapes (bit i: stage i), next backward.

  [[nodiscard]] const ChainStage& at(std::size_t i) const { return chain_.stages[i - 1]; }

  [[nodiscard]] Bytes live(const State& state) const {
    const auto& [outputs, tapes, next] = state;
    Bytes sum = chain_.input + (next == 0 ? chain_.input_gradient : at(next).gradient);
    for (std::size_t i = 1; i <= n_; ++i) {
      if ((outputs >> i & 1U) != 0) sum += at(i).output;
      if ((tapes >> i & 1U) != 0) sum += at(i).saved;
    }
    return sum;
  }

  template <class Reach>
  void moves(const State& state, std::int64_t time, const Reach& reach) const {
    const auto& [outputs, tapes, next] = state;
    const Bytes held = live(state);
    for (std::size_t i = 1; i <= next; ++i) {
      const unsigned bit = 1U << i;
      const unsigned before = 1U << (i - 1);
      const bool readable = i == 1 || ((outputs | tapes) & before) != 0;
      if (((outputs | tapes) & bit) == 0 && readable) {
        const std::int64_t then = time + at(i).forward_time.value();
        reach({outputs, tapes | bit, next}, then, held + at(i).saved + at(i).forward_temporary);
        const bool leaves = i == n_;  // The last output is handed out of the chain.
        reach({leaves ? outputs : outputs | bit, tapes, next}, then, held + at(i).output + at(i).forward_temporary);
      }
      if ((outputs & bit) != 0) reach({outputs & ~bit, tapes, next}, time, held);
      if ((tapes & bit) != 0) {
        reach({outputs, tapes & ~bit, next}, time, held);
        if (i != n_) reach({outputs | bit, tapes & ~bit, next}, time, held);
      }
      if (i != next || (tapes & bit) == 0 || !readable) continue;
      const Bytes gradient = i == 1 ? chain_.input_gradient : at(i - 1).gradient;
      reach({outputs, tapes & ~bit, next - 1}, time + at(i).backward_time.value(),
            held + gradient + at(i).backward_temporary);
    }
  }

  const Chain& chain_;
  std::size_t n_;
};

}  // namespace dsplan::test
