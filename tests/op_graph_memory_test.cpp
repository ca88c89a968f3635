// Op-graphs to the byte: the seed experiments T1 to T7 and table C1 of the PyTorch fact sheet, and figures that real
// PyTorch gave for the same files (2.11, FakeTensor on a CUDA device, storages counted by the dispatcher).
#include <doctest/doctest.h>

#include <numeric>
#include <optional>
#include <random>

#include "core/audit.h"
#include "core/format.h"
#include "io/op_graph.h"
#include "io/text.h"
#include "paths.h"
#include "planner/lower/lower_graph.h"
#include "planner/predict/predict_graph.h"

using namespace dsplan;

namespace {

struct Ran {
  OpGraph file;
  BuiltOpGraph built;
  Prediction prediction;
};

Ran run(OpGraph file) {
  BuiltOpGraph built = build_op_graph(file);
  const Schedule schedule = lower_graph(built, RecipeBook(built.graph), file.keep_outputs);
  for (const Finding& finding : audit(schedule)) FAIL_CHECK(file.name, ": event ", finding.event, ": ", finding.text);
  Prediction prediction = predict_graph(file, built, {});
  return {std::move(file), std::move(built), std::move(prediction)};
}

Ran bundled(const std::string& name) {
  return run(read_op_graph(read_document(test_paths::source_dir() + "/models/graphs/" + name + ".json"), name));
}

Ran inlined(const std::string& tensors, const std::string& ops, const std::string& outputs,
            const std::string& more = {}) {
  return run(read_op_graph(
      parse_json("graph.json", R"({"dsplan": 1, "kind": "graph", "source": "test", "tensors": {)" + tensors +
                                   R"(}, "ops": [)" + ops + R"(], "outputs": [)" + outputs + "]" + more + "}"),
      "graph"));
}

// Four figures in halves of a unit, as the tables print them; -1: null.
struct Figures {
  double after_forward;
  double forward_peak;
  double backward_peak;
  double after_backward;
};

void check(const Ran& ran, std::int64_t unit, const Figures& expected) {
  const AboveInputs& above = *ran.prediction.above_inputs;
  const auto bytes = [&](double units) { return Bytes(static_cast<std::int64_t>(units * 2) * (unit / 2)); };
  CHECK(above.after_forward == bytes(expected.after_forward));
  CHECK(above.forward_peak == bytes(expected.forward_peak));
  CHECK(above.backward_peak.has_value() == (expected.backward_peak >= 0));
  if (above.backward_peak) CHECK(*above.backward_peak == bytes(expected.backward_peak));
  if (above.after_backward) CHECK(*above.after_backward == bytes(expected.after_backward));
}

constexpr std::int64_t kGiB = 1LL << 30;
constexpr std::int64_t kC1 = 4096LL * 512 * 4;

struct Case {
  const char* name;
  std::int64_t unit;
  Figures figures;
};

// "Persistent" and "peak" of section 3.2 are the first two columns, all of table C1 its four; the rest is PyTorch's.
const std::vector<Case> kBundled = {
    {"t1-no-grad", kGiB, {1, 3, -1, -1}},
    {"t2-both-grad", kGiB, {3, 3, 4, 2}},
    {"t3-one-grad", kGiB, {2, 3, 2, 1}},
    {"t4-custom", kGiB, {1, 3, 2, 2}},
    {"t5-sigmoid", kGiB, {1, 1, 2, 1}},
    {"t6-naive-sigmoid", kGiB, {3, 4, 6, 1}},
    {"t7-five-sigmoids", kGiB, {5, 5, 6, 1}},
    {"c1-none", kC1, {36, 36, 39.5, 5}},
    {"c1-non-reentrant", kC1, {4, 11, 16.5, 5}},
    {"c1-reentrant", kC1, {4, 11, 17.5, 5}},
    {"c1-sequential", kC1, {19, 19, 24.5, 5}},
    {"custom-lower-peak", kGiB, {1, 2, 2, 2}},
    {"in-place-relu", kGiB, {2, 2, 3, 1}},
    {"used-twice", kGiB, {2, 2, 3, 1}},
    {"no-grad", kGiB, {2, 2, 2, 1}},
};

std::int64_t counted(const Prediction& p) {
  return std::accumulate(p.saved->begin(), p.saved->end(), std::int64_t{0},
                         [](std::int64_t sum, const SavedTensor& s) { return sum + s.counted.value(); });
}

}  // namespace

