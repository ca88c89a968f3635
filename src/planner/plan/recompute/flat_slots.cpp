#include <algorithm>
#include <limits>
#include <numeric>

#include "planner/plan/recompute/flat.h"

namespace dsplan::detail {
namespace {

using Mode = ChainSegment::Mode;

// Time as the table holds it: whole numbers either way, and a float holds those below 2^24 as exactly as a double,
// in half the room.
template <class Real>
class SlotTable {
 public:
  SlotTable(const ChainCosts& costs, std::int64_t capacity, std::int64_t unit, bool up, std::int64_t tick,
            const FlatRules& rules)
      : costs_(costs),
        unit_(unit),
        up_(up),
        tick_(tick),
        rules_(rules),
        capacity_(capacity),
        width_(capacity / unit + 1),
        cells_(static_cast<std::size_t>(width_) * (costs.size() + 1), kNever) {
    std::fill_n(row(costs.size()), width_, Real(0));
    for (std::size_t j = costs.size(); j-- > 0;) {
      for_each_choice(j, [&](const Way& way) { relax(row(j), way); });
    }
  }

  [[nodiscard]] std::optional<std::int64_t> extra() const {
    const Real best = row(0)[width_ - 1];
    return best == kNever ? std::nullopt : std::optional(static_cast<std::int64_t>(best) * tick_);
  }

  // The choices are not kept: the one that gives a cell its value is looked for again.
  [[nodiscard]] FlatPlan plan() const {
    FlatPlan plan{0, *extra(), {}};
    std::int64_t at = width_ - 1;
    for (std::size_t j = 0; j < costs_.size();) {
      const Real wanted = row(j)[at];
      Way chosen;
      for_each_choice(j, [&](const Way& way) {
        if (chosen.next == 0 && at >= way.floor && way.extra + row(way.next)[at - way.shift] == wanted) chosen = way;
      });
      plan.segments.push_back(chosen.segment);
      at -= chosen.shift;
      j = chosen.next;
    }
    return plan;
  }

 private:
  static constexpr Real kNever = std::numeric_limits<Real>::infinity();

  // One way to begin at a stage: from `floor` slots on, holding `shift` while the stages from `next` on run.
  struct Way {
    std::int64_t floor = 0, shift = 0;
    Real extra = 0;
    std::size_t next = 0;  // 0: none.
    ChainSegment segment;
  };

  [[nodiscard]] std::int64_t slots(std::int64_t bytes) const { return (up_ ? bytes + unit_ - 1 : bytes) / unit_; }
  [[nodiscard]] Real* row(std::size_t j) { return cells_.data() + static_cast<std::size_t>(width_) * j; }
  [[nodiscard]] const Real* row(std::size_t j) const { return cells_.data() + static_cast<std::size_t>(width_) * j; }

  template <class Visit>
  void for_each_choice(std::size_t j, Visit&& visit) const {
    const auto way = [&](std::int64_t need, std::int64_t held, std::int64_t extra, const ChainSegment& segment) {
      const std::int64_t shift = slots(held);
      const std::int64_t floor = std::max(slots(need), shift);
      const auto time = static_cast<Real>(extra / tick_);
      if (floor < width_) visit(Way{floor, shift, time, static_cast<std::size_t>(segment.last), segment});
    };
    const auto stage = static_cast<std::int32_t>(j + 1);
    for (const StoreCost& store : costs_.stages[j].stores) {
      way(store.need, store.saved, store.extra, {stage, stage, Mode::Store, store.option});
    }
    Recomputed segment(costs_, j);
    for (std::size_t last = j; rules_.recompute && last + 1 < costs_.size(); ++last) {
      segment.extend(last);
      if (segment.tapes() > capacity_) break;
      for (const bool held : {false, true}) {
        if (held && !costs_.gathers) continue;
        way(segment.need(held), costs_.stages[last].output, segment.extra(held),
            {stage, static_cast<std::int32_t>(last + 1), held ? Mode::RecomputeHeld : Mode::Recompute, kNoOption});
      }
    }
  }

