#include "planner/plan/recompute/blocks.h"

#include <algorithm>
#include <array>

namespace dsplan::detail {
namespace {

using Mode = ChainSegment::Mode;

// Lengths of segments that are combined with other ways.
constexpr std::array<std::size_t, 8> kLengths = {1, 2, 3, 4, 6, 8, 12, 16};

// One way over all stages but the last, from the first stage on and back from the last.
struct Way {
  std::size_t length = 0;  // Of segments; 0: stored.
  std::size_t store = 0;   // Which of StageCost::stores.
  // By number of stages k that the first ones of this way are: what they need, hold and take. Segments: multiples.
  std::vector<std::int64_t> need, held, extra;
  // By first stage k of the others: what those from k on need and take, the last stage included.
  std::vector<std::int64_t> need_from, extra_from;
};

struct Point {
  std::int64_t need, extra;
  std::uint32_t first, second;  // Ways.
  std::uint32_t cut;
};

class Blocks {
 public:
  explicit Blocks(const ChainCosts& costs) : costs_(costs), layers_(costs.size() - 1) {
    std::size_t stores = 1;
    for (std::size_t i = 0; i < layers_; ++i) stores = std::max(stores, costs.stages[i].stores.size());
    for (std::size_t k = 0; k < stores; ++k) add_stored(k);
    for (std::size_t length : kLengths) {
      if (length <= layers_) add_segments(length, true);
    }
    mixed_ = ways_.size();
    for (std::size_t length = 1; length <= layers_; ++length) {
      if (std::find(kLengths.begin(), kLengths.end(), length) == kLengths.end()) add_segments(length, false);
    }
  }

  std::vector<Point> front() {
    for (std::size_t way = 0; way < ways_.size(); ++way) {
      points_.push_back({ways_[way].need_from[0], ways_[way].extra_from[0], index(way), index(way), 0});
    }
    for (std::size_t first = 0; first < mixed_; ++first) {
      for (std::size_t second = 0; second < mixed_; ++second) {
        // What saves more memory comes first, where less is held beside it.
        if (first != second && ways_[first].held[layers_] < ways_[second].held[layers_]) mix(first, second);
      }
    }
    std::sort(points_.begin(), points_.end(), [](const Point& left, const Point& right) {
      return left.need != right.need ? left.need < right.need : left.extra < right.extra;
    });
    std::vector<Point> best;
    for (const Point& point : points_) {
      if (best.empty() || point.extra < best.back().extra) best.push_back(point);
    }
    return best;
  }

  [[nodiscard]] FlatPlan plan(const Point& point) const {
    FlatPlan plan{point.need, point.extra, {}};
    write(ways_[point.first], 0, point.cut, plan);
    write(ways_[point.second], point.cut, layers_, plan);
    const auto last = static_cast<std::int32_t>(costs_.size());
    plan.segments.push_back({last, last, Mode::Store, kNoOption});
    return plan;
  }

 private:
  static std::uint32_t index(std::size_t at) { return static_cast<std::uint32_t>(at); }

  // A stage without this option is stored whole.
  [[nodiscard]] const StoreCost& store_of(std::size_t stage, std::size_t store) const {
    const std::vector<StoreCost>& stores = costs_.stages[stage].stores;
    return stores[store < stores.size() ? store : 0];
  }

  void begin(Way& way) const {
    way.need.assign(layers_ + 1, 0);
    way.held.assign(layers_ + 1, 0);
    way.extra.assign(layers_ + 1, 0);
    way.need_from.assign(layers_ + 1, costs_.stages[layers_].stores.front().need);
    way.extra_from.assign(layers_ + 1, 0);
  }

