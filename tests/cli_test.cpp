// The binary as users see it: exit codes, what goes to which stream, and the exact words of refusals.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "paths.h"
#include "run_binary.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

Ran dsplan_runs(const Folder& folder, const std::string& line) { return run_binary(folder, split(line)); }

constexpr const char* kTinyConfig = R"({
  "model_type": "llama",
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
  "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256,
  "max_position_embeddings": 512
})";

struct Bad {
  std::string line;
  std::string err;  // The whole of standard error.
};

}  // namespace

TEST_CASE("bad input is refused with its place and its rule, and nothing on standard output") {
  const Folder folder;
  spill(folder / "cut.json", "{\"model_type\": \"llama\",\n \"hidden_size\": 40");
  spill(folder / "types.json", "{\"model_type\": \"llama\", \"hidden_size\": \"big\", \"vocab_size\": -5}");
  spill(folder / "heads.json", "{\"model_type\": \"llama\", \"hidden_size\": 100, \"num_attention_heads\": 7}");
  spill(folder / "failed.log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.\n");
  spill(folder / "family.json", "{\"model_type\": \"lama\"}");
  spill(folder / "huge.json",
        "{\"model_type\": \"llama\", \"hidden_size\": 1000000000000, \"num_hidden_layers\": 4,\n"
        "\"num_attention_heads\": 8, \"intermediate_size\": 4000000000000, \"vocab_size\": 900000000000}");
  spill(folder / "stage.json", "{\"zero_optimization\": {\"stage\": 4}}");
  spill(folder / "batch.json",
        "{\"train_batch_size\": 10, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 1}");
  spill(folder / "graph.json", "{\"dsplan\": 1, \"kind\": \"graph\", \"source\": \"x\"}");
  std::filesystem::create_directory(folder / "empty");

  const std::vector<Bad> bads = {
#include "cli_refusals.inc"
  };
  for (const Bad& bad : bads) {
    CAPTURE(bad.line);
    const Ran ran = dsplan_runs(folder, bad.line);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.err == bad.err);
  }
}

TEST_CASE("faults of several files are reported in one go") {
  const Folder folder;
  spill(folder / "config.json", "{\"model_type\": \"llama\", \"hidden_size\": 0}");
  spill(folder / "ds.json", "{\"zero_optimization\": {\"stage\": \"three\"}}");
  const Ran ran = dsplan_runs(folder, "simulate config.json --deepspeed ds.json --hardware h1000");
  CHECK(ran.code == 2);
  CHECK(ran.err.find("config.json:1:") != std::string::npos);
  CHECK(ran.err.find("ds.json:1:") != std::string::npos);
  CHECK(ran.err.find("h1000: error:") != std::string::npos);
}

TEST_CASE("a huge file of brackets is refused without being read whole") {
  const Folder folder;
  {
    std::ofstream file(folder / "brackets.json", std::ios::binary);
    const std::string brackets(1 << 20, '[');
    for (int i = 0; i < 70; ++i) file << brackets;
  }
  const Ran ran = dsplan_runs(folder, "simulate brackets.json");
  CHECK(ran.code == 2);
  CHECK(ran.err == "brackets.json: error: larger than 64 MiB\n");
  spill(folder / "deep.json", std::string(1 << 20, '['));
  const Ran deep = dsplan_runs(folder, "simulate deep.json");
  CHECK(deep.code == 2);
  CHECK(deep.err.starts_with("deep.json:1:"));
  CHECK(deep.err.size() < 400);
}

TEST_CASE("help and version go to standard output and leave with 0") {
  const Folder folder;
  for (const std::string line :
       {"--help", "--version", "simulate --help", "show --help", "show formulas --help", "replay --help",
        "doctor --help", "show estimators --help", "emit --help", "explain --help", "calibrate --help", "plan --help",
        "check --help", "compare --help", "measure --help", "sweep --help", "run --help", "diff --help"}) {
    CAPTURE(line);
    const Ran ran = dsplan_runs(folder, line);
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(!ran.out.empty());
    CHECK(widest_line(ran.out) <= 80);
  }
  const std::string of_run = dsplan_runs(folder, "run --help").out;
  for (const char* refused : {"--quantization", "--quant-storage", "--activation-offloading", "--liger-kernels"}) {
    CAPTURE(refused);
    CHECK(of_run.find(refused) == std::string::npos);
  }
  CHECK(dsplan_runs(folder, "diff --help").out.find("[A] [B] [MODEL]") != std::string::npos);
  const std::string help = dsplan_runs(folder, "simulate --help").out;
  for (const char* option : {"--deepspeed",
                             "--training",
                             "--hardware",
                             "--cluster",
                             "--gpus",
                             "--gpus-per-node",
                             "--tp",
                             "--zero-stage",
                             "--runtime",
                             "--micro-batch",
                             "--grad-accum",
                             "--seq",
                             "--seq-list",
                             "--dtype",
                             "--autocast",
                             "--lora",
                             "--freeze",
                             "--checkpoint",
                             "--attention",
                             "--loss",
                             "--optimizer",
                             "--routing",
                             "--loop",
                             "--level",
                             "--alloc-conf",
                             "--stream-frees",
                             "--placement",
                             "--deepspeed-version",
                             "--torch-version",
                             "--transformers-version",
                             "--host-memory",
                             "--nvme-memory",
                             "--capacity",
                             "--reserve",
                             "--rank",
                             "--phase",
                             "--strict",
                             "--set",
                             "--format",
                             "--out",
                             "--explain"}) {
    CHECK_MESSAGE(help.find(std::string("  ") + option + " ") != std::string::npos, option);
  }
  // What is always refused is not listed.
  for (const char* option : {"--sp", "--ep", "--env"}) {
    CHECK_MESSAGE(help.find(std::string("  ") + option + " ") == std::string::npos, option);
  }
}

