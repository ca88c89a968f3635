// The binary as users see it: exit codes, what goes to which stream, and the exact words of refusals.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "run_binary.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

Ran dsplan_runs(const Folder& folder, const std::string& line) { return run_binary(folder, split(line)); }

std::int64_t sum_of_roles(const Json& roles) {
  std::int64_t sum = 0;
  for (const char* role : {"parameters", "gradients", "optimizer", "runtime_buffers", "activations", "temporaries",
                           "inputs", "module_buffers", "workspace"}) {
    sum += roles.at(role).get<std::int64_t>();
  }
  return sum;
}

void check_sums(const Json& report) {
  const Json& memory = report.at("memory");
  const Json& states = memory.at("states");
  CHECK(states.at("parameters").get<std::int64_t>() + states.at("gradients").get<std::int64_t>() +
            states.at("optimizer").get<std::int64_t>() ==
        states.at("total").get<std::int64_t>());
  CHECK(sum_of_roles(memory.at("persistent")) == memory.at("persistent").at("total").get<std::int64_t>());
  if (!memory.at("held_for_backward").is_null()) {
    const Json& held = memory.at("held_for_backward");
    CHECK(sum_of_roles(held.at("by_role")) == held.at("total").get<std::int64_t>());
  }
  if (!memory.at("peak").is_null()) {
    const Json& peak = memory.at("peak");
    CHECK(sum_of_roles(peak.at("by_role")) == peak.at("requested").get<std::int64_t>());
    CHECK(peak.at("allocated").get<std::int64_t>() >= peak.at("requested").get<std::int64_t>());
  }
}

// Every null has an entry in not_modelled, at its own path or one around or inside it.
void check_nulls(const Json& value, const std::string& path, const Json& absences) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) check_nulls(child, path.empty() ? key : path + "." + key, absences);
  }
  if (!value.is_null()) return;
  bool said = false;
  for (const Json& absence : absences) {
    const auto what = absence.at("what").get<std::string>();
    CHECK(!absence.at("why").get<std::string>().empty());
    said = said || path == what || path.starts_with(what + ".") || what.starts_with(path + ".");
  }
  CHECK_MESSAGE(said, path);
}

void check_against(const Json& schema, const Json& value, const std::string& path) {
  INFO(path);
  if (schema.contains("enum")) {
    CHECK(std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end());
    return;
  }
  std::vector<std::string> types;
  if (schema.at("type").is_array()) {
    types = schema["type"].get<std::vector<std::string>>();
  } else {
    types.push_back(schema["type"].get<std::string>());
  }
  const std::string type = value.is_null()             ? "null"
                           : value.is_boolean()        ? "boolean"
                           : value.is_number_integer() ? "integer"
                           : value.is_string()         ? "string"
                           : value.is_array()          ? "array"
                           : value.is_object()         ? "object"
                                                       : "number";
  CHECK(std::find(types.begin(), types.end(), type) != types.end());
  if (type == "integer" && schema.contains("minimum")) CHECK(value.get<std::int64_t>() >= schema["minimum"]);
  if (type == "array") {
    for (const Json& item : value) check_against(schema.at("items"), item, path + "[]");
  }
  if (type != "object") return;
  CHECK(value.size() == schema.at("properties").size());
  for (const Json& key : schema.at("required")) CHECK(value.contains(key.get<std::string>()));
  for (const auto& [key, child] : value.items()) {
    REQUIRE_MESSAGE(schema["properties"].contains(key), path, ".", key);
    check_against(schema["properties"][key], child, path + "." + key);
  }
}

constexpr const char* kTinyConfig = R"({
  "model_type": "llama",
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
  "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256,
  "max_position_embeddings": 512
})";

const std::vector<std::string> kRuns = {
    "simulate tiny-llama",
    "simulate tiny-llama --gpus 4",
    "simulate tiny-llama --zero-stage 1 --gpus 4 --hardware l4",
    "simulate tiny-llama --zero-stage 2 --gpus 4 --grad-accum 2 --capacity 16GiB",
    "simulate tiny-llama --zero-stage 3 --gpus 8 --checkpoint full --cluster 8xh100",
    "simulate tiny-gpt2 --seq 64 --capacity 700MiB",
    "simulate tiny-gpt2 --dtype fp32 --optimizer sgd --freeze '*wte*'",
    "simulate bloom-560m --zero-stage 3 --gpus 8",
    "simulate qwen2.5-7b --deepspeed zero3-offload --gpus 8",
    "simulate tiny-llama --training example --seq 128",
    "simulate tiny-llama --zero-stage 1 -- deepspeed --num_gpus 2 train.py --bf16 true --per_device_train_batch_size 2",
};

}  // namespace

TEST_CASE("every report fits 80 columns, parses, sums up and obeys the schema") {
  const Folder folder;
  const Json schema = Json::parse(dsplan_runs(folder, "show schema").out);
  for (const std::string& line : kRuns) {
    CAPTURE(line);
    // An option stands before the launch line.
    const std::size_t at = line.find(" -- ");
    const auto with = [&](const std::string& more) {
      return at == std::string::npos ? line + " " + more : line.substr(0, at) + " " + more + line.substr(at);
    };
    const Ran table = dsplan_runs(folder, with("--explain peak --explain traffic"));
    CAPTURE(table.err);
    CHECK((table.code == 0 || table.code == 3));
    CHECK(widest_line(table.out) <= 80);
    const std::string verdict = table.out.substr(0, table.out.find(':'));
    const bool known =
        verdict == "fits" || verdict == "fits with retries" || verdict == "does not fit" || verdict == "unknown";
    CHECK_MESSAGE(known, verdict);
    CHECK((verdict == "does not fit") == (table.code == 3));

    const Ran json = dsplan_runs(folder, with("--format json"));
    CHECK(json.code == table.code);
    const Json report = Json::parse(json.out, nullptr, false);
    REQUIRE(!report.is_discarded());
    check_sums(report);
    check_nulls(report, "", report.at("not_modelled"));
    check_against(schema, report, "");

    const Ran csv = dsplan_runs(folder, with("--format csv"));
    CHECK(csv.out.starts_with("rank,path,value\n"));
    const std::string total = std::to_string(report["memory"]["persistent"]["total"].get<std::int64_t>());
    CHECK(csv.out.find(",memory.persistent.total," + total + "\n") != std::string::npos);
    CHECK(dsplan_runs(folder, with("--format md")).out.starts_with("## "));
  }
}

