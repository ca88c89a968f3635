// What a stage may keep instead of everything, weights that ZeRO-3 gathers, budgets that are too small, and the replay.
#include <doctest/doctest.h>

#include "chains.h"
#include "planner/plan/recompute/flat.h"

using namespace dsplan;
using namespace dsplan::detail;
using namespace dsplan::test;

TEST_CASE("options: a multiple-choice knapsack with the transient of each") {
  std::mt19937 random(15);
  for (int draw = 0; draw < 12; ++draw) {
    const Chain chain = random_chain(random, 5, {true, true, false});
    const std::vector<Point> points = every_flat_plan(chain, false);
    for (const Bytes budget : budgets_of(points)) {
      const ChainPlan plan = planned(chain, "selective", budget);
      CHECK(plan.time == best_within(points, budget));
      CHECK(plan.feasible == (budget >= plan.minimum));
    }
  }
}

TEST_CASE("options: among equal layers those with the largest transient beyond what they keep go first") {
  Chain chain = uniform_chain(5);
  for (ChainStage& one : chain.stages) one.options.push_back({"o", Bytes(6), Ticks(1), Bytes(10), Bytes(30)});
  using Mode = ChainSegment::Mode;
  for (int count = 1; count < 5; ++count) {
    std::vector<ChainSegment> ordered;
    std::vector<Bytes> peaks;
    for (unsigned mask = 0; mask < 32; ++mask) {
      if (__builtin_popcount(mask) != count) continue;
      std::vector<ChainSegment> segments;
      for (std::int32_t i = 0; i < 5; ++i) {
        segments.push_back({i + 1, i + 1, Mode::Store, (mask >> i & 1U) != 0 ? 0 : kNoOption});
      }
      peaks.push_back(replay(chain, operations_of(chain, segments)).peak);
      if (mask == (1U << count) - 1) ordered = segments;
    }
    CHECK(replay(chain, operations_of(chain, ordered)).peak == *std::min_element(peaks.begin(), peaks.end()));
  }
}

TEST_CASE("what a plan needs is what its replay takes") {
  std::mt19937 random(17);
  for (int draw = 0; draw < 60; ++draw) {
    Chain chain = random_chain(random, 9, kAllKinds[draw % 6]);
    // Nothing but the outputs is saved, and the last gradient is large: the pass without saving takes most.
    for (ChainStage& one : chain.stages) one.saved = draw % 2 == 0 ? one.output : one.saved;
    chain.stages.back().gradient += Bytes(20 * (draw % 3));
    const ChainCosts costs(chain);
    const auto front = flat_plans(costs, {}, kAllPlans);
    REQUIRE(front.has_value());
    for (const FlatPlan& plan : *front) {
      const FlatAnswer answer = flat_exact(costs, plan.need, {});
      REQUIRE(answer.plan.has_value());
      const ChainReplay run = replay(chain, operations_of(chain, answer.plan->segments));
      CHECK(run.fault.empty());
      CHECK(run.peak == chain.input + Bytes(plan.need));
      CHECK(run.time == chain.time_without_recompute() + Ticks(plan.extra));
    }
  }
}

TEST_CASE("a thousand small knapsacks never exceed their capacity") {
  std::mt19937 random(16);
  int plans = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    const Chain chain = random_chain(random, 1U + static_cast<std::size_t>(draw) % 7, kAllKinds[draw % 6]);
    const auto budget = Bytes(std::uniform_int_distribution<int>(0, 150)(random));
    for (const char* method : {"flat", "flat:7", "selective", "segments:1"}) {
      const ChainPlan plan = planned(chain, method, budget);
      plans += static_cast<int>(plan.feasible);
      if (plan.feasible) CHECK(*plan.peak <= budget);
    }
  }
  CHECK(plans > 1000);
}

TEST_CASE("weights to gather: held where there is room, gathered again where there is none") {
  Chain chain = uniform_chain(24);
  for (ChainStage& one : chain.stages) {
    one.gathered = Bytes(60);
    one.gather_time = Ticks(1);
  }
  CHECK(chain.time_without_recompute() == Ticks(24 * 3 + 48));
  bool held = false, again = false;
  for (const Bytes budget : sweep(chain, 60)) {
    for (const ChainSegment& one : planned(chain, "flat", budget).segments) {
      held = held || one.mode == ChainSegment::Mode::RecomputeHeld;
      again = again || (one.mode == ChainSegment::Mode::Recompute && one.last > one.first);
    }
  }
  CHECK(held);
  CHECK(again);
  // One stage alone: one gathering serves its recomputation and its backward.
  const ChainPlan full = planned(chain, "full");
  CHECK(*full.time == chain.time_without_recompute() + Ticks(24));
}

TEST_CASE("without a plan: the smallest budget, and who has one") {
  const Chain chain = uniform_chain(32);
  const ChainPlan block = planned(chain, "megatron-block", Bytes(88));
  CHECK(!block.feasible);
  CHECK(!block.time);
  CHECK(block.minimum == *planned(chain, "megatron-block", block.minimum).peak);
  CHECK(block.fitting == std::vector<std::string>{"flat"});
  const ChainPlan flat = planned(chain, "flat", Bytes(87));
  CHECK(!flat.feasible);
  CHECK(flat.fitting.empty());
}

TEST_CASE("the replay refuses what is no schedule") {
  const Chain chain = uniform_chain(2);
  const auto fault = [&](std::vector<ChainOperation> operations) { return replay(chain, operations).fault; };
  using enum ChainStep;
  CHECK(fault({{ForwardSave, 1}, {ForwardSave, 2}, {Backward, 2}, {Backward, 1}}).empty());
  CHECK(fault({{ForwardSave, 2}}) == "forward_save 2: its input is not there");
  CHECK(fault({{ForwardSave, 1}, {ForwardSave, 2}, {Backward, 2}}) == "backward 2: the backward of stage 1 is missing");
  CHECK(fault({{ForwardSave, 1}, {Backward, 1}}) == "backward 1: it is the turn of stage 2");
  CHECK(fault({{ForwardKeepInput, 1}, {ForwardSave, 2}, {Backward, 2}, {Backward, 1}}) ==
        "backward 1: what it reads was not saved");
  CHECK(fault({{ForwardSave, 1}, {ForwardSave, 1}}) == "forward_save 1: its output is there already");
  CHECK(fault({{ForwardNone, 1}}) == "forward_none 1: it lets go of an input that is not its own to let go of");
  CHECK(fault({{ForwardSave, 3}}) == "forward_save 3: there is no such stage");
  CHECK(fault({{ForwardSave, 1, 0}}) == "forward_save 1: there is no such option");
}
