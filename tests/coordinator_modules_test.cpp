// ZeRO-3's parameter coordinator alone: recomputation, frozen parameters, NVMe, secondary shards and leaf modules.
#include <doctest/doctest.h>

#include "coordinating.h"
#include "planner/lower/runtimes/zero3/hooked_modules.h"

using namespace coordinating;

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
