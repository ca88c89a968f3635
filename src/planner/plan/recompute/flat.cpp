#include "planner/plan/recompute/flat.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "planner/plan/recompute/bound.h"

namespace dsplan::detail {
namespace {

using Mode = ChainSegment::Mode;

constexpr std::int64_t kNoCost = std::numeric_limits<std::int64_t>::max();

// How the stages from j on begin: stage j stored by its k-th way, or [j, last] computed again.
struct Choice {
  std::int32_t store = 0;  // Below 0: computed again.
  std::int32_t last = 0;
  bool held = false;
};

ChainSegment segment_of(const ChainCosts& costs, std::size_t first, const Choice& choice) {
  const auto stage = static_cast<std::int32_t>(first + 1);
  if (choice.store < 0) {
    return {stage, choice.last + 1, choice.held ? Mode::RecomputeHeld : Mode::Recompute, kNoOption};
  }
  const StoreCost& store = costs.stages[first].stores[static_cast<std::size_t>(choice.store)];
  return {stage, stage, Mode::Store, store.option};
}

struct Label {
  std::int64_t need = 0;
  std::int64_t extra = 0;
  std::uint32_t parent = 0;  // In the front of the stage after.
  Choice choice;
};

bool alike(const StageCost& left, const StageCost& right) {
  const auto fields = [](const StageCost& s) {
    return std::tie(s.output, s.saved, s.gradient, s.gradient_before, s.forward_temporary, s.backward_temporary,
                    s.forward_time, s.spared_time);
  };
  return fields(left) == fields(right);
}

struct Front {
  std::vector<Label> labels;          // By rising need and falling extra.
  std::vector<std::uint32_t> stored;  // Those that begin with a stored stage.
  std::int32_t longest = 0;           // The last stage of the longest segment that one of the others begins with.

  void assign(const std::vector<Label>& list) {
    labels = list;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i].choice.store >= 0) stored.push_back(static_cast<std::uint32_t>(i));
      longest = std::max(longest, labels[i].choice.last);
    }
  }
};

// Fronts from the last stage to the first, of plans that fit in `capacity` and take at most `ceiling` extra.
class Fronts {
 public:
  Fronts(const ChainCosts& costs, std::int64_t capacity, std::int64_t ceiling, const FlatRules& rules)
      : costs_(costs), capacity_(capacity), ceiling_(ceiling), rules_(rules), prefix_(costs) {
    fronts_.resize(costs.size() + 1);
    fronts_.back().assign({Label{}});
  }

  // False: too many labels.
  [[nodiscard]] bool solve() {
    for (std::size_t j = costs_.size(); j-- > 0;) {
      if (ceiling_ != kNoCost) prefix_.set_end(j);
      run_end_ = j + 1 < costs_.size() && alike(costs_.stages[j], costs_.stages[j + 1]) ? run_end_ : j;
      stairs_.clear();
      best_.clear();
      add_stores(j);
      keep_best();
      if (rules_.recompute) add_recomputed(j);
      keep_best();
      fronts_[j].assign(best_);
      labels_ += best_.size();
      if (labels_ > rules_.most_labels) return false;
    }
    return true;
  }

  [[nodiscard]] const std::vector<Label>& root() const { return fronts_.front().labels; }
  [[nodiscard]] std::size_t labels() const { return labels_; }

  [[nodiscard]] FlatPlan plan(std::uint32_t at) const {
    FlatPlan plan{root()[at].need, root()[at].extra, {}};
    for (std::size_t j = 0; j < costs_.size();) {
      const Label& label = fronts_[j].labels[at];
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
      add(
          fronts_[j + 1], stores[k].need, stores[k].saved, stores[k].extra, {static_cast<std::int32_t>(k), 0, false},
          [&](const Label& next) { return k == 0 && swaps(next.choice); }, kMostChainBytes);
    }
  }

  // Among equal stages a segment behind a stored one may as well stand before it: it takes the same time, and its own
  // need then comes on top of less. Only that order is looked at.
  [[nodiscard]] bool swaps(const Choice& next) const {
    return next.store < 0 && !costs_.gathers && static_cast<std::size_t>(next.last) <= run_end_;
  }