  void add_stored(std::size_t store) {
    Way way;
    way.store = store;
    begin(way);
    for (std::size_t i = 0; i < layers_; ++i) {
      const StoreCost& cost = store_of(i, store);
      way.need[i + 1] = std::max(way.need[i], way.held[i] + cost.need);
      way.held[i + 1] = way.held[i] + cost.saved;
      way.extra[i + 1] = way.extra[i] + cost.extra;
    }
    for (std::size_t i = layers_; i-- > 0;) {
      const StoreCost& cost = store_of(i, store);
      way.need_from[i] = std::max(cost.need, cost.saved + way.need_from[i + 1]);
      way.extra_from[i] = way.extra_from[i + 1] + cost.extra;
    }
    ways_.push_back(std::move(way));
  }

  // As a first block only whole segments count; as a second one the segments begin at the cut, and the last is shorter.
  // Without `anywhere` nothing is cut: all segments begin at multiples of the length.
  void add_segments(std::size_t length, bool anywhere) {
    Way way;
    way.length = length;
    begin(way);
    std::vector<std::int64_t> needs(layers_), extras(layers_);
    const std::size_t step = anywhere ? 1 : length;
    for (std::size_t i = 0; i < layers_; i += step) {
      Recomputed segment(costs_, i);
      const std::size_t end = std::min(i + length, layers_);
      for (std::size_t at = i; at < end; ++at) segment.extend(at);
      needs[i] = segment.need(false);
      extras[i] = segment.extra(false);
    }
    for (std::size_t i = 0; i < layers_; i += length) {
      const std::size_t end = std::min(i + length, layers_);
      way.need[end] = std::max(way.need[i], way.held[i] + needs[i]);
      way.held[end] = way.held[i] + costs_.stages[end - 1].output;
      way.extra[end] = way.extra[i] + extras[i];
    }
    for (std::size_t i = (layers_ - 1) / step * step + step; i >= step;) {
      i -= step;
      const std::size_t end = std::min(i + length, layers_);
      way.need_from[i] = std::max(needs[i], costs_.stages[end - 1].output + way.need_from[end]);
      way.extra_from[i] = way.extra_from[end] + extras[i];
    }
    ways_.push_back(std::move(way));
  }

  void mix(std::size_t first, std::size_t second) {
    const Way& one = ways_[first];
    const Way& other = ways_[second];
    const std::size_t step = std::max<std::size_t>(one.length, 1);
    for (std::size_t cut = step; cut < layers_; cut += step) {
      const std::int64_t need = std::max(one.need[cut], one.held[cut] + other.need_from[cut]);
      points_.push_back({need, one.extra[cut] + other.extra_from[cut], index(first), index(second), index(cut)});
    }
  }

  void write(const Way& way, std::size_t from, std::size_t to, FlatPlan& plan) const {
    for (std::size_t i = from; i < to;) {
      const std::size_t end = way.length == 0 ? i + 1 : std::min(i + way.length, to);
      const Mode mode = way.length == 0 ? Mode::Store : Mode::Recompute;
      const std::int32_t option = way.length == 0 ? store_of(i, way.store).option : kNoOption;
      plan.segments.push_back({static_cast<std::int32_t>(i + 1), static_cast<std::int32_t>(end), mode, option});
      i = end;
    }
  }

  const ChainCosts& costs_;
  std::size_t layers_;  // All stages but the last.
  std::vector<Way> ways_;
  std::size_t mixed_ = 0;  // The first so many are combined.
  std::vector<Point> points_;
};

}  // namespace

std::vector<FlatPlan> block_plans(const ChainCosts& costs, std::size_t most) {
  Blocks blocks(costs);
  const std::vector<Point> front = blocks.front();
  FlatPlan least = flat_minimum(costs, {});
  const bool below = least.need < front.front().need;
  std::vector<std::int64_t> needs;
  if (below) needs.push_back(least.need);
  for (const Point& point : front) needs.push_back(point.need);
  std::vector<FlatPlan> plans;
  for (std::size_t at : thinned(needs, most)) {
    if (below && at == 0) {
      plans.push_back(least);
    } else {
      plans.push_back(blocks.plan(front[at - (below ? 1 : 0)]));
    }
  }
  return plans;
}

}  // namespace dsplan::detail
