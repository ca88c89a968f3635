// Which parameters transformers' plans of tensor parallelism name (tests/data/tensor-plans.csv, by
// tools/oracles/tensor_plans.py) against what counts as cut where packed weights are loaded.
#include "model/tensor_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "lowered.h"
#include "paths.h"

using namespace dsplan;

namespace {

// "model.layers.3.mlp" is "model.layers.*.mlp".
std::string with_stars(const std::string& name) {
  std::string text;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, end - at);
    const bool number = part.find_first_not_of("0123456789") == std::string::npos;
    text += (text.empty() ? "" : ".") + (number ? "*" : part);
    at = end + 1;
  }
  return text;
}

}  // namespace

TEST_CASE("plans of tensor parallelism: the parameters that transformers' plans name, of every dense family") {
  std::map<std::string, std::map<std::string, bool>> named;
  std::ifstream file(test_paths::source_dir() + "/tests/data/tensor-plans.csv");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("model,parameter")) continue;
    const std::size_t first = line.find(',');
    const std::size_t last = line.rfind(',');
    named[line.substr(0, first)][line.substr(first + 1, last - first - 1)] = line.substr(last + 1) == "1";
  }
  std::size_t compared = 0;
  for (const auto& [name, rows] : named) {
    CAPTURE(name);
    const ModelSpec model = lowered::bundled(name);
    if (model.dims.experts > 0) continue;
    for (const Parameter& parameter : model.parameters) {
      const auto row = rows.find(with_stars(parameter.name));
      if (row == rows.end()) continue;  // A tied head has one name there.
      CHECK_MESSAGE(in_tensor_plan(model, parameter) == row->second, parameter.name);
      ++compared;
    }
  }
  CHECK(named.size() > 50);
  CHECK(compared > 5000);
}
