// torchao's steps against the compiled ones on the dry device (tests/witnesses/torchao.json, made by
// tools/oracles/torchao_steps.py): what the first one leaves and rises to, and what a later one allocates and frees.
#include <doctest/doctest.h>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "planner/lower/runtime.h"
#include "planner/lower/runtimes/runtime_base.h"

using namespace dsplan;
using Json = nlohmann::json;

namespace {

// Since the latest beginning of a step.
struct StepLog : Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
  using Ignores::on;
  explicit StepLog(const Schedule& read) : schedule(read) {}
  void on(std::size_t, const Mark& event) {
    if (event.moment != Moment::StepBegins) return;
    live = peak = 0;
    log.clear();
  }
  void on(std::size_t, const Allocate& event) { add(event.buffer, 1); }
  void on(std::size_t, const Release& event) { add(event.buffer, -1); }
  void add(BufferId id, std::int64_t sign) {
    const Buffer& buffer = schedule.buffers[id];
    live += sign * buffer.size.value();
    peak = std::max(peak, live);
    if (buffer.role != Role::Gradients && buffer.size >= Bytes(64)) log.push_back(sign * buffer.size.value());
  }

  const Schedule& schedule;
  std::int64_t live = 0;
  std::int64_t peak = 0;
  std::vector<std::int64_t> log;
};

Schedule steps_of(const Json& c, Bytes l2, int steps) {
  ModelSpec model;
  model.name = model.family = "witness";
  model.modules = {{"", "Root", kNone, kNone}, {"h.0", "Linear", 0, 0}};
  Parameter parameter;
  parameter.name = "weight";
  parameter.shape.rank = static_cast<std::uint8_t>(c.at("shape").size());
  for (std::size_t i = 0; i < c.at("shape").size(); ++i) parameter.shape.dims[i] = c.at("shape")[i];
  parameter.module = 1;
  parameter.split = Split::Replicated;
  model.parameters.push_back(parameter);
  Job job;
  job.training.runtime = Runtime::PyTorch;
  job.training.dtype = c.at("dtype") == "bf16" ? DType::BFloat16 : DType::Float32;
  for (int k = 0; k <= static_cast<int>(kLastOptimizer); ++k) {
    if (name(static_cast<OptimizerKind>(k)) == c.at("optimizer")) {
      job.training.optimizer.kind = static_cast<OptimizerKind>(k);
    }
  }
  job.hardware = Hardware();
  job.hardware->l2 = l2;
  Emitter emitter(4096);
  const auto runtime = make_runtime(job, model, 0, emitter);
  runtime->initialise({});
  for (int i = 0; i < steps; ++i) {
    const BufferId gradient = emitter.allocate(storage(parameter.shape.elements(), job.training.dtype),
                                               job.training.dtype, {Role::Gradients, "gradient"});
    emitter.begin();
    emitter.write(gradient);
    emitter.compute(Body::Nothing, "backward");
    runtime->gradient_ready(0, gradient);
    emitter.mark(Moment::StepBegins, Stretch::FirstStep);
    runtime->step(i == 0);
    emitter.mark(Moment::StepEnds, Stretch::FirstStep);
  }
  return emitter.finish();
}

}  // namespace

TEST_CASE("torchao witness: states, temporaries, and what the first step tries") {
  const Json data = Json::parse(std::ifstream(test_paths::source_dir() + "/tests/witnesses/torchao.json"));
  const Bytes l2(data.at("l2").get<std::int64_t>());
  REQUIRE(data.at("cases").size() == 13);
  for (const Json& c : data.at("cases")) {
    CAPTURE(c.dump());
    const Schedule first = steps_of(c, l2, 1);
    StepLog one(first);
    replay(first, one);
    const std::int64_t gradient = c.at("dtype") == "bf16" ? 2 : 4;
    std::int64_t elements = 1;
    for (const Json& size : c.at("shape")) elements *= size.get<std::int64_t>();
    // Copies that kernels are tried on are made where they raise no peak: of small ones.
    if (elements >= 1 << 26) CHECK(one.peak == c.at("first").at("peak").get<std::int64_t>());
    CHECK(one.live + gradient * elements == c.at("first").at("end").get<std::int64_t>());  // zero_grad is in the step.
    const Schedule second = steps_of(c, l2, 2);
    StepLog two(second);
    replay(second, two);
    CHECK(two.log == c.at("second").get<std::vector<std::int64_t>>());
  }
}
