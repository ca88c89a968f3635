// Op-graph files: what is refused, where, and why.
#include <doctest/doctest.h>

#include "io/op_graph.h"
#include "io/text.h"
#include "model/op_graphs/op_graph.h"

using namespace dsplan;

namespace {

// The refusal's text; empty where the file is taken.
std::string refusal(const std::string& text) {
  try {
    (void)build_op_graph(read_op_graph(parse_json("graph.json", text), "graph"));
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return {};
}

BuiltOpGraph built(const std::string& text) {
  return build_op_graph(read_op_graph(parse_json("graph.json", text), "graph"));
}

// Three leaves, `ops`, and what follows them.
std::string graph(const std::string& ops, const std::string& rest = R"("outputs": ["z"])") {
  return R"({"dsplan": 1, "kind": "graph", "source": "test", "tensors": {
"x": {"shape": [4, 8], "dtype": "float32", "requires_grad": true},
"y": {"shape": [4, 8], "dtype": "float32"}, "i": {"shape": [4], "dtype": "int64"}},
"ops": [
)" + ops +
         "\n],\n" + rest + "}";
}

struct Case {
  const char* what;
  std::string text;
  const char* expected;  // Part of the refusal.
};

void check(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    CAPTURE(one.what);
    const std::string said = refusal(one.text);
    CHECK_MESSAGE(said.find(one.expected) != std::string::npos, said);
  }
}

}  // namespace

TEST_CASE("a fault points at its place") {
  CHECK(refusal(graph(R"({"op": "sigmoyd", "inputs": ["x"], "output": "z"})")) ==
        R"(graph.json:5:8: error: no operator "sigmoyd"; did you mean "sigmoid"?
    5 | {"op": "sigmoyd", "inputs": ["x"], "output": "z"}
      |        ^
)");
  CHECK(refusal(graph(R"({"op": "neg", "inputs": ["q"], "output": "a"},
{"op": "linear", "inputs": ["x", "y"], "bias": 3, "output": "b"},
{"op": "mul", "inputs": ["x", "i"], "output": "z"})")) ==
        R"(graph.json:5:26: error: there is no tensor "q"
    5 | {"op": "neg", "inputs": ["q"], "output": "a"},
      |                          ^
graph.json:6:40: error: unknown key "bias" in linear
    6 | {"op": "linear", "inputs": ["x", "y"], "bias": 3, "output": "b"},
      |                                        ^
graph.json:7:31: error: shapes [4, 8] and [4] do not broadcast
    7 | {"op": "mul", "inputs": ["x", "i"], "output": "z"}
      |                               ^
)");
}

TEST_CASE("files that are no op-graph") {
  const std::string head = R"({"dsplan": 1, "kind": "graph", "source": "test", )";
  check({
      {"no tensors", head + R"("ops": [], "outputs": ["z"]})", "\"tensors\" is missing"},
      {"no ops", head + R"("tensors": {}, "outputs": ["z"]})", "\"ops\" is missing"},
      {"no outputs", head + R"("tensors": {}, "ops": []})", "\"outputs\" is missing"},
      {"unknown key", head + R"("tensors": {}, "ops": [], "outputs": ["z"], "hodl": {}})", "did you mean \"hold\"?"},
      {"no shape", head + R"("tensors": {"x": {"dtype": "float32"}}, "ops": [], "outputs": ["x"]})",
       "\"shape\" is missing"},
      {"dtype", head + R"("tensors": {"x": {"shape": [], "dtype": "float31"}}, "ops": [], "outputs": ["x"]})",
       "did you mean \"float32\"?"},
      {"empty tensor",
       head + R"("tensors": {"x": {"shape": [2, 0], "dtype": "float32"}}, "ops": [], "outputs": ["x"]})",
       "without elements"},
      {"63 bits",
       head +
           R"("tensors": {"x": {"shape": [4294967296, 2147483648], "dtype": "float32"}}, "ops": [], "outputs": ["x"]})",
       "more bytes than fit in 63 bits"},
      {"huge",
       head + R"("tensors": {"x": {"shape": [9223372036854775808], "dtype": "int8"}}, "ops": [], "outputs": ["x"]})",
       "does not fit in 63 bits"},
      {"rank", head + R"("tensors": {"x": {"shape": [1,1,1,1,1,1,1], "dtype": "int8"}}, "ops": [], "outputs": ["x"]})",
       "at most 6"},
      {"integer with gradient",
       head +
           R"("tensors": {"x": {"shape": [1], "dtype": "int8", "requires_grad": true}}, "ops": [], "outputs": ["x"]})",
       "only Tensors of floating point"},
  });
}

TEST_CASE("names") {
  check({
      {"used before it is made",
       graph(R"({"op": "neg", "inputs": ["a"], "output": "z"}, {"op": "neg", "inputs": ["x"], "output": "a"})"),
       "\"a\" is used before it is made"},
      {"cycle",
       graph(R"({"op": "neg", "inputs": ["b"], "output": "z"}, {"op": "neg", "inputs": ["z"], "output": "b"})"),
       "a cycle: \"b\" is made from what needs it here"},
      {"itself", graph(R"({"op": "neg", "inputs": ["z"], "output": "z"})"), "a cycle"},
      {"twice",
       graph(R"({"op": "neg", "inputs": ["x"], "output": "z"}, {"op": "neg", "inputs": ["x"], "output": "z"})"),
       "\"z\" is defined twice"},
      {"a leaf again", graph(R"({"op": "neg", "inputs": ["x"], "output": "y"})", R"("outputs": ["y"])"),
       "\"y\" is defined twice"},
      {"no output", graph(R"({"op": "neg", "inputs": ["x"]})"), "\"output\" is missing"},
      {"both", graph(R"({"op": "neg", "inputs": ["x"], "output": "z", "outputs": ["z"]})"), "exclude each other"},
      {"inside", graph(R"({"op": "checkpoint", "inputs": ["x"], "outputs": ["a"], "ops": [
{"op": "exp", "inputs": ["x"], "output": "b"}, {"op": "exp", "inputs": ["b"], "output": "a"}]}, {"op": "neg", "inputs": ["b"], "output": "z"})"),
       "\"b\" is made inside operator 0"},
      {"hold", graph(R"({"op": "neg", "inputs": ["x"], "output": "z"})", R"("outputs": ["z"], "hold": {"z": 1})"),
       "there is no operator 1"},
      {"hold of a leaf",
       graph(R"({"op": "neg", "inputs": ["x"], "output": "z"})", R"("outputs": ["z"], "hold": {"x": 0})"),
       "no operator of the top level makes \"x\""},
      {"output twice", graph(R"({"op": "neg", "inputs": ["x"], "output": "z"})", R"("outputs": ["z", "z"])"),
       "an output twice"},
  });
}

