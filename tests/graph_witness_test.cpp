// Operator graphs against what transformers did: the order in which modules are called, and the order in which
// gradients complete, for every witness of a family that has a graph.
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/format.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "model/parts.h"
#include "model/traits.h"
#include "paths.h"
#include "recorder.h"

using namespace dsplan;
namespace fs = std::filesystem;

namespace {

const fs::path kWitnesses = fs::path(test_paths::source_dir()) / "tests" / "witnesses" / "parameters";

// A picture has as many tokens as it has patches, sound as many as it has positions.
Graph graph_of(const ModelSpec& model) {
  GraphOptions options;
  const bool sound = model.family == "whisper";
  options.seq = model.dims.image > 0 || sound ? model.dims.max_positions : 8;
  options.target_seq = model.dims.decoder_layers > 0 ? 8 : 0;
  if (biases_positions(model)) options.attention = AttentionKernel::MemoryEfficient;
  if (const TowerParts* tower = sized_tower(model)) {
    options.image_size = {2 * tower->patch * tower->merge, 3 * tower->patch * tower->merge};
    if (!tower->cuts.empty()) options.image_size = {2 * tower->dims.image, tower->dims.image};
  }
  options.images = picture_tokens(model, options.image_size) > 0 ? 1 : 0;
  options.eager_attention = eager_alone(model);
  return build_graph(model, options);
}

std::vector<std::string> gradient_order(const ModelSpec& model, const Checkpointing& checkpointing) {
  const Graph graph = graph_of(model);
  return ready_order(model, graph, checkpointing);
}

std::vector<std::string> lines_of(const fs::path& path, std::string_view kind) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kind)) lines.push_back(line.substr(kind.size()));
  }
  return lines;
}

// The graph's module boundaries in the witness's words; a module that calls no other is one "call".
std::vector<std::string> calls_of_graph(const ModelSpec& model) {
  const Graph graph = graph_of(model);
  std::vector<std::pair<bool, ModuleId>> marks;
  for (const Instruction& at : graph.program) {
    if (at.kind == Instruction::Kind::Enter) marks.emplace_back(true, at.module());
    if (at.kind == Instruction::Kind::Exit) marks.emplace_back(false, at.module());
  }
  std::vector<std::string> calls;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const std::string& path = model.module_at(marks[i].second).path;
    calls.push_back(dsplan::formatted("{} {}", marks[i].first ? "enter" : "exit", path.empty() ? "." : path));
  }
  return calls;
}

std::vector<std::string> calls_of_spec(const ModelSpec& model) {
  std::vector<std::string> calls;
  for (const ModuleCall& call : model.calls) {
    const std::string& path = model.module_at(call.module).path;
    calls.push_back(dsplan::formatted("{} {}", call.enter ? "enter" : "exit", path.empty() ? "." : path));
  }
  return calls;
}

// "12 lines equal, then "enter a" instead of "enter b"": where two lists part. Empty: they are equal.
std::string difference(const std::vector<std::string>& ours, const std::vector<std::string>& theirs) {
  if (ours == theirs) return {};
  const auto [a, b] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  const auto said = [](auto at, const std::vector<std::string>& list) { return at == list.end() ? "nothing" : *at; };
  return dsplan::formatted("{} lines equal, then \"{}\" instead of \"{}\"", a - ours.begin(), said(a, ours),
                           said(b, theirs));
}

}  // namespace

TEST_CASE("graphs call modules and complete gradients in transformers' order") {
  std::size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(kWitnesses)) {
    if (entry.path().extension() != ".json") continue;
    const ModelSpec model = build_model(read_document(entry.path().string()), entry.path().stem().string());
    if (!model.has_graph || is_body(model)) continue;  // A body has no loss to begin at.
    // A head that no graph has: refused by name (pictures_test).
    if (model.parts != nullptr && model.parts->tower != nullptr && model.parts->tower->pools) continue;
    INFO(entry.path().filename().string());
    // model.calls is equal to the witness line by line (model_families_test); the graph must agree with it.
    CHECK(difference(calls_of_graph(model), calls_of_spec(model)) == "");
    fs::path list = entry.path();
    list.replace_extension(".txt");
    const std::vector<std::string> witnessed = lines_of(list, "gradient ");
    REQUIRE(!witnessed.empty());
    CHECK(difference(gradient_order(model, {}), witnessed) == "");
    Checkpointing full;
    for (std::int32_t layer = 0; layer < model.dims.layers; ++layer) full.groups.push_back({layer, layer});
    // Where one group of layers is called in the place of several nothing is checkpointed (albert).
    if (!graph_of(model).regions.empty()) CHECK(difference(gradient_order(model, full), witnessed) == "");
    ++compared;
  }
  CHECK(compared >= 12);
}
