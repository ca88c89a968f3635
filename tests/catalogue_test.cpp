// The operator catalogue against the published figures of PyTorch's eager mode, its version switches, and its page.
#include <doctest/doctest.h>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "core/format.h"
#include "model/catalogue/describe.h"
#include "operator_cases.h"
#include "paths.h"
#include "report/operator_comparison.h"

using namespace dsplan;

namespace {

using nlohmann::json;

// Bytes that backward finds beside the operator's inputs, the most that backward has at once of its own, and the names
// of what is kept.
struct Figures {
  std::int64_t kept = 0;
  std::int64_t backward_peak = 0;
  std::set<std::string> names;
};

Figures figures_of(const Graph& graph, const CatalogueOptions& options = {}) {
  const Node& node = graph.nodes.front();
  Recipe recipe;
  recipe_of(graph, node, recipe, options);
  Figures figures;
  for (const Saved& saved : recipe.saved) {
    figures.names.insert(saved.name);
    if (saved.kind == Saved::Kind::Output) figures.kept += graph.bytes(graph.output(node, saved.index)).value();
  }
  for (const Slot& slot : recipe.slots) {
    if (testing::is_kept(recipe, slot)) figures.kept += slot.bytes.value();
  }
  std::int64_t live = 0;
  for (const RecipeStep& step : recipe.backward) {
    if (step.kind == RecipeStep::Kind::Make) live += recipe.slots[step.slot].bytes.value();
    if (step.kind == RecipeStep::Kind::Drop) live -= recipe.slots[step.slot].bytes.value();
    figures.backward_peak = std::max(figures.backward_peak, live);
  }
  return figures;
}

// As in tests/witnesses/operators.json, and what is kept, what backward has at most, and under which names.
struct Published {
  std::string operation;
  std::int64_t kept;
  std::int64_t backward_peak;
  std::set<std::string> names;
};

constexpr std::int64_t kX = 64 * 32 * 2;  // One bf16 tensor.

void expect(std::span<const Published> rows) {
  for (const Published& row : rows) {
    CAPTURE(row.operation);
    const Figures figures = figures_of(testing::graph_of(json::parse(row.operation)));
    CHECK(figures.kept == row.kept);
    CHECK(figures.backward_peak == row.backward_peak);
    CHECK(figures.names == row.names);
  }
}

}  // namespace

TEST_CASE("what is kept and what backward takes: the published table") {
  const std::string x = R"("bf16[64,32]*")";
  const auto one = [&](const char* op, const std::string& more = "") {
    return dsplan::formatted(R"({{"op":"{}"{},"in":[{}],"out":[{}]}})", op, more, x, x);
  };
  const auto two = [&](const char* op) {
    return dsplan::formatted(R"({{"op":"{}","in":[{},{}],"out":[{}]}})", op, x, x, x);
  };
  const std::string half = R"(,"in":["bf16[64,32]*"],"out":["fp32[64,32]*"]})";
  const Published rows[] = {
      {two("add"), 0, 0, {}},
      {one("neg"), 0, kX, {}},
      {two("mul"), 0, 2 * kX, {"_saved_self", "_saved_other"}},
      {two("div"), 0, 4 * kX, {"_saved_self", "_saved_other"}},
      {one("mul_scalar"), 0, kX, {}},
      {one("pow", R"(,"number":2.0)"), 0, 3 * kX, {"_saved_self"}},
      {one("rsqrt"), kX, 3 * kX, {"_saved_result"}},
      {one("sigmoid"), kX, kX, {"_saved_result"}},
      {one("exp"), kX, kX, {"_saved_result"}},
      {one("softmax"), kX, 2 * kX, {"_saved_result"}},
      {one("gelu"), 0, kX, {"_saved_self"}},
      {one("silu"), 0, kX, {"_saved_self"}},
      {one("dropout", R"(,"number":0.1)"), kX / 2, kX, {"_saved_result1"}},
      // Softmax to float32: three halves more than the incoming gradient, of which the engine's cast is no part.
      {R"({"op":"softmax")" + half, 2 * kX, 4 * kX, {"_saved_result"}},
      {R"({"op":"sum","in":["bf16[64,32]*"],"out":["bf16[]*"]})", 0, 0, {}},
      {R"({"op":"mean","in":["bf16[64,32]*"],"out":["bf16[]*"]})", 0, kX, {}},
      {R"({"op":"layer_norm","in":["bf16[64,32]*","bf16[32]*","bf16[32]*"],"out":["bf16[64,32]*"]})",
       2 * 64 * 4,
       kX + 2 * 32 * 2,
       {"_saved_input", "_saved_weight", "_saved_bias", "_saved_result1", "_saved_result2"}},
      {R"({"op":"rms_norm","in":["bf16[64,32]*","bf16[32]*"],"out":["bf16[64,32]*"]})",
       64 * 4,
       kX + 32 * 2,
       {"_saved_input", "_saved_weight", "_saved_result1"}},
      {R"({"op":"nll_loss","in":["bf16[64,32]*","int64[64]"],"out":["bf16[]*"]})",
       2,
       kX,
       {"_saved_self", "_saved_target", "_saved_total_weight"}},
      {R"({"op":"l1_loss","reduction":"none","in":["bf16[64,32]*","bf16[64,32]"],"out":["bf16[64,32]*"]})",
       kX,
       2 * kX,
       {"_saved_self"}},
      {R"({"op":"gather","in":["bf16[64,32]*","int64[64,1]"],"out":["bf16[64,1]*"]})",
       0,
       kX,
       {"_saved_self", "_saved_index"}},
  };
  expect(rows);
}

