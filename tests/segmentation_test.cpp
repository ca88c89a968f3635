// Chains: the solvers against brute force, against closed forms and against each other; every plan replayed.
#include <doctest/doctest.h>

#include <cmath>

#include "chains.h"
#include "core/error.h"
#include "planner/plan/recompute/bound.h"
#include "planner/plan/recompute/flat.h"
#include "planner/plan/recompute/plan_chain.h"
#include "rotor.h"
#include "uniform_plans.h"

using namespace dsplan;
using namespace dsplan::detail;
using namespace dsplan::test;

namespace {

// The least time within a budget of what was found some other way; it is replayed as plans are.
struct Otherwise {
  std::optional<Ticks> time;
  bool exact = true;
};

Ticks replayed(const Chain& chain, const std::vector<ChainOperation>& operations, Bytes budget) {
  const ChainReplay run = replay(chain, operations);
  REQUIRE_MESSAGE(run.fault.empty(), run.fault);
  REQUIRE(run.peak <= budget);
  return run.time;
}

// Of all persistent schedules, nested to any depth.
Otherwise nested(const Chain& chain, Bytes budget, std::int64_t slots = RotorRules{}.slots) {
  const ChainCosts costs(chain);
  const std::int64_t capacity = (budget - chain.input).value();
  const RotorMinimum least = rotor_minimum(costs);
  if (least.need > capacity) return {};
  const std::optional<RotorPlan> plan = rotor(costs, capacity, {slots, false});
  if (!plan) return {replayed(chain, least.operations, budget), false};
  CHECK(replayed(chain, plan->operations, budget) == chain.time_without_recompute() + Ticks(plan->extra));
  return {chain.time_without_recompute() + Ticks(plan->extra), plan->exact};
}

// Of equal stages, by closed forms.
std::optional<Ticks> uniform(const Chain& chain, Bytes budget) {
  const auto plan = uniform_plan(ChainCosts(chain), (budget - chain.input).value());
  if (!plan) return std::nullopt;
  return replayed(chain, operations_of(chain, plan->segments), budget);
}

Bytes uniform_least(const Chain& chain) { return Bytes(uniform_minimum(ChainCosts(chain))) + chain.input; }

}  // namespace

TEST_CASE("flat is the least of all flat plans, for every budget") {
  std::mt19937 random(7);
  int compared = 0;
  for (const Kinds& kinds : kAllKinds) {
    const std::size_t most = kinds.options ? 5 : kinds.gathers ? 6 : 8;
    for (std::size_t stages = 1; stages <= most; ++stages) {
      for (int draw = 0; draw < 3; ++draw) {
        const Chain chain = random_chain(random, stages, kinds);
        const std::vector<Point> points = every_flat_plan(chain);
        for (const Bytes budget : budgets_of(points)) {
          const std::optional<Ticks> best = best_within(points, budget);
          const ChainPlan plan = planned(chain, "flat", budget);
          ++compared;
          REQUIRE(plan.feasible == best.has_value());
          // `plan` counts such small chains in slots of a byte; the fronts are for the others.
          const FlatAnswer fronts = flat_exact(ChainCosts(chain), (budget - chain.input).value(), {});
          REQUIRE(fronts.plan.has_value() == best.has_value());
          if (best) REQUIRE(chain.time_without_recompute() + Ticks(fronts.plan->extra) == *best);
          if (best) REQUIRE(*plan.time == *best);
          REQUIRE(plan.feasible == (budget >= plan.minimum));
        }
      }
    }
  }
  CHECK(compared > 2000);
}

TEST_CASE("the whole front at once says the same as one budget at a time") {
  std::mt19937 random(8);
  for (const Kinds& kinds : kAllKinds) {
    const Chain chain = random_chain(random, 12, kinds);
    const ChainCosts costs(chain);
    const auto front = flat_plans(costs, {}, kAllPlans);
    REQUIRE(front.has_value());
    for (std::size_t i = 0; i < front->size(); ++i) {
      const std::int64_t need = (*front)[i].need;
      const std::int64_t extra = (*front)[i].extra;
      CHECK(flat_exact(costs, need, {}).plan->extra == extra);
      if (i > 0) CHECK(flat_exact(costs, need - 1, {}).plan->extra == (*front)[i - 1].extra);
      if (i == 0) CHECK(!flat_exact(costs, need - 1, {}).plan);
    }
  }
}

