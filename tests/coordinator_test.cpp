// ZeRO-3's parameter coordinator alone: small made-up models, one line for what each hook makes it do.
#include "planner/lowering/coordinator.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/lowering/stage3_modules.h"

using namespace dsplan;
using Hook = Coordinator::Hook;

namespace {

// Modules 1..n own parameters 0..n-1; module 0 is the root.
struct World {
  CoordinatorSettings settings{.prefetch_bucket = 0, .max_reuse_distance = 0, .max_live = 1'000'000};
  std::vector<CoordinatedParameter> parameters;
  std::vector<CoordinatedModule> modules{{}};

  explicit World(std::vector<std::int64_t> sizes) {
    for (std::int64_t size : sizes) {
      modules.push_back({{static_cast<ParameterId>(parameters.size())}, {}, {}, false});
      parameters.push_back({size, (size + 1) / 2, false, true, false});
    }
  }
  [[nodiscard]] Coordinator make() const { return {settings, parameters, modules}; }
};

std::string text(const Coordinator& c) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  for (const Coordinator::Action& action : c.actions()) {
    const std::string ids = fmt::format("{}", fmt::join(action.parameters, "+"));
    switch (action.act) {
      case Coordinator::Act::Gather:
        add((action.at_once     ? "at once "
             : action.secondary ? "inside "
             : action.prefetch  ? "ahead "
                                : "gather ") +
            ids);
        break;
      case Coordinator::Act::Wait: add("wait " + ids); break;
      case Coordinator::Act::Forget: add("forget " + ids); break;
      case Coordinator::Act::Release: add("release " + ids); break;
      case Coordinator::Act::SwapIn: add("swap in " + ids); break;
      case Coordinator::Act::DropBuffers: add("drop " + ids); break;
    }
  }
  return out;
}

std::string begin(Coordinator& c) {
  c.begin_forward();
  return text(c);
}
std::string enter(Coordinator& c, ModuleId module, Hook hook = Hook::Forward) {
  c.enter(module, hook);
  return text(c);
}
std::string leave(Coordinator& c, ModuleId module, Hook hook = Hook::Forward) {
  c.exit(module, hook);
  return text(c);
}

// One forward and backward over the modules given; what is done is checked elsewhere.
void pass(Coordinator& c, const std::vector<ModuleId>& order, bool backward = true) {
  (void)begin(c);
  for (ModuleId module : order) {
    (void)enter(c, module);
    (void)leave(c, module);
  }
  if (!backward) return;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    (void)enter(c, *at, Hook::Backward);
    (void)leave(c, *at, Hook::Backward);
  }
  c.end_backward();
}

// The hooks of one forward and backward, line by line.
std::vector<std::string> lines(Coordinator& c, const std::vector<ModuleId>& order) {
  std::vector<std::string> out{begin(c)};
  for (ModuleId module : order) {
    out.push_back(enter(c, module));
    out.push_back(leave(c, module));
  }
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    out.push_back(enter(c, *at, Hook::Backward));
    out.push_back(leave(c, *at, Hook::Backward));
  }
  return out;
}

using Lines = std::vector<std::string>;

}  // namespace

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

