// Single operators of the executor: gradients against central differences in float64, values against PyTorch's.
#include <doctest/doctest.h>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "core/format.h"
#include "exec_walk.h"
#include "paths.h"
#include "small_graphs.h"

using namespace dsplan;

namespace {

using namespace small_graphs;  // NOLINT: what these tests are about.

// The weighted sum of the result, with `moved` added to one element of one input; with backward where asked.
struct Evaluated {
  double sum = 0;
  std::vector<std::vector<double>> gradients;
};

Evaluated evaluate(const Case& test, std::size_t which, std::size_t element, double moved, bool backward) {
  Small small;
  test.build(small);
  walking::Walk walk(small.graph, true);
  double order = 1;
  for (const TensorId id : small.graph.tensors.ids()) {
    const auto tensor = TensorId(id);
    if (small.graph.tensors[id].producer != kNone) continue;
    std::vector<double> values = waves(small.graph, tensor, order);
    order += 1;
    for (double& value : values) value += test.shift;
    if (const auto fixed = test.fixed.find(tensor); fixed != test.fixed.end()) values = fixed->second;
    if (which < small.trained.size() && small.trained[which] == tensor) values[element] += moved;
    walk.set_values(tensor, values);
  }
  walk.forward();
  const std::vector<double> result = walk.values(small.result);
  const std::vector<double> weights = waves(small.graph, small.result, 9);
  Evaluated evaluated;
  evaluated.sum = std::inner_product(result.begin(), result.end(), weights.begin(), 0.0);
  if (backward) {
    walk.set_gradient(small.result, weights);
    walk.backward_from(small.result);
    for (const TensorId id : small.trained) evaluated.gradients.push_back(walk.gradient_values(id));
  }
  for (const std::string& fault : walk.faults()) {
    if (fault.find("catalogue") == std::string::npos) FAIL_CHECK(fault);  // fp64 has no flash kernel to compare with.
  }
  return evaluated;
}

void check_gradients(const Case& test) {
  INFO(test.name);
  const Evaluated base = evaluate(test, 0, 0, 0, true);
  constexpr double kStep = 1e-5;
  for (std::size_t input = 0; input < base.gradients.size(); ++input) {
    // All elements of a small input, some of a large one.
    const std::size_t count = base.gradients[input].size();
    for (std::size_t element = 0; element < count; element += 1 + count / 60) {
      const double above = evaluate(test, input, element, kStep, false).sum;
      const double below = evaluate(test, input, element, -kStep, false).sum;
      const double slope = (above - below) / (2 * kStep);
      const double gradient = base.gradients[input][element];
      INFO("input " << input << ", element " << element << ": " << gradient << " for " << slope);
      CHECK(std::abs(gradient - slope) < 1e-7 * std::max(1.0, std::abs(slope)) + 2e-8);
    }
  }
}

using Values = std::map<std::string, std::vector<double>>;

Values witnessed() {
  std::ifstream file(test_paths::source_dir() + "/tests/witnesses/exec/operators.txt");
  REQUIRE(file.good());
  Values values;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    for (double x = 0; words >> x;) values[key].push_back(x);
  }
  return values;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace

TEST_CASE("gradients are derivatives") {
  for (const Case& test : elementwise_cases()) check_gradients(test);
  for (const Case& test : shaping_cases()) check_gradients(test);
  for (const auto& cases : {spreading_cases(), picking_cases(), placing_cases(), ordering_cases()}) {
    for (const Case& test : cases) check_gradients(test);
  }
  for (const Case& test : choosing_cases()) check_gradients(test);
  for (const Case& test : large_cases()) check_gradients(test);
}

TEST_CASE("operators compute what PyTorch computes") {
  struct Row {
    const char* name;
    Op op;
    double number;
  };
  const Values expected = witnessed();
  for (const DType dtype : {DType::Float64, DType::Float32}) {
    for (const Row& row :
         {Row{"gelu", Op::Gelu, 0}, Row{"gelu_tanh", Op::Gelu, 1}, Row{"silu", Op::Silu, 0}, Row{"tanh", Op::Tanh, 0},
          Row{"softmax", Op::Softmax, 0}, Row{"log_softmax", Op::LogSoftmax, 0}, Row{"layer_norm", Op::LayerNorm, 1e-5},
          Row{"pow", Op::PowScalar, 3}}) {
      INFO(row.name);
      Small small;
      const TensorId x = small.input({4, 6}, true, dtype);
      std::vector<TensorId> inputs{x};
      if (row.op == Op::LayerNorm) {
        inputs.push_back(small.input({6}, false, dtype));
        inputs.push_back(small.input({6}, false, dtype));
      }
      small.result = small.add(
          row.op, inputs, {4, 6}, [&](Node& node) { number(node, row.number); }, dtype);
      walking::Walk walk(small.graph, true);
      std::vector<double> values = waves(small.graph, x, 1);
      for (double& value : values) value *= 2;
      walk.set_values(x, values);
      if (inputs.size() > 1) {
        std::vector<double> weight = waves(small.graph, inputs[1], 2);
        for (double& value : weight) value += 1;
        walk.set_values(inputs[1], weight);
        walk.set_values(inputs[2], waves(small.graph, inputs[2], 3));
      }
      walk.forward();
      walk.set_gradient(small.result, waves(small.graph, small.result, 4));
      walk.backward_from(small.result);
      CHECK(distance(walk.values(small.result), expected.at(row.name)) < 1e-6);
      CHECK(distance(walk.gradient_values(x), expected.at(std::string(row.name) + ".gradient")) < 1e-6);
    }
  }
}