TEST_CASE("what attention keeps, and its backward takes: the published table") {
  const std::string heads = R"("bf16[2,4,100,64]*")";
  const std::string grouped = R"("bf16[2,2,100,64]*")";
  const std::int64_t q = 2 * 4 * 100 * 64 * 2;
  const Published rows[] = {
      // Flash: dq, dk, dv, softmax_d [B, H, Sq^128], dq_accum [B, Sq^128, H, D]; two tensors of random state.
      {dsplan::formatted(R"({{"op":"scaled_dot_product_attention","kernel":"flash","in":[{0},{0},{0}],"out":[{0}]}})",
                         heads),
       q + 2 * 4 * 100 * 4 + 16 + 8,
       3 * q + 2 * 4 * 128 * 4 + 2 * 128 * 4 * 64 * 4,
       {"_saved_key", "_saved_query", "_saved_value", "_saved_logsumexp", "_saved_output", "_saved_rng_state",
        "_saved_unused"}},
      // With grouped heads dk and dv at all heads as well.
      {dsplan::formatted(R"({{"op":"scaled_dot_product_attention","kernel":"flash","in":[{0},{1},{1}],"out":[{0}]}})",
                         heads, grouped),
       q + 2 * 4 * 100 * 4 + 16 + 8,
       q + 2 * (q / 2) + 2 * 4 * 128 * 4 + 2 * 128 * 4 * 64 * 4 + 2 * q,
       {"_saved_key", "_saved_query", "_saved_value", "_saved_logsumexp", "_saved_output", "_saved_rng_state",
        "_saved_unused"}},
      {dsplan::formatted(
           R"({{"op":"scaled_dot_product_attention","kernel":"memory_efficient","in":[{0},{0},{0}],"out":[{0}]}})",
           heads),
       // Sums by row, then by 64 queries a block of their gradient with 16 bytes before it.
       q + 2 * 4 * 128 * 4,
       3 * q + 2 * 4 * 100 * 4 + 2 * 4 * 2 * (64 * 64 * 4 + 16),
       {"_saved_key", "_saved_query", "_saved_value", "_saved_log_sumexp", "_saved_output"}},
      // cuDNN of release 9.19 on sm_90, with grouped heads: its workspace holds all three gradients in fp32 or at all
      // heads.
      {dsplan::formatted(R"({{"op":"scaled_dot_product_attention","kernel":"cudnn","in":[{0},{1},{1}],"out":[{0}]}})",
                         heads, grouped),
       q + 2 * 4 * 100 * 4 + 8 + 8,
       q + 2 * (q / 2) + 256 + 2 * 4 * 100 * (4 * 64 + 4) + 2 * 4 * 100 * 4 * 64,
       {"_saved_key", "_saved_query", "_saved_value", "_saved_logsumexp", "_saved_output", "_saved_philox_offset",
        "_saved_philox_seed"}},
  };
  expect(rows);
}

