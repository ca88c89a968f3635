// `dsplan sweep` and `dsplan diff` as users see them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "run_binary.h"
#include "schema.h"
#include "texts.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

Ran dsplan_runs(const Folder& folder, const std::string& line) { return run_binary(folder, split(line)); }

Json parsed(const Ran& ran) {
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  return Json::parse(ran.out);
}

const Json& row_of(const Json& diff, const std::string& name) {
  for (const Json& row : diff.at("rows")) {
    if (row.at("row") == name) return row;
  }
  FAIL("no row ", name);
  return diff;
}

}  // namespace

TEST_CASE("sweep: every point is what simulate predicts of it, in the order of the axes") {
  const Folder folder;
  const std::string base = "tiny-llama --gpus 2 --capacity 1GiB --zero-stage 2";
  const Json sweep = parsed(dsplan_runs(
      folder,
      "sweep " + base + " --vary micro_batch=1..3 --vary checkpoint=none,full --vary seq=64,128 --format json"));
  CHECK(sweep.at("schema") == "dsplan.sweep/1");
  check_schema(folder, "sweep", sweep.dump());
  const Json& points = sweep.at("points");
  REQUIRE(points.size() == 12);
  std::size_t at = 0;
  for (const char* rows : {"1", "2", "3"}) {
    for (const char* checkpoint : {"none", "full"}) {
      for (const char* seq : {"64", "128"}) {
        const Json& point = points[at++];
        CHECK(point.at("values") == Json({{"micro_batch", rows}, {"checkpoint", checkpoint}, {"seq", seq}}));
        const Ran one = dsplan_runs(folder, "simulate " + base + " --format json --micro-batch " + rows +
                                                " --checkpoint " + checkpoint + " --seq " + seq);
        const Json alone = Json::parse(one.out);
        CHECK(point.at("process_bytes") == alone.at("memory").at("peak").at("process"));
        CHECK(point.at("needed_bytes") == alone.at("needed_bytes"));
        CHECK(point.at("verdict") == alone.at("verdict"));
        CHECK(point.at("fingerprint") == alone.at("fingerprint"));
      }
    }
  }
}

TEST_CASE("sweep: points that cannot be are rows with their reason, ranges count as they say") {
  const Folder folder;
  const Json sweep = parsed(dsplan_runs(
      folder, "sweep tiny-llama --gpus 4 --capacity 16GiB --vary tp=1,3 --vary seq=32..128*2,96 --format json"));
  REQUIRE(sweep.at("points").size() == 8);
  CHECK(sweep.at("axes")[1].at("values") == Json({"32", "64", "128", "96"}));
  for (const Json& point : sweep.at("points")) {
    const bool refused = point.at("values").at("tp") == "3";
    CHECK((point.at("verdict") == "refused") == refused);
    CHECK(point.at("process_bytes").is_null() == refused);
    CHECK(point.at("reason").get<std::string>().empty() != refused);
  }
  const Json steps = parsed(dsplan_runs(folder, "sweep tiny-llama --vary seq=64..256..64 --format json"));
  CHECK(steps.at("points").size() == 4);
  const Json models = parsed(dsplan_runs(folder, "sweep --vary model=tiny-llama,tiny-gpt2,nobody --format json"));
  CHECK(models.at("points")[1].at("fingerprint") != models.at("points")[0].at("fingerprint"));
  CHECK(models.at("points")[2].at("verdict") == "refused");
  // Packed weights are no setting of a job, but a model's own.
  const Json packed = parsed(dsplan_runs(
      folder, "sweep tiny-llama --lora r=8,targets=q_proj+v_proj --vary quantization=none,nf4 --format json"));
  CHECK(packed.at("points")[1].at("needed_bytes") != packed.at("points")[0].at("needed_bytes"));
  CHECK(packed.at("points")[0].at("verdict") != "refused");
  // An option that is varied and said has the varied values.
  const Json both = parsed(dsplan_runs(folder, "sweep tiny-llama --seq=512 --vary seq=64 --format json"));
  CHECK(both.at("points")[0].at("verdict") != "refused");
}