TEST_CASE("coordinator: a module that returns a parameter hands it to the module around it") {
  World world({10});
  Coordinator c = world.make();
  (void)begin(c);
  (void)enter(c, 0);
  (void)enter(c, 1);
  c.return_parameter(1, 0);
  CHECK(text(c).empty());
  CHECK(leave(c, 1).empty());
  CHECK(leave(c, 0).empty());  // Nobody lets go of it,
  c.release_all();
  CHECK(text(c) == "release 0");  // but the step.
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

TEST_CASE("coordinator: recomputation enters modules again, and early stop abandons them") {
  World world({10, 20});
  Coordinator c = world.make();
  const auto step = [&] {
    Lines out{begin(c)};
    for (ModuleId module : {1, 2}) {
      out.push_back(enter(c, module));
      out.push_back(leave(c, module));
    }
    out.push_back(enter(c, 2, Hook::Backward));
    out.push_back(enter(c, 1, Hook::Recompute));
    out.push_back(leave(c, 1, Hook::Recompute));
    out.push_back(enter(c, 2, Hook::Recompute));  // Never left.
    out.push_back(leave(c, 2, Hook::Backward));
    out.push_back(enter(c, 1, Hook::Backward));
    out.push_back(leave(c, 1, Hook::Backward));
    c.end_backward();
    return out;
  };
  CHECK(step() == Lines{"", "gather 0, wait 0, forget 0", "release 0", "gather 1, wait 1, forget 1", "release 1",
                        "gather 1, wait 1, forget 1", "gather 0, wait 0, forget 0", "release 0", "", "release 1",
                        "gather 0, wait 0, forget 0", "release 0"});
  CHECK(c.compared_lists().front() == 6);
}

TEST_CASE("coordinator: frozen parameters used in recomputation stay until the module that asked for it is left") {
  World world({10, 20});
  world.parameters[0].trained = false;
  Coordinator c = world.make();
  (void)begin(c);
  (void)enter(c, 2, Hook::Backward);
  CHECK(enter(c, 1, Hook::Recompute) == "gather 0, wait 0, forget 0");
  CHECK(leave(c, 1, Hook::Recompute).empty());
  CHECK(leave(c, 2, Hook::Backward) == "release 1, release 0");
}

TEST_CASE(
    "coordinator: modules whose backward has no end are let go of when all of it is over, but for what persists") {
  World world({10, 20});
  world.parameters[1].persistent = true;
  Coordinator c = world.make();
  (void)begin(c);
  (void)enter(c, 2, Hook::Backward);
  (void)enter(c, 1, Hook::Backward);
  c.end_backward();
  CHECK(text(c) == "release 0");
  c.release_all();
  CHECK(text(c) == "release 1");
}

TEST_CASE("coordinator: prefetching stops at a partition on NVMe; persisted ones give their swap buffers back") {
  World world({10, 20, 30});
  world.settings.prefetch_bucket = 1000;
  world.settings.swap_buffers = 2;
  world.parameters[1].on_nvme = true;
  world.parameters[2].on_nvme = world.parameters[2].persistent = true;
  Coordinator c = world.make();
  pass(c, {1, 2, 3}, false);
  (void)begin(c);
  // Module 1: nothing ahead, as the next is on NVMe; it is read ahead, and the one behind it within twice what flies.
  CHECK(enter(c, 1) == "gather 0, wait 0, forget 0, swap in 1");
  (void)leave(c, 1);
  CHECK(enter(c, 2) == "gather 1, wait 1, forget 1, swap in 2");
  CHECK(leave(c, 2) == "release 1, drop 1");
  CHECK(enter(c, 3) == "gather 2, drop 2, wait 2, forget 2");
  CHECK(leave(c, 3).empty());
}

TEST_CASE("coordinator: with secondary shards one fetch is two calls where only some have one") {
  World world({10, 20});
  world.settings.secondary_shards = true;
  world.parameters[0].trained = false;
  world.modules[1].own = {0, 1};
  Coordinator c = world.make();
  (void)begin(c);
  CHECK(enter(c, 1) == "inside 0+1, wait 0, forget 0, wait 1, forget 1");  // Cutting them left a shard of each.
  CHECK(leave(c, 1) == "release 0, release 1");
  c.drop_secondary_shards();
  (void)begin(c);
  CHECK(enter(c, 1) == "inside 0, gather 1, wait 0, forget 0, wait 1, forget 1");
  CHECK(leave(c, 1) == "release 0, release 1");
  CHECK(enter(c, 1) == "inside 0+1, wait 0, forget 0, wait 1, forget 1");
}

TEST_CASE("coordinator: a leaf module asks for all that lies below it") {
  World world({10, 20, 30});
  world.modules[1] = {{}, {0, 1}, {}, true};
  world.modules[3].below = {2};
  world.modules[0].below = {0, 1, 2};
  world.settings.max_reuse_distance = 61;
  Coordinator c = world.make();
  const auto step = [&] { return lines(c, {1, 3}); };
  CHECK(step()[1] == "gather 0+1, wait 0, forget 0, wait 1, forget 1");
  // Behind the leaf: 30 and 30 again, then the leaf. Behind module 3 nothing of the leaf is counted.
  CHECK(step()[2].empty());
  World far = world;
  far.settings.max_reuse_distance = 60;
  Coordinator d = far.make();
  (void)lines(d, {1, 3});
  CHECK(lines(d, {1, 3})[2] == "release 0, release 1");
}

TEST_CASE("leaf modules: by class, name, suffix and granularity") {
  ModelSpec model;
  model.modules = {{"", "Net"},          {"a", "Block", 0},         {"a.x", "Linear", 1},
                   {"a.y", "Linear", 1}, {"list", "ModuleList", 0}, {"list.0", "Linear", 4}};
  const auto add = [&](const char* name, std::int64_t size, ModuleId module) {
    Parameter p;
    p.name = name;
    p.shape = Shape{size};
    p.module = module;
    model.parameters.push_back(p);
  };
  add("a.x.weight", 10, 2);
  add("a.y.weight", 30, 3);
  add("list.0.weight", 100, 5);
  using Leaf = std::vector<bool>;
  Zero zero;
  CHECK(leaf_modules(model, zero) == Leaf(6, false));
  zero.leaf_classes = {"some.python.module.Block"};
  CHECK(leaf_modules(model, zero) == Leaf{false, true, false, false, false, false});
  zero.leaf_classes.clear();
  zero.leaf_names = {"a.y"};
  zero.leaf_suffixes = {".0"};
  CHECK(leaf_modules(model, zero) == Leaf{false, false, false, true, false, true});
  zero = {};
  // a: 40 elements over two linears and itself; the root: 140 over three linears, the block and itself.
  zero.module_granularity_threshold = Elements(12);
  CHECK(leaf_modules(model, zero) == Leaf(6, false));
  zero.module_granularity_threshold = Elements(13);
  CHECK(leaf_modules(model, zero) == Leaf{false, true, false, false, false, false});
  zero.module_granularity_threshold = Elements(28);
  CHECK(leaf_modules(model, zero) == Leaf{true, false, false, false, false, false});
  const std::vector<CoordinatedModule> modules = coordinated_modules(model, leaf_modules(model, zero));
  CHECK(modules[0].below == std::vector<ParameterId>{0, 1, 2});
  CHECK(hooked_modules(model, leaf_modules(model, zero)) == Leaf{true, false, false, false, false, false});
}
