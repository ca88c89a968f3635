#include "planner/predict/estimators.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

std::int64_t gpus(const EstimatorInput& input) { return checked_mul(input.nodes, input.gpus_per_node); }

void require(const EstimatorInput& input, const Version& deepspeed) {
  if (deepspeed < kFirstEstimators) {
    throw Refusal("--deepspeed-version", formatted("DeepSpeed {} has no memory estimators", deepspeed.text()),
                  formatted("they came with {}", kFirstEstimators.text()));
  }
  if (input.nodes < 1 || input.gpus_per_node < 1) {
    throw Refusal("estimator",
                  formatted("{} nodes with {} GPUs each: both must be at least 1", input.nodes, input.gpus_per_node));
  }
  if (input.parameters < Elements(0) || input.largest_layer < Elements(0)) {
    throw Refusal("estimator", "parameter counts must not be negative");
  }
}

// count * width * 3 / 2 / divisor, cut to whole bytes. 3 / 2 is additional_buffer_factor.
Bytes host(Elements count, std::int64_t width, std::int64_t divisor = 1) {
  return Bytes(checked_mul(checked_mul(count.value(), width), 3) / checked_mul(2, divisor));
}

// count * width / divisor, cut to whole bytes.
Bytes device(Elements count, std::int64_t width, std::int64_t divisor = 1) {
  return Bytes(checked_mul(count.value(), width) / divisor);
}

}  // namespace

Elements largest_layer(const ModelSpec& model) {
  std::vector<Elements> direct(model.modules.size());
  for (const Parameter& parameter : model.parameters) {
    direct[static_cast<std::size_t>(parameter.module)] += parameter.shape.elements();
  }
  return direct.empty() ? Elements(0) : *std::max_element(direct.begin(), direct.end());
}

Estimate estimate_zero2(const EstimatorInput& input, EstimatorOffload offload, const Version& deepspeed) {
  require(input, deepspeed);
  const Elements n = input.parameters;
  switch (offload) {
    case EstimatorOffload::Optimizer:
      return {device(n, 2), host(n, std::max<std::int64_t>(checked_mul(4, gpus(input)), 16))};
    case EstimatorOffload::None: {
      const bool old = deepspeed < kZero2EstimatorChanged;
      const Bytes per_gpu = device(n, old ? 4 : 2) + device(n, old ? 16 : 18, gpus(input));
      return {per_gpu, host(n, checked_mul(4, input.gpus_per_node))};
    }
    case EstimatorOffload::OptimizerAndParameters: break;
  }
  throw Refusal("estimator", "DeepSpeed's ZeRO-2 estimator knows no offload of parameters");
}

Estimate estimate_zero3(const EstimatorInput& input, EstimatorOffload offload, bool zero_init,
                        const Version& deepspeed) {
  require(input, deepspeed);
  const Elements n = input.parameters;
  const Bytes layer = device(input.largest_layer, 4);
  const std::int64_t copies = checked_mul(4, input.gpus_per_node);  // One fp32 model per process of the node.
  if (offload == EstimatorOffload::None) {
    return {layer + device(n, 18, gpus(input)), zero_init ? host(input.largest_layer, copies) : host(n, copies)};
  }
  const bool parameters_too = offload == EstimatorOffload::OptimizerAndParameters;
  const std::int64_t states = parameters_too ? 18 : 16;
  // max(copies, states / nodes) without fractions.
  const std::int64_t width = zero_init ? states : std::max(checked_mul(copies, input.nodes), states);
  return {parameters_too ? layer : layer + device(n, 2, gpus(input)), host(n, width, input.nodes)};
}

}  // namespace dsplan
