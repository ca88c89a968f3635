// deepspeed.checkpointing.checkpoint on the tape, against the real function over fake tensors
// (tools/oracles/deepspeed_checkpointing.py): every allocation and free of two optimizer steps, in order and to the
// byte.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/audit.h"
#include "io/deepspeed.h"
#include "io/op_graph.h"
#include "io/text.h"
#include "io/training_file.h"
#include "lowered.h"
#include "model/op_graphs/op_graph.h"
#include "moves.h"
#include "paths.h"
#include "planner/lower/lower_graph.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"
#include "resolving.h"

using namespace dsplan;
using namespace dsplan::testing;
using Json = nlohmann::ordered_json;

namespace {

Json witnesses() {
  std::ifstream file(test_paths::source_dir() + "/tests/witnesses/deepspeed_checkpointing.json");
  return Json::parse(file);
}

DeepSpeedCheckpointing block_of(const Json& block) {
  DeepSpeedCheckpointing config;
  config.partition = block.value("partition_activations", false);
  config.cpu = block.value("cpu_checkpointing", false);
  config.contiguous = block.value("contiguous_memory_optimization", false);
  config.number_checkpoints = block.value("number_checkpoints", std::int64_t{0});
  return config;
}

// The witness's loop is the plain one, with DeepSpeed's function in it.
Job job_of(const Json& one, const ModelSpec& model) {
  Request request = read_training_file(parse_json("training", one["training"].dump()));
  request.level = {"dispatch", Place{"--level", 0, 0, {}}};
  Job job = resolve(model, request, nullptr, nullptr, nullptr);
  job.training.deepspeed = one.value("streams", true) ? Version{0, 19, 8} : Version{0, 19, 5};
  job.training.checkpoint.deepspeed = block_of(one["block"]);
  for (CheckpointGroup& group : job.training.checkpoint.groups) group.kind = CheckpointKind::DeepSpeed;
  return job;
}

struct Log : Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
  explicit Log(const Schedule& of) : schedule(of) { replay(of, *this); }

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule.buffers[event.buffer];
    if (begun && buffer.space == Space::Device) moves.push_back({{buffer.size.value()}, {}, buffer.label});
  }
  void on(std::size_t, const Release& event) {
    const Buffer& buffer = schedule.buffers[event.buffer];
    if (buffer.space == Space::Device && !moves.empty()) moves.back().freed.push_back(buffer.size.value());
  }
  void on(std::size_t, const Mark& event) {
    if (event.stretch == Stretch::Init && event.moment == Moment::StretchEnds) begun = true;
  }

  const Schedule& schedule;
  bool begun = false;
  std::vector<Moves> moves;
};

// Lines with " | " between them.
std::vector<Moves> read_log(const std::string& text) {
  constexpr std::string_view kBetween = " | ";
  std::vector<Moves> moves;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(kBetween, at), text.size());
    read_log_line(text.substr(at, end - at), moves);
    at = end + kBetween.size();
  }
  for (Moves& one : moves) one.sort();
  return moves;
}

Schedule schedule_of(const ModelSpec& model, const Job& job) {
  const Graph graph = build_graph(model, graph_options(model, job));
  return lower(model, job, graph, RecipeBook(graph, job.training.level, {job.training.torch}), 0);
}

Job tiny(const DeepSpeedCheckpointing& config, std::int32_t layers) {
  Job job = lowered::job(2, 2);
  job.training.deepspeed = Version{0, 19, 8};
  job.training.checkpoint.text = "full";
  job.training.checkpoint.deepspeed = config;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    job.training.checkpoint.groups.push_back({layer, layer, CheckpointKind::DeepSpeed});
  }
  return job;
}

}  // namespace

TEST_CASE("deepspeed checkpointing: the schedule is what the real function does, move for move") {
  const Json all = witnesses();
  std::size_t compared = 0;
  for (const auto& [name, one] : all["cases"].items()) {
    INFO(name);
    const ModelSpec model = build_model(parse_json(name, one["config"].dump()), name);
    const Schedule schedule = schedule_of(model, job_of(one, model));
    Log ours(schedule);
    const std::vector<Moves> theirs = read_log(one["log"].get<std::string>());
    for (Moves& moves : ours.moves) moves.sort();
    const std::string difference = first_difference(theirs, grouped_like(theirs, ours.moves));
    CHECK_MESSAGE(difference.empty(), difference);
    ++compared;
  }
  CHECK(compared == 15);
}

