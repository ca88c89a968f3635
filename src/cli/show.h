// The texts of `dsplan show`: each function returns a table of at most 80 columns; main prints it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/model.h"
#include "core/training.h"
#include "core/units.h"
#include "planner/predict/estimators.h"
#include "planner/predict/formulas.h"

namespace dsplan {

struct FormulaQuery {
  Elements parameters;
  std::int64_t degree = 1;  // Data-parallel ranks.
  std::int64_t model_parallel = 1;
  std::optional<Bytes> budget;  // Per device: adds the largest model that fits.
  // With a shape, ZeRO-Infinity's per-layer forms are printed as well.
  std::optional<TransformerShape> shape;
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  std::int64_t checkpoint_interval = 1;
};

// The papers' closed forms for one model size.
[[nodiscard]] std::string show_formulas(const FormulaQuery& query);

struct EstimatorQuery {
  std::int64_t nodes = 1;
  std::int64_t gpus_per_node = 1;
  Version deepspeed;  // Its row is marked; every version's figure is printed.
};

// dsplan's own figure for the states of one GPU; nullopt where it has none.
using OurStates = std::function<std::optional<Bytes>(int stage, EstimatorOffload offload)>;

// What DeepSpeed's estimators, by version, say beside dsplan's figure for the same states.
[[nodiscard]] std::string show_estimators(const ModelSpec& model, const EstimatorQuery& query, const OurStates& ours);

}  // namespace dsplan
