// Where the model is made: under zero.Init, on the device, or in the host's memory; and what that takes of both.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/audit.h"
#include "lowered.h"
#include "model/lora.h"
#include "planner/predict/predict.h"
#include "resolving.h"

using namespace dsplan;
using namespace resolving;

namespace {

constexpr const char* kStage3 = R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})";
constexpr const char* kStage2 = R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}})";

Given with(const char* deepspeed, const char* wished) {
  Given given;
  given.deepspeed = deepspeed;
  set(given.request.gpus, std::int64_t{4}, "--gpus");
  if (wished != nullptr) set(given.request.model_init, std::string(wished), "--training");
  return given;
}

const ResolvedInput* input_named(const Job& job, std::string_view name) {
  const auto at =
      std::find_if(job.inputs.begin(), job.inputs.end(), [&](const ResolvedInput& one) { return one.name == name; });
  return at == job.inputs.end() ? nullptr : &*at;
}

Job stage(int zero, ModelInit init) {
  Job job = lowered::job(zero, 4);
  job.training.model_init = init;
  return job;
}

Phase init_of(const Prediction& prediction) {
  REQUIRE(!prediction.phases.empty());
  REQUIRE(prediction.phases.front().name == "init");
  return prediction.phases.front();
}

// Parameters of tiny models are never tied here, so that all of them are on the host at once.
Bytes whole(const ModelSpec& model) { return storage(total_elements(model), DType::BFloat16); }

}  // namespace

TEST_CASE("where the model is made is assumed, and listed, or given") {
  CHECK(run(with(kStage3, nullptr)).training.model_init == ModelInit::ZeroInit);
  CHECK(run(with(kStage2, nullptr)).training.model_init == ModelInit::Device);
  CHECK(run(with(kStage3, "host")).training.model_init == ModelInit::Host);
  CHECK(run(with(kStage2, "host")).training.model_init == ModelInit::Host);
  const Job assumed = run(with(kStage3, nullptr));
  REQUIRE(input_named(assumed, "model_init") != nullptr);
  CHECK(input_named(assumed, "model_init")->origin == Origin::Assumed);
  CHECK(input_named(run(with(kStage3, "device")), "model_init")->origin == Origin::Given);
  CHECK(input_named(run(Given{}), "model_init") == nullptr);  // Plain PyTorch: the device does not see it.
  CHECK(refusal(with(kStage2, "zero_init")).find("without ZeRO stage 3") != std::string::npos);
  CHECK(refusal(with(kStage3, "hsot")).find("none of zero_init, device, host, meta and rank0") != std::string::npos);
}

TEST_CASE("--set takes what the training file's keys take, and no other key") {
  const auto set_to = [](const char* pair) {
    Given given = with(kStage3, nullptr);
    set(given.request.set, std::vector<std::string>{pair}, "--set");
    return given;
  };
  CHECK(run(set_to("model_init=host")).training.model_init == ModelInit::Host);
  CHECK(refusal(set_to("model_init=disk")).find("none of zero_init") != std::string::npos);
  CHECK(refusal(set_to("model_unit=host")).find("there is no setting \"model_unit\"; did you mean \"model_init\"?") !=
        std::string::npos);
  CHECK(refusal(set_to("zero_grad_set_to_none=perhaps")).find("neither true nor false") != std::string::npos);
}

TEST_CASE("a model given to ZeRO-3 whole is whole on the device before it is cut") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  const auto among_many = [](ModelInit init) {  // So that nothing but the whole model is large.
    Job job = stage(3, init);
    job.parallelism.dp = job.parallelism.world = 64;
    return job;
  };
  const Prediction pieces = predict(model, among_many(ModelInit::ZeroInit), 0);
  const Prediction given = predict(model, among_many(ModelInit::Device), 0);
  const Prediction moved = predict(model, among_many(ModelInit::Host), 0);
  CHECK(init_of(pieces).peak_requested < whole(model));
  CHECK(init_of(given).peak_requested >= whole(model));
  // On the device the head is made as well, until it is tied; the host's tables are there when the model is moved.
  const Bytes head{128'256 * 2'048 * 2};
  CHECK(init_of(given).peak_requested > init_of(moved).peak_requested);
  CHECK(init_of(given).peak_requested <= init_of(moved).peak_requested + head);
  CHECK(given.fingerprint != pieces.fingerprint);
  CHECK(given.fingerprint != moved.fingerprint);
  // The rotation's scaled table keeps its dtype, under zero.Init too.
  CHECK(given.persistent.by_role[Role::ModuleBuffers] == pieces.persistent.by_role[Role::ModuleBuffers]);
  CHECK(given.persistent.by_role[Role::Parameters] == pieces.persistent.by_role[Role::Parameters]);
}

