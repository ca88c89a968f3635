// Measured operators against the catalogue: tests/data/operators/cuda.json, written by hand so that each kind of
// outcome is in it, and what the reader refuses.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/report_comparison.h"
#include "core/format.h"
#include "io/text.h"
#include "paths.h"
#include "report/operator_comparison.h"
#include "report/operators_receipt.h"
#include "run_binary.h"

using namespace dsplan;

namespace {

const OperatorRuns& made_up() {
  static const OperatorRuns runs =
      read_operator_runs(read_document(test_paths::source_dir() + "/tests/data/operators/cuda.json"));
  return runs;
}

OperatorRow row_of(const OperatorComparison& comparison, Op op) {
  return comparison.rows[static_cast<std::size_t>(op)];
}

std::string refusal_of(const std::string& text) {
  try {
    static_cast<void>(read_operator_runs(parse_json("runs.json", text)));
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

std::string one_case(const std::string& fields) {
  return R"({"schema":"dsplan.operator_runs/1","device":"cuda","level":"kernel","torch":"2.11.0","cases":[{)" + fields +
         "}]}";
}

}  // namespace

TEST_CASE("each row is equal, different, in another order, or a library's business") {
  const OperatorComparison comparison = compare_operators(std::vector{made_up()});
  CHECK(comparison.level == RunLevel::Kernel);
  CHECK(comparison.differs());

  CHECK(row_of(comparison, Op::Add).confirmed());
  CHECK(row_of(comparison, Op::Add).cases == 2);
  // What fake tensors do otherwise, a GPU shows as it is.
  CHECK(row_of(comparison, Op::IndexSelect).confirmed());

  const OperatorRow mul = row_of(comparison, Op::Mul);
  CHECK(mul.cases == 2);
  CHECK(mul.equal == 1);
  REQUIRE(mul.differences.size() == 1);
  CHECK(mul.differences[0].kind == OperatorDifference::Kind::Contents);
  CHECK(mul.differences[0].part == "forward");
  CHECK(mul.differences[0].title == "mul bf16[6,10]* bf16[6,10]*");
  CHECK(mul.differences[0].predicted == "+out0:120");
  CHECK(mul.differences[0].measured == "+t:4 +out0:120");

  const OperatorRow div = row_of(comparison, Op::Div);
  REQUIRE(div.differences.size() == 1);
  CHECK(div.differences[0].kind == OperatorDifference::Kind::Order);
  CHECK(div.differs());

  const OperatorRow conv = row_of(comparison, Op::Conv2d);
  REQUIRE(conv.differences.size() == 1);
  CHECK(conv.differences[0].kind == OperatorDifference::Kind::Unmodelled);
  CHECK_FALSE(conv.differs());
  CHECK_FALSE(conv.confirmed());

  // All of its cases that ran agree, and one did not run.
  CHECK(row_of(comparison, Op::Gelu).equal == 1);
  CHECK(row_of(comparison, Op::Gelu).failed == 1);
  CHECK_FALSE(row_of(comparison, Op::Gelu).confirmed());

  CHECK(row_of(comparison, Op::Sub).cases == 0);
  CHECK_FALSE(row_of(comparison, Op::Sub).confirmed());
}

TEST_CASE("at kernel level what a kernel allocates belongs to the row, in its order") {
  const OperatorComparison comparison = compare_operators(std::vector{made_up()});
  const OperatorRow flash = row_of(comparison, Op::Attention);
  std::string text;
  for (const auto& one : flash.differences) text += one.part + ": " + one.predicted + " | " + one.measured + "\n";
  CHECK_MESSAGE(flash.confirmed(), text);
}

TEST_CASE("optimizer steps are equal or different, and decide the verdict too") {
  OperatorRuns file = made_up();
  file.runs.clear();
  const OperatorComparison comparison = compare_operators(std::vector{file});
  CHECK(comparison.optimizer_cases == 2);
  CHECK(comparison.optimizers_equal == 1);
  REQUIRE(comparison.optimizer_differences.size() == 1);
  const OperatorDifference& difference = comparison.optimizer_differences[0];
  CHECK(difference.title == "optimizer=sgd implementation=fused dtypes=fp32 momentum=0.9");
  CHECK(difference.part == "second");
  CHECK(difference.predicted == "");
  CHECK(difference.measured == "+512, -512");
  CHECK(comparison.differs());
  CHECK(operators_report(comparison).find("optimizer steps: 1 of 2 equal\n") != std::string::npos);
  // A peak alone is a difference as well.
  file.optimizers.pop_back();
  CHECK_FALSE(compare_operators(std::vector{file}).differs());
  file.optimizers[0].logs[1].peak += 512;
  CHECK(compare_operators(std::vector{file}).differs());
}

TEST_CASE("rows may say cuda where a GPU and nobody else confirmed every case") {
  CHECK(confirmed_on_cuda(std::vector{made_up()}) == std::vector<Op>{Op::Add, Op::IndexSelect, Op::Attention});
  OperatorRuns fake = made_up();
  fake.device = "simulated";
  CHECK(confirmed_on_cuda(std::vector{fake}).empty());
  // A second file with one case that differs takes the mark away again.
  OperatorRuns second = made_up();
  std::erase_if(second.runs, [](const OperatorRun& run) { return run.graph.nodes.front().op != Op::Add; });
  second.runs[0].words.forward = "+out0:240 +t:512";
  CHECK(confirmed_on_cuda(std::vector{made_up(), second}) == std::vector<Op>{Op::IndexSelect, Op::Attention});
}

TEST_CASE("the report names what differs with both sides, and what may be marked") {
  const OperatorComparison comparison = compare_operators(std::vector{made_up()});
  const std::string text = operators_report(comparison);
  CHECK(text.starts_with("differs: 9 cases of cuda, torch 2.11.0+cu130, kernel level\n"));
  CHECK(text.find("mul: 1 of 2 cases equal\n") != std::string::npos);
  CHECK(text.find("predicted  +out0:120\n") != std::string::npos);
  CHECK(text.find("measured   +t:4 +out0:120\n") != std::string::npos);
  CHECK(text.find("may be marked cuda: add, index_select, scaled_dot_product_attention\n") != std::string::npos);
  const auto json = nlohmann::json::parse(operator_comparison_json(comparison));
  CHECK(json.at("schema") == "dsplan.operator_comparison/1");
  CHECK(json.at("agrees") == false);
  CHECK(json.at("confirmed") == nlohmann::json({"add", "index_select", "scaled_dot_product_attention"}));
  CHECK(json.at("rows").size() == 7);
}

TEST_CASE("dsplan compare knows a file of measured operators by its schema") {
  const std::string witness = test_paths::source_dir() + "/tests/witnesses/operators.json";
  const std::string made = test_paths::source_dir() + "/tests/data/operators/cuda.json";
  const test::Folder folder;
  const test::Ran equal = test::run_binary(folder, {"compare", witness});
  CHECK(equal.code == 0);
  CHECK(equal.out.starts_with("agrees: "));
  const test::Ran different = test::run_binary(folder, {"compare", made, made, "--format", "json"});
  CHECK(different.code == 4);
  // Several files are one measurement.
  CHECK(nlohmann::json::parse(different.out).at("optimizers").at("cases") == 4);
  const test::Ran mixed = test::run_binary(folder, {"compare", made, witness});
  CHECK(mixed.code == 2);
  CHECK(mixed.err.find("was measured at another level") != std::string::npos);
}

TEST_CASE("what is no measured operator is refused with its place") {
  const std::string good = R"("op":"add","in":["fp32[2]","fp32[2]"],"out":["fp32[2]"],"forward":"+out0:8")";
  CHECK(refusal_of(one_case(good)) == "");
  struct Row {
    const char* fields;
    const char* message;
  };
  for (const Row& row :
       {Row{R"("op":"addd","in":[],"out":[],"forward":"")", "no operator \"addd\" in the catalogue"},
        Row{R"("op":"add","in":["fp33[2]"],"out":[],"forward":"")", "a tensor is written like"},
        Row{R"("op":"add","in":["fp32[2"],"out":[],"forward":"")", "a tensor is written like"},
        Row{R"("op":"add","in":["fp32[1,1,1,1,1,1,1,1,1]"],"out":[],"forward":"")", "a tensor is written like"},
        Row{R"("op":"add","in":["fp32[2]"],"out":["fp32[2]@in3"],"forward":"")", "a tensor is written like"},
        Row{R"("op":"add","in":["fp32[2]"],"out":["fp32[2]"],"forward":"","speed":1)", "speed"},
        Row{R"("op":"add","out":["fp32[2]"],"forward":"")", "\"in\" is missing"}}) {
    const std::string text = refusal_of(one_case(row.fields));
    CHECK_MESSAGE(text.find(row.message) != std::string::npos, row.fields << ": " << text);
    CHECK(text.find("runs.json:1:") != std::string::npos);
  }
  CHECK(refusal_of(R"({"schema":"dsplan.operators/1"})").find("dsplan.operator_runs/1") != std::string::npos);
}
