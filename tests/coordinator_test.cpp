// ZeRO-3's parameter coordinator alone: recording, fetching ahead, keeping, and traces that break.
#include <doctest/doctest.h>

#include "coordinating.h"

using namespace coordinating;

TEST_CASE("coordinator: the first pass is recorded, and everything is let go of, persistent parameters too") {
  World world({10, 20});
  world.parameters[0].persistent = true;
  Coordinator c = world.make();
  CHECK(c.mode() == Coordinator::Mode::Invalid);
  CHECK(c.compared_lists() == std::vector<std::int64_t>{0});
  CHECK(lines(c, {1, 2}) == Lines{"", "gather 0, wait 0, forget 0", "release 0", "gather 1, wait 1, forget 1",
                                  "release 1", "gather 1, wait 1, forget 1", "release 1", "gather 0, wait 0, forget 0",
                                  "release 0"});
  CHECK(c.mode() == Coordinator::Mode::Record);
  CHECK(c.compared_lists() == std::vector<std::int64_t>{4, 4, 4});
  CHECK(lines(c, {1, 2}) == Lines{"", "gather 0, wait 0, forget 0", "", "gather 1, wait 1, forget 1", "release 1",
                                  "gather 1, wait 1, forget 1", "release 1", "", ""});
  CHECK(c.mode() == Coordinator::Mode::Complete);
  CHECK(c.compared_lists().empty());
  CHECK(c.counts()[static_cast<std::size_t>(Coordinator::Counter::ForwardFetchSubmit)] == Coordinator::Count{2, 15});
  CHECK(c.counts()[static_cast<std::size_t>(Coordinator::Counter::ForwardFetchWait)] == Coordinator::Count{2, 15});
  CHECK(c.counts()[static_cast<std::size_t>(Coordinator::Counter::BackwardAllGather)] == Coordinator::Count{1, 20});
}

TEST_CASE("coordinator: prefetching overshoots its bucket by one parameter and never crosses the end of the trace") {
  World world({10, 20, 30, 40});
  world.settings.prefetch_bucket = 21;
  Coordinator c = world.make();
  pass(c, {1, 2, 3, 4}, false);
  (void)begin(c);
  CHECK(enter(c, 1) == "gather 0, wait 0, forget 0, ahead 1+2");
  CHECK(c.available() == 60);
  CHECK(leave(c, 1) == "release 0");
  CHECK(enter(c, 2) == "wait 1, forget 1, ahead 3");
  CHECK(leave(c, 2) == "release 1");
  CHECK(enter(c, 3) == "wait 2, forget 2");
  CHECK(leave(c, 3) == "release 2");
  CHECK(enter(c, 4) == "wait 3, forget 3");
  CHECK(leave(c, 4) == "release 3");
  CHECK(c.counts()[static_cast<std::size_t>(Coordinator::Counter::ForwardPrefetchSubmit)] == Coordinator::Count{2, 90});
}

TEST_CASE("coordinator: max_live_parameters throttles prefetching only") {
  for (const auto& [live, ahead] : std::vector<std::pair<std::int64_t, std::string>>{
           {10, ""}, {11, ", ahead 1"}, {30, ", ahead 1"}, {31, ", ahead 1+2"}, {5, ""}}) {
    World world({10, 20, 30});
    world.settings.prefetch_bucket = 1000;
    world.settings.max_live = live;
    Coordinator c = world.make();
    pass(c, {1, 2, 3}, false);
    (void)begin(c);
    CAPTURE(live);
    CHECK(enter(c, 1) == "gather 0, wait 0, forget 0" + ahead);
  }
}

TEST_CASE("coordinator: max_reuse_distance is asked where a module begins, so that the one that crosses it counts") {
  // Behind module 1: 2 (20), 3 (30), then backward 3 (30), 2 (20), 1.
  const auto released = [](std::int64_t distance) {
    World world({10, 20, 30});
    world.settings.max_reuse_distance = distance;
    Coordinator c = world.make();
    pass(c, {1, 2, 3});
    (void)begin(c);
    (void)enter(c, 1);
    return leave(c, 1);
  };
  CHECK(released(100) == "release 0");
  CHECK(released(101).empty());
  World world({10, 20, 30});
  world.settings.max_reuse_distance = 1;  // The module that comes next is always looked at.
  Coordinator c = world.make();
  pass(c, {1, 2, 3});
  CHECK(lines(c, {1, 2, 3})[6].empty());
  world.settings.max_reuse_distance = 0;
  Coordinator none = world.make();
  pass(none, {1, 2, 3});
  CHECK(lines(none, {1, 2, 3})[6] == "release 2");
}

TEST_CASE("coordinator: what the prefetcher has passed over is kept, though it lies beyond the reuse distance") {
  World world({10, 20});
  world.settings.prefetch_bucket = 1000;
  Coordinator c = world.make();
  pass(c, {1, 2});
  (void)begin(c);
  CHECK(enter(c, 1) == "gather 0, wait 0, forget 0, ahead 1");
  CHECK(leave(c, 1).empty());  // Its backward was passed over, as it was there.
  CHECK(enter(c, 2) == "wait 1, forget 1");
  // Strictly later than the next step: a use right behind does not count.
  CHECK(leave(c, 2) == "release 1");
  CHECK(enter(c, 2, Hook::Backward) == "gather 1, wait 1, forget 1");
}