TEST_CASE("sweep: table and CSV have one row for each point; bad axes are refused together") {
  const Folder folder;
  const std::string line = "sweep tiny-llama --capacity 700MiB --vary micro_batch=1..64 ";
  const Ran table = dsplan_runs(folder, line);
  CHECK(table.code == 0);
  CHECK(table.out.starts_with("64 points: "));
  CHECK(widest_line(table.out) <= 80);
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') >= 66);
  const Ran csv = dsplan_runs(folder, line + "--format csv");
  CHECK(csv.out.starts_with("micro_batch,verdict,process_bytes,needed_bytes,"));
  CHECK(std::count(csv.out.begin(), csv.out.end(), '\n') == 65);
  const Ran wrong = dsplan_runs(folder, "sweep tiny-llama --vary micro_batc=1 --vary seq --vary tp=8..2");
  CHECK(wrong.code == 2);
  for (const char* part : {"did you mean micro_batch?", "has no values", "counts to nowhere"}) {
    CHECK_MESSAGE(has(wrong.err, part), wrong.err);
  }
  CHECK(dsplan_runs(folder, "sweep tiny-llama").code == 2);
  CHECK(has(dsplan_runs(folder, "sweep tiny-llama --vary seq=1..30000").err, "more than 20,000 points"));
}

TEST_CASE("emit: the page shows a run of the same job, and no other") {
  const Folder folder;
  const std::string job = "tiny-llama --seq 16 --dtype bf16 --zero-stage 1 --micro-batch ";
  const Ran run = dsplan_runs(folder, "run " + job + "1 --ranks 2 --out run.json");
  REQUIRE_MESSAGE(run.code == 0, run.err);
  const std::string page = " --gpus 2 --format html --measured run.json";
  const Ran shown = dsplan_runs(folder, "emit " + job + "1" + page);
  REQUIRE_MESSAGE(shown.code == 0, shown.err);
  CHECK(has(shown.out, "<h2>Predicted and measured</h2>"));
  CHECK(has(shown.out, "Rank 0: "));
  CHECK(has(shown.out, "Rank 1: "));
  CHECK(has(shown.out, " rows equal, 0 within tolerance, 0 differ, "));
  CHECK(has(shown.out, "<td>memory.peak.requested</td>"));
  CHECK_FALSE(has(dsplan_runs(folder, "emit " + job + "1 --gpus 2 --format html").out, "Predicted and measured"));
  const Ran other = dsplan_runs(folder, "emit " + job + "2" + page);
  CHECK(other.code == 2);
  CHECK_MESSAGE(has(other.err, "run.json: error: the fingerprints differ: predicted sha256:"), other.err);
  CHECK(dsplan_runs(folder, "emit " + job + "1 --gpus 2 --format plan --measured run.json").code == 2);
}

TEST_CASE("sweep: the page has a point for each prediction, lines by the other axes, the limit and the command") {
  const Folder folder;
  const std::string line =
      "sweep tiny-llama --capacity 700MiB --vary micro_batch=1..8*2 --vary checkpoint=none,full --format html";
  const Ran page = dsplan_runs(folder, line);
  REQUIRE_MESSAGE(page.code == 0, page.err);
  const auto count = [&page](const std::string& part) {
    int times = 0;
    for (std::size_t at = page.out.find(part); at != std::string::npos; at = page.out.find(part, at + 1)) ++times;
    return times;
  };
  CHECK(count("<circle ") == 8);  // Memory alone: nothing is known of the device's speed.
  CHECK(count("<path d=\"M") >= 2);
  CHECK(count("the device has 700.00 MiB") == 1);
  CHECK(count("checkpoint full</span>") == 1);
  CHECK(count("<tr>") == 9);
  CHECK(has(page.out, "dsplan " + line.substr(0, 30)));
  for (const char* outside : {"http", "<script", "src=", "url("}) CHECK_FALSE(has(page.out, outside));
  const Ran timed =
      dsplan_runs(folder, "sweep tiny-llama --hardware h100-sxm --vary checkpoint=none,full --format html");
  CHECK(has(timed.out, "Tokens per second"));
  const Ran plans = dsplan_runs(folder, "plan tiny-llama --gpus 2 --hardware h100-sxm --pareto --format html");
  REQUIRE_MESSAGE(plans.code == 0, plans.err);
  CHECK(has(plans.out, "Memory against speed"));
  CHECK(has(plans.out, "<td class=\"good\">chosen</td>"));
  CHECK(has(plans.out, "<td class=\"good\">front</td>"));
  CHECK_FALSE(has(plans.out, "<script"));
}

