#include "planner/plan/recompute/bound.h"

#include <algorithm>
#include <numeric>

namespace dsplan::detail {
namespace {

__extension__ using Wide = __int128;

// a / b < c / d for positive b and d.
bool less_steep(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<Wide>(a) * d < static_cast<Wide>(c) * b;
}

}  // namespace

PrefixBound::PrefixBound(const ChainCosts& costs) {
  bases_.reserve(costs.size() + 1);
  bases_.push_back(0);
  for (std::size_t i = 0; i < costs.size(); ++i) add_stage(i, costs.stages[i]);
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& left, const Piece& right) {
    return less_steep(right.gain, right.bytes, left.gain, left.bytes);
  });
  bytes_.reserve(pieces_.size());
  gains_.reserve(pieces_.size());
}

void PrefixBound::add_stage(std::size_t index, const StageCost& stage) {
  struct Point {
    std::int64_t bytes, extra;
  };
  std::vector<Point> points{{0, stage.forward_time - stage.spared_time}};
  for (const StoreCost& store : stage.stores) points.push_back({store.saved, store.extra});
  std::sort(points.begin(), points.end(), [](const Point& left, const Point& right) {
    return left.bytes != right.bytes ? left.bytes < right.bytes : left.extra < right.extra;
  });
  std::vector<Point> hull;
  for (const Point& point : points) {
    if (!hull.empty() && point.extra >= hull.back().extra) continue;
    while (hull.size() > 1) {
      const Point& before = hull[hull.size() - 2];
      const Point& top = hull.back();
      if (less_steep(point.extra - top.extra, point.bytes - top.bytes, top.extra - before.extra,
                     top.bytes - before.bytes)) {
        hull.pop_back();
      } else {
        break;
      }
    }
    hull.push_back(point);
  }
  bases_.push_back(bases_.back() + hull.front().extra);
  for (std::size_t i = 1; i < hull.size(); ++i) {
    pieces_.push_back({index, hull[i].bytes - hull[i - 1].bytes, hull[i - 1].extra - hull[i].extra});
  }
}

void PrefixBound::set_end(std::size_t end) {
  base_ = bases_[end];
  bytes_.clear();
  gains_.clear();
  std::int64_t bytes = 0, gain = 0;
  for (const Piece& piece : pieces_) {
    if (piece.stage >= end) continue;
    bytes_.push_back(bytes += piece.bytes);
    gains_.push_back(gain += piece.gain);
  }
}

std::int64_t PrefixBound::extra(std::int64_t capacity) const {
  const auto cut = std::upper_bound(bytes_.begin(), bytes_.end(), capacity);
  const auto whole = static_cast<std::size_t>(cut - bytes_.begin());
  const std::int64_t gained = whole == 0 ? 0 : gains_[whole - 1];
  if (whole == bytes_.size()) return base_ - gained;
  // The first piece that does not fit, in part. Times are whole ticks, so that the part may be rounded down.
  const std::int64_t taken = whole == 0 ? 0 : bytes_[whole - 1];
  const Wide part = static_cast<Wide>(gains_[whole] - gained) * (capacity - taken) / (bytes_[whole] - taken);
  return base_ - gained - static_cast<std::int64_t>(part);
}

ChainBound bound_of(const ChainCosts& costs, std::int64_t capacity) {
  ChainBound bound;
  PrefixBound prefix(costs);
  std::vector<std::int64_t> needs(costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const StageCost& stage = costs.stages[i];
    std::int64_t& need = needs[i];
    need = INT64_MAX;
    for (const StoreCost& store : stage.stores) need = std::min(need, store.saved + store.backward_temporary);
    need += stage.gathered + stage.gradient + stage.gradient_before;
    const std::int64_t memory = need + (i == 0 ? 0 : costs.stages[i - 1].output);
    if (memory <= bound.memory) continue;
    bound.memory = memory;
    bound.culprit = i;
  }
  if (bound.memory > capacity) return bound;
  std::int64_t extra = 0;
  for (std::size_t end = costs.size(); end-- > 0;) {
    prefix.set_end(end);
    if (prefix.most() <= extra) break;  // Fewer stages cannot need more.
    extra = std::max(extra, prefix.extra(capacity - needs[end]));
  }
  bound.extra = extra;
  return bound;
}

}  // namespace dsplan::detail
