// Optimizer steps, clipping and the loss scaler against what PyTorch, transformers and bitsandbytes did
// (tests/witnesses/optimizers.json, made by tools/oracles/optimizers.py): every allocation with its dtype and bytes in
// order, every free between the same two allocations, and the peak. Only what a kernel launch takes inside is left out,
// because the witness watches the dispatcher.
#include <doctest/doctest.h>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/audit.h"
#include "core/format.h"
#include "io/text.h"
#include "paths.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/runtime_base.h"
#include "report/operator_comparison.h"
#include "report/operators_receipt.h"

using namespace dsplan;
using Json = nlohmann::json;

namespace {

const Json& witness() {
  static const Json data = Json::parse(std::ifstream(test_paths::source_dir() + "/tests/witnesses/optimizers.json"));
  return data;
}

OptimizerRun run_of(const Json& c) {
  const Document document = parse_json("optimizers.json", c.dump());
  Diagnostics diagnostics;
  OptimizerRun run = read_optimizer_run(document, document.root, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

// A parameter that is only written has no reader here: the model is missing.
std::string audit_text(const Schedule& schedule) {
  std::string text;
  for (const Finding& finding : audit(schedule)) {
    if (finding.text.find("never read") == std::string::npos) text += finding.text + "\n";
  }
  return text;
}

void check(const Json& c) {
  OperatorRuns file;
  file.optimizers.push_back(run_of(c));
  CHECK(audit_text(optimizer_schedule(file.optimizers[0], RunLevel::Dispatch)) == "");
  OperatorComparison comparison;
  compare_optimizers(file, comparison);
  CHECK(comparison.optimizer_cases == 1);
  std::string text;
  for (const OperatorDifference& one : comparison.optimizer_differences) {
    text +=
        dsplan::formatted("\n{} {}\n  predicted {}\n  measured  {}", one.title, one.part, one.predicted, one.measured);
  }
  CHECK_MESSAGE(comparison.optimizers_equal == 1, text);
}

// A model of these parameters alone, so that the whole runtime can step it.
ModelSpec model_of(const Json& c) {
  ModelSpec model;
  model.name = model.family = "witness";
  model.modules = {{"", "Root", kNone, kNone}, {"h.0", "Linear", 0, 0}, {"embed", "Embedding", 0, kNone}};
  for (const Json& p : c.at("parameters")) {
    Parameter made;
    made.name = dsplan::formatted("p{}", model.parameters.size());
    made.shape.rank = static_cast<std::uint8_t>(p.at("shape").size());
    for (std::size_t i = 0; i < p.at("shape").size(); ++i) made.shape.dims[i] = p.at("shape")[i];
    made.module = c.value("embedding", -1) == static_cast<int>(model.parameters.size()) ? 2 : 1;
    made.split = Split::Replicated;
    model.parameters.push_back(made);
  }
  return model;
}

// The step phase of the runtime: clipping if asked, the optimizer, zero_grad.
void check_runtime(const Json& c, bool to_none) {
  const OptimizerRun run = run_of(c);
  CAPTURE(run.title);
  CAPTURE(to_none);
  const ModelSpec model = model_of(c);
  Job job;
  job.training.runtime = Runtime::PyTorch;
  job.training.dtype = run.parameters.at(0).dtype;
  job.training.optimizer = run.optimizer;
  job.training.zero_grad_to_none = to_none;
  Emitter emitter(4096);
  const auto runtime = make_runtime(job, model, 0, emitter);
  runtime->initialise({});
  for (int i = 0; i < 2; ++i) {
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      const BufferId gradient = emitter.allocate(storage(model.parameters[p].shape.elements(), job.training.dtype),
                                                 job.training.dtype, {Role::Gradients, "gradient"});
      emitter.begin();
      emitter.write(gradient);
      emitter.compute(Body::Nothing, "backward");
      runtime->gradient_ready(static_cast<ParameterId>(p), gradient);
    }
    emitter.mark(Moment::StepBegins, Stretch::FirstStep);
    runtime->step(i == 0);
    emitter.mark(Moment::StepEnds, Stretch::FirstStep);
  }
  const Schedule schedule = emitter.finish();
  std::vector<std::size_t> marks;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    if (std::holds_alternative<Mark>(schedule.events[at])) marks.push_back(at);
  }
  REQUIRE(marks.size() == 4);
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<std::string> expected = c.at(i == 0 ? "first" : "second").at("log").get<std::vector<std::string>>();
    for (const Parameter& p : model.parameters) {
      if (to_none)
        expected.push_back(dsplan::formatted("-{}", storage(p.shape.elements(), job.training.dtype).value()));
    }
    sort_frees(expected);
    std::int64_t live = 0;
    CHECK(optimizer_log(schedule, marks[i * 2], marks[i * 2 + 1], RunLevel::Dispatch, live).lines == expected);
  }
}

std::vector<Json> cases(std::string_view key, std::string_view value = {}) {
  std::vector<Json> found;
  for (const Json& c : witness().at("cases")) {
    if (c.contains(key) && (value.empty() || c.at(std::string(key)) == value)) found.push_back(c);
  }
  return found;
}

}  // namespace

TEST_CASE("optimizer witness: each optimizer's allocations and frees, in order") {
  const std::vector<Json> all = cases("optimizer");
  REQUIRE(all.size() > 100);
  for (const Json& c : all) check(c);
}

TEST_CASE("optimizer witness: clip_grad_norm_") {
  const std::vector<Json> all = cases("action", "clip");
  REQUIRE(all.size() == 16);
  for (const Json& c : all) check(c);
}

TEST_CASE("optimizer witness: GradScaler") {
  const std::vector<Json> all = cases("action", "grad_scaler");
  REQUIRE(all.size() == 6);
  for (const Json& c : all) check(c);
}

TEST_CASE("optimizer witness: the runtime's step is the optimizer's, then zero_grad") {
  int checked = 0;
  for (const Json& c : cases("optimizer")) {
    if (c.at("dtypes") == "mixed" || c.at("dtypes") == "three") continue;
    for (bool to_none : {true, false}) check_runtime(c, to_none);
    ++checked;
  }
  CHECK(checked > 50);
}

TEST_CASE("optimizer witness: zero_grad drops all gradients or none") {
  const std::vector<Json> all = cases("action", "zero_grad");
  REQUIRE(all.size() == 8);
  for (const Json& c : all) {
    const bool none = c.at("set_to_none");
    CHECK(c.at("first").at("log").size() == (none ? c.at("parameters").size() : 0U));
    check(c);
  }
}