TEST_CASE("a model made in the host's memory is there once for every rank, and moved") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int zero : {-1, 0, 1, 2, 3}) {
    CAPTURE(zero);
    const Prediction here = predict(model, stage(zero, ModelInit::Device), 0);
    const Prediction there = predict(model, stage(zero, ModelInit::Host), 0);
    const Bytes buffers = here.persistent.by_role[Role::ModuleBuffers];
    REQUIRE(there.host.peak);
    CHECK(*there.host.pageable >= whole(model) + buffers);
    CHECK(*here.host.pageable < whole(model));
    CHECK(init_of(here).peak_requested == init_of(there).peak_requested);
    CHECK(there.persistent.by_role == here.persistent.by_role);
  }
}

TEST_CASE("schedules of all ways to make a model are legal") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const int zero : {0, 1, 2, 3}) {
    for (const ModelInit init : {ModelInit::ZeroInit, ModelInit::Device, ModelInit::Host}) {
      CAPTURE(zero);
      for (const Schedule& schedule : lowered::all_ranks(model, stage(zero, init))) {
        const std::vector<Finding> findings = audit(schedule);
        CHECK_MESSAGE(findings.empty(), (findings.empty() ? std::string() : findings.front().text));
      }
    }
  }
}

TEST_CASE("a tied head is made and cut before it is tied") {
  ModelSpec model = lowered::bundled("tiny-llama");
  const auto broadcasts = [&](const ModelSpec& of) {
    const Schedule schedule = lowered::all_ranks(of, stage(3, ModelInit::ZeroInit)).front();
    std::int64_t count = 0;
    for (const Event& event : schedule.events) {
      const auto* sent = std::get_if<Communicate>(&event);
      if (sent != nullptr && sent->collective == Collective::Broadcast && sent->pass == Pass::Setup) ++count;
    }
    return count;
  };
  const ModelSpec tied = lowered::bundled("llama-3.2-1b");
  const auto untied = std::count_if(tied.parameters.begin(), tied.parameters.end(),
                                    [](const Parameter& parameter) { return parameter.tied_to == kNone; });
  CHECK(untied + 1 == static_cast<std::ptrdiff_t>(tied.parameters.size()));
  CHECK(broadcasts(tied) == static_cast<std::int64_t>(tied.parameters.size()));
}

TEST_CASE("a table that zero.Init has narrowed is cast in every forward") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto casts = [&](ModelInit init) {
    const Job job = stage(3, init);
    const Graph graph = build_graph(model, graph_options(model, job));
    return std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.op == Op::Cast; });
  };
  CHECK(casts(ModelInit::ZeroInit) == casts(ModelInit::Device) + 1);
}

