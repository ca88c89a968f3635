#include "planner/predict/formulas.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

void require(bool good, const char* what, std::int64_t value, const char* rule) {
  if (!good) throw Refusal(what, formatted("{} is {}, but must be {}", what, value, rule));
}

void require_plan(int stage, std::int64_t degree, std::int64_t model_parallel) {
  require(stage >= 0 && stage <= 3, "ZeRO stage", stage, "0, 1, 2 or 3");
  require(degree >= 1, "data-parallel degree", degree, "at least 1");
  require(model_parallel >= 1, "model-parallel degree", model_parallel, "at least 1");
}

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (std::int64_t factor : factors) {
    require(factor >= 0, "dimension", factor, "at least 0");
    result = checked_mul(result, factor);
  }
  return result;
}

}  // namespace

PaperStates paper_states(Elements parameters, int stage, std::int64_t degree, std::int64_t model_parallel,
                         const StateWidths& widths) {
  require_plan(stage, degree, model_parallel);
  require(parameters.value() >= 0, "parameter count", parameters.value(), "at least 0");
  const Elements whole = div_ceil(parameters, model_parallel);
  const Elements share = div_ceil(whole, degree);
  const auto bytes = [&](int first_stage_that_divides, std::int64_t width) {
    return Bytes(checked_mul((stage >= first_stage_that_divides ? share : whole).value(), width));
  };
  return {bytes(3, widths.parameter), bytes(2, widths.gradient), bytes(1, widths.optimizer)};
}

Elements largest_model(Bytes budget, int stage, std::int64_t degree, std::int64_t model_parallel,
                       const StateWidths& widths) {
  require_plan(stage, degree, model_parallel);
  require(budget.value() >= 0, "memory budget", budget.value(), "at least 0");
  const std::int64_t width = widths.parameter + widths.gradient + widths.optimizer;
  // States grow with the model, so bisect; the cap keeps every product within 63 bits.
  std::int64_t fits = 0;
  std::int64_t too_large = INT64_MAX / width - degree - model_parallel;
  if (paper_states(Elements(too_large), stage, degree, model_parallel, widths).total() <= budget) {
    overflow("the largest model");
  }
  while (too_large - fits > 1) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    const bool good = paper_states(Elements(middle), stage, degree, model_parallel, widths).total() <= budget;
    (good ? fits : too_large) = middle;
  }
  return Elements(fits);
}

Elements paper_traffic(Elements parameters, int stage) {
  require_plan(stage, 1, 1);
  return parameters * (stage == 3 ? 3 : 2);
}

Elements transformer_parameters(const TransformerShape& shape) {
  return Elements(product({12, shape.layers, shape.hidden, shape.hidden}));
}

Bytes transformer_states(const TransformerShape& shape) {
  return Bytes(product({20, transformer_parameters(shape).value()}));
}

Bytes checkpoint_bytes(const TransformerShape& shape, std::int64_t batch, std::int64_t seq, std::int64_t interval) {
  require(interval >= 1, "checkpoint interval", interval, "at least 1");
  return div_ceil(Bytes(product({2, batch, seq, shape.hidden, shape.layers})), interval);
}

Bytes activation_working_memory(const TransformerShape& shape, std::int64_t batch, std::int64_t seq,
                                std::int64_t interval) {
  const std::int64_t per_token = checked_add(product({16, shape.hidden}), product({2, shape.heads, seq}));
  return Bytes(product({batch, seq, interval, per_token}));
}

Bytes state_working_memory(const TransformerShape& shape) { return Bytes(product({16, shape.hidden, shape.hidden})); }

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
