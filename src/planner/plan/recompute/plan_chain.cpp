#include "planner/plan/recompute/plan_chain.h"

#include <algorithm>
#include <charconv>
#include <memory>

#include "core/document.h"
#include "core/error.h"
#include "core/format.h"
#include "planner/plan/recompute/baselines.h"
#include "planner/plan/recompute/bound.h"
#include "planner/plan/recompute/flat.h"
#include "planner/plan/recompute/replay.h"

namespace dsplan {
namespace {

using namespace detail;

constexpr std::int64_t kMostSlots = 100'000;
// `flat` counts in slots of the common divisor of all sizes, which loses nothing, where the table stays this small.
constexpr std::int64_t kMostExactSlots = 20'000;
constexpr std::int64_t kMostExactCells = 15'000'000;
// What `flat` falls back on where the byte-exact fronts grow too long.
constexpr std::int64_t kFallbackSlots = 4'000;

struct Method {
  std::string name;
  std::optional<std::int64_t> parameter;
};

[[noreturn]] void refuse(std::string message, std::string hint = {}) {
  throw Refusal("--method", std::move(message), std::move(hint));
}

Method parsed(const std::string& text) {
  const std::size_t colon = text.find(':');
  Method method{text.substr(0, colon), {}};
  if (colon == std::string::npos) return method;
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, value);
  if (error != std::errc() || at != end) refuse(formatted("\"{}\" needs a whole number after the colon", text));
  method.parameter = value;
  return method;
}

void check_range(const Method& method, std::int64_t least, std::int64_t most) {
  if (!method.parameter || (*method.parameter >= least && *method.parameter <= most)) return;
  refuse(formatted("{} takes a number from {} to {}, not {}", method.name, least, most, *method.parameter));
}

void check_none(const Method& method) {
  if (method.parameter) refuse(formatted("{} takes no number", method.name));
}

// What a method found, before the replay has seen it.
struct Found {
  std::string method;
  std::vector<ChainSegment> segments;      // Empty for nested schedules.
  std::vector<ChainOperation> operations;  // Empty: those of `segments`.
  std::optional<std::int64_t> extra;       // As the method counts; the replay must agree.
  bool optimal = true;
  std::optional<std::int64_t> bound;  // On the extra time of what the method may choose from.
};

Found found(std::string method, FlatPlan plan) {
  return {std::move(method), std::move(plan.segments), {}, plan.extra, true, {}};
}

// One method on one chain. `capacity` is the budget without the chain's input.
class Solver {
 public:
  Solver(const Chain& chain, const ChainCosts& costs) : chain_(chain), costs_(costs) {}
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
  virtual ~Solver() = default;
  [[nodiscard]] virtual std::optional<Found> solve(std::int64_t capacity) = 0;
  [[nodiscard]] virtual std::int64_t minimum() = 0;  // Without the input.

 protected:
  const Chain& chain_;
  const ChainCosts& costs_;
};

class FlatSolver : public Solver {
 public:
  FlatSolver(const Chain& chain, const ChainCosts& costs, const Method& method)
      : Solver(chain, costs), method_(method) {
    check_range(method, 1, kMostSlots);
    rules_.recompute = method.name != "selective";
    if (!rules_.recompute) check_none(method);
  }

  std::optional<Found> solve(std::int64_t capacity) override {
    if (!method_.parameter && few_slots(capacity)) {
      std::optional<FlatPlan> plan = flat_slots_up(costs_, capacity, kMostExactSlots, rules_);
      if (!plan) return std::nullopt;
      return found(method_.name, std::move(*plan));
    }
    if (!method_.parameter) {
      FlatAnswer exact = flat_exact(costs_, capacity, rules_);
      if (exact.plan) return found(method_.name, std::move(*exact.plan));
      if (exact.complete) return std::nullopt;
    }
    return in_slots(capacity);
  }

  std::int64_t minimum() override { return flat_minimum(costs_, rules_).need; }

 private:
  [[nodiscard]] bool few_slots(std::int64_t capacity) const {
    const std::int64_t slots = capacity / unit_of(costs_);
    return capacity >= 0 && slots <= kMostExactSlots && slots * std::ssize(costs_.stages) <= kMostExactCells;
  }

  // Rounding up may leave nothing at a budget that has a plan: then the plan of least need, or everything stored.
  std::optional<Found> in_slots(std::int64_t capacity) {
    const std::int64_t slots = method_.parameter.value_or(kFallbackSlots);
    FlatPlan least = flat_minimum(costs_, rules_);
    if (least.need > capacity) return std::nullopt;
    SlotAnswer answer = flat_slots(costs_, capacity, slots, rules_);
    FlatPlan plan = answer.plan && answer.plan->extra <= least.extra ? std::move(*answer.plan) : std::move(least);
    const FlatPlan stored = all_stored();
    if (stored.need <= capacity) plan = stored;
    const std::int64_t bound = std::min(answer.bound.value_or(0), plan.extra);
    const bool optimal = bound == plan.extra;
    Found result = found(formatted("flat:{}", slots), std::move(plan));
    result.optimal = optimal;
    result.bound = bound;
    return result;
  }