TEST_CASE("bundled op-graphs are right to the byte and legal") {
  for (const Case& one : kBundled) {
    CAPTURE(one.name);
    check(bundled(one.name), one.unit, one.figures);
  }
}

TEST_CASE("what the nodes save is what is held for backward") {
  for (const Case& one : kBundled) {
    CAPTURE(one.name);
    const Ran ran = bundled(one.name);
    CHECK(counted(ran.prediction) == ran.prediction.held_for_backward->by_role.total().value());
  }
}

TEST_CASE("saved tensors have PyTorch's names, and shared ones count once") {
  const auto row = [](const SavedTensor& s) {
    return dsplan::formatted("{} {} {} {} {}", s.node, s.name, s.tensor, s.counted.value(), name(s.storage));
  };
  const auto rows = [&](const char* name) {
    std::vector<std::string> texts;
    const Ran ran = bundled(name);
    for (const SavedTensor& saved : *ran.prediction.saved) texts.push_back(row(saved));
    return texts;
  };
  CHECK(rows("t3-one-grad") == std::vector<std::string>{"mul _saved_other b 1073741824 own"});
  CHECK(rows("t5-sigmoid") == std::vector<std::string>{"sigmoid _saved_result z 1073741824 own"});
  CHECK(rows("t4-custom") ==
        std::vector<std::string>{"custom _saved_tensors x 0 parameter", "custom _saved_tensors y 0 parameter"});
  const std::vector<std::string> twice = rows("used-twice");
  REQUIRE(twice.size() == 3);
  CHECK(twice[0] == "exp _saved_result e 1073741824 own");
  CHECK(twice[1].ends_with("e 0 shared"));
  CHECK(twice[2].ends_with("e 0 shared"));
}

TEST_CASE("lifetimes") {
  const std::string x = R"("x": {"shape": [256], "dtype": "float32", "requires_grad": true})";
  const std::string frozen = R"("x": {"shape": [256], "dtype": "float32"})";
  const std::string chain =
      R"({"op": "neg", "inputs": ["x"], "output": "a"}, {"op": "neg", "inputs": ["a"], "output": "b"},
      {"op": "neg", "inputs": ["b"], "output": "c"}, {"op": "neg", "inputs": ["c"], "output": "d"})";
  SUBCASE("a tensor dies after its last reader") { check(inlined(frozen, chain, R"("d")"), 1024, {1, 2, -1, -1}); }
  SUBCASE("unless it is held") {
    check(inlined(frozen, chain, R"("d")", R"(, "hold": {"a": 3})"), 1024, {1, 3, -1, -1});
    check(inlined(frozen, chain, R"("d")", R"(, "hold": {"a": 2})"), 1024, {1, 3, -1, -1});
  }
  SUBCASE("or an output") { check(inlined(frozen, chain, R"("a", "d")"), 1024, {2, 3, -1, -1}); }
  SUBCASE("outputs that are kept stay over backward") {
    check(inlined(x, chain, R"("d")", R"(, "keep_outputs": true)"), 1024, {1, 2, 3, 2});
    check(inlined(x, chain, R"("d")"), 1024, {1, 2, 2, 1});
  }
  SUBCASE("a node that no output leads to dies with its last holder") {
    check(inlined(x, R"({"op": "exp", "inputs": ["x"], "output": "e"}, {"op": "exp", "inputs": ["e"], "output": "f"},
      {"op": "neg", "inputs": ["x"], "output": "d"})",
                  R"("d")"),
          1024, {1, 2, 1, 1});
  }
  SUBCASE("what nobody reads dies at once") {
    check(inlined(frozen,
                  R"({"op": "neg", "inputs": ["x"], "output": "a"}, {"op": "neg", "inputs": ["x"], "output": "d"})",
                  R"("d")"),
          1024, {1, 1, -1, -1});
  }
  SUBCASE("a view holds the storage") {
    check(inlined(frozen, R"({"op": "neg", "inputs": ["x"], "output": "a"},
      {"op": "view", "inputs": ["a"], "shape": [16, -1], "output": "v"}, {"op": "neg", "inputs": ["x"], "output": "d"})",
                  R"("v", "d")"),
          1024, {2, 2, -1, -1});
  }
}