// A table of 1,026 rows and 1,024 columns: half of it in fp32, its sines, its cosines, and both beside each other, when
// all that the encoder and the decoder keep is there (seen in PyTorch's own events; so are marian's and whisper's).
TEST_CASE("tables of sines and cosines are computed on the device, where that makes the model") {
  const auto scratch = [](const char* name, ModelInit init, Version transformers = {5, 17, 0}) {
    const ModelSpec model = lowered::bundled(name);
    Job job = lowered::job(-1, 1);
    job.training.target_seq = 8;
    job.training.model_init = init;
    job.training.transformers = transformers;
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    CHECK(audit(schedule).empty());
    std::vector<Bytes> sizes;
    for (const Buffer& buffer : schedule.buffers) {
      if (std::string_view(buffer.label) == "table of positions" && buffer.size > Bytes(10'000)) {
        sizes.push_back(buffer.size);
      }
    }
    return sizes;
  };
  constexpr Bytes kHalf(1026 * 512 * 4);
  const std::vector<Bytes> made{kHalf, kHalf, kHalf, kHalf * 2};
  std::vector<Bytes> all;
  for (const bool again : {false, true, false, true}) {  // Where the module is made, and when its stack is there.
    all.insert(all.end(), made.begin(), made.end());
    if (again) all.push_back(kHalf);  // In bf16, from where it is copied.
  }
  CHECK(scratch("nllb-200-distilled-600m", ModelInit::Device) == all);
  CHECK(scratch("nllb-200-distilled-600m", ModelInit::Host).empty());
  CHECK(scratch("nllb-200-distilled-600m", ModelInit::Device, {4, 57, 0}).size() == 8);
  constexpr Bytes kTable(512 * 1024 * 2);
  CHECK(scratch("pegasus-xsum", ModelInit::Device) == std::vector<Bytes>{kTable, div_floor(kTable, 2),
                                                                         div_floor(kTable, 2), kTable,
                                                                         div_floor(kTable, 2), div_floor(kTable, 2)});
  CHECK(scratch("t5-small", ModelInit::Device).empty());
}

namespace {

auto made_at_init(const ModelSpec& model, ModelInit init, Version transformers = {5, 17, 0}) {
  Job job = lowered::job(-1, 1);
  job.training.model_init = init;
  job.training.transformers = transformers;
  const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
  for (const Finding& found : audit(schedule)) {  // DoRA's forward has its own way through its modules.
    if (found.text.find("work outside its module") == std::string::npos) FAIL_CHECK(found.text);
  }
  return schedule.buffers;
}

auto labelled(const auto& buffers, std::string_view label) {
  return std::count_if(buffers.begin(), buffers.end(), [&](const Buffer& one) { return label == one.label; });
}

}  // namespace

// 16 numbers, their powers, those raised, the base, their inverse, and what is copied where they are computed again:
// seen in PyTorch's own events of qwen2-0.5b (22 allocations where 11 are kept of another function's). Scaled ones are
// counted line by line in modeling_rope_utils.py.
TEST_CASE("frequencies of rotary positions are computed on the device, where that makes the model") {
  const auto taken = [](const char* name, ModelInit init, Version transformers = {5, 17, 0}) {
    return labelled(made_at_init(lowered::bundled(name), init, transformers), "table of positions");
  };
  CHECK(taken("qwen2-0.5b", ModelInit::Device) == 11);
  CHECK(taken("qwen2-0.5b", ModelInit::Host) == 0);
  CHECK(taken("qwen2-0.5b", ModelInit::Device, {4, 57, 0}) == 0);
  CHECK(taken("llama-3.2-1b", ModelInit::Device) == 26 + 27);
  CHECK(taken("deepseek-v2-lite", ModelInit::Device) == 18 + 19);
  CHECK(taken("gpt2", ModelInit::Device) == 0);
}

// granite-3.3-8b's events: the product of the factors, that times the scale, and the weight with it; in fp16 the
// factors and their product in fp32 before.
TEST_CASE("DoRA's magnitudes are computed from weights that are on the device") {
  const ModelSpec plain = lowered::bundled("llama-3.2-1b");
  const ModelSpec model = with_adapters(plain, parse_lora({"r=8,targets=q_proj+v_proj,dora=true", {}}), {});
  constexpr const char* kWhole = "weight with its factors";
  const auto made = made_at_init(model, ModelInit::Device);
  CHECK(labelled(made, kWhole) == 3 * 2 * plain.dims.layers);
  CHECK(labelled(made, "factor in fp32") == 0);
  const auto first =
      std::find_if(made.begin(), made.end(), [](const Buffer& one) { return kWhole == std::string_view(one.label); });
  REQUIRE(first != made.end());
  CHECK(first->size == Bytes(2048 * 2048 * 2));
  CHECK(labelled(made_at_init(model, ModelInit::Host), kWhole) == 0);
  CHECK(labelled(made_at_init(plain, ModelInit::Device), kWhole) == 0);
}

// torch/nn/modules/module.py, _apply: the model's rotary table moves behind its layers, before the head.
TEST_CASE("buffers move to the device among the parameters") {
  const auto made = made_at_init(lowered::bundled("llama-3-8b"), ModelInit::Host);
  std::vector<Role> roles;
  for (const Buffer& one : made) {
    if (one.space == Space::Device && (one.role == Role::Parameters || one.role == Role::ModuleBuffers)) {
      roles.push_back(one.role);
    }
  }
  REQUIRE(roles.size() > 4);
  CHECK(roles.front() == Role::Parameters);
  CHECK(roles.back() == Role::Parameters);
  CHECK(std::count(roles.begin(), roles.end(), Role::ModuleBuffers) == 2);
  CHECK(roles[roles.size() - 2] == Role::ModuleBuffers);
}
