#include <doctest/doctest.h>
#include <algorithm>
#include <string>

#include "core/format.h"
#include "core/settings.h"
#include "io/dialects/dialect_file.h"
#include "io/text.h"
#include "io/training_file.h"

using namespace dsplan;

namespace {

const std::string kHead = R"("dsplan": 1, "kind": "training", "source": "a test")";

Request training(const std::string& keys) {
  return read_training_file(parse_json("t.json", "{" + kHead + (keys.empty() ? "" : ", ") + keys + "}"));
}

template <class Read>
std::string refusal(Read read) {
  try {
    (void)read();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

std::string training_refusal(const std::string& keys) {
  return refusal([&] { return training(keys); });
}

bool noticed(const Request& request, Notice::Kind kind, const std::string& part) {
  return std::any_of(request.notices.begin(), request.notices.end(), [&](const Notice& notice) {
    return notice.kind == kind && notice.message.find(part) != std::string::npos;
  });
}

Request arguments(const std::string& yaml) { return read_training_arguments(parse_yaml("args.yaml", yaml)); }

}  // namespace

TEST_CASE("training file: the example of the interface") {
  const Request request = training(R"("dtype": "bf16", "autocast": null, "micro_batch": 1, "grad_accum": 1, "seq": 4096,
      "optimizer": {"name": "adamw", "implementation": "fused"}, "param_groups": "single", "freeze": ["*.bias"],
      "lora": {"r": 8, "targets": ["q_proj"], "dtype": "fp32"}, "loss": "hf", "attention": "flash",
      "checkpoint": "none", "allocator_conf": "")");
  CHECK(request.has_training_file);
  CHECK(request.hugging_face_rules());
  CHECK(request.dtype.value == "bf16");
  CHECK(!request.autocast.mentioned());
  CHECK(request.seq.value == 4096);
  CHECK(request.optimizer.value == "adamw");
  CHECK(request.implementation.value == "fused");
  CHECK(request.freeze.value == std::vector<std::string>{"*.bias"});
  CHECK(request.lora.value == "r=8,targets=q_proj,dtype=fp32");
  CHECK(request.alloc_conf.value == "");
  CHECK(request.seq.place.text() == "t.json:1:132");
}

TEST_CASE("training file: every option has a key") {
  const Request request = training(R"("deepspeed": "a", "hardware": "a", "cluster": "a", "env": "a", "gpus": 1,
      "gpus_per_node": 1, "tp": 1, "sp": 1, "ep": 1, "runtime": "pytorch", "zero_stage": 0, "micro_batch": 1,
      "grad_accum": 1, "seq": 1, "seq_list": [1], "target_seq": 1, "images": 1, "image_size": [448, 448], "dtype": "fp32", "autocast": "bf16",
      "optimizer": {"name": "sgd", "implementation": "foreach", "momentum": 0.9, "weight_decay": 0.1},
      "param_groups": "single", "model_init": "host", "zero_grad_set_to_none": false, "max_grad_norm": 1, "freeze": [], "lora": {"r": 2, "targets": "all-linear", "dropout": 0.5},
      "quantization": "nf4", "double_quant": true, "quant_compute_dtype": "bf16", "quant_storage": "uint8",
      "kbit_prepare": false, "checkpoint": "none", "attention": "sdpa", "loss": "hf",
      "loop": "minimal", "level": "dispatch", "checkpoint_impl": "reentrant", "activation_offloading": "streams",
      "preserve_rng_state": true, "early_stop": false, "use_cache": true, "labels_are_ids": true, "cast_model": true, "input_require_grads": true, "layers_require_grads": true, "experts": "eager", "routing": "balanced", "allocator_conf": "", "stream_frees": "at-sync",
      "placement": "caching", "calibration": "c.json", "deepspeed_version": "0.19", "torch_version": "2", "transformers_version": "5", "liger_version": "0.8.5", "liger_kernels": "all", "lora_kernels": "qkv,o", "model_code": "torchtitan", "torchtitan_version": "0.2.2",
      "host_memory": "1TiB", "nvme_memory": "8TB", "capacity": 5, "reserve": "0.5GiB", "rank": 3, "phase": "steady", "strict": true,
      "set": ["a=b"], "format": "json", "out": "x")");
  // Those that no training file can name: itself, and what only a launch line or TrainingArguments know, and what is in
  // files.
  int absent = 0;
  visit_settings(request, request, [&](const auto& setting, const auto&) { absent += setting.given() ? 0 : 1; });
  CHECK(absent ==
        7 + 20 + 7);  // And the twenty of fsdp, which fsdp_test.cpp and fsdp1_test.cpp give, and the seven of ddp.
  CHECK(!request.training.given());
  CHECK(!request.checkpoint_groups.given());
  CHECK(!request.token_counts.given());
  CHECK(!request.measured.given());
  CHECK(!request.nodes.given());
  CHECK(!request.torch_dtype.given());
  CHECK(!request.mixed_precision.given());
  CHECK(request.rank.value == "3");
  CHECK(request.reserve.value == Bytes(1LL << 29));
  CHECK(request.host_memory.value == Bytes(1LL << 40));
  CHECK(request.nvme_memory.value == Bytes(8'000'000'000'000));
}

TEST_CASE("training file: faults") {
  CHECK(training_refusal("\"sek\": 1") ==
        "t.json:1:55: error: unknown key \"sek\" in the training file; did you mean \"seq\"?\n"
        "    1 | {\"dsplan\": 1, \"kind\": \"training\", \"source\": \"a test\", \"sek\": 1}\n"
        "      |                                                       ^\n");
  const auto said = [](const std::string& keys, const std::string& part) {
    const std::string text = training_refusal(keys);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  said("\"seq\": 1, \"seq\": 2", "seq");
  said("\"micro_batch\": 0", "must be at least 1, not 0");
  said("\"dtype\": \"bf17\"", "did you mean \"bf16\"?");
  said("\"capacity\": \"80 gigs\"", "\"80 gigs\" is not a size");
  said("\"optimizer\": {\"implementation\": \"fused\"}", "\"name\" is missing");
  said("\"optimizer\": {\"name\": \"adamw\", \"lr\": 1}", "unknown key \"lr\" in optimizer");
  const auto head = [](const std::string& text) {
    return refusal([&] { return read_training_file(parse_json("t.json", text)); });
  };
  CHECK(head("{}").find("\"dsplan\" is missing") != std::string::npos);
  CHECK(head(R"({"dsplan": 2, "kind": "training", "source": "x"})").find("file version 2 is not known") !=
        std::string::npos);
  CHECK(head(R"({"dsplan": 1, "kind": "hardware", "source": "x"})").find("\"kind\" must be \"training\"") !=
        std::string::npos);
  CHECK(head(R"({"dsplan": 1, "kind": "training", "source": ""})").find("\"source\" is missing") != std::string::npos);
  CHECK(head("[]").find("must be an object") != std::string::npos);
}

TEST_CASE("checkpointing file") {
  const auto read = [](const std::string& groups) {
    return read_checkpoint_file(
        parse_json("c.json", R"({"dsplan": 1, "kind": "checkpoint", "source": "x", "groups": )" + groups + "}"));
  };
  const std::vector<CheckpointEntry> entries = read(R"([[0, 3, "recompute"], [4, 4, "store"]])");
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].last == 3);
  CHECK(entries[0].recompute);
  CHECK(!entries[1].recompute);
  for (const char* bad : {"[[0, 1]]", R"([[0, 1, "drop"]])", R"([[2, 1, "store"]])", R"([[-1, 1, "store"]])",
                          R"([[0, 3, "store"], [3, 4, "store"]])", "7"}) {
    INFO(std::string(bad));
    CHECK_THROWS_AS((void)read(bad), Refusal);
  }
}

TEST_CASE("TrainingArguments: what decides bytes is read, the rest is reported") {
  const Request request = arguments(
      "per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nbf16: true\noptim: adamw_bnb_8bit\n"
      "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\ndeepspeed: ds.json\n"
      "max_grad_norm: 0.5\nmax_seq_length: 1024\nlearning_rate: 2.0e-5\nlogging_steps: 10\n"
      "attn_implementation: eager\n");
  REQUIRE(request.training_arguments.has_value());
  CHECK(request.micro_batch.value == 4);
  CHECK(request.grad_accum.value == 2);
  CHECK(request.training_arguments->bf16.value == true);
  CHECK(request.optimizer.value == "adamw_bnb_8bit");
  CHECK(request.checkpoint.value == "full");
  CHECK(request.deepspeed.value == "ds.json");
  CHECK(request.max_grad_norm.value == 0.5);
  CHECK(request.seq.value == 1024);
  CHECK(request.attention.value == "eager");
  CHECK(request.training_arguments->learning_rate.value == 2e-5);
  CHECK(noticed(request, Notice::Kind::Inert, "\"logging_steps\" has no effect here"));
  CHECK(refusal([] { return arguments("per_device_train_batchsize: 2\n"); }) ==
        "args.yaml:1:1: error: unknown key \"per_device_train_batchsize\" in TrainingArguments; did you mean "
        "\"per_device_train_batch_size\"?\n"
        "    1 | per_device_train_batchsize: 2\n"
        "      | ^\n");
  CHECK(request.not_modelled.empty());
  CHECK(request.micro_batch.place.text() == "args.yaml:1:30");
}

TEST_CASE("TrainingArguments: what would change bytes unmodelled is remembered") {
  const Request request = arguments(
      "torch_compile: true\nuse_liger_kernel: true\nfsdp: full_shard\nlabel_smoothing_factor: "
      "0.1\nneftune_noise_alpha: 5\n"
      "use_cpu: true\nlora_r: 8\n");
  CHECK(request.not_modelled.size() == 5);  // fsdp is read, and so are Liger's kernels with their loss.
  CHECK(*request.liger_kernels == "all");
  CHECK(*request.loss == "liger");
  const Request ddp = arguments("ddp_static_graph: true\nddp_broadcast_buffers: false\n");
  CHECK(ddp.not_modelled.empty());
  CHECK(ddp.ddp.static_graph.value_or(false));
  const Request harmless =
      arguments("torch_compile: false\nfsdp: \"\"\nlabel_smoothing_factor: 0.0\nneftune_noise_alpha:\nlora_r: 0\n");
  CHECK(harmless.not_modelled.empty());
}

TEST_CASE("TrainingArguments: a DeepSpeed configuration inside") {
  const Request request = arguments("deepspeed:\n  zero_optimization:\n    stage: 2\n  bf16: {enabled: auto}\n");
  REQUIRE(request.inline_deepspeed.has_value());
  CHECK(request.inline_deepspeed->zero.stage.value == 2);
  CHECK(request.inline_deepspeed->zero.stage.place.text() == "args.yaml:3:12");
  CHECK(request.inline_deepspeed->bf16_enabled.is_auto);
}

TEST_CASE("TrainingArguments: faults") {
  CHECK(refusal([] { return arguments("per_device_train_batch_size: 0\n"); }) ==
        "args.yaml:1:30: error: \"per_device_train_batch_size\" must be at least 1, not 0\n"
        "    1 | per_device_train_batch_size: 0\n"
        "      |                              ^\n");
  CHECK(refusal([] { return arguments("bf16: maybe\n"); }).find("must be true or false, not \"maybe\"") !=
        std::string::npos);
}

TEST_CASE("requests lie over each other") {
  Request file;
  file.seq = {1024, option("file")};
  file.optimizer = {"sgd", option("file")};
  file.momentum = {0.9, option("file")};
  file.checkpoint = {"groups.json", option("file")};
  file.checkpoint_groups = {std::vector<CheckpointEntry>{}, option("file")};
  file.has_training_file = true;
  Request options;
  options.seq = {2048, option("--seq")};
  options.optimizer = {"adamw", option("--optimizer")};
  options.checkpoint = {"full", option("--checkpoint")};
  const Request both = overlay(file, options);
  CHECK(both.seq.value == 2048);
  CHECK(both.seq.place.text() == "--seq");
  CHECK(both.has_training_file);
  CHECK(!both.momentum.given());
  CHECK(!both.checkpoint_groups.given());
  CHECK(overlay(options, Request{}).optimizer.value == "adamw");
}

TEST_CASE("sizes are whole bytes") {
  CHECK(parse_bytes("70GiB") == Bytes(75'161'927'680));
  CHECK(parse_bytes("80GB") == Bytes(80'000'000'000));
  CHECK(parse_bytes("512 MiB") == Bytes(536'870'912));
  CHECK(parse_bytes("1.5GiB") == Bytes(1'610'612'736));
  CHECK(parse_bytes("12") == Bytes(12));
  CHECK(parse_bytes("0") == Bytes(0));
  CHECK(parse_bytes("80gb") == Bytes(80'000'000'000));
  CHECK(parse_bytes("80Gib") == parse_bytes("80GiB"));
  CHECK(parse_bytes("80G") == parse_bytes("80GiB"));
  CHECK(parse_bytes("500M") == parse_bytes("500MiB"));
  for (const char* bad :
       {"", "GiB", "-1", "1.5", "0.3KiB", "1e9", "9223372036854775808", "99999999TiB", "1..5GiB", "5 gigs", "0x10"}) {
    INFO(std::string(bad));
    CHECK(!parse_bytes(bad).has_value());
  }
}
