// Estimated steps against published ones that no constant was fitted to; docs/time.md as its data say.
// DSPLAN_UPDATE_DOCS=1 rewrites the page.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "paths.h"
#include "run_binary.h"
#include "time_accuracy.h"

namespace {

using namespace time_accuracy;

const std::vector<time_rows::Case>& cases() {
  static const std::vector<time_rows::Case> all = [] {
    std::vector<time_rows::Case> made;
    for (const time_rows::Row& row : time_rows::read(test_paths::source_dir() + "/tests/data/step-times.csv")) {
      made.push_back(time_rows::make(row));
    }
    return made;
  }();
  return all;
}

Summary of(const std::vector<Judged>& judged, const std::string& gpu, bool train) {
  std::vector<const Judged*> rows;
  for (const Judged& one : judged) {
    if (one.gpu == gpu && one.one->row.train == train) rows.push_back(&one);
  }
  return summary(rows);
}

// The lines of the report that speak of time.
std::string example() {
  const dsplan::test::Folder folder;
  const dsplan::test::Ran ran = dsplan::test::run_binary(
      folder, dsplan::test::split("simulate llama-3-8b --cluster 8xh100 --zero-stage 3 --micro-batch 2 --verbose"));
  const std::size_t from = ran.out.find("  step, estimated");
  REQUIRE(from != std::string::npos);
  return ran.out.substr(from, ran.out.find("\n\n", from) + 1 - from);
}

TEST_CASE("no source is in both parts, and no row stands twice") {
  std::set<std::string> train;
  std::set<std::string> held;
  std::set<std::string> ids;
  for (const time_rows::Case& one : cases()) {
    (one.row.train ? train : held).insert(one.row.source);
    CHECK(ids.insert(one.row.id).second);
  }
  CHECK(train.size() >= 3);
  CHECK(held.size() >= 5);
  for (const std::string& source : train) CHECK_MESSAGE(!held.contains(source), source);
}

// Recorded bounds: where a change of the model makes them worse, this says so. They are not goals.
TEST_CASE("held-out steps: the median error stays below what is recorded") {
  const std::vector<Judged> judged = judge(cases());
  const Summary a100 = of(judged, "a100", false);
  CHECK(a100.n == 74);
  CHECK(a100.median < 0.18);
  CHECK(a100.median < a100.constant);
  const Summary h100 = of(judged, "h100", false);
  CHECK(h100.n == 18);
  CHECK(h100.median < 0.18);
  CHECK(of(judged, "a100", true).median < 0.06);
  CHECK(of(judged, "h100", true).median < 0.10);
}

TEST_CASE("docs/time.md is what its data say") {
  const std::string path = test_paths::source_dir() + "/docs/time.md";
  const std::string anew = page(judge(cases()), example());
  if (std::getenv("DSPLAN_UPDATE_DOCS") != nullptr) dsplan::test::spill(path, anew);
  CHECK_MESSAGE(dsplan::test::slurp(path) == anew,
                "DSPLAN_UPDATE_DOCS=1 dsplan_tests --source-file=*time_accuracy_test.cpp rewrites it");
}

}  // namespace
