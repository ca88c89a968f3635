#include "planner/segmentation/flat.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"
#include "planner/segmentation/bound.h"

namespace dsplan::detail {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// How the stages from j on begin: stage j stored by its k-th way, or [j, last] computed again.
struct Choice {
  std::int32_t store = 0;  // Below 0: computed again.
  std::int32_t last = 0;
  bool held = false;
};

ChainSegment segment_of(const ChainCosts& costs, std::size_t first, const Choice& choice) {
  const auto stage = static_cast<std::int32_t>(first + 1);
  if (choice.store < 0) {
    using Mode = ChainSegment::Mode;
    return {stage, choice.last + 1, choice.held ? Mode::RecomputeHeld : Mode::Recompute, kNoOption};
  }
  const StoreCost& store = costs.stages[first].stores[static_cast<std::size_t>(choice.store)];
  return {stage, stage, ChainSegment::Mode::Store, store.option};
}

struct Label {
  std::int64_t need = 0;
  std::int64_t extra = 0;
  std::uint32_t parent = 0;  // In the front of the stage after.
  Choice choice;
};

// Fronts from the last stage to the first, of plans that fit in `capacity` and take at most `ceiling` extra.
class Fronts {
 public:
  Fronts(const ChainCosts& costs, std::int64_t capacity, std::int64_t ceiling, const FlatRules& rules)
      : costs_(costs), capacity_(capacity), ceiling_(ceiling), rules_(rules), prefix_(costs) {
    fronts_.resize(costs.size() + 1);
    fronts_.back().push_back({});
  }

  // False: too many labels.
  [[nodiscard]] bool solve() {
    for (std::size_t j = costs_.size(); j-- > 0;) {
      if (ceiling_ != kNever) prefix_.set_end(j);
      candidates_.clear();
      add_stores(j);
      if (rules_.recompute) add_recomputed(j);
      keep_best(fronts_[j]);
      labels_ += fronts_[j].size();
      if (labels_ > rules_.most_labels) return false;
    }
    return true;
  }

  [[nodiscard]] const std::vector<Label>& root() const { return fronts_.front(); }
  [[nodiscard]] std::size_t labels() const { return labels_; }

  [[nodiscard]] FlatPlan plan(std::uint32_t at) const {
    FlatPlan plan{root()[at].need, root()[at].extra, {}};
    for (std::size_t j = 0; j < costs_.size();) {
      const Label& label = fronts_[j][at];
      plan.segments.push_back(segment_of(costs_, j, label.choice));
      at = label.parent;
      j = label.choice.store >= 0 ? j + 1 : static_cast<std::size_t>(label.choice.last) + 1;
    }
    return plan;
  }

 private:
  void add_stores(std::size_t j) {
    const std::vector<StoreCost>& stores = costs_.stages[j].stores;
    for (std::size_t k = 0; k < stores.size(); ++k) {
      add(fronts_[j + 1], stores[k].need, stores[k].saved, stores[k].extra, {static_cast<std::int32_t>(k), 0, false});
    }
  }

  void add_recomputed(std::size_t j) {
    Recomputed segment(costs_, j);
    for (std::size_t last = j; last + 1 < costs_.size(); ++last) {
      segment.extend(last);
      if (segment.tapes() > capacity_) break;
      for (const bool held : {false, true}) {
        if (held && !costs_.gathers) continue;
        add(fronts_[last + 1], segment.need(held), costs_.stages[last].output, segment.extra(held),
            {-1, static_cast<std::int32_t>(last), held});
      }
    }
  }

  // Plans that begin with a choice that needs `floor` itself and holds `shift` while the others of `front` run.
  void add(const std::vector<Label>& front, std::int64_t floor, std::int64_t shift, std::int64_t extra, Choice choice) {
    if (front.empty() || floor > capacity_ || hopeless(floor, extra + front.back().extra)) return;
    // Of the plans that need no more than the choice itself only the fastest matters.
    auto from = std::upper_bound(front.begin(), front.end(), floor - shift,
                                 [](std::int64_t most, const Label& label) { return most < label.need; });
    if (from != front.begin()) --from;
    for (; from != front.end(); ++from) {
      const std::int64_t need = std::max(floor, shift + from->need);
      if (need > capacity_) break;
      if (hopeless(need, extra + from->extra)) continue;
      candidates_.push_back({need, extra + from->extra, static_cast<std::uint32_t>(from - front.begin()), choice});
    }
  }

