// Names in a checkpoint against names of parameters: what save_pretrained writes, and the spellings that loading takes.
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "core/format.h"
#include "io/text.h"
#include "model/checkpoint_names.h"
#include "model/families.h"
#include "paths.h"

using namespace dsplan;
namespace fs = std::filesystem;

namespace {

const fs::path kWitnesses = fs::path(test_paths::source_dir()) / "tests" / "witnesses" / "parameters";

ModelSpec witness_model(const std::string& name) {
  const std::string path = (kWitnesses / (name + ".json")).string();
  return build_model(parse_json(path, read_file(path)), name);
}

std::vector<std::int64_t> shape_of(std::string text) {
  std::vector<std::int64_t> shape;
  if (text == "scalar") return shape;
  std::replace(text.begin(), text.end(), 'x', ' ');
  std::istringstream words(text);
  for (std::int64_t dim = 0; words >> dim;) shape.push_back(dim);
  return shape;
}

// The `checkpoint NAME SHAPE DTYPE` lines: the file that save_pretrained wrote for the model in bf16.
std::vector<CheckpointTensor> saved(const std::string& name) {
  std::ifstream file(kWitnesses / (name + ".txt"));
  std::vector<CheckpointTensor> tensors;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, tensor, shape, dtype;
    words >> kind >> tensor >> shape >> dtype;
    if (kind == "checkpoint") tensors.push_back({tensor, dtype, shape_of(shape), "model.safetensors"});
  }
  return tensors;
}

std::vector<std::string> names(const std::vector<CheckpointTensor>& tensors) {
  std::vector<std::string> list;
  for (const CheckpointTensor& tensor : tensors) list.push_back(tensor.name);
  std::sort(list.begin(), list.end());
  return list;
}

void rename(std::vector<CheckpointTensor>& tensors, std::string_view from, std::string_view to) {
  for (CheckpointTensor& tensor : tensors) {
    const std::size_t at = tensor.name.find(from);
    if (at != std::string::npos) tensor.name.replace(at, from.size(), to);
  }
}

void drop(std::vector<CheckpointTensor>& tensors, std::string_view name) {
  std::erase_if(tensors, [&](const CheckpointTensor& t) { return t.name == name; });
}

CheckpointTensor& at(std::vector<CheckpointTensor>& tensors, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  REQUIRE(found != tensors.end());
  return *found;
}

}  // namespace

TEST_CASE("the file that transformers saves is the one expected, name by name, and agrees") {
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(kWitnesses)) {
    if (entry.path().extension() != ".txt") continue;
    const std::string name = entry.path().stem().string();
    CAPTURE(name);
    ModelSpec model = witness_model(name);
    model.stored_dtype = DType::BFloat16;
    const std::vector<CheckpointTensor> file = saved(name);
    REQUIRE(!file.empty());
    CHECK(names(expected_checkpoint(model)) == names(file));
    const CheckpointComparison comparison = compare_checkpoint(model, file);
    CHECK(comparison.differences == std::vector<std::string>{});
    CHECK(comparison.notes == std::vector<std::string>{});
    ++compared;
  }
  CHECK(compared >= 60);
}