TEST_CASE("pruning and slots of the common unit change no answer") {
  std::mt19937 random(9);
  for (const Kinds& kinds : kAllKinds) {
    for (int draw = 0; draw < 4; ++draw) {
      const Chain chain = random_chain(random, 14, kinds);
      const ChainCosts costs(chain);
      FlatRules plain;
      plain.prune = false;
      for (const Bytes budget : sweep(chain, 20)) {
        const std::int64_t capacity = (budget - chain.input).value();
        const FlatAnswer pruned = flat_exact(costs, capacity, {});
        const FlatAnswer all = flat_exact(costs, capacity, plain);
        REQUIRE(pruned.plan.has_value());
        REQUIRE(pruned.plan->extra == all.plan->extra);
        CHECK(pruned.labels <= 4 * all.labels);
        const SlotAnswer slots = flat_slots(costs, capacity, 100'000, {});
        REQUIRE(slots.plan.has_value());
        REQUIRE(slots.plan->extra == all.plan->extra);
        REQUIRE(slots.bound == all.plan->extra);
      }
    }
  }
}

TEST_CASE("rounded down <= byte-exact <= rounded up, and closer with more slots") {
  std::mt19937 random(10);
  std::int64_t coarse = 0, fine = 0;
  for (int draw = 0; draw < 6; ++draw) {
    Chain chain = random_chain(random, 30, {true, draw % 2 == 1, draw % 3 == 2});
    for (ChainStage& one : chain.stages) one.saved = one.saved * 997 + Bytes(one.saved.value() % 7);
    const ChainCosts costs(chain);
    for (const Bytes budget : sweep(chain, 12)) {
      const std::int64_t capacity = (budget - chain.input).value();
      const std::int64_t exact = flat_exact(costs, capacity, {}).plan->extra;
      for (const std::int64_t slots : {50, 800}) {
        const SlotAnswer answer = flat_slots(costs, capacity, slots, {});
        REQUIRE(answer.bound.has_value());
        CHECK(*answer.bound <= exact);
        if (answer.plan) CHECK(answer.plan->extra >= exact);
        (slots == 50 ? coarse : fine) += (answer.plan ? answer.plan->extra : 10'000) - *answer.bound;
      }
      const ChainPlan plan = planned(chain, "flat:50", budget);
      CHECK(plan.feasible);
      CHECK(*plan.time >= chain.time_without_recompute() + Ticks(exact));
      if (plan.optimal) CHECK(*plan.time == chain.time_without_recompute() + Ticks(exact));
    }
  }
  CHECK(fine < coarse);
}

TEST_CASE("uniform chains: the smallest budgets of the literature, and closed forms equal to the solver") {
  CHECK(planned(uniform_chain(32), "flat").minimum == Bytes(86 + 2));
  CHECK(planned(uniform_chain(96), "flat").minimum == Bytes(134 + 2));
  CHECK(uniform_least(uniform_chain(32)) == Bytes(86 + 2));
  CHECK(uniform_least(uniform_chain(96)) == Bytes(134 + 2));
  CHECK(planned(uniform_chain(32, 1000), "flat").minimum == Bytes(86 + 1000));
  // Equal lengths need more: 2 sqrt(L a a-bar) against sqrt(2 L a a-bar), both beside 2 delta.
  CHECK(planned(uniform_chain(96), "every").minimum == Bytes(166 + 2));

  Chain fat = uniform_chain(13);
  for (ChainStage& one : fat.stages) {
    one.forward_temporary = Bytes(11);
    one.backward_temporary = Bytes(5);
    one.output = one.saved;
  }
  for (const Chain& chain : {uniform_chain(1), uniform_chain(2), uniform_chain(7), uniform_chain(48), fat}) {
    for (const Bytes budget : sweep(chain, 60)) {
      CHECK(uniform(chain, budget) == planned(chain, "flat", budget).time);
    }
    CHECK(uniform_least(chain) == planned(chain, "flat").minimum);
  }
}

TEST_CASE("uniform chains: times of the literature at parts of the memory that stores everything") {
  const Chain chain = uniform_chain(96);
  const double all = 96 * 34;
  const auto ratio = [&](const char* method, double part) {
    const ChainPlan plan = planned(chain, method, Bytes(static_cast<std::int64_t>(all * part)) + chain.input);
    return plan.time ? chain.time(*plan.time) / chain.time(plan.time_without_recompute) : 0.0;
  };
  struct Row {
    double part, flat, block, groups;
  };
  for (const Row& row : {Row{0.05, 1.3229, 0, 0}, Row{0.08, 1.3125, 1.3264, 1.3333}, Row{0.10, 1.3056, 1.3194, 1.3333},
                         Row{0.20, 1.2708, 1.2847, 1.3333}, Row{0.30, 1.2361, 1.2500, 1.3333},
                         Row{0.50, 1.1701, 1.1806, 1.3333}, Row{0.70, 1.1007, 1.1076, 1.3333}}) {
    CAPTURE(row.part);
    CHECK(ratio("flat", row.part) == doctest::Approx(row.flat).epsilon(1e-4));
    CHECK(ratio("megatron-block", row.part) == doctest::Approx(row.block).epsilon(1e-4));
    CHECK(ratio("megatron-uniform", row.part) == doctest::Approx(row.groups).epsilon(1e-4));
  }
}

TEST_CASE("time never rises with the budget, and the replayed peak stays within it") {
  std::mt19937 random(11);
  for (const Kinds& kinds : kAllKinds) {
    const Chain chain = random_chain(random, 24, kinds);
    std::optional<Ticks> before;
    for (const Bytes budget : sweep(chain, 80)) {
      const ChainPlan plan = planned(chain, "flat", budget);
      REQUIRE(plan.feasible);
      CHECK(*plan.peak <= budget);
      if (before) CHECK(*plan.time <= *before);
      before = plan.time;
      // What is printed is what was run.
      const ChainReplay again = replay(chain, operations_of(chain, plan.segments));
      CHECK(again.time == *plan.time);
      CHECK(again.peak == *plan.peak);
    }
  }
}

TEST_CASE("a stage whose recomputation holds two big inputs: less memory never comes from more budget") {
  // The sum of what is kept says nothing of what the option's own backward holds.
  Chain chain = uniform_chain(8);
  for (ChainStage& one : chain.stages) one.options.push_back({"down_proj", Bytes(4), Ticks(1), Bytes(0), Bytes(60)});
  for (const Bytes budget : sweep(chain, 200)) {
    const ChainPlan plan = planned(chain, "selective", budget);
    if (plan.feasible) CHECK(*plan.peak <= budget);
    CHECK(plan.feasible == (budget >= plan.minimum));
  }
}

TEST_CASE("plenty of memory: nothing runs twice; too little: the stage to blame") {
  std::mt19937 random(12);
  for (const Kinds& kinds : kAllKinds) {
    Chain chain = random_chain(random, 10, kinds);
    for (ChainStage& one : chain.stages) one.forward_time += Ticks(1);
    const ChainPlan rich = planned(chain, "flat", planned(chain, "none").peak);
    CHECK(*rich.time == chain.time_without_recompute());
    CHECK(*rich.lower_bound == *rich.time);
    CHECK(std::none_of(rich.segments.begin(), rich.segments.end(),
                       [](const ChainSegment& one) { return one.mode != ChainSegment::Mode::Store; }));
    chain.stages[6].saved += Bytes(1000);
    for (ChainOption& option : chain.stages[6].options) option.saved += Bytes(1000);
    const ChainPlan poor = planned(chain, "flat", Bytes(900));
    CHECK(!poor.feasible);
    CHECK(!poor.lower_bound);
    CHECK(poor.culprit == 7);
    CHECK(poor.memory_bound > Bytes(1000));
    CHECK(poor.minimum >= poor.memory_bound);
  }
}

TEST_CASE("bound <= any schedule <= nested <= flat <= every rule") {
  std::mt19937 random(13);
  int apart = 0, nested_only = 0;
  for (std::size_t stages = 1; stages <= 6; ++stages) {
    for (int draw = 0; draw < 6; ++draw) {
      const Chain chain = random_chain(random, stages, {draw % 2 == 1, false, false});
      const AnySchedule any(chain);
      for (Bytes budget(0); budget <= planned(chain, "none").peak.value(); budget += Bytes(3)) {
        const std::optional<Ticks> best = any.within(budget);
        const Otherwise deep = nested(chain, budget, 100'000);
        const ChainPlan flat = planned(chain, "flat", budget);
        REQUIRE(deep.exact);
        CHECK(best.has_value() >= deep.time.has_value());
        CHECK(deep.time.has_value() >= flat.feasible);
        if (best) REQUIRE(flat.lower_bound.has_value());
        if (best) REQUIRE(*flat.lower_bound <= *best);
        if (deep.time) REQUIRE(*best <= *deep.time);
        if (flat.feasible) REQUIRE(*deep.time <= *flat.time);
        apart += static_cast<int>(flat.feasible && *deep.time < *flat.time);
        nested_only += static_cast<int>(deep.time && !flat.feasible);
        for (const char* rule : {"none", "full", "every", "segments", "nth", "sqrt", "chen", "megatron-block"}) {
          const ChainPlan plan = planned(chain, rule, budget);
          if (plan.feasible) REQUIRE(flat.feasible);
          if (plan.feasible) REQUIRE(*flat.time <= *plan.time);
          REQUIRE(plan.minimum >= flat.minimum);
          REQUIRE(plan.feasible == (budget >= plan.minimum));
        }
      }
    }
  }
  CHECK(apart > 0);  // Otherwise nesting was not tried.
  CHECK(nested_only > 0);
}

TEST_CASE("on uniform chains no schedule saves more than one forward over a flat plan that is not near its minimum") {
  // What is left is recomputing a stage before its successor's backward instead of keeping its output, which no
  // framework does: 21 against 22 at 108 bytes.
  const Chain chain = uniform_chain(6);
  const AnySchedule any(chain);
  for (Bytes budget(60); budget <= Bytes(220); budget += Bytes(2)) {
    const std::optional<Ticks> best = any.within(budget);
    const std::optional<Ticks> deep = nested(chain, budget).time;
    REQUIRE(deep.has_value() == best.has_value());
    CHECK(*deep <= *best + Ticks(1));
    if (budget >= Bytes(76)) CHECK(deep == planned(chain, "flat", budget).time);
  }
  CHECK(*any.within(Bytes(108)) == Ticks(21));
  CHECK(*planned(chain, "flat", Bytes(108)).time == Ticks(22));
}

TEST_CASE("binomial checkpointing: Griewank and Walther's closed form") {
  // T(n, s) extra forwards with s checkpoints: r n - C(s + r, s + 1) for the least r with n <= C(s + r, s).
  const auto binomial = [](std::int64_t n, std::int64_t k) {
    std::int64_t value = 1;
    for (std::int64_t i = 1; i <= k; ++i) value = value * (n - k + i) / i;
    return value;
  };
  for (std::size_t n = 1; n <= 40; n += 3) {
    Chain chain;
    chain.stages.assign(n, stage(1, 1, 0, 1, 1));
    const ChainCosts costs(chain);
    for (std::int64_t s = 1; s <= 8; ++s) {
      std::int64_t r = 0;
      const auto steps = static_cast<std::int64_t>(n);
      while (binomial(s + r, s) < steps) ++r;
      const std::int64_t expected = r == 0 ? 0 : r * steps - binomial(s + r, s + 1);
      // s checkpoints, the chain's input among them, and two outputs while a stage runs forward.
      const auto plan = rotor(costs, s + 1, {500, true});
      CAPTURE(n);
      CAPTURE(s);
      REQUIRE(plan.has_value());
      CHECK(plan->extra == expected);
    }
  }
}

TEST_CASE("scales, empty stages and split stages change nothing") {
  std::mt19937 random(14);
  for (const Kinds& kinds : kAllKinds) {
    const Chain chain = random_chain(random, 9, kinds);
    Chain large = chain;
    large.input = large.input * 1000;
    large.input_gradient = large.input_gradient * 1000;
    for (ChainStage& one : large.stages) {
      for (Bytes* size :
           {&one.output, &one.saved, &one.gradient, &one.forward_temporary, &one.backward_temporary, &one.gathered}) {
        *size = *size * 1000;
      }
      for (Ticks* time : {&one.forward_time, &one.backward_time, &one.gather_time, &one.spared_time}) *time = *time * 7;
      for (ChainOption& option : one.options) {
        option = {option.name, option.saved * 1000, option.time * 7, option.forward_temporary * 1000,
                  option.backward_temporary * 1000};
      }
    }
    // A stage without bytes or time: its gradient is that of the stage before, which it hands through.
    Chain longer = chain;
    longer.stages.insert(longer.stages.begin() + 4, ChainStage{});
    longer.stages[4].output = longer.stages[4].saved = chain.stages[3].output;
    longer.stages[4].gradient = chain.stages[3].gradient;
    for (const Bytes budget : sweep(chain, 15)) {
      const Ticks time = *planned(chain, "flat", budget).time;
      CHECK(*planned(large, "flat", budget * 1000).time == time * 7);
    }
    CHECK(planned(large, "flat").minimum == planned(chain, "flat").minimum * 1000);
    const Bytes all = planned(longer, "none").peak.value();
    CHECK(*planned(longer, "flat", all).time == chain.time_without_recompute());
  }
}