TEST_CASE("rows that depend on the version of torch") {
  const Version older{2, 6, 0};
  const auto flash = [](int head_dim, Version torch) {
    const std::string q = dsplan::formatted("\"bf16[1,2,128,{}]*\"", head_dim);
    return figures_of(
        testing::graph_of(json::parse(dsplan::formatted(
            R"({{"op":"scaled_dot_product_attention","kernel":"flash","in":[{0},{0},{0}],"out":[{0}]}})", q))),
        {torch});
  };
  // The random state lay on the host; the accumulator's head dimension was rounded to 32 throughout.
  CHECK(flash(64, kCatalogueTorch).kept - flash(64, older).kept == 24);
  CHECK(flash(96, kCatalogueTorch).backward_peak == flash(96, older).backward_peak);
  CHECK(flash(160, kCatalogueTorch).backward_peak - flash(160, older).backward_peak == 128 * 2 * 32 * 4);

  const Graph norm =
      testing::graph_of(json::parse(R"({"op":"rms_norm","in":["bf16[64,32]*","bf16[32]*"],"out":["bf16[64,32]*"]})"));
  Recipe recipe;
  CHECK_NOTHROW(recipe_of(norm, norm.nodes.front(), recipe, {{2, 9, 0}}));
  CHECK_THROWS_AS(recipe_of(norm, norm.nodes.front(), recipe, {{2, 8, 0}}), Refusal);
  CHECK(Version::parse(kTorchVersion) == kCatalogueTorch);
}

TEST_CASE("what a library alone knows is said by name") {
  const Graph graph = testing::graph_of(
      json::parse(R"({"op":"conv2d","in":["bf16[2,3,8,8]*","bf16[4,3,3,3]*"],"out":["bf16[2,4,8,8]*"]})"));
  Recipe recipe;
  recipe_of(graph, graph.nodes.front(), recipe);
  REQUIRE(recipe.unknown != nullptr);
  CHECK(std::string(recipe.unknown) == "cuDNN's workspace of conv2d");
  // 2 x 27 multiply-adds for each output.
  CHECK(forward_flops(graph, graph.nodes.front()) == 2 * 27 * 512);
  CHECK(forward_bytes(graph, graph.nodes.front()) == Bytes(2 * (384 + 108 + 512)));
}

TEST_CASE("Liger's loss makes its gradients in the forward and keeps them") {
  // V / H = 4, so that the logits are made in chunks of a quarter of the rows.
  const Graph graph = testing::graph_of(json::parse(
      R"({"op":"liger_fused_linear_cross_entropy","in":["bf16[64,8]*","bf16[32,8]*","int64[64]"],"out":["fp32[]*"]})"));
  Recipe recipe;
  recipe_of(graph, graph.nodes.front(), recipe);
  CHECK(testing::words_of(recipe, recipe.forward) == "+e:1024 +e:512 +t:256 +t:64 +t:8 -t:8 +t:1024 -t:1024 +out0:4");
  CHECK(testing::words_of(recipe, recipe.backward) == "+t:4");
  CHECK(recipe.hands_out == 3);
}

TEST_CASE("cut cross-entropy makes no logits: means of them, by which words are sorted, and locks") {
  // Two rows of 512 on an H100, as PyTorch 2.11 asks for memory there.
  Recipe recipe;
  const auto of = [&](const char* weight) {
    const Graph graph = testing::graph_of(json::parse(formatted(
        R"({{"op":"cut_cross_entropy","in":["bf16[1024,1024]*","{}","int64[1024]","int64[1022]"],"out":["fp32[]*"]}})",
        weight)));
    CatalogueOptions options;
    options.device.multiprocessors = 132;
    options.device.capability = 90;
    recipe_of(graph, graph.nodes.front(), recipe, options);
    return testing::words_of(recipe, recipe.backward);
  };
  const std::string sorting = "+t:128000,+t:256000 -t:128000 +t:128000 -t:256000 +in0:2097152";
  CHECK(of("bf16[32000,1024]*") == sorting + " +in1:65536000 +t:512 +t:16000");
  CHECK(testing::words_of(recipe, recipe.forward) == "+e:4088 +t:32 +e:128000 -t:32 +t:4088 +out0:4");
  CHECK(recipe.holds == 8);
  // What a sort counts by, and what cub takes, die before the kernel's next.
  const auto takes = [&](std::int64_t bytes) {
    return std::any_of(recipe.slots.begin(), recipe.slots.end(), [bytes](const Slot& slot) {
      return slot.visibility == Visibility::Kernel && slot.bytes == Bytes(bytes);
    });
  };
  CHECK(takes(256000));
  CHECK(takes(398847));
  CHECK(of("bf16[32000,1024]") == sorting + " +t:512");  // A frozen head.
}

