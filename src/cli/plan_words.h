// The words of `dsplan plan`, for a chain and for a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "io/locate.h"

namespace dsplan {

struct PlanWords {
  SimulateWords said;
  std::optional<std::string> budget, method;
  std::optional<std::string> maximize, minimize, emit, timeout, space, global_batch;
  std::vector<std::string> vary;
  bool minimum = false, pareto = false;
};

// `dsplan plan MODEL`: the search. Exit codes: 0 a plan, 5 none fits, 130 interrupted before there was one.
[[nodiscard]] int plan_model(const PlanWords& words);

}  // namespace dsplan
