// peft's adapters under ZeRO-3. They are added to a model that was made under zero.Init, whose weights DeepSpeed does
// not cast any more since 0.19.2 (engine.py, _cast_module_mixed_precision): adapters stay in fp32, and their partitions
// too.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "core/audit.h"
#include "lowered.h"
#include "model/lora.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "sim/memory.h"

using namespace dsplan;

namespace {

ModelSpec adapted() {
  const Place place{"--lora", 0, 0, {}};
  return with_adapters(lowered::bundled("tiny-llama"), parse_lora({"r=4,targets=q_proj+v_proj", place}), place);
}

Job zero3(const Version& deepspeed = {0, 19, 8}) {
  Job job = lowered::job(3, 2);
  job.training.model_init = ModelInit::ZeroInit;
  job.training.deepspeed = deepspeed;
  return job;
}

DType adapters_of(const ModelSpec& model, const Job& job) {
  const auto at = std::find_if(model.parameters.begin(), model.parameters.end(),
                               [](const Parameter& p) { return p.name.find("lora_A") != std::string::npos; });
  REQUIRE(at != model.parameters.end());
  return job.training.dtype_of(*at);
}

// All buffers of a label, in the one dtype that they have.
DType dtype_of(const Schedule& schedule, std::string_view label) {
  const auto named = [&](const Buffer& buffer) { return std::string_view(buffer.label) == label; };
  const auto first = std::find_if(schedule.buffers.begin(), schedule.buffers.end(), named);
  REQUIRE(first != schedule.buffers.end());
  for (const Buffer& buffer : schedule.buffers) {
    if (named(buffer)) CHECK(buffer.dtype == first->dtype);
  }
  return first->dtype;
}

}  // namespace

TEST_CASE("adapters under ZeRO-3 are cast by releases before 0.19.2, and where the model was made whole") {
  const ModelSpec model = adapted();
  CHECK(adapters_of(model, zero3()) == DType::Float32);
  CHECK(adapters_of(model, zero3({0, 19, 2})) == DType::Float32);
  CHECK(adapters_of(model, zero3({0, 19, 1})) == DType::BFloat16);
  Job whole = zero3();
  whole.training.model_init = ModelInit::Device;
  CHECK(adapters_of(model, whole) == DType::BFloat16);
  Job stage2 = zero3();
  stage2.training.zero.stage = 2;
  CHECK(adapters_of(model, stage2) == DType::BFloat16);
}

TEST_CASE("adapters in fp32 beside weights in bf16: each dtype is gathered by itself, and formulas agree") {
  const ModelSpec model = adapted();
  Job job = zero3();
  job.training.zero.param_persistence_threshold = Elements(0);
  const std::vector<Schedule> ranks = lowered::all_ranks(model, job);
  CHECK(audit_ranks(ranks).empty());
  for (const Schedule& schedule : ranks) {
    CHECK(audit(schedule).empty());
    CHECK(dtype_of(schedule, "parameter partitions") == DType::Float32);  // What is trained, in one buffer.
    bool wide = false;
    bool narrow = false;
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.label) != "gather buffer") continue;
      wide = wide || buffer.dtype == DType::Float32;
      narrow = narrow || buffer.dtype == DType::BFloat16;
    }
    CHECK(wide);
    CHECK(narrow);
  }
  for (const std::int64_t rank : {0, 1}) {
    const Prediction predicted = predict(model, job, rank);
    CHECK(predicted.persistent.by_role.total() == footprint(model, job, rank).persistent.total());
  }
}

TEST_CASE("a linear layer of ZeRO-3 keeps its input beside a frozen weight") {
  const ModelSpec model = adapted();
  const auto held = [&](int stage) {
    Job job = zero3();
    job.training.zero.stage = stage;
    return predict(model, job, 0).peak->by_role[Role::Activations];
  };
  CHECK(held(3) > held(2));
}

TEST_CASE("adapters in fp32 under ZeRO-3: what nobody has seen is refused by name") {
  const ModelSpec model = adapted();
  const auto said = [&](auto change) {
    Job job = zero3();
    change(job.training);
    return unsupported(model, job).value_or("accepted");
  };
  CHECK(said([](Training&) {}) == "accepted");
  CHECK(said([](Training& t) { t.zero.quantized_weights = true; }).find("zero_quantized_weights") != std::string::npos);
  CHECK(said([](Training& t) { t.zero.offload_param.device = OffloadDevice::Cpu; }).find("parameter offload") !=
        std::string::npos);
  CHECK(said([](Training& t) { t.zero.all_reduce_for_fetch = true; }).find("all_reduce_for_fetch") !=
        std::string::npos);
  CHECK(said([](Training& t) { t.zero.offload_optimizer.device = OffloadDevice::Cpu; }) == "accepted");
}

TEST_CASE("adapters are whole, all of them, from when the model stands until the engine's wrapper cuts them") {
  const Schedule schedule = lowered::all_ranks(adapted(), zero3()).front();
  std::size_t last_of_model = 0;
  std::size_t first_adapter = schedule.buffers.size();
  std::size_t at = 0;
  for (const Buffer& buffer : schedule.buffers) {
    ++at;
    if (std::string_view(buffer.label) != "whole parameter") continue;
    if (buffer.dtype == DType::BFloat16) last_of_model = at;
    if (buffer.dtype == DType::Float32) first_adapter = std::min(first_adapter, at);
  }
  REQUIRE(last_of_model > 0);
  REQUIRE(first_adapter < schedule.buffers.size());
  CHECK(first_adapter > last_of_model);
}

TEST_CASE("routers' biases that transformers lists stay in fp32 under DeepSpeed since 0.19.8") {
  const ModelSpec model = lowered::bundled("moonlight-16b-a3b");
  const auto buffers = [&](int stage, const Version& deepspeed, const Version& transformers) {
    Job job = lowered::job(stage, 2);
    job.training.deepspeed = deepspeed;
    job.training.transformers = transformers;
    const Bytes derived = footprint(model, job, 0).persistent[Role::ModuleBuffers];
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    MemoryMeter meter(schedule);
    replay(schedule, meter);
    CHECK(meter.by_role()[Role::ModuleBuffers] == derived);
    return derived.value();
  };
  constexpr std::int64_t kMore = 26 * 64 * 2;  // Layers, experts, bytes more.
  const Version five{5, 17, 0};
  CHECK(buffers(0, {0, 19, 8}, five) - buffers(0, {0, 19, 6}, five) == kMore);
  CHECK(buffers(3, {0, 19, 8}, five) - buffers(3, {0, 19, 6}, five) == kMore);
  CHECK(buffers(0, {0, 19, 8}, {4, 57, 6}) == buffers(0, {0, 19, 6}, {4, 57, 6}));
}