  [[nodiscard]] FlatPlan all_stored() const {
    FlatPlan plan{0, 0, {{1, static_cast<std::int32_t>(costs_.size()), ChainSegment::Mode::Store, kNoOption}}};
    for (auto stage = costs_.stages.rbegin(); stage != costs_.stages.rend(); ++stage) {
      plan.need = std::max(stage->stores.front().need, stage->saved + plan.need);
    }
    return plan;
  }

  Method method_;
  FlatRules rules_;
};

class RuleSolver : public Solver {
 public:
  RuleSolver(const Chain& chain, const ChainCosts& costs, const Method& method, const RuleRow& rule)
      : Solver(chain, costs), rule_(rule), k_(method.parameter) {
    const auto n = static_cast<std::int64_t>(chain.stages.size());
    if (rule.least < 0) {
      check_none(method);
    } else if (rule.rule == Rule::Segments && k_ && *k_ > n) {
      refuse(formatted("{} segments of {} stages", *k_, n), "checkpoint_sequential needs a stage for each segment");
    } else {
      check_range(method, rule.least, INT64_MAX);
    }
  }
  std::optional<Found> solve(std::int64_t capacity) override {
    const RuleAnswer answer = try_rule(chain_, rule_, k_, Bytes(capacity + costs_.input));
    least_ = answer.least;
    if (!answer.best) return std::nullopt;
    const bool chosen = rule_.least >= 0;
    return Found{chosen ? formatted("{}:{}", rule_.name, answer.best->k) : std::string(rule_.name),
                 answer.best->segments,
                 {},
                 {},
                 true,
                 {}};
  }
  std::int64_t minimum() override {
    if (!least_) least_ = try_rule(chain_, rule_, k_, std::nullopt).least;
    return least_->peak.value() - costs_.input;
  }

 private:
  const RuleRow& rule_;
  std::optional<std::int64_t> k_;
  std::optional<RuleTry> least_;
};

std::unique_ptr<Solver> solver_of(const Chain& chain, const ChainCosts& costs, const std::string& text) {
  const Method method = parsed(text);
  if (method.name == "flat" || method.name == "selective") return std::make_unique<FlatSolver>(chain, costs, method);
  for (const RuleRow& rule : rules()) {
    if (rule.name == method.name) return std::make_unique<RuleSolver>(chain, costs, method, rule);
  }
  std::vector<std::string_view> names{"flat", "selective"};
  for (const RuleRow& rule : rules()) names.push_back(rule.name);
  std::string hint = did_you_mean(nearest(method.name, names));
  if (hint.empty()) hint = formatted("methods are {}", joined(chain_methods(), ", "));
  refuse(formatted("no method \"{}\"", method.name), std::move(hint));
}

// The plan as found, replayed.
void take(const Chain& chain, Found found, ChainPlan& plan) {
  plan.feasible = true;
  plan.method = std::move(found.method);
  plan.optimal = found.optimal;
  if (!found.optimal) {
    const Ticks known = plan.time_without_recompute + Ticks(found.bound.value_or(0));
    plan.method_bound = std::max(known, *plan.lower_bound);
  }
  plan.operations = found.operations.empty() ? operations_of(chain, found.segments) : std::move(found.operations);
  plan.segments = merged(found.segments);
  const ChainReplay run = replay(chain, plan.operations);
  const auto disagrees = [&] {
    return formatted("{} on {}: replayed {} ticks and {} bytes", plan.method, chain.name, run.time.value(),
                     run.peak.value());
  };
  DSPLAN_CHECK(run.fault.empty(), run.fault);
  DSPLAN_CHECK(run.peak <= plan.budget, disagrees());
  DSPLAN_CHECK(!found.extra || run.time == plan.time_without_recompute + Ticks(*found.extra), disagrees());
  plan.time = run.time;
  plan.peak = run.peak;
}

// Methods that have a plan where the one that was asked for has none.
std::vector<std::string> fitting(const ChainCosts& costs, const std::string& asked, std::int64_t capacity) {
  if (parsed(asked).name == "flat" || flat_minimum(costs, {}).need > capacity) return {};
  return {"flat"};
}

}  // namespace

ChainPlan plan_chain(const Chain& chain, const ChainRequest& request) {
  const ChainCosts costs(chain);
  const std::unique_ptr<Solver> solver = solver_of(chain, costs, request.method);
  ChainPlan plan;
  plan.method = request.method;
  plan.minimum = Bytes(solver->minimum() + costs.input);
  plan.budget = request.budget.value_or(plan.minimum);
  plan.time_without_recompute = chain.time_without_recompute();
  const std::int64_t capacity = plan.budget.value() - costs.input;
  const ChainBound bound = bound_of(costs, capacity);
  plan.memory_bound = Bytes(bound.memory + costs.input);
  plan.culprit = static_cast<std::int32_t>(bound.culprit + 1);
  if (bound.extra) plan.lower_bound = plan.time_without_recompute + Ticks(*bound.extra);
  if (std::optional<Found> found = solver->solve(capacity)) {
    take(chain, std::move(*found), plan);
  } else {
    plan.fitting = fitting(costs, request.method, capacity);
  }
  return plan;
}

const std::vector<std::string>& chain_methods() {
  static const std::vector<std::string> kMethods = {"flat", "flat:N",    "selective",          "none",
                                                    "full", "every[:K]", "segments[:K]",       "nth[:K]",
                                                    "sqrt", "chen",      "megatron-block[:K]", "megatron-uniform[:K]"};
  return kMethods;
}

}  // namespace dsplan