  // Whether the stages before cannot make up for it.
  [[nodiscard]] bool hopeless(std::int64_t need, std::int64_t extra) const {
    if (ceiling_ == kNever) return false;
    return extra > ceiling_ || extra + prefix_.extra(capacity_ - need) > ceiling_;
  }

  void keep_best(std::vector<Label>& front) {
    std::sort(candidates_.begin(), candidates_.end(), [](const Label& left, const Label& right) {
      return left.need != right.need ? left.need < right.need : left.extra < right.extra;
    });
    for (const Label& label : candidates_) {
      if (front.empty() || label.extra < front.back().extra) front.push_back(label);
    }
  }

  const ChainCosts& costs_;
  std::int64_t capacity_, ceiling_;
  const FlatRules& rules_;
  PrefixBound prefix_;
  std::vector<std::vector<Label>> fronts_;  // Each by rising need and falling extra.
  std::vector<Label> candidates_;
  std::size_t labels_ = 0;
};

}  // namespace

FlatPlan flat_minimum(const ChainCosts& costs, const FlatRules& rules) {
  const std::size_t n = costs.size();
  std::vector<std::int64_t> needs(n + 1), extras(n + 1);
  std::vector<Choice> choices(n);
  for (std::size_t j = n; j-- > 0;) {
    std::int64_t& best = needs[j];
    best = kNever;
    const auto offer = [&](std::int64_t floor, std::int64_t shift, std::int64_t extra, std::size_t next,
                           const Choice& choice) {
      const std::int64_t need = std::max(floor, shift + needs[next]);
      if (need > best || (need == best && extra + extras[next] >= extras[j])) return;
      best = need;
      extras[j] = extra + extras[next];
      choices[j] = choice;
    };
    const std::vector<StoreCost>& stores = costs.stages[j].stores;
    for (std::size_t k = 0; k < stores.size(); ++k) {
      offer(stores[k].need, stores[k].saved, stores[k].extra, j + 1, {static_cast<std::int32_t>(k), 0, false});
    }
    Recomputed segment(costs, j);
    for (std::size_t last = j; rules.recompute && last + 1 < n; ++last) {
      segment.extend(last);
      if (segment.tapes() > best) break;
      for (const bool held : {false, true}) {
        offer(segment.need(held), costs.stages[last].output, segment.extra(held), last + 1,
              {-1, static_cast<std::int32_t>(last), held});
      }
    }
  }
  FlatPlan plan{needs[0], extras[0], {}};
  for (std::size_t j = 0; j < n;) {
    plan.segments.push_back(segment_of(costs, j, choices[j]));
    j = static_cast<std::size_t>(plan.segments.back().last);
  }
  return plan;
}

FlatAnswer flat_exact(const ChainCosts& costs, std::int64_t capacity, const FlatRules& rules) {
  FlatPlan least = flat_minimum(costs, rules);
  FlatAnswer answer;
  if (least.need > capacity) return answer;
  const ChainBound bound = bound_of(costs, capacity);
  DSPLAN_CHECK(bound.extra.has_value(), "a plan fits where the bound says that none does");
  const std::int64_t gap = least.extra - *bound.extra;
  // A low ceiling leaves few labels. If it was too low nothing is left, and the next one is tried; the last one is the
  // time of a plan that is known to fit.
  constexpr std::array<std::int64_t, 4> kParts = {512, 64, 8, 1};
  for (const std::int64_t part : kParts) {
    if (!rules.prune && part != 1) continue;
    const std::int64_t ceiling = rules.prune ? *bound.extra + gap / part : kNever;
    Fronts fronts(costs, capacity, ceiling, rules);
    answer.complete = fronts.solve();
    answer.labels += fronts.labels();
    if (!answer.complete) return answer;
    if (fronts.root().empty()) continue;
    answer.plan = fronts.plan(static_cast<std::uint32_t>(fronts.root().size() - 1));
    return answer;
  }
  DSPLAN_CHECK(false, "the plan of least need was lost");
}

std::optional<std::vector<std::pair<std::int64_t, std::int64_t>>> flat_front(const ChainCosts& costs,
                                                                             const FlatRules& rules) {
  Fronts fronts(costs, kMostChainBytes, kNever, rules);
  if (!fronts.solve()) return std::nullopt;
  std::vector<std::pair<std::int64_t, std::int64_t>> points;
  for (const Label& label : fronts.root()) points.emplace_back(label.need, label.extra);
  return points;
}

}  // namespace dsplan::detail