TEST_CASE("diff of two command lines: what differs, what it moves alone, rows that sum") {
  const Folder folder;
  const std::string a = "'tiny-llama --gpus 4 --zero-stage 2 --seq 128'";
  const std::string b = "'dsplan simulate tiny-llama --gpus 4 --zero-stage 3 --seq 256'";
  const Json diff = parsed(dsplan_runs(folder, "diff " + a + " " + b + " --format json --capacity 2GiB"));
  CHECK(diff.at("schema") == "dsplan.diff/1");
  check_schema(folder, "diff", diff.dump());
  REQUIRE(diff.at("differs").size() == 2);
  for (const Json& one : diff.at("differs")) {
    const std::string what = one.at("what");
    CHECK((what == "--zero-stage" || what == "--seq"));
    CHECK(one.at("process_alone_bytes").is_number_integer());
  }
  const auto simulated = [&](const std::string& line) {
    return Json::parse(dsplan_runs(folder, "simulate " + line + " --capacity 2GiB --format json").out);
  };
  const Json first = simulated("tiny-llama --gpus 4 --zero-stage 2 --seq 128");
  const Json second = simulated("tiny-llama --gpus 4 --zero-stage 3 --seq 256");
  const Json& process = row_of(diff, "process");
  CHECK(process.at("a") == first.at("memory").at("peak").at("process"));
  CHECK(process.at("b") == second.at("memory").at("peak").at("process"));
  CHECK(process.at("difference").get<std::int64_t>() ==
        process.at("b").get<std::int64_t>() - process.at("a").get<std::int64_t>());
  for (const Json& one : diff.at("differs")) {
    if (one.at("what") != "--seq") continue;
    const Json alone = simulated("tiny-llama --gpus 4 --zero-stage 2 --seq 256");
    CHECK(one.at("process_alone_bytes").get<std::int64_t>() ==
          alone.at("memory").at("peak").at("process").get<std::int64_t>() - process.at("a").get<std::int64_t>());
  }
  const Ran table = dsplan_runs(folder, "diff " + a + " " + b);
  CHECK(table.out.starts_with("B takes "));
  CHECK(has(table.out, "--zero-stage"));
  const Ran same = dsplan_runs(folder, "diff " + a + " " + a);
  CHECK(same.out.starts_with("Both take "));
  CHECK(has(same.out, "no input differs"));
}

TEST_CASE("diff of DeepSpeed files key by key, of plans, and of predictions") {
  const Folder folder;
  const std::string head = R"({"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1, "zero_optimization": )";
  spill(folder / "a.json", head + R"({"stage": 2, "reduce_bucket_size": 1000000}})");
  spill(folder / "b.json", head + R"({"stage": 2, "reduce_bucket_size": 5000000, "overlap_comm": false}})");
  const Json keys = parsed(dsplan_runs(folder, "diff a.json b.json tiny-llama --gpus 4 --format json"));
  REQUIRE(keys.at("differs").size() == 2);
  CHECK(keys.at("differs")[0].at("what") == "zero_optimization.reduce_bucket_size");
  CHECK(keys.at("differs")[0].at("place").get<std::string>().starts_with("b.json:1:"));
  CHECK(keys.at("differs")[0].at("process_alone_bytes").is_number_integer());
  const Ran without = dsplan_runs(folder, "diff a.json b.json");
  CHECK(without.code == 2);
  CHECK(has(without.err, "no model is named"));

  for (const char* stage : {"1", "3"}) {
    const std::string line = std::string("tiny-llama --gpus 4 --zero-stage ") + stage;
    spill(folder / ("plan" + std::string(stage) + ".json"), dsplan_runs(folder, "emit " + line + " --format plan").out);
    spill(folder / ("told" + std::string(stage) + ".json"),
          dsplan_runs(folder, "simulate " + line + " --format json").out);
  }
  const Json plans = parsed(dsplan_runs(folder, "diff plan1.json plan3.json --format json"));
  const Json told = parsed(dsplan_runs(folder, "diff told1.json told3.json --format json"));
  CHECK(row_of(plans, "process") == row_of(told, "process"));
  CHECK(row_of(plans, "process").at("a") != row_of(plans, "process").at("b"));
  CHECK(dsplan_runs(folder, "diff a.json").code == 2);
  CHECK(dsplan_runs(folder, "diff 'tiny-llama --seq \"1' tiny-llama").code == 2);
}
