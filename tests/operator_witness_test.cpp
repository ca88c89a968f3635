// The rows of the operator catalogue against real torch: tests/witnesses/operators.json, made by
// tools/oracles/operators.py. Every case agrees at dispatch level, to the byte and in order. A row may say
// Witness::Fake, and must, if there are cases of it and nothing of them had to be left out.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <map>

#include "operator_cases.h"

namespace dsplan {
namespace {

const nlohmann::json& witnesses() {
  static const nlohmann::json data = [] {
    std::ifstream in(DSPLAN_SOURCE_DIR "/tests/witnesses/operators.json");
    REQUIRE(in);
    return nlohmann::json::parse(in);
  }();
  return data;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string difference(const testing::Described& ours, const testing::Described& theirs) {
  std::string text;
  const auto compare = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b) text += fmt::format("\n    {}: recipe \"{}\", torch \"{}\"", what, a, b);
  };
  compare("forward", ours.forward, theirs.forward);
  compare("saved", joined(ours.saved), joined(theirs.saved));
  compare("backward", ours.backward, theirs.backward);
  compare("passes", joined(ours.passes), joined(theirs.passes));
  return text;
}

}  // namespace

TEST_CASE("every row equals torch at dispatch level, or says that nobody has confirmed it") {
  std::array<int, kOps> cases{};
  std::array<int, kOps> agreeing{};
  std::array<bool, kOps> artefact{};
  for (const nlohmann::json& entry : witnesses().at("cases")) {
    const Graph graph = testing::graph_of(entry);
    const Op op = graph.nodes[0].op;
    ++cases[static_cast<std::size_t>(op)];
    testing::Described ours = testing::described(graph);
    const testing::Described theirs = testing::witnessed(entry);
    if (entry.contains("artefact")) {
      // Fake tensors go another way through this backward than tensors on a GPU: the reason stands in "artefacts".
      CHECK(witnesses().at("artefacts").contains(name(op)));
      artefact[static_cast<std::size_t>(op)] = true;
      ours.backward = theirs.backward;
    }
    const std::string text = difference(ours, theirs);
    if (text.empty()) ++agreeing[static_cast<std::size_t>(op)];
    CHECK_MESSAGE(text.empty(), entry.dump() << text);
  }
  for (std::size_t i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    const bool confirmed = cases[i] > 0 && agreeing[i] == cases[i] && !artefact[i];
    CHECK_MESSAGE((witness_of(op) != Witness::Read) == confirmed,
                  name(op) << ": " << agreeing[i] << " of " << cases[i] << " cases agree");
  }
}

}  // namespace dsplan
