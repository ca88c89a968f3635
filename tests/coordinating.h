// ZeRO-3's parameter coordinator for tests: small made-up models, and one line for what each hook makes it do.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/format.h"
#include "planner/lower/runtimes/zero3/coordinator.h"

namespace coordinating {

using namespace dsplan;
using Hook = Coordinator::Hook;

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

inline std::string text(const Coordinator& c) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  for (const Coordinator::Action& action : c.actions()) {
    const std::string ids = dsplan::formatted("{}", dsplan::joined(action.parameters, "+"));
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

inline std::string begin(Coordinator& c) {
  c.begin_forward();
  return text(c);
}
inline std::string enter(Coordinator& c, ModuleId module, Hook hook = Hook::Forward) {
  c.enter(module, hook);
  return text(c);
}
inline std::string leave(Coordinator& c, ModuleId module, Hook hook = Hook::Forward) {
  c.exit(module, hook);
  return text(c);
}

// One forward and backward over the modules given; what is done is checked elsewhere.
inline void pass(Coordinator& c, const std::vector<ModuleId>& order, bool backward = true) {
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
inline std::vector<std::string> lines(Coordinator& c, const std::vector<ModuleId>& order) {
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

}  // namespace coordinating
