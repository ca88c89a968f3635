// The rows of the operator catalogue against real torch: tests/witnesses/operators.json, made by
// tools/oracles/operators.py. Every case agrees at dispatch level, to the byte and in order. A row may say
// Witness::Fake, and must, if there are cases of it and nothing of them had to be left out. Rows say Witness::Cuda if
// and only if what GPUs did (tests/receipts/*/operators, made by tools/frameworks/ops) agrees with them at kernel
// level in every case.
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>

#include "cli/report_comparison.h"
#include "core/format.h"
#include "io/text.h"
#include "model/catalogue/catalogue.h"
#include "paths.h"
#include "report/operator_comparison.h"
#include "report/operators_receipt.h"

using namespace dsplan;

namespace {

OperatorRuns runs_of(const std::string& path) { return read_operator_runs(read_document(path)); }

std::vector<OperatorRuns> receipts() {
  std::vector<OperatorRuns> files;
  const std::filesystem::path folder = test_paths::source_dir() + "/tests/receipts";
  if (!std::filesystem::exists(folder)) return files;
  // One folder per GPU, and in it one per kind of file.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    if (path.parent_path().filename() == "operators" && path.extension() == ".json") {
      files.push_back(runs_of(path.string()));
    }
  }
  return files;
}

}  // namespace

TEST_CASE("every row equals torch at dispatch level, or says that nobody has confirmed it") {
  const OperatorRuns witness = runs_of(test_paths::source_dir() + "/tests/witnesses/operators.json");
  CHECK(witness.runs.size() > 3000);
  const OperatorComparison comparison = compare_operators(std::vector{witness});
  CHECK_MESSAGE(!comparison.differs(), operators_report(comparison));
  for (const OperatorRow& row : comparison.rows) {
    CHECK_MESSAGE(row.differences.empty(), name(row.op));
    const Witness said = witness_of(row.op);
    // What a GPU has confirmed needs nobody else.
    if (said != Witness::Cuda) CHECK_MESSAGE((said == Witness::Fake) == row.confirmed(), name(row.op));
  }
}

TEST_CASE("rows say cuda if and only if every case on a GPU is as they say") {
  const std::vector<Op> confirmed = confirmed_on_cuda(receipts());
  for (std::size_t i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    const bool may = std::find(confirmed.begin(), confirmed.end(), op) != confirmed.end();
    CHECK_MESSAGE((witness_of(op) == Witness::Cuda) == may, name(op));
  }
}
