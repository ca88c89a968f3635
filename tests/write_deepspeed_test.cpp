// The DeepSpeed JSON and the training file that are written from a job: read again, they are the same job.
#include <nlohmann/json.hpp>
#include <random>

#include "planner/predict/predict.h"
#include "report/export/write_deepspeed.h"
#include "report/export/write_training.h"
#include "resolving.h"

using namespace resolving;
using Json = nlohmann::ordered_json;

namespace {

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return engine_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> list) {
    return *(list.begin() + below(list.size()));
  }

 private:
  std::mt19937 engine_;
};

Json offload(Dice& dice, bool parameters) {
  Json block = {{"device", dice.of<const char*>({"cpu", "cpu", "nvme", "none"})}, {"nvme_path", "/nvme"}};
  if (dice.one_in(2)) block["pin_memory"] = dice.one_in(2);
  if (dice.one_in(2)) block["buffer_count"] = dice.of<int>({4, 5, 8, 12});
  if (parameters) {
    if (dice.one_in(2)) block["buffer_size"] = dice.of<std::int64_t>({30'000'000, 400'000'000});
    if (dice.one_in(3)) block["max_in_cpu"] = dice.of<std::int64_t>({0, 5'000'000});
  } else {
    if (dice.one_in(3)) block["pipeline_read"] = true;
    if (dice.one_in(3)) block["pipeline_write"] = true;
  }
  return block;
}

