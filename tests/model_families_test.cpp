// Every family against what transformers itself printed (tests/witnesses/parameters), and against published counts.
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/format.h"
#include "core/model.h"
#include "core/sha256.h"
#include "io/text.h"
#include "model/families.h"
#include "paths.h"

using namespace dsplan;
namespace fs = std::filesystem;

namespace {

const fs::path kTests = fs::path(test_paths::source_dir()) / "tests";

ModelSpec model_of(const fs::path& config) {
  return build_model(parse_json(config.string(), read_file(config.string())), config.stem().string());
}

std::string cross(const Shape& shape) {
  if (shape.rank == 0) return "scalar";
  return dsplan::formatted("{}", dsplan::joined(shape.dims.begin(), shape.dims.begin() + shape.rank, "x"));
}

std::string dot(const std::string& path) { return path.empty() ? "." : path; }

// The witness's own wording of what a ModelSpec holds.
const char* word_of(DType dtype) { return dtype == DType::Int64 ? "int64" : dtype == DType::Bool ? "bool" : "float32"; }

std::vector<std::string> lines_of(const ModelSpec& model) {
  std::vector<std::string> lines{"class " + model.graph_class};
  for (const Parameter& p : model.parameters) {
    std::string line = dsplan::formatted("parameter {} {} {}", p.name, cross(p.shape), model.module_at(p.module).type);
    if (p.tied_to != kNone) line += " tied_to=" + model.parameter_at(p.tied_to).name;
    if (!p.trainable) line += " requires_grad=0";
    lines.push_back(line);
  }
  for (const ModelBuffer& buffer : model.buffers) {
    lines.push_back(dsplan::formatted("buffer {} {} {}", buffer.name, cross(buffer.shape), word_of(buffer.dtype)));
  }
  for (const Parameter& p : model.parameters) {
    if (p.dtype) lines.push_back(dsplan::formatted("bf16_exception parameter {} float32", p.name));
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (buffer.follows_model_dtype) continue;
    lines.push_back(dsplan::formatted("bf16_exception buffer {} {}", buffer.name, word_of(buffer.dtype)));
  }
  for (const Module& module : model.modules)
    lines.push_back(dsplan::formatted("module {} {}", dot(module.path), module.type));
  for (std::size_t i = 0; i < model.calls.size(); ++i) {
    const ModuleCall& call = model.calls[i];
    const std::string path = dot(model.module_at(call.module).path);
    if (call.enter && !model.calls[i + 1].enter) {
      lines.push_back("call " + path);
      ++i;
    } else {
      lines.push_back((call.enter ? "enter " : "exit ") + path);
    }
  }
  return lines;
}

std::vector<std::string> witness_lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    if (kind == "buffer") {  // Whether it is saved, and with whom it shares its storage, is not part of a ModelSpec.
      for (const std::string_view tail : {" storage_of=", " persistent", " not_persistent"}) {
        line = line.substr(0, line.find(tail));
      }
    }
    static const std::set<std::string> kinds{"class",  "parameter", "buffer", "bf16_exception",
                                             "module", "call",      "enter",  "exit"};
    if (kinds.contains(kind)) lines.push_back(line);
  }
  return lines;
}

std::vector<fs::path> witnesses() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(kTests / "witnesses" / "parameters")) {
    if (entry.path().extension() == ".txt") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Rows of a CSV file with quoted fields, by the names of its first line.
std::vector<std::map<std::string, std::string>> read_csv(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> header;
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') {
        quoted = !quoted;
      } else if (c == ',' && !quoted) {
        fields.emplace_back();
      } else {
        fields.back().push_back(c);
      }
    }
    if (header.empty()) {
      header = fields;
      continue;
    }
    std::map<std::string, std::string> row;
    for (std::size_t i = 0; i < header.size() && i < fields.size(); ++i) row[header[i]] = fields[i];
    rows.push_back(row);
  }
  return rows;
}

