// DeepSpeed's shipped estimators, and the tables of `show`. The published printouts are in formulas_test.cpp.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "cli/show.h"
#include "core/error.h"
#include "planner/predict/formulas.h"
#include "texts.h"

using namespace dsplan;

namespace {

// Vocabulary 128256, hidden 4096: the embedding is the largest layer; the rest is one lump of several modules.
ModelSpec llama_3_8b_counts() {
  ModelSpec model;
  model.name = "llama-3-8b";
  model.modules = {{"", "Root", kNone, kNone}, {"embed", "Embedding", 0, kNone}, {"head", "Linear", 0, kNone}};
  const std::int64_t rest = (8'030'261'248 - 2 * 525'336'576);
  for (std::int32_t part = 0; part < 16; ++part) {
    model.modules.push_back({"part." + std::to_string(part), "Linear", 0, part});
    model.parameters.push_back({"part." + std::to_string(part) + ".weight", Shape{rest / 16}, part + 3});
  }
  model.parameters.push_back({"embed.weight", Shape{128'256, 4096}, 1});
  model.parameters.push_back({"head.weight", Shape{128'256, 4096}, 2});
  return model;
}

}  // namespace

TEST_CASE("the shipped estimators for Llama-3-8B on 8 GPUs") {
  const ModelSpec model = llama_3_8b_counts();
  const EstimatorInput input{total_elements(model), largest_layer(model), 1, 8};
  CHECK(input.parameters == Elements(8'030'261'248));
  CHECK(input.largest_layer == Elements(525'336'576));
  const Version now{0, 19, 6};
  CHECK(estimate_zero2(input, EstimatorOffload::None, now).per_gpu == Bytes(34'128'610'304));
  CHECK(estimate_zero3(input, EstimatorOffload::None, true, now).per_gpu == Bytes(20'169'434'112));
  // 4N + 16N/8 before release 0.14.3.
  CHECK(estimate_zero2(input, EstimatorOffload::None, {0, 14, 2}).per_gpu == Bytes(6 * 8'030'261'248));
  CHECK(estimate_zero2(input, EstimatorOffload::None, {0, 14, 3}).per_gpu == Bytes(34'128'610'304));
}

TEST_CASE("estimators over nodes: what is per GPU, per node and over all") {
  const EstimatorInput input{Elements(1001), Elements(10), 3, 2};
  const Version now{0, 19, 6};
  // 6 GPUs in 3 nodes. max(4 * 6, 16) for ZeRO-2; max(4 * 2, 18 / 3) and max(4 * 2, 16 / 3) for ZeRO-3.
  CHECK(estimate_zero2(input, EstimatorOffload::Optimizer, now) == Estimate{Bytes(2002), Bytes(36036)});
  CHECK(estimate_zero2(input, EstimatorOffload::None, now) == Estimate{Bytes(2002 + 3003), Bytes(12012)});
  CHECK(estimate_zero3(input, EstimatorOffload::OptimizerAndParameters, true, now) == Estimate{Bytes(40), Bytes(9009)});
  CHECK(estimate_zero3(input, EstimatorOffload::OptimizerAndParameters, false, now) ==
        Estimate{Bytes(40), Bytes(12012)});
  CHECK(estimate_zero3(input, EstimatorOffload::Optimizer, true, now) == Estimate{Bytes(40 + 333), Bytes(8008)});
  CHECK(estimate_zero3(input, EstimatorOffload::None, true, now) == Estimate{Bytes(40 + 3003), Bytes(120)});
  CHECK(estimate_zero3(input, EstimatorOffload::None, false, now) == Estimate{Bytes(40 + 3003), Bytes(12012)});
}

TEST_CASE("estimators refuse what DeepSpeed does not have") {
  const EstimatorInput input{Elements(1001), Elements(10), 1, 1};
  CHECK_THROWS_AS((void)estimate_zero2(input, EstimatorOffload::OptimizerAndParameters, {0, 19, 6}), Refusal);
  CHECK_THROWS_AS((void)estimate_zero2(input, EstimatorOffload::None, {0, 4, 1}), Refusal);
  CHECK_THROWS_AS((void)estimate_zero3({Elements(1), Elements(1), 0, 1}, EstimatorOffload::None, true, {0, 19, 6}),
                  Refusal);
}

namespace {

using dsplan::test::has;

bool fits_80_columns(const std::string& text) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos || end - begin > 80) return false;
    begin = end + 1;
  }
  return !text.empty();
}

}  // namespace

TEST_CASE("the tables of `show` stand in 80 columns and hold the figures") {
  FormulaQuery query{Elements(7'500'000'000),        64, 1,    Bytes(32'000'000'000),
                     TransformerShape{48, 1600, 25}, 32, 1024, 1};
  const std::string formulas = show_formulas(query);
  CHECK(fits_80_columns(formulas));
  CHECK(has(formulas, human(paper_states(query.parameters, 3, 64).total())));
  CHECK(has(formulas, "128,000,000,000"));
  CHECK(fits_80_columns(show_formulas({Elements(1'000'000'000'000'000), 1024, 1, {}, {}, 1, 0, 1})));

  const auto ours = [](int stage, EstimatorOffload offload) -> std::optional<Bytes> {
    if (stage == 3 && offload == EstimatorOffload::None) return Bytes(16'060'522'496);
    return std::nullopt;
  };
  const std::string estimators = show_estimators(llama_3_8b_counts(), {1, 8, {0, 19, 6}}, ours);
  CHECK(fits_80_columns(estimators));
  CHECK(has(estimators, human(Bytes(34'128'610'304))));
  CHECK(has(estimators, human(Bytes(20'169'434'112))));
  CHECK(has(estimators, human(Bytes(16'060'522'496))));
}
