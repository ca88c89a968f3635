// Every family against what transformers itself printed (tests/witnesses/parameters), and against published counts.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/model.h"
#include "io/text.h"
#include "model/families.h"

using namespace dsplan;
namespace fs = std::filesystem;

namespace {

const fs::path kTests = fs::path(DSPLAN_SOURCE_DIR) / "tests";

ModelSpec model_of(const fs::path& config) {
  return build_model(parse_json(config.string(), read_file(config.string())), config.stem().string());
}

std::string cross(const Shape& shape) {
  if (shape.rank == 0) return "scalar";
  return fmt::format("{}", fmt::join(shape.dims.begin(), shape.dims.begin() + shape.rank, "x"));
}

std::string dot(const std::string& path) { return path.empty() ? "." : path; }

// The witness's own wording of what a ModelSpec holds.
std::vector<std::string> lines_of(const ModelSpec& model) {
  std::vector<std::string> lines{"class " + model.graph_class};
  for (const Parameter& p : model.parameters) {
    std::string line = fmt::format("parameter {} {} {}", p.name, cross(p.shape),
                                   model.modules[static_cast<std::size_t>(p.module)].type);
    if (p.tied_to != kNone) line += " tied_to=" + model.parameters[static_cast<std::size_t>(p.tied_to)].name;
    if (!p.trainable) line += " requires_grad=0";
    lines.push_back(line);
  }
  for (const ModelBuffer& buffer : model.buffers) {
    lines.push_back(fmt::format("buffer {} {} {}", buffer.name, cross(buffer.shape),
                                buffer.dtype == DType::Int64 ? "int64" : "float32"));
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (buffer.follows_model_dtype) continue;
    lines.push_back(
        fmt::format("bf16_exception buffer {} {}", buffer.name, buffer.dtype == DType::Int64 ? "int64" : "float32"));
  }
  for (const Module& module : model.modules)
    lines.push_back(fmt::format("module {} {}", dot(module.path), module.type));
  for (std::size_t i = 0; i < model.calls.size(); ++i) {
    const ModuleCall& call = model.calls[i];
    const std::string path = dot(model.modules[static_cast<std::size_t>(call.module)].path);
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