TEST_CASE("a launch line gives ranks and micro-batch, and an option beats it") {
  const Folder folder;
  const std::string launch = " -- deepspeed --num_gpus 2 train.py --bf16 true --per_device_train_batch_size 3";
  const Ran line = dsplan_runs(folder, "simulate tiny-llama --zero-stage 1" + launch);
  CHECK(line.out.find("2 GPUs, ") != std::string::npos);
  CHECK(line.out.find("micro-batch 3,") != std::string::npos);
  const Ran option = dsplan_runs(folder, "simulate tiny-llama --zero-stage 1 --micro-batch 4" + launch);
  CHECK(option.out.find("micro-batch 4,") != std::string::npos);
}

TEST_CASE("--rank all prints one report per rank") {
  const Folder folder;
  const std::string line = "simulate tiny-llama --zero-stage 2 --gpus 3 --rank all";
  const Ran json = dsplan_runs(folder, line + " --format json");
  REQUIRE(json.code == 0);
  const Json all = Json::parse(json.out);
  CHECK(all.at("schema") == "dsplan.predictions/1");
  REQUIRE(all.at("ranks").size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(all["ranks"][rank].at("rank") == rank);
    CHECK(all["ranks"][rank].at("schema") == "dsplan.prediction/1");
    check_sums(all["ranks"][rank]);
  }
  const Ran table = dsplan_runs(folder, line);
  CHECK(widest_line(table.out) <= 80);
  CHECK(table.out.find("\n     2 ") != std::string::npos);
}

TEST_CASE("too small a device: exit 3, the missing bytes and the moment") {
  const Folder folder;
  const Ran ran = dsplan_runs(folder, "simulate llama-3-8b --zero-stage 3 --gpus 8 --capacity 24GiB");
  CHECK(ran.code == 3);
  CHECK(ran.out.starts_with("does not fit: "));
  CHECK(ran.out.find("missing") < ran.out.find("\n\n"));
}

namespace {

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

TEST_CASE("a model of 10^15 parameters is counted, not wrapped") {
  const Folder folder;
  spill(folder / "config.json",
        "{\"model_type\": \"llama\", \"hidden_size\": 1000000, \"num_hidden_layers\": 60, \"num_attention_heads\": 8,\n"
        "\"intermediate_size\": 4000000, \"vocab_size\": 32000}");
  const Ran ran = dsplan_runs(folder, "simulate config.json --gpus 1024 --zero-stage 3 --format json --seq 16");
  if (ran.code == 2) {
    CHECK(ran.err.find("63 bits") != std::string::npos);
  } else {
    const Json report = Json::parse(ran.out);
    // 60 layers of 4 h^2 + 3 h ffn + 2 h, two embeddings and a norm.
    CHECK(report.at("parameters").at("total").get<std::int64_t>() ==
          60LL * (4 * 1'000'000'000'000 + 12 * 1'000'000'000'000 + 2'000'000) + 64'000'000'000 + 1'000'000);
    check_sums(report);
  }
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

TEST_CASE("commands that are not there yet are refused by name") {
  const Folder folder;
  for (const char* command : {"explain", "plan", "run", "compare", "check", "emit", "calibrate"}) {
    const Ran ran = dsplan_runs(folder, std::string(command) + " tiny-llama");
    CHECK(ran.code == 2);
    CHECK(ran.err == std::string("dsplan ") + command + ": error: this command is not modelled yet\n");
  }
}

TEST_CASE("help and version go to standard output and leave with 0") {
  const Folder folder;
  for (const std::string line : {"--help", "--version", "simulate --help", "show --help", "show formulas --help",
                                 "replay --help", "doctor --help", "show estimators --help"}) {
    CAPTURE(line);
    const Ran ran = dsplan_runs(folder, line);
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(!ran.out.empty());
    CHECK(widest_line(ran.out) <= 80);
  }
  const std::string help = dsplan_runs(folder, "simulate --help").out;
  for (const char* option : {"--deepspeed",
                             "--training",
                             "--hardware",
                             "--cluster",
                             "--gpus",
                             "--gpus-per-node",
                             "--tp",
                             "--sp",
                             "--ep",
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
                             "--alloc-conf",
                             "--stream-frees",
                             "--placement",
                             "--deepspeed-version",
                             "--torch-version",
                             "--transformers-version",
                             "--env",
                             "--host-memory",
                             "--capacity",
                             "--reserve",
                             "--rank",
                             "--phase",
                             "--strict",
                             "--set",
                             "--format",
                             "--out",
                             "--diff",
                             "--sweep",
                             "--explain"}) {
    CHECK_MESSAGE(help.find(std::string("  ") + option + " ") != std::string::npos, option);
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
  const std::string data = std::string(DSPLAN_SOURCE_DIR) + "/tests/data/allocator/";
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