TEST_CASE("coordinator: a parameter of two active modules stays until both have left it") {
  World world({10});
  world.modules.push_back({{0}, {}, {}, false});
  Coordinator c = world.make();
  (void)begin(c);
  CHECK(enter(c, 1) == "gather 0, wait 0, forget 0");
  CHECK(enter(c, 2).empty());
  CHECK(leave(c, 2).empty());
  CHECK(leave(c, 1) == "release 0");
}

TEST_CASE("coordinator: tied embeddings belong to both of their modules") {
  World world({10, 20});
  world.modules.push_back({{0}, {}, {}, false});  // The head.
  world.settings.max_reuse_distance = 1000;
  Coordinator c = world.make();
  pass(c, {1, 2, 3});
  CHECK(lines(c, {1, 2, 3}) == Lines{"", "gather 0, wait 0, forget 0", "", "gather 1, wait 1, forget 1", "", "", "", "",
                                     "", "", "release 1", "", "release 0"});
}

TEST_CASE("coordinator: a parameter read outside its module becomes external to who reads it") {
  World world({10, 20});
  Coordinator c = world.make();
  (void)begin(c);
  (void)enter(c, 2);
  c.touch(0);
  CHECK(text(c) == "at once 0");
  CHECK(c.available() == 20);  // It is not counted,
  CHECK(leave(c, 2) == "release 0, release 1");
  CHECK(c.available() == -10);  // but its going is.
  (void)begin(c);
  CHECK(c.mode() == Coordinator::Mode::Complete);
  CHECK(enter(c, 2) == "gather 0+1, wait 0, forget 0, wait 1, forget 1");
  CHECK_FALSE(c.tracing_error());
}

TEST_CASE("coordinator: an eval forward of the same modules does not break the trace, and leaves nothing in flight") {
  World world({10, 20, 30});
  world.settings.prefetch_bucket = 25;
  Coordinator c = world.make();
  pass(c, {1, 2, 3});
  pass(c, {1, 2, 3}, false);
  CHECK(begin(c) == "wait 0, release 0, forget 0");  // Fetched ahead for a backward that never came.
  CHECK(c.mode() == Coordinator::Mode::Complete);
  CHECK(c.available() == 0);
}

TEST_CASE("coordinator: a trace recorded without a backward is invalidated by the first one, and recorded again") {
  World world({10, 20});
  Coordinator c = world.make();
  pass(c, {1, 2}, false);
  (void)begin(c);
  for (ModuleId module : {1, 2}) {
    (void)enter(c, module);
    (void)leave(c, module);
  }
  CHECK(c.mode() == Coordinator::Mode::Complete);
  CHECK(enter(c, 2, Hook::Backward) == "gather 1, wait 1, forget 1");
  CHECK(c.mode() == Coordinator::Mode::Invalid);
  CHECK(leave(c, 2, Hook::Backward) == "release 1");
  c.end_backward();
  CHECK(c.compared_lists() == std::vector<std::int64_t>{0});
  pass(c, {1, 2});
  CHECK(c.mode() == Coordinator::Mode::Record);
  pass(c, {1, 2});
  CHECK(c.mode() == Coordinator::Mode::Complete);
}

TEST_CASE("coordinator: a conditional layer invalidates the trace, and what was fetched ahead for it goes") {
  World world({10, 20, 30});
  world.settings.prefetch_bucket = 15;
  Coordinator c = world.make();
  pass(c, {1, 2, 3}, false);
  (void)begin(c);
  CHECK(enter(c, 1) == "gather 0, wait 0, forget 0, ahead 1");
  (void)leave(c, 1);
  CHECK(enter(c, 3) == "wait 1, release 1, forget 1, gather 2, wait 2, forget 2");
  CHECK(c.mode() == Coordinator::Mode::Invalid);
  CHECK(leave(c, 3) == "release 2");
}

TEST_CASE("coordinator: a module that asks for what the trace does not have next is a tracing error") {
  World world({10, 20, 30});
  Coordinator c = world.make();
  pass(c, {1, 2, 3}, false);
  (void)begin(c);
  (void)enter(c, 1);
  c.touch(2);  // From now on module 1 asks for it too, which the trace does not say.
  (void)leave(c, 1);
  for (ModuleId module : {2, 3}) {
    (void)enter(c, module);
    (void)leave(c, module);
  }
  CHECK_FALSE(c.tracing_error());
  (void)begin(c);
  (void)enter(c, 1);
  REQUIRE(c.tracing_error());
  CHECK(c.tracing_error()->step == 0);
  CHECK(c.tracing_error()->module == 1);
  CHECK(c.tracing_error()->expected == std::vector<ParameterId>{0, 2});
  CHECK(c.tracing_error()->found == std::vector<ParameterId>{0, 1});
}

TEST_CASE("coordinator: decisions of an invalidated trace outlive it, as Python's cache does") {
  World world({10, 20});
  world.settings.max_reuse_distance = 1000;
  Coordinator c = world.make();
  pass(c, {1, 2});
  pass(c, {1, 2});  // Leaving module 1 at step 1 keeps parameter 0.
  (void)begin(c);
  (void)enter(c, 2);
  (void)leave(c, 2);
  CHECK(c.mode() == Coordinator::Mode::Invalid);
  pass(c, {1, 2}, false);
  (void)begin(c);
  CHECK(c.mode() == Coordinator::Mode::Complete);
  (void)enter(c, 1);
  CHECK(leave(c, 1).empty());  // Though the new trace never comes back to it.
}
