// Names that transformers and peft take (tests/witnesses/names.json, by tools/oracles/names.py): each optimizer is
// resolved, or refused as what it is; modules that get adapters where nobody names any are peft's.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/families.h"
#include "model/lora.h"
#include "resolving.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
using Json = nlohmann::json;

namespace {

Json framework_names() {
  return Json::parse(slurp(std::string(test_paths::source_dir()) + "/tests/witnesses/names.json"));
}

}  // namespace

TEST_CASE(
    "names: every optimizer of transformers is resolved or refused by name, with one that is modelled beside it") {
  const Json names = framework_names();
  std::size_t resolved = 0;
  for (const Json& one : names["optimizers"]) {
    const std::string name = one;
    CAPTURE(name);
    resolving::Given given;
    given.request.optimizer = {name, option("--optimizer")};
    const std::string said = resolving::refusal(given);
    if (said == "accepted") {
      ++resolved;
      continue;
    }
    CHECK(said.find("optimizer \"" + name + "\" (") != std::string::npos);
    CHECK(said.find("is not modelled yet; \"") != std::string::npos);
    // What is named instead is modelled.
    const std::size_t at = said.find("yet; \"") + 6;
    given.request.optimizer = {said.substr(at, said.find('"', at) - at), option("--optimizer")};
    CHECK(resolving::refusal(given) == "accepted");
  }
  CHECK(resolved == 20);
}

TEST_CASE("names: modules that peft adapts by itself, family by family") {
  const Json mapping = framework_names()["lora_targets"];
  for (const std::string_view family : family_names()) {
    CAPTURE(family);
    std::vector<std::string> ours = usual_targets(family);
    std::sort(ours.begin(), ours.end());
    const std::string key(family);
    if (mapping.contains(key) && mapping[key].is_string()) {  // A pattern (gemma4): whoever wants it names its modules.
      CHECK(ours.empty());
      continue;
    }
    CHECK(ours == (mapping.contains(key) ? mapping[key].get<std::vector<std::string>>() : std::vector<std::string>()));
  }
}
