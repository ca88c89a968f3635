#include "sim/arena.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "sim/stream_waits.h"

namespace dsplan {
namespace {

// Disjoint runs of addresses, ascending; touching ones are one.
class Runs {
 public:
  struct Run {
    std::int64_t begin;
    std::int64_t end;
  };

  void add(std::int64_t begin, std::int64_t end) {
    auto first = std::lower_bound(runs_.begin(), runs_.end(), begin,
                                  [](const Run& run, std::int64_t value) { return run.end < value; });
    auto last = first;
    for (; last != runs_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      runs_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      runs_.erase(first + 1, last);
    }
  }
  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] const Run* begin() const { return runs_.data(); }
  [[nodiscard]] const Run* end() const { return runs_.data() + runs_.size(); }

 private:
  std::vector<Run> runs_;
};

// A segment tree over time. Each node knows which addresses are taken at some moment of its stretch (`some`), and which
// by intervals that cover all of it (`all`). What is taken during [begin, end) is the `some` of the nodes that make it
// up and the `all` of those above them.
class Occupancy {
 public:
  explicit Occupancy(std::size_t moments) {
    while (leaves_ < moments) leaves_ *= 2;
    some_.resize(2 * leaves_);
    all_.resize(2 * leaves_);
  }

  // The lowest offset at which `size` is free during [begin, end).
  [[nodiscard]] std::int64_t lowest(std::uint32_t begin, std::uint32_t end, std::int64_t size) {
    cursors_.clear();
    const auto collect = [this](const Runs& runs) {
      if (!runs.empty()) cursors_.push_back({runs.begin(), runs.end()});
    };
    visit(1, 0, leaves_, begin, end, [&](std::size_t node, bool whole) { collect(whole ? some_[node] : all_[node]); });
    std::int64_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (Cursor& cursor : cursors_) {
        cursor.at = std::partition_point(cursor.at, cursor.end, [&](const Runs::Run& r) { return r.end <= offset; });
        while (cursor.at != cursor.end && cursor.at->begin < offset + size) {
          offset = std::max(offset, cursor.at->end);
          ++cursor.at;
          moved = true;
        }
      }
    }
    return offset;
  }

  void take(std::uint32_t begin, std::uint32_t end, std::int64_t from, std::int64_t to) {
    visit(1, 0, leaves_, begin, end, [&](std::size_t node, bool whole) {
      some_[node].add(from, to);
      if (whole) all_[node].add(from, to);
    });
  }

 private:
  struct Cursor {
    const Runs::Run* at;
    const Runs::Run* end;
  };

  // The nodes that [begin, end) is made up of (`whole`), and all those above them.
  template <class Visit>
  void visit(std::size_t node, std::size_t low, std::size_t width, std::size_t begin, std::size_t end,
             Visit&& visitor) {
    const bool whole = begin <= low && low + width <= end;
    visitor(node, whole);
    if (whole) return;
    const std::size_t half = width / 2;
    if (begin < low + half) visit(2 * node, low, half, begin, end, visitor);
    if (end > low + half) visit(2 * node + 1, low + half, half, begin, end, visitor);
  }

  std::size_t leaves_ = 1;
  std::vector<Runs> some_;
  std::vector<Runs> all_;
  std::vector<Cursor> cursors_;
};

Bytes load_bound(std::span<const Interval> intervals, std::size_t moments) {
  std::vector<std::int64_t> change(moments + 1, 0);
  for (const Interval& one : intervals) {
    const std::int64_t size = round_up(one.size, kArenaAlignment.value()).value();
    change[one.begin] += size;
    change[one.end] -= size;
  }
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const std::int64_t step : change) most = std::max(most, now += step);
  return Bytes(most);
}

// Lives counted in allocations: nothing else can take an address.
class LifeReader : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit, Mark> {
 public:
  explicit LifeReader(const Schedule& schedule) : schedule_(schedule), slot_(schedule.buffers.size(), kNone) {}

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit, Mark>::on;
  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (buffer.space != Space::Device) return;
    slot_[event.buffer] = static_cast<std::int64_t>(lives_.buffers.size());
    lives_.buffers.push_back(event.buffer);
    lives_.intervals.push_back({now_, 0, buffer.size});
    ++now_;
  }
  void on(std::size_t, const Release& event) {
    if (slot_[event.buffer] != kNone) lives_.intervals[static_cast<std::size_t>(slot_[event.buffer])].end = now_;
  }

  [[nodiscard]] Lives finish() {
    for (Interval& one : lives_.intervals) {
      if (one.end == 0) one.end = now_;
    }
    return std::move(lives_);
  }

 private:
  static constexpr std::int64_t kNone = -1;

  const Schedule& schedule_;
  Indexed<BufferId, std::int64_t> slot_;  // Its interval.
  std::uint32_t now_ = 0;
  Lives lives_;
};

// What comes first. Of equals the longest life, then the earliest, then the first: the order is total.
enum class Order : std::uint8_t { Size, Life, Area };

std::vector<std::uint32_t> sorted(std::span<const Interval> intervals, Order by) {
  std::vector<std::uint32_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto key = [by](const Interval& one) {
    const std::int64_t life = one.end - one.begin;
    if (by == Order::Life) return life;
    return by == Order::Size ? one.size.value() : checked_mul(life, one.size.value());
  };
  std::sort(order.begin(), order.end(), [&](std::uint32_t left, std::uint32_t right) {
    const Interval& a = intervals[left];
    const Interval& b = intervals[right];
    if (key(a) != key(b)) return key(a) > key(b);
    if (a.size != b.size) return a.size > b.size;
    if (a.end - a.begin != b.end - b.begin) return a.end - a.begin > b.end - b.begin;
    return a.begin != b.begin ? a.begin < b.begin : left < right;
  });
  return order;
}

// Each at the lowest offset that is free while it lives.
Layout place_in(const std::vector<std::uint32_t>& order, std::span<const Interval> intervals, std::size_t moments) {
  Layout layout;
  layout.offsets.resize(intervals.size());
  Occupancy taken(moments);
  for (const std::uint32_t at : order) {
    const Interval& one = intervals[at];
    const std::int64_t size = round_up(one.size, kArenaAlignment.value()).value();
    const std::int64_t offset = taken.lowest(one.begin, one.end, size);
    taken.take(one.begin, one.end, offset, offset + size);
    layout.offsets[at] = Bytes(offset);
    layout.height = std::max(layout.height, Bytes(offset + size));
  }
  return layout;
}

}  // namespace

Layout pack(std::span<const Interval> intervals) {
  std::size_t moments = 0;
  for (const Interval& one : intervals) {
    DSPLAN_CHECK(one.begin < one.end && one.size > Bytes(0), "an interval without life or size");
    moments = std::max<std::size_t>(moments, one.end);
  }
  const Bytes bound = load_bound(intervals, moments);
  Layout best;
  for (const Order order : {Order::Size, Order::Life, Order::Area}) {
    Layout layout = place_in(sorted(intervals, order), intervals, moments);
    if (best.offsets.empty() || layout.height < best.height) best = std::move(layout);
    if (best.height == bound) break;
  }
  best.lower_bound = bound;
  return best;
}

Lives lives_of(const Schedule& schedule) {
  LifeReader reader(schedule);
  replay(schedule, reader);
  return reader.finish();
}

}  // namespace dsplan