namespace {

// A random op-graph: elementwise operators, products and checkpoints over tensors of 64 x 64.
class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}

  std::string tensors() const {
    return R"("x": {"shape": [64, 64], "dtype": "float32", "requires_grad": true},
      "w": {"shape": [64, 64], "dtype": "float32", "requires_grad": true}, "c": {"shape": [64, 64], "dtype": "float32"})";
  }

  // Two graphs that differ in their checkpoints' form only.
  std::string ops(bool reentrant) {
    std::string text;
    names_ = {"x", "c"};
    const std::size_t count = 3 + pick(5);
    for (std::size_t i = 0; i < count; ++i) {
      if (!text.empty()) text += ", ";
      text += pick(3) == 0 ? checkpoint(reentrant) : one(names_, true);
    }
    return text;
  }

  std::string last() const { return '"' + names_.back() + '"'; }

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  std::string fresh() { return dsplan::formatted("t{}", next_++); }

  std::string one(std::vector<std::string>& from, bool chained) {
    constexpr std::array kUnary = {"exp", "sigmoid", "relu", "gelu", "neg", "tanh", "silu"};
    constexpr std::array kBinary = {"add", "mul", "sub"};
    const std::string a = chained ? from.back() : from[pick(from.size())];
    const std::string b = from[pick(from.size())];
    const std::string out = fresh();
    std::string text;
    switch (pick(3)) {
      case 0: text = dsplan::formatted(R"("op": "{}", "inputs": ["{}"])", kUnary[pick(kUnary.size())], a); break;
      case 1:
        text = dsplan::formatted(R"("op": "{}", "inputs": ["{}", "{}"])", kBinary[pick(kBinary.size())], a, b);
        break;
      default: text = dsplan::formatted(R"("op": "linear", "inputs": ["{}", "w"])", a); break;
    }
    from.push_back(out);
    return dsplan::formatted(R"({{{}, "output": "{}"}})", text, out);
  }

  std::string checkpoint(bool reentrant) {
    const std::string input = names_.back() == "c" ? "x" : names_.back();
    std::vector<std::string> inside = {input};
    std::string ops;
    const std::size_t count = 1 + pick(4);
    for (std::size_t i = 0; i < count; ++i) ops += (i == 0 ? "" : ", ") + one(inside, true);
    names_.push_back(inside.back());
    return dsplan::formatted(
        R"({{"op": "checkpoint", "reentrant": {}, "inputs": ["{}"], "outputs": ["{}"], "ops": [{}]}})", reentrant,
        input, inside.back(), ops);
  }

  std::mt19937 random_;
  int next_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

TEST_CASE("random op-graphs are legal, and both forms of checkpointing leave the same gradients") {
  int checkpointed = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random first(seed);
    const std::string ops = first.ops(false);
    CAPTURE(ops);
    const Ran plain = inlined(first.tensors(), ops, first.last());
    Random second(seed);
    const std::string same = second.ops(true);
    const Ran reentrant = inlined(second.tensors(), same, second.last());
    // A reentrant checkpoint that is given nothing with a gradient leaves its weights without one, and says so.
    if (reentrant.built.warnings.empty()) {
      CHECK(plain.prediction.above_inputs->after_backward == reentrant.prediction.above_inputs->after_backward);
    }
    CHECK(counted(plain.prediction) == plain.prediction.held_for_backward->by_role.total().value());
    checkpointed += plain.built.checkpoint.groups.empty() ? 0 : 1;
  }
  CHECK(checkpointed > 100);
}
