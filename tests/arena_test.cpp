#include "sim/arena.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "lowered.h"
#include "planner/predict/allocation.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

// Knows nothing of how offsets were found: walks the moments, keeps what lives by address, and looks at neighbours.
std::string fault_of(const std::vector<Interval>& intervals, const Layout& layout) {
  struct Edge {
    std::uint32_t when;
    bool begins;
    std::size_t which;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    edges.push_back({intervals[i].begin, true, i});
    edges.push_back({intervals[i].end, false, i});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    if (a.when != b.when) return a.when < b.when;
    return a.begins < b.begins;  // What ends makes room for what begins.
  });
  std::map<std::int64_t, std::int64_t> live;  // Beginning -> end.
  std::int64_t height = 0;
  for (const Edge& edge : edges) {
    const std::int64_t from = layout.offsets[edge.which].value();
    if (!edge.begins) {
      live.erase(from);
      continue;
    }
    const std::int64_t to = from + intervals[edge.which].size.value();
    if (from % 512 != 0) return "an offset is not aligned";
    height = std::max(height, to);
    const auto next = live.lower_bound(from);
    if (next != live.end() && next->first < to) return "overlaps its upper neighbour";
    if (next != live.begin() && std::prev(next)->second > from) return "overlaps its lower neighbour";
    live[from] = to;
  }
  if (layout.height < Bytes(height)) return "the height is less than what is used";
  if (layout.height < layout.lower_bound) return "the height is below the bound";
  return {};
}

std::vector<Interval> random_intervals(std::mt19937_64& random, std::size_t count, std::uint32_t moments) {
  std::vector<Interval> intervals;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = static_cast<std::uint32_t>(random() % moments);
    const auto length = static_cast<std::uint32_t>(1 + random() % (random() % 4 == 0 ? moments : 8));
    const auto size = static_cast<std::int64_t>(1 + random() % (1ULL << (random() % 24)));
    intervals.push_back({begin, std::min(begin + length, moments), Bytes(size)});
  }
  return intervals;
}

}  // namespace

TEST_CASE("arena: by hand") {
  // 1000 over all the time, then 600 beside it twice, one after the other, and 300 that fits above the second.
  const std::vector<Interval> intervals = {
      {0, 10, Bytes(1000)}, {1, 4, Bytes(600)}, {4, 8, Bytes(600)}, {5, 6, Bytes(300)}};
  const Layout layout = pack(intervals);
  CHECK(layout.offsets == std::vector<Bytes>{Bytes(0), Bytes(1024), Bytes(1024), Bytes(2048)});
  CHECK(layout.height == Bytes(2560));
  CHECK(layout.lower_bound == Bytes(2560));
  CHECK(pack({}).height == Bytes(0));
}

TEST_CASE("arena: nothing overlaps in time and address, for anything that lives") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    const auto moments = static_cast<std::uint32_t>(1 + random() % 200);
    const std::vector<Interval> intervals = random_intervals(random, random() % 150, moments);
    const Layout layout = pack(intervals);
    INFO(round);
    CHECK(fault_of(intervals, layout) == "");
    CHECK(pack(intervals).offsets == layout.offsets);
  }
}

TEST_CASE("arena: the checker sees what is wrong") {
  const std::vector<Interval> intervals = {{0, 4, Bytes(1000)}, {1, 3, Bytes(1000)}};
  Layout layout = pack(intervals);
  CHECK(fault_of(intervals, layout) == "");
  layout.offsets[1] = Bytes(512);
  CHECK(fault_of(intervals, layout) != "");
  layout.offsets[1] = Bytes(1025);
  CHECK(fault_of(intervals, layout) == "an offset is not aligned");
}

TEST_CASE("arena: real schedules come within three per cent of the load, and each device buffer has its place") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (int stage = -1; stage <= 3; ++stage) {
    lowered::Variants variants{stage, stage < 0 ? 1 : 2, static_cast<std::int32_t>(model.dims.layers), {}};
    variants.add("plain", [](Job&) {});
    variants.add("checkpointed", [&](Job& job) { variants.checkpoint_full(job); });
    for (const lowered::Case& one : variants.cases) {
      INFO(one.name);
      const Schedule schedule = lowered::all_ranks(model, one.job).front();
      const Lives lives = lives_of(schedule);
      const Layout layout = pack(lives.intervals);
      CHECK(fault_of(lives.intervals, layout) == "");
      CHECK(layout.height.value() * 100 <= layout.lower_bound.value() * 103);
      const PlannedArena arena = plan_arena(schedule, Bytes(0));
      for (const BufferId id : schedule.buffers.ids()) {
        CHECK((arena.offsets[id] >= 0) == (schedule.buffers[id].space == Space::Device));
      }
    }
  }
}

TEST_CASE("arena: the verdict is the plan's when it is chosen") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  Job job = lowered::job(2, 2);
  job.rank = "0";
  const Prediction caching = predict(model, job, 0);
  job.placement = PlacementKind::Planned;
  const Prediction planned = predict(model, job, 0);
  REQUIRE(planned.arena.has_value());
  CHECK(!caching.arena.has_value());
  CHECK(planned.arena->reserved == *caching.peak->reserved);
  CHECK(planned.peak->reserved == planned.arena->height);
  CHECK(planned.arena->height >= planned.arena->lower_bound);
  CHECK(*planned.peak->process < *caching.peak->process);
  CHECK(planned.fingerprint != caching.fingerprint);
  job.capacity = *planned.peak->process;
  CHECK(predict(model, job, 0).verdict == Verdict::Tight);  // Nothing is left.
  job.capacity = *planned.peak->process - Bytes(1);
  const Prediction refused = predict(model, job, 0);
  CHECK(refused.verdict == Verdict::DoesNotFit);
  CHECK(refused.verdict_reason.find("is 1 B too large") != std::string::npos);
}