TEST_CASE("Liger's kernels write over what they are given") {
  Recipe recipe;
  const auto of = [&](const char* op, std::int64_t multiprocessors) {
    const Graph graph = testing::graph_of(json::parse(op));
    CatalogueOptions options;
    options.device.multiprocessors = multiprocessors;
    recipe_of(graph, graph.nodes.front(), recipe, options);
    return testing::words_of(recipe, recipe.backward);
  };
  const char* const norm = R"({"op":"liger_rms_norm","in":["bf16[6,8]*","bf16[8]*"],"out":["bf16[6,8]*"]})";
  CHECK(of(norm, 4) == "+t:128 +t:32 +in1:16");
  CHECK(of(norm, 0) == "+t:4224 +t:32 +in1:16");  // Of 132, where no device is named.
  CHECK(testing::words_of(recipe, recipe.forward) == "+e:24,+out0:96");
  CHECK(recipe.passes == 1);
  CHECK(recipe.passes_own);
  CHECK(of(R"({"op":"liger_silu_mul","in":["bf16[6,8]*","bf16[6,8]*"],"out":["bf16[6,8]*"]})", 4).empty());
  CHECK(recipe.overwrites == 3);
  CHECK(recipe.saved.size() == 2);
}

TEST_CASE("Liger's loss: each release has its own temporaries") {
  // Three pieces of 16 rows and a rest of 8.
  const Graph graph = testing::graph_of(json::parse(
      R"({"op":"liger_fused_linear_cross_entropy","in":["bf16[56,8]*","bf16[32,8]*","int64[56]"],"out":["fp32[]*"]})"));
  Recipe recipe;
  const auto forward = [&](const Version& release, std::int64_t capability) {
    CatalogueOptions options;
    options.liger = release;
    options.device.capability = capability;
    recipe_of(graph, graph.nodes.front(), recipe, options);
    return testing::words_of(recipe, recipe.forward);
  };
  const std::string states = "+e:896 +e:512 +t:224 +t:56 +t:8 -t:8 ";
  const std::string cast = " +t:512 +t:1024 -t:512 -t:1024";
  CHECK(
      forward({0, 6, 1}, 90) ==
      "+e:512 +e:896 +t:224 +t:56 +t:8 -t:8 +t:1024 +t:256 -t:256 +t:1024 -t:1024 +t:256 -t:256 +t:1024 -t:1024 +t:256 "
      "-t:256 +t:512 -t:1024 +t:128 -t:128 +out0:4");
  CHECK(forward({0, 8, 0}, 90).find(cast) != std::string::npos);
  CHECK(forward({0, 8, 2}, 90).find(cast) != std::string::npos);
  CHECK(forward({0, 8, 0}, 90) != forward({0, 8, 2}, 90));
  CHECK(forward({0, 8, 3}, 90) == states + "+t:1024 -t:1024 +out0:4");
  CHECK(forward({0, 8, 5}, -1) == forward({0, 8, 3}, 90));
  // Before compute capability 8.0 the product for the weight is still made apart.
  CHECK(forward({0, 8, 5}, 75).find(cast) != std::string::npos);
}

TEST_CASE("every operator has a name of its own that finds it") {
  for (std::size_t i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    CHECK_MESSAGE(operator_named(name(op)) == op, name(op));
    CHECK_MESSAGE(!source_of(op).empty(), name(op));
  }
  CHECK(!operator_named("no such operator"));
}

TEST_CASE("docs/operators.md is what the catalogue says") {
  const std::string path = test_paths::source_dir() + "/docs/operators.md";
  std::ostringstream page;
  page << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string begin = "<!-- generated: operators -->\n";
  const std::string text = page.str();
  const std::size_t from = text.find(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = text.find("<!-- end -->", from);
  REQUIRE(to != std::string::npos);
  std::string generated = operators_markdown(describe_catalogue()) + "\n## Written as several operators\n\n" +
                          "| name | parts |\n|---|---|\n";
  for (const Composite& one : composites()) generated += dsplan::formatted("| {} | {} |\n", one.name, one.parts);
  const std::string expected = text.substr(0, from + begin.size()) + generated + text.substr(to);
  if (std::getenv("DSPLAN_UPDATE_DOCS") != nullptr) {
    std::ofstream(path, std::ios::binary) << expected;
    return;
  }
  CHECK_MESSAGE(text == expected, "DSPLAN_UPDATE_DOCS=1 dsplan_tests --source-file=*catalogue_test.cpp rewrites it");
}
