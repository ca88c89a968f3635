// Autocast, adapters and several lengths in one job: schedules that the auditor finds nothing in, whose persistent
// bytes are the formulas', under every runtime that takes them.
#include <doctest/doctest.h>
#include <string>
#include <vector>

#include "core/audit.h"
#include "core/format.h"
#include "lowered.h"
#include "model/lora.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "sim/memory.h"

using namespace dsplan;

namespace {

ModelSpec adapted(const std::string& name, const std::string& text) {
  const Place place{"--lora", 0, 0, {}};
  return with_adapters(lowered::bundled(name), parse_lora({text, place}), place);
}

void check(const ModelSpec& model, const Job& job) {
  const Shapes shapes = build_shapes(model, job);
  const Schedule schedule = lower(model, job, shapes, 0);
  for (const Finding& finding : audit(schedule)) FAIL_CHECK(dsplan::formatted("{}: {}", finding.event, finding.text));
  MemoryMeter meter(schedule);
  replay(schedule, meter);
  CHECK(meter.by_role() == footprint(model, job).persistent);
}

Bytes peak(const ModelSpec& model, const Job& job) { return predict(model, job, 0).peak->requested; }

}  // namespace

TEST_CASE("autocast: the cache's copies die with the forward") {
  for (const char* name : {"tiny-llama", "tiny-gpt2"}) {
    CAPTURE(name);
    const ModelSpec model = lowered::bundled(name);
    for (const std::int64_t ranks : {1, 2}) {
      Job job = lowered::job(-1, ranks);
      lowered::set_dtype(job, DType::Float32);
      job.training.autocast = DType::BFloat16;
      check(model, job);
      job.training.outputs_to_fp32 = true;
      check(model, job);
      for (std::int32_t at = 0; at < model.dims.layers; ++at) job.training.checkpoint.groups.push_back({at, at});
      job.training.grad_accum = 2;
      check(model, job);
    }
  }
}

TEST_CASE("adapters under every runtime") {
  for (const std::string dtype : {"fp32", "model"}) {
    const ModelSpec llama = adapted("tiny-llama", "r=4,targets=q_proj+down_proj,dropout=0.1,dtype=" + dtype);
    const ModelSpec gpt2 = adapted("tiny-gpt2", "r=4,targets=all-linear,dtype=" + dtype);
    for (const ModelSpec* model : {&llama, &gpt2}) {
      for (const int stage : {-1, 0, 1, 2, 3}) {
        CAPTURE(dtype);
        CAPTURE(model->name);
        CAPTURE(stage);
        Job job = lowered::job(stage, stage > 0 ? 2 : 1);
        check(*model, job);
        for (std::int32_t at = 0; at < model->dims.layers; ++at) job.training.checkpoint.groups.push_back({at, at});
        check(*model, job);
      }
      Job ddp = lowered::job(-1, 2);
      ddp.training.grad_accum = 2;
      check(*model, ddp);
    }
  }
}

TEST_CASE("several lengths: one allocator, and at least the longest one's peak") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int stage : {-1, 2, 3}) {
    CAPTURE(stage);
    Job job = lowered::job(stage, stage > 0 ? 2 : 1);
    job.training.seq = 24;
    const Bytes longest = peak(model, job);
    job.training.seq_list = {8, 24, 16, 8, 4};
    check(model, job);
    CHECK(peak(model, job) == longest);  // Requested bytes do not depend on what came before.
    CHECK(job.training.steps() == 6);
    const Prediction prediction = predict(model, job, 0);
    const std::size_t middle = stage == 3 ? 3 : 2;  // ZeRO-3's recording micro-batch is a phase.
    REQUIRE(prediction.phases.size() == middle + 2);
    CHECK(prediction.phases[middle].name == "middle_steps");
    CHECK(prediction.phases[middle].marks.size() == prediction.phases[1].marks.size());
    // The last micro-batch, the sixth, has the first length: 2 rows of 8 tokens, ids and labels.
    CHECK(prediction.persistent.by_role[Role::Inputs] == Bytes(2 * 2 * 8 * 8));
    job.training.grad_accum = 2;
    check(model, job);
    Job one = job;
    one.training.seq_list = {24};
    CHECK(fingerprint(model, one) != fingerprint(model, job));
  }
}
