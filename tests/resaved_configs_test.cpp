// A config.json says the same model when the current transformers has read it and written it again, with every field of
// its class (tests/witnesses/resaved_configs.json, by tools/oracles/resaved_configs.py).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/text.h"
#include "model/families.h"
#include "paths.h"
#include "planner/predict/predict.h"
#include "resolving.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
using namespace resolving;
using Json = nlohmann::ordered_json;

namespace {

Json read(const std::string& path) { return Json::parse(slurp(test_paths::source_dir() + "/" + path)); }

void lay_over(Json& config, const Json& changed) {
  for (const auto& [key, value] : changed.items()) {
    const bool part = value.is_object() && key.ends_with("_config") && config.contains(key) && config[key].is_object();
    if (part) {
      lay_over(config[key], value);
    } else {
      config[key] = value;
    }
  }
}

// `key` may be of an object inside: "text_config.dtype".
void drop(Json& config, const std::string& key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) {
    config.erase(key);
  } else {
    drop(config[key.substr(0, dot)], key.substr(dot + 1));
  }
}

Json saved_again(Json config, const Json& row) {
  for (const Json& key : row["drop"]) drop(config, key.get<std::string>());
  lay_over(config, row["set"]);
  return config;
}

// Every parameter, and what a step takes, as one text; or why there is none.
std::string described(const Json& config) {
  std::string text;
  try {
    Given given;
    given.model = build_model(parse_json("config.json", config.dump()), "it");
    for (const Parameter& one : given.model.parameters) {
      text += formatted("{} {} {} {}\n", one.name, one.shape.elements().value(), one.tied_to != kNone, one.trainable);
    }
    given.request.seq = {4096, option("--seq")};
    const Prediction it = predict(given.model, run(given), 0);
    text += formatted("states {} {} {}\n", it.states.parameters.value(), it.states.gradients.value(),
                      it.states.optimizer.value());
    if (it.peak) text += formatted("peak {} {}\n", it.peak->requested.value(), it.peak->allocated.value());
    for (const Absence& one : it.not_modelled) text += one.what + ": " + one.why + "\n";
  } catch (const Refusal& refusal) {
    for (const Diagnostic& one : refusal.diagnostics()) text += one.message + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("a configuration that transformers has read and saved says the same model") {
  const Json witness = read("tests/witnesses/resaved_configs.json");
  for (const auto& [kind, row] : witness["types"].items()) {
    CAPTURE(kind);
    const Json config = read("models/" + row["model"].get<std::string>() + ".json");
    CHECK(described(saved_again(config, row)) == described(config));
  }
}