  void add_recomputed(std::size_t j) {
    needs_.clear();
    extras_.clear();
    Recomputed segment(costs_, j);
    for (std::size_t last = j; last + 1 < costs_.size(); ++last) {
      segment.extend(last);
      if (segment.tapes() > capacity_) break;
      needs_.push_back(segment.need(false));
      extras_.push_back(segment.extra(false));
      if (!costs_.gathers) continue;
      add(
          fronts_[last + 1], segment.need(true), costs_.stages[last].output, segment.extra(true),
          {-1, static_cast<std::int32_t>(last), true}, [](const Label&) { return false; }, kMostChainBytes);
    }
    for (std::size_t i = 0; i < needs_.size(); ++i) {
      const std::size_t last = j + i;
      const std::int64_t output = costs_.stages[last].output;
      add(
          fronts_[last + 1], needs_[i], output, extras_[i], {-1, static_cast<std::int32_t>(last), false},
          [&](const Label& next) { return joins(j, next.choice, output + next.need); },
          all_join(j, fronts_[last + 1]) - output);
    }
  }

  // Whether a segment from j on and the next one are as good as one: it takes the same time (unless each segment leaves
  // something out), holds one output less, and itself needs no more than the two. Then only the one is looked at.
  [[nodiscard]] bool joins(std::size_t j, const Choice& next, std::int64_t need) const {
    if (next.store >= 0 || costs_.gathers || costs_.spares) return false;
    const std::size_t length = static_cast<std::size_t>(next.last) - j;
    return length < needs_.size() && needs_[length] <= need;
  }

  // From which need on a segment from j on joins every segment that a plan of `front` begins with.
  [[nodiscard]] std::int64_t all_join(std::size_t j, const Front& front) const {
    const std::size_t length = static_cast<std::size_t>(front.longest) - j;
    return costs_.gathers || costs_.spares || length >= needs_.size() ? kMostChainBytes : needs_[length];
  }

  // Plans that begin with a choice that needs `floor` itself and holds `shift` while the others of `front` run, but for
  // those that `skip` knows to be no better than others: from a need of `joined` on all that begin with a segment.
  template <class Skip>
  void add(const Front& front, std::int64_t floor, std::int64_t shift, std::int64_t extra, Choice choice, Skip&& skip,
           std::int64_t joined) {
    const std::vector<Label>& labels = front.labels;
    if (labels.empty() || floor > capacity_ || hopeless(floor, extra + labels.back().extra)) return;
    const auto offer = [&](std::size_t at) {
      const std::int64_t need = std::max(floor, shift + labels[at].need);
      const std::int64_t time = extra + labels[at].extra;
      if (need > capacity_ || time > ceiling_ || is_beaten(need, time)) return;
      if (skip(labels[at]) || hopeless(need, time)) return;
      candidates_.push_back({need, time, static_cast<std::uint32_t>(at), choice});
    };
    const auto first_above = [&labels](std::int64_t most) {
      const auto above = std::upper_bound(labels.begin(), labels.end(), most,
                                          [](std::int64_t need, const Label& label) { return need < label.need; });
      return static_cast<std::size_t>(above - labels.begin());
    };
    // Of the plans that need no more than the choice itself only the fastest matters.
    std::size_t from = first_above(floor - shift);
    if (from > 0) --from;
    const std::size_t all = std::max(from, first_above(joined - 1));
    for (std::size_t at = from; at < all; ++at) offer(at);
    auto stored = std::lower_bound(front.stored.begin(), front.stored.end(), static_cast<std::uint32_t>(all));
    for (; stored != front.stored.end(); ++stored) offer(*stored);
    if (candidates_.size() > kMostCandidates) keep_best();
  }

  // Whether the stages before cannot make up for it.
  [[nodiscard]] bool hopeless(std::int64_t need, std::int64_t extra) const {
    return ceiling_ != kNoCost && extra + prefix_.extra(capacity_ - need) > ceiling_;
  }