ModelSpec bundled(const std::string& name) {
  return model_of(fs::path(test_paths::source_dir()) / "models" / (name + ".json"));
}

std::string last_part(const std::string& id) { return id.substr(id.rfind('/') + 1); }

// The bundled model of a row of model-facts.csv; empty where there is none.
std::string bundled_name(const std::string& fact) {
  const bool text_part = fact.ends_with(" (text part)");
  const std::string id = last_part(fact.substr(0, fact.find(" (")));
  for (const auto& row : read_csv(fs::path(test_paths::source_dir()) / "models" / "index.csv")) {
    if (last_part(row.at("hub_id")) == id) return row.at("name") + (text_part ? "-text" : "");
  }
  return {};
}

}  // namespace

TEST_CASE("every family is what transformers builds: parameters, buffers, modules and calls, line by line") {
  std::set<std::string> seen;
  for (const fs::path& witness : witnesses()) {
    CAPTURE(witness.filename().string());
    fs::path config = witness;
    config.replace_extension(".json");
    const ModelSpec model = model_of(config);
    seen.insert(model.family);
    const std::vector<std::string> mine = lines_of(model);
    const std::vector<std::string> theirs = witness_lines(witness);
    const auto [a, b] = std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end());
    const std::string first_mine = a == mine.end() ? "(end)" : *a;
    const std::string first_theirs = b == theirs.end() ? "(end)" : *b;
    CHECK(first_mine == first_theirs);
  }
  for (const std::string_view family : family_names()) {
    CAPTURE(family);
    CHECK(seen.contains(std::string(family)));
  }
}

TEST_CASE("parameter counts are the published ones") {
  int compared = 0;
  for (const auto& row : read_csv(kTests / "data" / "model-facts.csv")) {
    const std::string& name = row.at("name");
    if (row.at("arch") == "gptj") continue;
    CAPTURE(name);
    const std::string model_name = bundled_name(name);
    REQUIRE(!model_name.empty());
    const ModelSpec model = bundled(model_name);
    const std::string& published = row.at("published_params");
    const std::int64_t expected = std::stoll(published.empty() ? row.at("formula_params") : published);
    CHECK(total_elements(model).value() == expected);
    ++compared;
  }
  CHECK(compared == 94);
}

// With what is a buffer to transformers and a tensor of the published files.
TEST_CASE("bundled models have the counts that models/index.csv says were published") {
  int compared = 0;
  for (const auto& row : read_csv(fs::path(test_paths::source_dir()) / "models" / "index.csv")) {
    const std::string& published = row.at("published_params");
    if (published.empty()) continue;
    CAPTURE(row.at("name"));
    CHECK(total_elements(bundled(row.at("name"))).value() == std::stoll(published));
    ++compared;
  }
  CHECK(compared >= 170);
}

TEST_CASE("an id is one bundled model, and every other id of a model names a bundled one that has no own row for it") {
  std::set<std::string> names;
  std::set<std::string> ids;
  const fs::path source = test_paths::source_dir();
  for (const auto& row : read_csv(source / "models" / "index.csv")) {
    CHECK_MESSAGE(names.insert(row.at("name")).second, row.at("name"));
    if (!row.at("hub_id").empty()) CHECK_MESSAGE(ids.insert(row.at("hub_id")).second, row.at("name"));
  }
  for (const auto& row : read_csv(source / "configs" / "model-names.csv")) {
    CHECK_MESSAGE(names.contains(row.at("means")), row.at("name"));
    CHECK_MESSAGE(ids.insert(row.at("name")).second, row.at("name"));
  }
}