TEST_CASE("shapes, dtypes and attributes") {
  check({
      {"linear", graph(R"({"op": "linear", "inputs": ["x", "i"], "output": "z"})"), "takes tensors of one dtype"},
      {"mm", graph(R"({"op": "mm", "inputs": ["x", "y"], "output": "z"})"), "cannot be multiplied ([4, 8] and [4, 8])"},
      {"arity", graph(R"({"op": "mul", "inputs": ["x"], "output": "z"})"), "mul takes 2 tensors, not 1"},
      {"view", graph(R"({"op": "view", "inputs": ["x"], "shape": [5, -1], "output": "z"})"),
       "does not hold the 32 elements"},
      {"view of a transposed tensor",
       graph(
           R"({"op": "t", "inputs": ["x"], "output": "a"}, {"op": "view", "inputs": ["a"], "shape": [32], "output": "z"})"),
       "view size is not compatible"},
      {"chunk", graph(R"({"op": "chunk", "inputs": ["x"], "chunks": 3, "dim": 1, "outputs": ["z", "a"]})"),
       "gives 3 tensors"},
      {"missing attribute", graph(R"({"op": "pow", "inputs": ["x"], "output": "z"})"), "pow needs \"exponent\""},
      {"dropout", graph(R"({"op": "dropout", "inputs": ["x"], "p": 1.5, "output": "z"})"), "between 0 and 1"},
      {"gelu", graph(R"({"op": "gelu", "inputs": ["x"], "approximate": "tan", "output": "z"})"),
       "\"approximate\" must be one of"},
      {"float needed", graph(R"({"op": "exp", "inputs": ["i"], "output": "z"})"), "needs a floating-point tensor"},
      {"indices", graph(R"({"op": "embedding", "inputs": ["x", "y"], "output": "z"})"), "takes indices"},
      {"too large", graph(R"({"op": "expand", "inputs": ["i"], "shape": [4294967296, 4294967296, 4], "output": "z"})"),
       "63 bits"},
  });
}

