// Training scripts of others, run unchanged through `dsplan measure` on the dry device, and what a prediction from the
// file of settings that they were given says of them (docs/fsdp.md).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

// `segment`: by how much what is reserved may be off.
void check_peaks(const Json& phase, const Json& measured, std::int64_t segment) {
  CHECK(phase["peak_requested"] == measured[0]);
  CHECK(phase["peak_allocated"] == measured[1]);
  CHECK(std::abs(phase["peak_reserved"].get<std::int64_t>() - measured[2].get<std::int64_t>()) <= segment);
}

}  // namespace

TEST_CASE("torchtitan's own training script is predicted from its own file to the byte") {
  const Json receipts = Json::parse(slurp(test_paths::source_dir() + "/tests/receipts/launchers/torchtitan.json"));
  REQUIRE(receipts["runs"].size() >= 51);
  for (const Json& run : receipts["runs"]) {
    const std::string name = run["name"];
    const Folder folder;
    spill(folder / "train.toml", run["training"].get<std::string>());
    const Ran ran = run_binary(
        folder, split("simulate --training train.toml --gpus " + run["world"].dump() + " --rank " + run["rank"].dump() +
                      " --hardware " + run.value("device", "h100-sxm") + " --torchtitan-version " +
                      run.value("version", "0.2.2") + " --stream-frees immediate --host-memory 8TiB --format json"));
    CHECK_MESSAGE((ran.code == 0 || ran.code == 3), name, ran.err);
    std::size_t phases = 0;
    const Json answer = Json::parse(ran.out);
    for (const Json& phase : answer["memory"]["phases"]) {
      const std::string of = phase["name"];
      CAPTURE(name);
      CAPTURE(of);
      if (!run["measured"].contains(of)) continue;
      check_peaks(phase, run["measured"][of], name.starts_with("qwen3") ? 2 << 20 : 0);
      ++phases;
    }
    CHECK(phases == 3);
  }
}

// DDP's and fully_shard's streams and buckets leave the allocator other holes than ours.
TEST_CASE("LLaMA-Factory v1's own launcher is predicted from its own file, one GPU to the byte") {
  const Json receipts =
      Json::parse(slurp(test_paths::source_dir() + "/tests/receipts/launchers/llama_factory_v1.json"));
  REQUIRE(receipts["runs"].size() >= 7);
  for (const Json& run : receipts["runs"]) {
    const std::string name = run["name"];
    CAPTURE(name);
    const Folder folder;
    const std::string model = run["model"];
    spill(folder / "train.yaml", run["training"].get<std::string>());
    std::filesystem::create_directories(folder / model);
    spill(folder / (model + "/config.json"), receipts["models"][model].dump());
    const Ran ran = run_binary(
        folder, split("simulate " + model + " --training train.yaml --gpus " + run["world"].dump() + " --rank " +
                      run["rank"].dump() + " --hardware h100-sxm --stream-frees immediate --format json"));
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const Json answer = Json::parse(ran.out);
    for (const Json& phase : answer["memory"]["phases"]) {
      const std::string of = phase["name"];
      CAPTURE(of);
      if (!run["measured"].contains(of)) continue;
      const Json& measured = run["measured"][of];
      if (run["world"] == 1) {
        check_peaks(phase, measured, 0);
        continue;
      }
      CHECK(phase["peak_requested"] == measured[0]);
      CHECK(std::abs(phase["peak_allocated"].get<std::int64_t>() - measured[1].get<std::int64_t>()) <= 491'520);
      CHECK(std::abs(phase["peak_reserved"].get<double>() / measured[2].get<double>() - 1) <= 0.08);
    }
  }
}

TEST_CASE(
    "torchtitan's own code is refused where it is not modelled, and what it does not read is said to have no effect") {
  const std::string model =
      "simulate llama-3.1-8b --model-code torchtitan --dtype fp32 --seq 128 --gpus 2 --format json ";
  const Folder folder;
  const Ran accumulated = run_binary(folder, split(model + "--runtime pytorch --grad-accum 2"));
  CHECK(accumulated.out.find("accumulation under torchtitan's DDP") != std::string::npos);
  CHECK(run_binary(folder, split(model + "--runtime pytorch")).out.find("torchtitan's DDP") == std::string::npos);
  const Ran versioned = run_binary(folder, split(model + "--runtime fsdp2 --transformers-version 4.57.0"));
  CHECK(versioned.err.find("transformers' version has no effect: the model's code is torchtitan's") !=
        std::string::npos);
  for (const char* option : {"--lora r=8", "--freeze *", "--quantization nf4"}) {
    CAPTURE(option);
    const Ran refused = run_binary(folder, split(model + "--runtime fsdp2 " + option));
    CHECK(refused.code == 2);
    CHECK(refused.err.find("torchtitan's own code are not modelled yet") != std::string::npos);
  }
  const Ran other = run_binary(folder, split("simulate gpt2 --model-code torchtitan --dtype fp32 --seq 128"));
  CHECK(other.code == 2);
  CHECK(other.err.find("torchtitan's llama3 and qwen3 are not written for") != std::string::npos);
}