Json zero(Dice& dice, std::int64_t stage) {
  Json block = {{"stage", stage}};
  const auto flag = [&](const char* key) {
    if (dice.one_in(3)) block[key] = dice.one_in(2);
  };
  const auto size = [&](const char* key) {
    if (dice.one_in(3)) block[key] = dice.of<std::int64_t>({1, 1000, 100'000, 20'000'000, 600'000'000});
  };
  for (const char* key :
       {"contiguous_gradients", "reduce_scatter", "overlap_comm", "round_robin_gradients",
        "use_multi_rank_bucket_allreduce", "stage3_gather_16bit_weights_on_model_save",
        "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential", "zero_quantized_weights"}) {
    flag(key);
  }
  for (const char* key :
       {"reduce_bucket_size", "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_model_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_module_granularity_threshold"}) {
    size(key);
  }
  if (dice.one_in(4)) block["zero_hpz_partition_size"] = dice.of<int>({0, 1, 2, 4});
  if (dice.one_in(5)) block["leaf_module"] = {{"classes", {"a.b.Block"}}, {"names", {"x"}}};
  if (dice.one_in(3)) block["offload_optimizer"] = offload(dice, false);
  if (dice.one_in(3)) block["offload_param"] = offload(dice, true);
  return block;
}

Json optimizer(Dice& dice) {
  const std::string type = dice.of<const char*>({"AdamW", "AdamW", "Adam", "Lion", "Muon", "SGD"});
  Json params = {{"lr", 2e-5}};
  if (type == "Adam" || type == "AdamW") {
    if (dice.one_in(3)) params["torch_adam"] = dice.one_in(2);
    if (dice.one_in(3)) params["adam_w_mode"] = dice.one_in(2);
  }
  if (type == "SGD" && dice.one_in(2)) params["momentum"] = 0.9;
  return {{"type", type}, {"params", params}};
}

Json random_json(Dice& dice) {
  Json json = Json::object();
  const std::int64_t stage = static_cast<std::int64_t>(dice.below(4));
  if (dice.one_in(2)) json["train_micro_batch_size_per_gpu"] = dice.of<int>({1, 2, 5});
  if (dice.one_in(2)) json["gradient_accumulation_steps"] = dice.of<int>({1, 3, 8});
  if (dice.one_in(2)) json["gradient_clipping"] = dice.of<double>({0.0, 0.5, 1.0});
  const std::string dtype = dice.of<const char*>({"bf16", "bf16", "fp16", "none"});
  if (dtype != "none") json[dtype] = {{"enabled", true}};
  if (dtype == "bf16" && dice.one_in(3)) json["bf16"]["check_grad_overflow"] = dice.one_in(2);
  if (dice.one_in(3)) json["communication_data_type"] = dice.of<const char*>({"fp32", "bf16", "fp16"});
  if (dice.one_in(4)) json["data_types"]["grad_accum_dtype"] = dice.of<const char*>({"fp32", "bf16", "fp16"});
  if (dice.one_in(2)) json["optimizer"] = optimizer(dice);
  json["zero_allow_untested_optimizer"] = true;
  json["zero_optimization"] = zero(dice, stage);
  if (dice.one_in(6)) json["aio"] = {{"block_size", 4096}, {"intra_op_parallelism", 2}};
  if (dice.one_in(3)) json["activation_checkpointing"] = {{"cpu_checkpointing", dice.one_in(2)}};
  return json;
}

Request random_request(Dice& dice, bool deepspeed) {
  Request request = gpus(dice.of<std::int64_t>({1, 2, 4, 8, 16}));
  if (dice.one_in(3)) set(request.gpus_per_node, dice.of<std::int64_t>({1, 4}), "--gpus-per-node");
  if (dice.one_in(3)) set(request.micro_batch, std::int64_t{3}, "--micro-batch");
  if (dice.one_in(3)) set(request.grad_accum, std::int64_t{2}, "--grad-accum");
  if (dice.one_in(2)) set(request.seq, dice.of<std::int64_t>({128, 512}), "--seq");
  if (dice.one_in(6)) set(request.seq_list, std::string("64,512"), "--seq-list");
  if (dice.one_in(3)) set(request.dtype, std::string(dice.of<const char*>({"bf16", "fp16", "fp32"})), "--dtype");
  if (!deepspeed && dice.one_in(3)) set(request.autocast, std::string("bf16"), "--autocast");
  if (!deepspeed && dice.one_in(4)) set(request.mixed_precision, std::string("bf16"), "--mixed_precision");
  if (!deepspeed && dice.one_in(4)) set(request.param_groups, std::string("decay"), "--training");
  if (!deepspeed && dice.one_in(4)) set(request.zero_grad_set_to_none, false, "--set");
  if (dice.one_in(3)) set(request.max_grad_norm, dice.of<double>({0.0, 2.0}), "--training");
  if (dice.one_in(3)) {
    set(request.optimizer,
        std::string(dice.of<const char*>({"adamw:foreach", "adam:for-loop", "adamw:fused", "sgd", "adafactor",
                                          "adamw_bnb_8bit", "lion", "rmsprop"})),
        "--optimizer");
    if (dice.one_in(3)) set(request.weight_decay, 0.1, "--training");
  }
  if (dice.one_in(4)) set(request.freeze, std::vector<std::string>{"norm.*"}, "--freeze");
  if (dice.one_in(2)) {
    set(request.checkpoint,
        std::string(dice.of<const char*>({"full", "every:4", "segments:2", "nth:3", "keep:linear+attention",
                                          "groups:0-2,4,5=reentrant", "groups:1-3,4=keep+linear,5"})),
        "--checkpoint");
    if (dice.one_in(3)) {
      set(request.checkpoint_impl, std::string(dice.of<const char*>({"reentrant", "non_reentrant", "deepspeed"})),
          "--checkpoint-impl");
    }
    if (dice.one_in(4)) set(request.preserve_rng_state, false, "--training");
  }
  if (dice.one_in(3)) set(request.attention, std::string(dice.of<const char*>({"eager", "math"})), "--attention");
  if (dice.one_in(3)) set(request.loss, std::string(dice.of<const char*>({"native", "chunked:4", "liger"})), "--loss");
  if (dice.one_in(4)) set(request.loop, std::string("minimal"), "--loop");
  if (dice.one_in(6)) set(request.level, std::string("dispatch"), "--level");
  if (dice.one_in(4)) set(request.alloc_conf, std::string("expandable_segments:True"), "--alloc-conf");
  if (dice.one_in(6)) set(request.stream_frees, std::string("immediate"), "--stream-frees");
  if (dice.one_in(6)) set(request.placement, std::string("planned"), "--placement");
  if (dice.one_in(5)) set(request.transformers_version, std::string("4.57.0"), "--transformers-version");
  if (dice.one_in(4)) set(request.model_init, std::string("host"), "--set");
  return request;
}

// The job that the two files say.
Job again(const ModelSpec& model, const Job& job) {
  const Request request = read_training_file(parse_json("train.json", training_json(model, job, "a test")));
  if (job.training.runtime == Runtime::PyTorch) return resolve(model, request, nullptr, nullptr, nullptr);
  const DeepSpeedInput input = read_deepspeed(parse_json("ds.json", deepspeed_json(model, job)));
  return resolve(model, request, &input, nullptr, nullptr);
}

// Beyond the fingerprint: what moves no byte and must not get lost.
void same_run(const Job& a, const Job& b) {
  CHECK(a.training.gradient_clipping == b.training.gradient_clipping);
  CHECK(a.training.seq_list == b.training.seq_list);
  CHECK(a.training.checkpoint.groups == b.training.checkpoint.groups);
  CHECK(a.training.zero.offload_param == b.training.zero.offload_param);
  CHECK(a.training.zero.offload_optimizer == b.training.zero.offload_optimizer);
  CHECK(a.parallelism.nodes == b.parallelism.nodes);
  CHECK(a.allocator_conf == b.allocator_conf);
}

Job job_of(const std::string& deepspeed, Request request = gpus(8)) {
  Given given;
  given.deepspeed = deepspeed;
  given.request = std::move(request);
  return run(given);
}

Json emitted(const std::string& deepspeed, Request request = gpus(8)) {
  return Json::parse(deepspeed_json(small_model(), job_of(deepspeed, std::move(request))));
}

}  // namespace

TEST_CASE("random DeepSpeed jobs survive their own JSON and training file") {
  const ModelSpec model = small_model();
  int jobs = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Dice dice(seed);
    const std::string text = random_json(dice).dump();
    const Request request = random_request(dice, true);
    std::optional<Job> job;
    try {
      job = job_of(text, request);
    } catch (const Refusal&) {
      continue;  // DeepSpeed would not run it either.
    }
    ++jobs;
    CAPTURE(seed);
    CAPTURE(text);
    const std::string json = deepspeed_json(model, *job);
    CAPTURE(json);
    const Job read = again(model, *job);
    REQUIRE(fingerprint(model, read) == fingerprint(model, *job));
    same_run(*job, read);
    CHECK(deepspeed_json(model, read) == json);
  }
  CHECK(jobs > 500);
}

