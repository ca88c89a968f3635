// What replays of requests alone say, held against replays of whole schedules: the other end of frees, the clock,
// limits that make the allocator give its cache back, and steady steps pool by pool against all pools together.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "both_ends.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "random_jobs.h"
#include "sim/long_run.h"
#include "sim/placement.h"

using namespace dsplan;
using namespace dsplan::test;

namespace {

// Of random models and jobs. Their buffers are made larger, so that large blocks are among them.
void each_schedule(std::uint32_t most, std::int64_t larger, const std::function<void(const Schedule&, Dice&)>& look) {
  for (std::uint32_t seed = 1; seed <= most; ++seed) {
    Dice dice(seed);
    const ModelSpec model = build_model(parse_json("config.json", random_config(dice)), "random");
    const Job job = random_job(dice, model);
    if (unsupported(model, job)) continue;
    INFO("seed ", seed, ": ", tell(model, job));
    const Graph graph = build_graph(model, graph_options(model, job));
    const RecipeBook recipes(graph);
    Schedule schedule = lower(model, job, graph, recipes, dice.from(0, job.parallelism.dp - 1));
    for (const BufferId id : schedule.buffers.ids()) schedule.buffers[id].size = schedule.buffers[id].size * larger;
    look(schedule, dice);
  }
}

void check_same(const Placement& a, const Placement& b) {
  CHECK(a.peak.requested == b.peak.requested);
  CHECK(a.peak.allocated == b.peak.allocated);
  CHECK(a.peak.active == b.peak.active);
  CHECK(a.peak.reserved == b.peak.reserved);
  CHECK(a.peak.reserved_at == b.peak.reserved_at);
  CHECK(a.retries == b.retries);
  CHECK(a.first_retry == b.first_retry);
  CHECK(a.failed_event == b.failed_event);
  CHECK(a.missing == b.missing);
  REQUIRE(a.marks.size() == b.marks.size());
  for (std::size_t at = 0; at < a.marks.size(); ++at) {
    CHECK(a.marks[at].reserved == b.marks[at].reserved);
    CHECK(a.marks[at].active == b.marks[at].active);
    CHECK(a.marks[at].since.allocated == b.marks[at].since.allocated);
  }
}

// Times of no machine.
EventTimes some_times(const Schedule& schedule, Dice& dice) {
  EventTimes times;
  times.host = 1e-6;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    times.work.push_back(static_cast<float>(dice.from(0, 40)) * 1e-6F);
  }
  return times;
}

}  // namespace

TEST_CASE("an allocator that is asked again what another was asked says what a replay of the schedule says") {
  std::int64_t waited = 0;
  std::int64_t retried = 0;
  std::int64_t failed = 0;
  each_schedule(250, 101, [&](const Schedule& schedule, Dice& dice) {
    const BothPlacements both = place_both(schedule, {});
    REQUIRE(!both.requests.empty());
    const EventTimes times = some_times(schedule, dice);
    for (const StreamFrees frees : {StreamFrees::AtSync, StreamFrees::Immediate}) {
      for (const EventTimes* clock : {static_cast<const EventTimes*>(nullptr), &times}) {
        PlacementOptions options;
        options.frees = frees;
        options.times = clock;
        check_same(place_again(schedule, both, options), place(schedule, options));
        options.limit = Bytes(both.asked.peak.reserved.value() * 97 / 100);
        const Placement limited = place(schedule, options);
        check_same(place_again(schedule, both, options), limited);
        retried += limited.retries > 0 ? 1 : 0;
        failed += limited.failed_event ? 1 : 0;
      }
    }
    waited += both.asked.waited ? 1 : 0;
    if (both.other) check_same(*both.other, place(schedule, other_end({})));
  });
  CHECK(waited > 20);  // Else nothing was tried.
  CHECK(retried > 20);
  CHECK(failed > 20);
}

TEST_CASE("steady steps pool by pool are those of the whole allocator") {
  std::int64_t steady = 0;
  std::int64_t later = 0;  // Those that did not repeat at once.
  const auto look = [&](const Schedule& schedule, Dice&) {
    const BothPlacements both = place_both(schedule, {});
    for (const std::int64_t most : {3, 4, 40}) {
      PlacementOptions whole;  // A fraction of everything limits nothing, but pools are not taken apart under one.
      whole.device = whole.limit = Bytes(std::int64_t{1} << 50);
      whole.config.memory_fraction = 1.0;
      const std::optional<LongRun> apart = long_run(schedule, both, {}, most);
      const std::optional<LongRun> together = long_run(schedule, both, whole, most);
      REQUIRE(apart.has_value() == together.has_value());
      if (!apart) continue;
      CHECK(apart->steps == together->steps);
      CHECK(apart->repeats == together->repeats);
      CHECK(apart->period == together->period);
      CHECK(apart->reserved == together->reserved);
      CHECK(apart->verdict == together->verdict);
      steady += 1;
      later += apart->steps > 3 ? 1 : 0;
    }
  };
  each_schedule(150, 101, look);
  each_schedule(150, 9973, look);
  CHECK(steady > 100);
  CHECK(later > 20);
}

TEST_CASE("steady steps by a clock on which work takes no time are those whose frees end at once") {
  std::int64_t steady = 0;
  std::int64_t waited = 0;
  std::int64_t retried = 0;
  each_schedule(150, 101, [&](const Schedule& schedule, Dice&) {
    const BothPlacements both = place_both(schedule, {});
    EventTimes none;
    none.work.assign(schedule.events.size(), 0.0F);
    for (const std::int64_t percent : {200, 99}) {
      PlacementOptions options;
      options.limit = Bytes(both.asked.peak.reserved.value() * percent / 100);
      const std::optional<LongRun> at_once = long_run(schedule, both, options);
      options.times = &none;
      const std::optional<LongRun> by_clock = long_run(schedule, both, options);
      REQUIRE(at_once.has_value() == by_clock.has_value());
      if (!at_once) continue;
      CHECK(at_once->repeats == by_clock->repeats);
      CHECK(at_once->reserved == by_clock->reserved);
      CHECK(at_once->retries_period == by_clock->retries_period);
      CHECK(at_once->verdict == by_clock->verdict);
      steady += 1;
      waited += both.asked.waited ? 1 : 0;
      retried += at_once->retries > 0 ? 1 : 0;
    }
  });
  CHECK(steady > 100);
  CHECK(waited > 20);
  CHECK(retried > 0);
}