  // Candidates into `best_`, which then holds what no other one beats.
  void keep_best() {
    candidates_.insert(candidates_.end(), best_.begin(), best_.end());
    best_.clear();
    std::sort(candidates_.begin(), candidates_.end(), [](const Label& left, const Label& right) {
      if (left.need != right.need) return left.need < right.need;
      // Of equals one that begins with a segment: more can be joined with it.
      return left.extra != right.extra ? left.extra < right.extra : left.choice.store < right.choice.store;
    });
    for (const Label& label : candidates_) {
      if (best_.empty() || label.extra < best_.back().extra) best_.push_back(label);
    }
    candidates_.clear();
    build_stairs();
  }

  // The front read off in steps of equal width, so that most of what it beats is known without a search.
  void build_stairs() {
    if (best_.empty()) return;
    base_ = best_.front().need;
    const std::int64_t span = best_.back().need - base_;
    width_ = 0;
    while (span >> width_ >= kStairs) ++width_;
    stairs_.resize(static_cast<std::size_t>(span >> width_) + 1);
    std::size_t at = 0;
    for (std::size_t step = 0; step < stairs_.size(); ++step) {
      const std::int64_t edge = base_ + (static_cast<std::int64_t>(step) << width_);
      while (at + 1 < best_.size() && best_[at + 1].need <= edge) ++at;
      stairs_[step] = best_[at].extra;
    }
  }
  [[nodiscard]] bool is_beaten(std::int64_t need, std::int64_t extra) const {
    if (stairs_.empty() || need < base_) return false;
    const auto step = static_cast<std::size_t>((need - base_) >> width_);
    return stairs_[std::min(step, stairs_.size() - 1)] <= extra;
  }

  static constexpr std::size_t kMostCandidates = 1024;
  static constexpr std::int64_t kStairs = 4096;

  const ChainCosts& costs_;
  std::int64_t capacity_, ceiling_;
  const FlatRules& rules_;
  PrefixBound prefix_;
  std::vector<Front> fronts_;
  std::vector<Label> candidates_, best_;  // Of the stage at hand.
  std::vector<std::int64_t> stairs_;
  std::int64_t base_ = 0;
  int width_ = 0;                             // Of a stair, as a power of two.
  std::size_t run_end_ = 0;                   // The last stage of those like the one at hand that follow it.
  std::vector<std::int64_t> needs_, extras_;  // Of the segments from the stage at hand on.
  std::size_t labels_ = 0;
};

}  // namespace

FlatPlan flat_minimum(const ChainCosts& costs, const FlatRules& rules) {
  const std::size_t n = costs.size();
  std::vector<std::int64_t> needs(n + 1), extras(n + 1);
  std::vector<Choice> choices(n);
  for (std::size_t j = n; j-- > 0;) {
    std::int64_t& best = needs[j];
    best = kNoCost;
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
    const std::int64_t ceiling = rules.prune ? *bound.extra + gap / part : kNoCost;
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

std::vector<std::size_t> thinned(const std::vector<std::int64_t>& needs, std::size_t most) {
  std::vector<std::size_t> taken;
  const std::size_t last = needs.size() - 1;
  const double step = static_cast<double>(needs[last] - needs[0]) / static_cast<double>(most - 1);
  for (std::size_t i = 0; needs.size() > most && i < most; ++i) {
    const double end = static_cast<double>(needs[0]) + step * static_cast<double>(i);
    const auto above = std::upper_bound(needs.begin(), needs.end(), end, [](double value, std::int64_t need) {
      return value < static_cast<double>(need);
    });
    const auto at =
        i + 1 == most ? last : static_cast<std::size_t>(std::max<std::ptrdiff_t>(above - needs.begin(), 1) - 1);
    if (taken.empty() || taken.back() != at) taken.push_back(at);
  }
  for (std::size_t i = 0; needs.size() <= most && i <= last; ++i) taken.push_back(i);
  return taken;
}

std::optional<std::vector<FlatPlan>> flat_plans(const ChainCosts& costs, const FlatRules& rules, std::size_t most) {
  Fronts fronts(costs, kMostChainBytes, kNoCost, rules);
  if (!fronts.solve()) return std::nullopt;
  std::vector<std::int64_t> needs;
  for (const Label& label : fronts.root()) needs.push_back(label.need);
  std::vector<FlatPlan> plans;
  for (std::size_t at : thinned(needs, most)) plans.push_back(fronts.plan(static_cast<std::uint32_t>(at)));
  return plans;
}

}  // namespace dsplan::detail
