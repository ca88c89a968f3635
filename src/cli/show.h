// The texts of `dsplan show`: each function returns a table of at most 80 columns; main prints it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/training.h"
#include "core/units.h"
#include "model/catalogue/describe.h"
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

// The lists of `dsplan show`: what is bundled, what the catalogue knows, what was assumed. At most 80 columns each.

// Every bundled model with its family and its exact parameter count, ties once.
[[nodiscard]] std::string show_models();
[[nodiscard]] std::string show_graphs();
[[nodiscard]] std::string show_hardware();
[[nodiscard]] std::string show_clusters();
// Every operator of the catalogue: what it saves for backward and when, its temporaries, who has confirmed its row; and
// what has a name but is written as several operators.
[[nodiscard]] std::string show_operators(const std::vector<OperatorEntry>& entries);
// Every input of a job: its value, whether it was given, derived or assumed, and why.
[[nodiscard]] std::string show_assumptions(const std::vector<ResolvedInput>& inputs);

}  // namespace dsplan