  void relax(Real* __restrict into, const Way& way) {
    const Real* __restrict from = row(way.next) + (way.floor - way.shift);
    const Real extra = way.extra;
    into += way.floor;
    const std::int64_t count = width_ - way.floor;
    for (std::int64_t m = 0; m < count; ++m) {
      const Real offered = extra + from[m];
      into[m] = offered < into[m] ? offered : into[m];
    }
  }

  const ChainCosts& costs_;
  std::int64_t unit_;
  bool up_;
  std::int64_t tick_;
  const FlatRules& rules_;
  std::int64_t capacity_, width_;
  std::vector<Real> cells_;  // For each stage the least extra time by slots.
};

// The longest time that divides all extra times, and whether floats hold their sum.
struct Scale {
  std::int64_t tick = 1;
  bool small = false;
};

Scale scale_of(const ChainCosts& costs) {
  std::int64_t tick = 0, sum = 0;
  for (const StageCost& stage : costs.stages) {
    std::int64_t most = stage.forward_time + stage.gather_time;
    tick = std::gcd(std::gcd(std::gcd(tick, stage.forward_time), stage.gather_time), stage.spared_time);
    for (const StoreCost& store : stage.stores) {
      tick = std::gcd(tick, store.extra);
      most = std::max(most, store.extra);
    }
    sum += most;
  }
  tick = std::max<std::int64_t>(tick, 1);
  return {tick, sum / tick < (std::int64_t{1} << 24)};
}

struct Slots {
  std::int64_t unit = 1;
  bool exact = false;
};

Slots slots_of(const ChainCosts& costs, std::int64_t capacity, std::int64_t slots) {
  const std::int64_t unit = unit_of(costs);
  if (capacity / unit <= slots) return {unit, true};
  return {std::max<std::int64_t>(div_ceil(capacity, slots), 1), false};
}

template <class Real>
SlotAnswer answer_in(const ChainCosts& costs, std::int64_t capacity, const Slots& slots, std::int64_t tick, bool both,
                     const FlatRules& rules) {
  SlotAnswer answer;
  const SlotTable<Real> up(costs, capacity, slots.unit, true, tick, rules);
  if (up.extra()) answer.plan = up.plan();
  if (slots.exact) {
    answer.bound = up.extra();
  } else if (both) {
    answer.bound = SlotTable<Real>(costs, capacity, slots.unit, false, tick, rules).extra();
  }
  return answer;
}

SlotAnswer answer_with(const ChainCosts& costs, std::int64_t capacity, std::int64_t slots, bool both,
                       const FlatRules& rules) {
  // More than everything at once is no use, and would only make the slots coarse.
  std::int64_t all = 0, most = 0;
  for (const StageCost& stage : costs.stages) {
    all += stage.saved;
    for (const StoreCost& store : stage.stores) most = std::max(most, store.need);
    most = std::max(most, 2 * stage.output + stage.forward_temporary + stage.gathered + costs.seed);
  }
  capacity = std::min(capacity, all + most);
  const Scale scale = scale_of(costs);
  const Slots counted = slots_of(costs, capacity, slots);
  return scale.small ? answer_in<float>(costs, capacity, counted, scale.tick, both, rules)
                     : answer_in<double>(costs, capacity, counted, scale.tick, both, rules);
}

}  // namespace

std::int64_t unit_of(const ChainCosts& costs) {
  std::int64_t unit = 0;
  const auto add = [&unit](std::int64_t bytes) { unit = std::gcd(unit, bytes); };
  for (const StageCost& stage : costs.stages) {
    for (const std::int64_t bytes : {stage.output, stage.saved, stage.gradient, stage.gradient_before,
                                     stage.forward_temporary, stage.backward_temporary, stage.gathered}) {
      add(bytes);
    }
    for (const StoreCost& store : stage.stores) {
      add(store.saved);
      add(store.need);
    }
  }
  return std::max<std::int64_t>(unit, 1);
}

SlotAnswer flat_slots(const ChainCosts& costs, std::int64_t capacity, std::int64_t slots, const FlatRules& rules) {
  return answer_with(costs, capacity, slots, true, rules);
}

std::optional<FlatPlan> flat_slots_up(const ChainCosts& costs, std::int64_t capacity, std::int64_t slots,
                                      const FlatRules& rules) {
  return answer_with(costs, capacity, slots, false, rules).plan;
}

}  // namespace dsplan::detail