TEST_CASE("in place, as PyTorch refuses it") {
  check({
      {"leaf", graph(R"({"op": "relu", "inputs": ["x"], "output": "z", "in_place": true})"),
       "a leaf Variable that requires grad is being used in an in-place operation."},
      {"saved",
       graph(
           R"({"op": "exp", "inputs": ["x"], "output": "a"}, {"op": "add_scalar", "inputs": ["a"], "output": "z", "in_place": true})"),
       "has been modified by an inplace operation; the exp of line 5 saved it"},
      {"shape",
       graph(
           R"({"op": "sum", "inputs": ["y"], "dim": 0, "output": "a"}, {"op": "add", "inputs": ["a", "y"], "output": "z", "in_place": true})"),
       "doesn't match the broadcast shape"},
      {"dtype",
       graph(
           R"({"op": "sum", "inputs": ["i"], "output": "a"}, {"op": "sum", "inputs": ["y"], "output": "b"}, {"op": "mul", "inputs": ["a", "b"], "output": "z", "in_place": true})"),
       "can't be cast"},
      {"expanded",
       graph(
           R"({"op": "sum", "inputs": ["y"], "output": "a"}, {"op": "expand", "inputs": ["a"], "shape": [3], "output": "b"}, {"op": "neg", "inputs": ["b"], "output": "z", "in_place": true})"),
       "more than one element"},
      {"no such form", graph(R"({"op": "gelu", "inputs": ["y"], "output": "z", "in_place": true})"),
       "has no in-place form"},
      {"under no_grad",
       graph(
           R"({"op": "exp", "inputs": ["x"], "output": "a"}, {"op": "neg", "inputs": ["a"], "output": "z", "in_place": true, "no_grad": true})"),
       "not modelled yet"},
  });
  // Saved after it was written, or by nobody that backward asks.
  CHECK(
      refusal(
          graph(
              R"({"op": "mul_scalar", "inputs": ["x"], "output": "a"}, {"op": "relu", "inputs": ["a"], "output": "z", "in_place": true})"))
          .empty());
  CHECK(refusal(graph(R"({"op": "relu", "inputs": ["y"], "output": "z", "in_place": true})")).empty());
}

TEST_CASE("checkpoints that cannot work") {
  const auto checkpoint = [](const std::string& keys, const std::string& ops) {
    return R"({"op": "checkpoint", )" + keys + R"(, "outputs": ["z"], "ops": [)" + ops + "]}";
  };
  const std::string exp = R"({"op": "exp", "inputs": ["x"], "output": "z"})";
  const std::string sequential = R"({"op": "checkpoint_sequential", "inputs": ["x"], "outputs": ["z"], "functions": [[
{"op": "exp", "inputs": ["x"], "output": "a"}], [{"op": "exp", "inputs": ["a"], "output": "z"}]], "segments": )";
  check({
      {"none requires grad",
       graph(checkpoint(
           R"("reentrant": true, "inputs": ["x"])",
           R"({"op": "detach", "inputs": ["x"], "output": "d"}, {"op": "exp", "inputs": ["d"], "output": "z"})")),
       "none of output has requires_grad=True"},
      {"captured",
       graph(R"({"op": "exp", "inputs": ["x"], "output": "a"}, )" +
             checkpoint(R"("reentrant": true, "inputs": ["x"])",
                        R"({"op": "mul", "inputs": ["x", "a"], "output": "z"})")),
       "is not among its inputs"},
      {"selective and reentrant", graph(checkpoint(R"("reentrant": true, "save": ["exp"], "inputs": ["x"])", exp)),
       "only supported when use_reentrant=False"},
      {"selective by linear", graph(checkpoint(R"("save": ["linear"], "inputs": ["x"])", exp)),
       "linear is no operator of the dispatcher"},
      {"selective by a composite", graph(checkpoint(R"("save": ["cross_entropy"], "inputs": ["x"])", exp)),
       "no operator of the dispatcher"},
      {"autograd.grad",
       graph(checkpoint(R"("reentrant": true, "inputs": ["x"])", exp), R"("outputs": ["z"], "autograd_grad": ["x"])"),
       "incompatible with .grad()"},
      {"autograd.grad, non-reentrant",
       graph(checkpoint(R"("inputs": ["x"])", exp), R"("outputs": ["z"], "autograd_grad": ["x"])"), "not modelled yet"},
      {"nested",
       graph(checkpoint(R"("inputs": ["x"])",
                        R"({"op": "checkpoint", "inputs": ["x"], "outputs": ["z"], "ops": [)" + exp + "]}")),
       "inside a checkpoint"},
      {"segments", graph(sequential + "3}"), "range() arg 3 must not be zero"},
      {"not returned",
       graph(
           R"({"op": "checkpoint", "inputs": ["x"], "outputs": ["z"], "ops": [{"op": "exp", "inputs": ["x"], "output": "a"}]})"),
       "\"z\" is not made inside this checkpoint"},
      {"custom sees its inputs only",
       graph(
           R"({"op": "custom", "inputs": ["x"], "saves": [], "outputs": ["z"], "ops": [{"op": "mul", "inputs": ["x", "y"], "output": "z"}]})"),
       "sees only its inputs"},
  });
  CHECK(refusal(graph(sequential + "2}")).empty());
  const BuiltOpGraph warned = built(graph(
      checkpoint(R"("reentrant": true, "inputs": ["y"])", R"({"op": "mul", "inputs": ["x", "y"], "output": "z"})")));
  REQUIRE(warned.warnings.size() == 1);
  CHECK(warned.warnings[0].message == "None of the inputs have requires_grad=True. Gradients will be None");
  CHECK_FALSE(warned.has_gradient);
}
