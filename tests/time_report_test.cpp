// Step times as users see them: the four formats, what is said without rates, a calibration; and who never looks at
// them.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

const std::string kRoot = test_paths::source_dir();

Ran simulate(const Folder& folder, const std::string& words) {
  Ran ran = run_binary(folder, split("simulate " + words));
  CHECK_MESSAGE(ran.code == 0, ran.err);
  return ran;
}

Json json(const Folder& folder, const std::string& words) {
  return Json::parse(simulate(folder, words + " --format json").out);
}

std::string why(const Json& prediction) {
  for (const Json& absence : prediction["not_modelled"]) {
    if (absence["what"] == "time") return absence["why"];
  }
  return "";
}

const std::string kJob = "tiny-llama --seq 64 --gpus 8 --zero-stage 2 ";

TEST_CASE("JSON: seconds by phase, an interval, and where the rates are from") {
  const Folder folder;
  const Json time = json(folder, kJob + "--cluster 8xa100-80g")["time"];
  CHECK(time["calibrated"] == false);
  CHECK(time["basis"].get<std::string>().find("a100-sxm-80 by its data sheet") == 0);
  REQUIRE(time["phases"].size() == 3);
  double sum = 0;
  for (const char* name : {"forward", "backward", "step"}) {
    const Json& phase = time["phases"][static_cast<std::size_t>(name[0] == 'f' ? 0 : name[0] == 'b' ? 1 : 2)];
    CHECK(phase["name"] == name);
    sum += phase["seconds"].get<double>();
  }
  const double total = time["seconds"];
  CHECK(std::abs(total / sum - 1) < 1e-4);
  CHECK(time["low_seconds"] < total);
  CHECK(time["high_seconds"] > total);
  CHECK(std::abs(time["tokens_per_second"].get<double>() * total / (8 * 64) - 1) < 1e-4);
}

TEST_CASE("without a rate there is no time, and the row is named") {
  const Folder folder;
  const Json none = json(folder, kJob);
  CHECK(none["time"].is_null());
  CHECK(why(none).find("no device is named") == 0);
  const Json v100 = json(folder, kJob + "--hardware v100-sxm2-32");
  CHECK(v100["time"].is_null());
  CHECK(why(v100).find("v100-sxm2-32 has no \"bf16\" rate") != std::string::npos);
  const Json nodes = json(folder, kJob + "--hardware a100-sxm-80 --gpus-per-node 4");
  CHECK(nodes["time"].is_null());
  CHECK(why(nodes).find("node_network_gb_per_s") != std::string::npos);
  const Json graph = json(folder, "t3-one-grad --hardware a100-sxm-80");
  CHECK(graph["time"].is_null());
  CHECK(why(graph).find("of a graph alone") == 0);
}

TEST_CASE("the table says estimated, and stays within the terminal") {
  const Folder folder;
  const std::string text = simulate(folder, "llama-3-8b --cluster 8xh100 --zero-stage 3 --verbose").out;
  const std::size_t at = text.find("  step, estimated");
  REQUIRE(at != std::string::npos);
  for (const char* part : {"exposed", "hidden", "forward", "backward", "tokens/s", "MFU"}) {
    CHECK_MESSAGE(text.find(part, at) != std::string::npos, part);
  }
  CHECK(widest_line(text) <= 80);
  CHECK(simulate(folder, "llama-3-8b --zero-stage 3 --gpus 8 --verbose").out.find("step, estimated") ==
        std::string::npos);
}

TEST_CASE("CSV and Markdown have it too") {
  const Folder folder;
  const std::string csv = simulate(folder, kJob + "--cluster 8xa100-80g --format csv").out;
  CHECK(csv.find("\n0,time.seconds,") != std::string::npos);
  CHECK(csv.find("\n0,time.phases.backward.exposed_seconds,") != std::string::npos);
  const std::string markdown = simulate(folder, kJob + "--cluster 8xa100-80g --format md").out;
  CHECK(markdown.find("Time of one optimizer step, estimated: ") != std::string::npos);
  CHECK(markdown.find("\n| backward | ") != std::string::npos);
}

TEST_CASE("a calibration of kernels makes it calibrated") {
  const Folder folder;
  const auto row = [](const std::string& name, const std::string& value, const std::string& unit) {
    return R"({"name": ")" + name + R"(", "value": )" + value + R"(, "unit": ")" + unit +
           R"(", "how": "by hand", "samples": []})";
  };
  const auto file = [&](const std::string& rows) {
    return R"({"schema": "dsplan.calibration/1", "source": "by hand",
      "environment": {"gpu": "NVIDIA A100-SXM4-80GB", "capacity_bytes": null, "driver": null, "cuda": null,
        "python": null, "torch": null, "transformers": null, "deepspeed": null, "peft": null, "allocator_conf": "",
        "limit_bytes": null, "recorded": "2026-11-21T19:00:00Z"},
      "rows": [)" +
           rows + "]}";
  };
  spill(folder / "c.json", file(row("gemm:bf16:8192x8192x8192", "100000000000000", "flop_per_s") + "," +
                                row("copy_d2d:1073741824", "1200000000000", "bytes_per_s")));
  const std::string job = "gpt2 --hardware a100-sxm-80 --micro-batch 16 ";
  const Json before = json(folder, job)["time"];
  const Json after = json(folder, job + "--calibration c.json")["time"];
  CHECK(after["calibrated"] == true);
  CHECK(after["basis"].get<std::string>().find("matrix products, device memory as measured") == 0);
  CHECK(after["phases"][0]["compute_seconds"] > before["phases"][0]["compute_seconds"]);
  CHECK(simulate(folder, job + "--calibration c.json --verbose").out.find("  step, calibrated") != std::string::npos);
  spill(folder / "none.json", file(row("gemm:bf16:8192x8192x8192", "0", "flop_per_s")));
  const Ran none = run_binary(folder, split("simulate " + job + "--calibration none.json"));
  CHECK(none.code == 2);
  CHECK(none.err.find("a rate is more than nothing") != std::string::npos);
}

TEST_CASE("time is no part of a baseline: a check of other rates agrees") {
  const Folder folder;
  std::filesystem::copy(kRoot + "/models/tiny-llama.json", folder / "config.json");
  std::filesystem::copy(kRoot + "/docs/examples/ci/gpu.json", folder / "gpu.json");
  spill(folder / "train.json", R"({"dsplan": 1, "kind": "training", "source": "by hand", "seq": 64,
    "attention": "flash", "loss": "hf", "checkpoint": "none", "dtype": "bf16", "micro_batch": 1, "grad_accum": 1,
    "optimizer": {"name": "adamw", "implementation": "fused"}, "torch_version": "2.11.0",
    "transformers_version": "5.17.0"})");
  const Ran added = run_binary(
      folder, split("check --add baselines/tiny.json config.json --training train.json --gpus 1 --hardware gpu.json"));
  REQUIRE_MESSAGE(added.code == 0, added.err);
  CHECK(slurp(folder / "baselines/tiny.json").find("_seconds") == std::string::npos);
  std::string gpu = slurp(folder / "gpu.json");
  gpu.replace(gpu.find("\"memory_gb_per_s\": 3350"), 23, "\"memory_gb_per_s\": 1000");
  spill(folder / "gpu.json", gpu);
  const Ran ran = run_binary(folder, split("check"));
  CHECK_MESSAGE(ran.code == 0, ran.out, ran.err);
}

}  // namespace