TEST_CASE("random jobs of plain PyTorch survive their own training file") {
  const ModelSpec model = small_model();
  int jobs = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Dice dice(seed);
    const Request request = random_request(dice, false);
    std::optional<Job> job;
    try {
      job = job_of({}, request);
    } catch (const Refusal&) {
      continue;
    }
    ++jobs;
    CAPTURE(seed);
    const std::string text = training_json(model, *job, "a test");
    CAPTURE(text);
    const Job read = again(model, *job);
    REQUIRE(fingerprint(model, read) == fingerprint(model, *job));
    same_run(*job, read);
  }
  CHECK(jobs > 300);
}

TEST_CASE("a stage without a JSON is the job of its own JSON") {
  for (std::int64_t stage = 0; stage <= 3; ++stage) {
    Request request = gpus(8);
    set(request.zero_stage, stage, "--zero-stage");
    const Job job = job_of({}, request);
    CHECK(fingerprint(small_model(), again(small_model(), job)) == fingerprint(small_model(), job));
  }
}

TEST_CASE("every key that decides a byte is written, whatever the user left out") {
  const Json json = emitted(R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})");
  CHECK(json["train_batch_size"] == 8);
  CHECK(json["gradient_clipping"] == 1.0);
  CHECK(json["communication_data_type"] == "bf16");
  CHECK(json["data_types"]["grad_accum_dtype"] == "bf16");
  CHECK(json["bf16"]["check_grad_overflow"] == true);
  CHECK(json["fp16"]["enabled"] == false);
  const Json& zero = json["zero_optimization"];
  CHECK(zero["stage3_model_persistence_threshold"] == INT64_MAX);
  CHECK(zero["overlap_comm"] == true);
  CHECK(zero["leaf_module"]["classes"].size() == 3);
  CHECK_FALSE(zero.contains("round_robin_gradients"));  // Of stages 1 and 2, and at its default.
  CHECK_FALSE(zero.contains("offload_param"));
}

TEST_CASE("keys that an older DeepSpeed does not know are left out, or refused where they say something") {
  Request old = gpus(8);
  set(old.deepspeed_version, std::string("0.14.0"), "--deepspeed-version");
  const Json json = emitted(R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})", old);
  CHECK_FALSE(json["zero_optimization"].contains("leaf_module"));
  CHECK_FALSE(json["zero_optimization"].contains("stage3_use_all_reduce_for_fetch_params"));
  CHECK_FALSE(json["bf16"].contains("check_grad_overflow"));
  CHECK(json["zero_optimization"].contains("zero_hpz_partition_size"));
  const Job job = job_of(R"({"zero_optimization": {"stage": 3, "stage3_use_all_reduce_for_fetch_params": true,
                                                    "stage3_module_granularity_threshold": 7}})",
                         old);
  try {
    (void)deepspeed_json(small_model(), job);
    FAIL("accepted");
  } catch (const Refusal& refusal) {
    const std::string said = refusal.what();
    CHECK(said.find("zero_optimization.stage3_use_all_reduce_for_fetch_params: error: true cannot be said to "
                    "DeepSpeed 0.14.0") != std::string::npos);
    CHECK(said.find("it is there since 0.14.3") != std::string::npos);
    CHECK(said.find("stage3_module_granularity_threshold: error: 7 cannot") != std::string::npos);
  }
}