TEST_CASE("spellings that loading accepts agree too") {
  struct Case {
    std::string_view what, model;
    std::function<void(std::vector<CheckpointTensor>&)> change;
    std::vector<std::string> notes;
  };
  const std::vector<Case> cases{
      {"gpt2 as published, without the prefix and with masks",
       "gpt2",
       [](auto& file) {
         rename(file, "transformer.", "");
         file.push_back({"h.0.attn.bias", "BF16", {1, 1, 64, 64}, ""});
       },
       {"1 tensors of the file are passed over on loading, h.0.attn.bias among them"}},
      {"bert as published, with the prefix, old norms and the head of pre-training",
       "bert-body",
       [](auto& file) {
         for (CheckpointTensor& tensor : file) tensor.name = "bert." + tensor.name;
         rename(file, "LayerNorm.weight", "LayerNorm.gamma");
         rename(file, "LayerNorm.bias", "LayerNorm.beta");
         file.push_back({"cls.predictions.bias", "BF16", {128}, ""});
       },
       {"1 tensors of the file are passed over on loading, cls.predictions.bias among them"}},
      {"a tied head instead of the embedding",
       "llama-tied",
       [](auto& file) { rename(file, "model.embed_tokens.weight", "lm_head.weight"); },
       {}},
      {"a tied head beside the embedding",
       "llama-tied",
       [](auto& file) {
         file.push_back({"lm_head.weight", "BF16", {128, 32}, ""});
       },
       {"lm_head.weight is in the file beside model.embed_tokens.weight, to which the config ties it; if their values "
        "differ, transformers loads it untied"}},
      {"stacked experts",
       "mixtral",
       [](auto& file) {
         std::erase_if(file, [](const CheckpointTensor& t) { return t.name.find(".experts.") != std::string::npos; });
         for (const int layer : {0, 1}) {
           file.push_back(
               {dsplan::formatted("model.layers.{}.mlp.experts.gate_up_proj", layer), "BF16", {4, 96, 32}, ""});
           file.push_back({dsplan::formatted("model.layers.{}.mlp.experts.down_proj", layer), "BF16", {4, 32, 48}, ""});
         }
       },
       {}},
      {"old rotary tables",
       "llama-gqa",
       [](auto& file) {
         file.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, ""});
       },
       {"1 tensors of the file are passed over on loading, model.layers.0.self_attn.rotary_emb.inv_freq among them"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    ModelSpec model = witness_model(std::string(c.model));
    model.stored_dtype = DType::BFloat16;
    std::vector<CheckpointTensor> file = saved(std::string(c.model));
    c.change(file);
    const CheckpointComparison comparison = compare_checkpoint(model, file);
    CHECK(comparison.differences == std::vector<std::string>{});
    CHECK(comparison.notes == c.notes);
  }
}

TEST_CASE("differences are listed with both sides") {
  ModelSpec model = witness_model("mixtral");  // bfloat16 by its config
  std::vector<CheckpointTensor> file = saved("mixtral");
  drop(file, "model.norm.weight");
  drop(file, "model.layers.1.block_sparse_moe.experts.2.w3.weight");
  at(file, "lm_head.weight").shape = {130, 32};
  at(file, "model.layers.0.self_attn.q_proj.weight").dtype = "F8_E4M3";
  at(file, "model.layers.1.self_attn.q_proj.weight").dtype = "F8_E4M3";
  file.push_back({"model.layers.0.self_attn.q_proj.weight_scale_inv", "F32", {1, 1}, "model-00001.safetensors"});
  CHECK(compare_checkpoint(model, file).differences ==
        std::vector<std::string>{
            "shape: lm_head.weight is [130, 32] in model.safetensors, [128, 32] by the config",
            "unexpected: model.layers.0.self_attn.q_proj.weight_scale_inv [1, 1] in model-00001.safetensors is in the "
            "checkpoint, not in the model",
            "missing: model.layers.1.block_sparse_moe.experts.2.w3.weight [48, 32] is in the model, not in the "
            "checkpoint",
            "missing: model.norm.weight [32] is in the model, not in the checkpoint",
            "dtype: 2 tensors are F8_E4M3 in the checkpoint, BF16 by the config; "
            "model.layers.0.self_attn.q_proj.weight first"});
}

TEST_CASE("an unrelated checkpoint is summed up") {
  const ModelSpec model = witness_model("llama-gqa");
  std::vector<CheckpointTensor> file;
  for (int i = 0; i < 1000; ++i) file.push_back({dsplan::formatted("t{}", i), "BF16", {1}, ""});
  const std::vector<std::string> lines = compare_checkpoint(model, file).differences;
  CHECK(lines.size() == 42);  // 20 and 20 shown, one line for the rest of each
  CHECK(lines[40] == "missing: 1 more tensors");
  CHECK(lines[41] == "unexpected: 980 more tensors");
}