TEST_CASE("the lists of `show` fit 80 columns") {
  const Folder folder;
  const std::vector<std::pair<std::string, std::string>> topics = {
      {"models", "llama-3-8b"},
      {"hardware", "h100-sxm"},
      {"clusters", "8xh100"},
      {"operators", "scaled_dot_product_attention"},
      {"deepspeed", "zero3"},
      {"training", "example"},
      {"formulas --params 7500000000 --gpus 64 --budget 32GB", "112 GB"},
      {"formulas --params 1000000 --layers 4 --hidden 64 --heads 4", "ZeRO-Infinity"},
      {"estimators tiny-llama --gpus 16 --gpus-per-node 8", "optimizer+param"},
      {"assumptions tiny-llama --gpus 4 --zero-stage 2", "given    GPUs = 4"}};
  for (const auto& [topic, holds] : topics) {
    CAPTURE(topic);
    const Ran ran = dsplan_runs(folder, "show " + topic);
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(widest_line(ran.out) <= 80);
    if (holds != "112 GB") CHECK(ran.out.find(holds) != std::string::npos);
  }
}

TEST_CASE("replay prints the expected CSV byte for byte") {
  const Folder folder;
  const std::string data = test_paths::source_dir() + "/tests/data/allocator/";
  for (const char* name : {"g01-small-large", "g12-out-of-memory", "random-03"}) {
    const Ran ran = run_binary(folder, {"replay", data + name + ".trace"});
    CHECK(ran.code == 0);
    CHECK(ran.out == slurp(data + name + ".expected.csv"));
  }
  spill(folder / "bad.trace", "capacity 1000000\nfree 7\n");
  const Ran bad = dsplan_runs(folder, "replay bad.trace");
  CHECK(bad.code == 2);
  CHECK(bad.out.empty());
  CHECK(bad.err.starts_with("bad.trace:2:"));
}

TEST_CASE("--out writes a file that appears when it is complete") {
  const Folder folder;
  const Ran good = dsplan_runs(folder, "simulate tiny-llama --format json --out report.json");
  CHECK(good.code == 0);
  CHECK(good.out.empty());
  CHECK(Json::parse(slurp(folder / "report.json")).at("schema") == "dsplan.prediction/1");
  // A refusal leaves the older file as it was, and nothing beside it.
  CHECK(dsplan_runs(folder, "simulate tiny-llama --seq 0 --out report.json").code == 2);
  CHECK(Json::parse(slurp(folder / "report.json")).at("schema") == "dsplan.prediction/1");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.path().filename().string().starts_with("report.json") ? 1U : 0U;
  }
  CHECK(files == 1);
  const Ran nowhere = dsplan_runs(folder, "simulate tiny-llama --out no/such/folder/x");
  CHECK(nowhere.code == 2);
  CHECK(nowhere.err == "--out: error: no/such/folder/x: No such file or directory\n");
}

TEST_CASE("a full disk is an error, a reader that goes away is not") {
  const Folder folder;
  const Ran full = run_binary(folder, {"simulate", "tiny-llama", "--gpus", "1"}, "/dev/full");
  CHECK(full.code == 2);
  CHECK(full.err.find("standard output: error: No space left on device\n") != std::string::npos);
  const Ran gone = run_binary(folder, {"show", "models"}, kNoReader);
  CHECK(gone.code == 0);
  CHECK(gone.err.empty());
}

TEST_CASE("a safetensors folder must agree with its config") {
  const Folder folder;
  spill(folder / "config.json", kTinyConfig);
  std::string header = R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  spill(folder / "model.safetensors", file + header + std::string(16, '\0'));
  const Ran ran = run_binary(folder, {"simulate", folder.path()});
  CHECK(ran.code == 2);
  CHECK(ran.out.empty());
  CHECK(ran.err.find("its safetensors files differ: ") != std::string::npos);
}

TEST_CASE("inert keys and assumptions are told on standard error; --strict refuses assumptions") {
  const Folder folder;
  spill(folder / "ds.json", "{\"bf16\": {\"enabled\": true}, \"steps_per_print\": 10, \"zero_optimizatoin\": {}}");
  const Ran ran = dsplan_runs(folder, "simulate tiny-llama --deepspeed ds.json --gpus 2");
  CHECK(ran.code == 0);
  CHECK(ran.err.find("ds.json:1:") != std::string::npos);
  CHECK(ran.err.find("zero_optimization") != std::string::npos);
  CHECK(ran.out.find("\nassumed: ") != std::string::npos);
  const Ran strict = dsplan_runs(folder, "simulate tiny-llama --strict");
  CHECK(strict.code == 2);
  CHECK(strict.err.find("--seq: error: ") != std::string::npos);
}