TEST_CASE("an optimizer that DeepSpeed does not make is left to the script, by name") {
  Request request = gpus(8);
  set(request.zero_stage, std::int64_t{2}, "--zero-stage");
  set(request.optimizer, std::string("adafactor"), "--optimizer");
  const Job job = job_of({}, request);
  const Json json = Json::parse(deepspeed_json(small_model(), job));
  CHECK_FALSE(json.contains("optimizer"));
  CHECK(json["zero_allow_untested_optimizer"] == true);
  CHECK_FALSE(optimizer_in_deepspeed_json(job.training));
  CHECK(Json::parse(training_json(small_model(), job, "x"))["optimizer"]["name"] == "adafactor");
}

TEST_CASE("plain PyTorch has no DeepSpeed JSON") {
  const Job job = job_of({}, gpus(8));
  CHECK_THROWS_WITH_AS((void)deepspeed_json(small_model(), job),
                       doctest::Contains("small: error: is trained by plain PyTorch here"), Refusal);
}

TEST_CASE("what no byte depends on is taken over from the user's own JSON") {
  const std::string own = R"({
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "torch_adam": true}},
    "scheduler": {"type": "WarmupLR"}, "steps_per_print": 10, "fp16": {"enabled": true, "loss_scale_window": 500},
    "zero_optimization": {"stage": 2, "allgather_bucket_size": 4, "cpu_offload": true, "ignore_unused_parameters": false},
    "someones": {"own": 1}
  })";
  const std::string on_gpu = [&] {
    std::string text = own;
    return text.replace(text.find(", \"cpu_offload\": true"), 21, "");
  }();
  const Document document = parse_hjson("ds.json", on_gpu);
  const Json json = Json::parse(deepspeed_json(small_model(), job_of(on_gpu), document.root));
  CHECK(json["optimizer"]["params"]["lr"] == 2e-5);
  CHECK(json["optimizer"]["params"]["betas"] == Json({0.9, 0.95}));
  CHECK(json["optimizer"]["params"]["torch_adam"] == true);
  CHECK(json["scheduler"]["type"] == "WarmupLR");
  CHECK(json["steps_per_print"] == 10);
  CHECK(json["fp16"]["loss_scale_window"] == 500);
  CHECK(json["zero_optimization"]["allgather_bucket_size"] == 4);
  CHECK(json["zero_optimization"]["ignore_unused_parameters"] == false);
  CHECK_FALSE(json.contains("someones"));
}

TEST_CASE("the words of --checkpoint are found again from the groups") {
  const ModelSpec model = small_model();
  for (const char* words : {"none", "full", "every:4", "segments:2", "nth:3", "keep:linear", "groups:0-2,4",
                            "groups:1-3=reentrant", "groups:0,1-2=keep+linear+gelu"}) {
    Request request = {};
    set(request.checkpoint, std::string(words), "--checkpoint");
    const Checkpointing made = resolve_checkpointing(request, model, CheckpointKind::NonReentrant);
    CHECK(checkpoint_words(made, model.dims.layers) ==
          (std::string(words) == "groups:1-3=reentrant" ? "groups:1-3" : words));
  }
}

TEST_CASE("runs of layers that are none are refused") {
  const auto refused = [](const char* words, const char* part) {
    Given given;
    set(given.request.checkpoint, std::string(words), "--checkpoint");
    says(given, part);
  };
  refused("groups:", "--checkpoint: error: \"\" is no run of layers");
  refused("groups:3-1", "\"3-1\" is no run of layers");
  refused("groups:0-6", "layer 6 does not exist: the model has layers 0 to 5");
  refused("groups:0-2,2", "layer 2 is not above layer 2 of the run before");
  refused("groups:0=keep+linaer", "no operator \"linaer\"");
  refused("groups:0=later", "no mode \"later\" of a run of layers");
  refused("groups:0-1-2", "\"0-1-2\" is no run of layers");
}
