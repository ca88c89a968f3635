// What is handed over to frameworks, against what the frameworks made of it: the files that tools/oracles wrote are
// emitted again, byte by byte.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "io/launch_line.h"
#include "io/text.h"
#include "model/families.h"
#include "planner/resolve/checkpointing.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

const std::string kRoot = DSPLAN_SOURCE_DIR;

Json witness(const std::string& name) { return Json::parse(slurp(kRoot + "/tests/witnesses/" + name)); }

// The small bundled model with six layers.
std::string six_layers(const std::string& name) {
  Json config = Json::parse(slurp(kRoot + "/models/tiny-" + name + ".json"));
  config[name == "gpt2" ? "n_layer" : "num_hidden_layers"] = 6;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    if (config.contains(key)) config[key] = 0.0;
  }
  return config.dump();
}

// Of `--checkpoint WORDS [--checkpoint-impl KIND]` on six layers.
std::vector<CheckpointGroup> groups_of(const std::string& model, const std::vector<std::string>& words) {
  Request request;
  CheckpointKind kind = CheckpointKind::NonReentrant;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    if (words[i] == "--checkpoint") request.checkpoint = {words[i + 1], option("--checkpoint")};
    if (words[i] == "--checkpoint-impl" && words[i + 1] == "reentrant") kind = CheckpointKind::Reentrant;
    if (words[i] == "--checkpoint-impl" && words[i + 1] == "deepspeed") kind = CheckpointKind::DeepSpeed;
  }
  const ModelSpec spec = build_model(parse_json("config.json", six_layers(model)), model);
  return resolve_checkpointing(request, spec, kind).groups;
}

}  // namespace

TEST_CASE("DeepSpeed 0.19.8 read these very files, and held every key as they say") {
  const Json all = witness("deepspeed_emitted.json");
  CHECK(all["versions"]["deepspeed"] == kDeepSpeedVersion);
  REQUIRE(all["cases"].size() >= 26);
  const Folder folder;
  for (const Json& one : all["cases"]) {
    std::string words = one["words"];
    CAPTURE(words);
    if (!one["deepspeed"].is_null()) {
      spill(folder / "ds.json", one["deepspeed"].dump());
      words += " --deepspeed ds.json";
    }
    const Ran ran = run_binary(folder, split("emit " + words + " --format deepspeed"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    CHECK(ran.out == one["emitted"].get<std::string>());
    CHECK(one["keys"].get<int>() >= 16);
  }
}

TEST_CASE("the lines that transformers and torch ran checkpoint the layers of the job") {
  const Json all = witness("checkpointing_calls.json");
  CHECK(all["versions"]["torch"] == kTorchVersion);
  CHECK(all["versions"]["transformers"] == kTransformersVersion);
  REQUIRE(all["cases"].size() >= 19);
  const Folder folder;
  for (const char* name : {"llama", "gpt2"}) {
    std::filesystem::create_directory(folder / (std::string("six-") + name));
    spill(folder / (std::string("six-") + name + "/config.json"), six_layers(name));
  }
  for (const Json& one : all["cases"]) {
    const std::string words = one["words"];
    const std::string model = one["model"];
    CAPTURE(model);
    CAPTURE(words);
    const Ran ran = run_binary(
        folder, split("emit six-" + model + " " + words + " --seq 32 --dtype fp32 --format checkpointing"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    CHECK(ran.out == one["emitted"].get<std::string>());
    if (words.find("modules:") != std::string::npos) continue;
    const std::vector<CheckpointGroup> groups = groups_of(model, split(words));
    std::vector<int> again(6, 0);
    for (const CheckpointGroup& group : groups) {
      for (std::int32_t layer = group.first; layer <= group.last; ++layer) again[static_cast<std::size_t>(layer)] = 1;
    }
    CHECK(one["checkpoints"].get<std::size_t>() == groups.size());
    CHECK(one["again"].get<std::vector<int>>() == again);
    if (words == "--checkpoint keep:linear") CHECK(one["products_again"] == 0);
  }
}

TEST_CASE("a launch line says the ranks, nodes and allocator of its job") {
  const Folder folder;
  const auto line = [&](const std::string& words) {
    const Ran ran = run_binary(folder, split("emit tiny-llama " + words + " --format launch"));
    CHECK_MESSAGE(ran.code == 0, ran.err);
    return ran.out;
  };
  CHECK(line("") == "python train.py\n");
  CHECK(line("--gpus 4") == "torchrun --standalone --nproc-per-node 4 train.py\n");
  CHECK(line("--gpus 16 --alloc-conf expandable_segments:True") ==
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "
        "$HEAD_NODE:29500 --nproc-per-node 8 train.py\n");
  CHECK(line("--gpus 8 --zero-stage 3") == "deepspeed --num_gpus 8 train.py --deepspeed ds_config.json\n");
  CHECK(line("--gpus 32 --gpus-per-node 4 --zero-stage 3") ==
        "deepspeed --hostfile hostfile --num_nodes 8 --num_gpus 4 train.py --deepspeed ds_config.json\n");
  for (const char* words : {"--gpus 16 --gpus-per-node 4", "--gpus 2", "--gpus 32 --zero-stage 1",
                            "--gpus 4 --zero-stage 2 --alloc-conf max_split_size_mb:128"}) {
    CAPTURE(words);
    std::string text = line(words);
    text.pop_back();
    const Request read = read_launch_line(split(text));
    const Ran plan = run_binary(folder, split(std::string("emit tiny-llama ") + words + " --format plan"));
    const Json training = Json::parse(plan.out)["training"];
    CHECK(*read.gpus == training["gpus"].get<std::int64_t>());
    CHECK(*read.gpus_per_node == training["gpus_per_node"].get<std::int64_t>());
    CHECK(read.alloc_conf.given() == training.contains("allocator_conf"));
  }
  const Ran accelerate = run_binary(
      folder, split("emit --format launch tiny-llama -- accelerate launch --mixed_precision bf16 --num_processes 2 a.py"));
  CHECK(accelerate.out == "accelerate launch --mixed_precision bf16 --num_processes 2 --num_machines 1 train.py\n");
}

TEST_CASE("what no line, no call and no file of a framework says is refused by name") {
  const Folder folder;
  const auto refused = [&](const std::string& words, const std::string& part) {
    const Ran ran = run_binary(folder, split("emit " + words));
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(part) != std::string::npos, ran.err);
    CHECK(ran.out.empty());
  };
  refused("tiny-llama --gpus 6 --gpus-per-node 4 --format launch", "6 ranks are no whole nodes of 4");
  refused("tiny-llama --gpus 4 --tp 2 --format launch", "tensor parallelism is started by the script's own arguments");
  refused("tiny-llama --placement planned --format launch", "PyTorch lays out no arena beforehand");
  refused("tiny-llama --checkpoint keep:mul --format checkpointing", "kept \"mul\": no operator of ATen stands for it alone");
  refused("tiny-llama --checkpoint modules:mlp --checkpoint-impl reentrant --format checkpointing",
          "checkpoints around modules in the reentrant form");
  refused("gemma-2-2b --checkpoint every:2 --format checkpointing", "runs of layers whose masks differ");
}