TEST_CASE("every bundled model has the parameters that transformers gives it: count, total and digest") {
  std::set<std::string> seen;
  for (const auto& row : read_csv(kTests / "witnesses" / "parameters-real.csv")) {
    CAPTURE(row.at("name"));
    seen.insert(row.at("name"));
    const ModelSpec model = bundled(row.at("name"));
    std::string text;
    std::int64_t tensors = 0;
    for (const Parameter& p : model.parameters) {
      if (p.tied_to != kNone) continue;
      text += dsplan::formatted("{}{} {}", tensors == 0 ? "" : "\n", p.name, cross(p.shape));
      ++tensors;
    }
    // transformers counts parameters alone; the published count of DeepSeek-V3 has the routers' correction biases too.
    Elements counted;
    for (const ModelBuffer& buffer : model.buffers) counted += buffer.counted ? buffer.shape.elements() : Elements(0);
    CHECK((total_elements(model) - counted).value() == std::stoll(row.at("total")));
    CHECK(tensors == std::stoll(row.at("tensors")));
    CHECK(sha256(text) == row.at("sha256"));
  }
  for (const auto& entry : fs::directory_iterator(fs::path(test_paths::source_dir()) / "models")) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem().string();
    if (name == "torchtitan-debugmodel") continue;  // Of torchtitan alone: tests/launchers_test.cpp.
    CAPTURE(name);
    CHECK(seen.contains(name));
  }
}

TEST_CASE("layers are numbered through, and everything inside a layer carries its number") {
  const ModelSpec llama = bundled("llama-3-8b");
  std::int32_t last = -1;
  for (const Module& module : llama.modules) {
    const bool inside = module.path.starts_with("model.layers.");
    CHECK((module.layer != kNone) == inside);
    if (inside) CHECK(module.path.starts_with(dsplan::formatted("model.layers.{}", module.layer)));
    last = std::max(last, module.layer);
  }
  CHECK(last == 31);
  const ModelSpec t5 = bundled("t5-small");  // 6 encoder blocks, then 6 decoder blocks
  for (const Module& module : t5.modules) {
    if (module.path == "encoder.block.5.layer.0") CHECK(module.layer == 5);
    if (module.path == "decoder.block.0.layer.2") CHECK(module.layer == 6);
    if (module.path == "decoder.final_layer_norm") CHECK(module.layer == kNone);
  }
  CHECK(t5.dims.layers == 12);
}

TEST_CASE("only the families without operator graphs say so") {
  const std::set<std::string_view> without;
  for (const auto& row : read_csv(kTests / "witnesses" / "parameters-real.csv")) {
    const ModelSpec model = bundled(row.at("name"));
    CAPTURE(model.name);
    CHECK(model.has_graph != without.contains(model.family));
  }
}

TEST_CASE("dimensions follow the config, its nulls and its defaults") {
  const ModelSpec mixtral = bundled("mixtral-8x7b");
  CHECK(mixtral.dims.experts == 8);
  CHECK(mixtral.dims.experts_per_token == 2);
  CHECK(mixtral.dims.kv_heads == 8);
  CHECK(bundled("mistral-7b").dims.sliding_window == 4096);
  CHECK(bundled("mistral-7b-v0.3").dims.sliding_window == 0);  // null in the file; absent would mean 4096
  CHECK(bundled("qwen2-7b").dims.sliding_window == 0);         // use_sliding_window is false
  const Dimensions gemma = bundled("gemma-2-9b").dims;
  CHECK(gemma.attention_softcap == 50);
  CHECK(gemma.final_softcap == 30);
  CHECK(gemma.head_dim == 256);
  CHECK(bundled("phi-2").dims.rotary_fraction == 0.4);
  CHECK(bundled("llama-3-8b").stored_dtype == DType::BFloat16);
  CHECK(!bundled("gpt2").stored_dtype.has_value());
  const Dimensions gpt2 = build_model(parse_json("c.json", R"({"model_type": "gpt2"})"), "gpt2").dims;
  CHECK(gpt2.vocab == 50257);
  CHECK(gpt2.ffn == 3072);
  CHECK(gpt2.residual_dropout == 0.1);
}