TEST_CASE("deepspeed checkpointing: several arguments, outputs and a mask") {
  const Json all = witnesses();
  BuiltOpGraph built = build_op_graph(read_op_graph(parse_json("graph", all["graph"].dump()), "graph"));
  for (CheckpointGroup& group : built.checkpoint.groups) group.kind = CheckpointKind::DeepSpeed;
  for (const auto& [name, one] : all["graphs"].items()) {
    INFO(name);
    built.checkpoint.deepspeed = block_of(one["block"]);
    const Schedule schedule = lower_graph(built, RecipeBook(built.graph, Level::Dispatch), false);
    CHECK(audit(schedule).empty());
    Log ours(schedule);
    const std::vector<Moves> theirs = read_log(one["log"].get<std::string>());
    for (Moves& moves : ours.moves) moves.sort();
    const std::string difference = first_difference(theirs, grouped_like(theirs, ours.moves));
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

TEST_CASE("deepspeed checkpointing: every schedule is legal, with any flags under any stage") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (int flags = 0; flags < 8; ++flags) {
    const DeepSpeedCheckpointing config{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, 9};
    if (config.contiguous && !config.partition) continue;
    for (int stage = 0; stage <= 3; ++stage) {
      for (const Version version : {Version{0, 19, 5}, Version{0, 19, 8}}) {
        Job job = tiny(config, static_cast<std::int32_t>(model.dims.layers));
        job.training.zero.stage = stage;
        job.training.deepspeed = version;
        job.training.grad_accum = 2;
        INFO(flags << " stage " << stage << " " << version.text());
        const Schedule schedule = lowered::all_ranks(model, job).front();
        for (const Finding& finding : audit(schedule)) FAIL_CHECK("event ", finding.event, ": ", finding.text);
      }
    }
  }
}

TEST_CASE("deepspeed checkpointing: where the arguments lie") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto layers = static_cast<std::int32_t>(model.dims.layers);
  const Job job = tiny({}, layers);
  const Bytes argument(job.training.micro_batch * job.training.seq * model.dims.hidden * 2);
  const auto host = [&](const DeepSpeedCheckpointing& config, Version version) {
    Job one = tiny(config, layers);
    one.training.deepspeed = version;
    return predict(model, one, 0).host;
  };
  const Version old{0, 19, 5};
  const Version now{0, 19, 8};
  const Bytes random = Bytes(layers * (5056 + 16));
  CHECK(host({}, now).pageable == random);
  CHECK(host({}, now).pinned == Bytes(0));
  CHECK(host({false, true, false, 0}, old).pageable == random + argument * layers);
  CHECK(host({false, true, false, 0}, now).pinned_requested == argument * (layers - 1));
  CHECK(host({false, true, false, 0}, now).pageable == random);
  const Bytes sizes(3 * 8);
  CHECK(host({true, true, false, 0}, now).pageable == random + (argument + sizes) * layers);
  CHECK(host({true, true, true, layers + 2}, now).pageable >= random + (argument + sizes) * (layers + 2));
}

TEST_CASE("deepspeed checkpointing: the block counts when the code uses it, and not without") {
  using namespace resolving;
  const std::string block = R"({"zero_optimization": {"stage": 1}, "activation_checkpointing": {
      "partition_activations": true, "contiguous_memory_optimization": true, "number_checkpoints": 6}})";
  Given given{block, gpus(2)};
  const Job inert = run(given);
  CHECK(inert.training.checkpoint.groups.empty());
  REQUIRE(
      find_notice(inert, "\"activation_checkpointing.partition_activations\" has no effect here: it needs training") !=
      nullptr);
  set(given.request.checkpoint, std::string("full"), "--checkpoint");
  CHECK(!run(given).training.checkpoint.by_deepspeed());
  set(given.request.checkpoint_impl, std::string("deepspeed"), "--checkpoint-impl");
  const Job used = run(given);
  CHECK(used.training.checkpoint.by_deepspeed());
  CHECK(used.training.checkpoint.deepspeed == DeepSpeedCheckpointing{true, false, true, 6});
  CHECK(find_notice(used, "partition_activations saves nothing: the model-parallel size is 1") != nullptr);
  CHECK(find_notice(used, "has no effect here") == nullptr);
  set(given.request.checkpoint, std::string("keep:linear"), "--checkpoint");
  says(given, "keeping results needs the non-reentrant form");
  set(given.request.checkpoint, std::string("full"), "--checkpoint");
  given.deepspeed = R"({"activation_checkpointing": {"partition_activations": true,
      "contiguous_memory_optimization": true, "number_checkpoints": 5}})";
  says(given,
       "ds.json:2:69: error: 5 contiguous checkpoints, but a forward makes 6: DeepSpeed fails with \"list index out "
       "of range\" at the next one; write at least 6");
  given.deepspeed = R"({"activation_checkpointing": {"partition_activations": true}})";
  CHECK(refusal(given) == "accepted");
  given.model.family = "gpt2";
  given.model.dims.max_positions = 0;
  says(given, "partition_activations with GPT-2");
  given.deepspeed.clear();
  says(given, "DeepSpeed's checkpointing with runtime pytorch");
}

TEST_CASE("deepspeed checkpointing: too few slots is the error that the real function raises") {
  const Json all = witnesses();
  CHECK(all["fails"]["contiguous-too-few"]["error"] == "IndexError: list index out of range");
  const auto error = all["fails"]["partition-gpt2"]["error"].get<std::string>();
  CHECK(error.starts_with("TypeError: GPT2Block.forward() got multiple values for argument"));
}
