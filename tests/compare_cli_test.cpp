// `dsplan compare` as users see it: exit codes, formats, folders, refusals; and --calibration.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "paths.h"
#include "run_binary.h"
#include "schema.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

const std::string kGolden = test_paths::source_dir() + "/tests/golden/receipts/v1/";

Json load(const std::string& path) { return Json::parse(slurp(path)); }

void save(const std::string& path, const Json& value) { spill(path, value.dump(1) + "\n"); }

Ran compare(const Folder& folder, const std::string& words) { return run_binary(folder, split("compare " + words)); }

std::string calibration(const std::string& gpu, const std::string& rows) {
  return R"({"schema": "dsplan.calibration/1", "source": "by hand", "environment": {"gpu": ")" + gpu +
         R"(", "capacity_bytes": null, "driver": null, "cuda": null, "python": null, "torch": null, "transformers": null,
  "deepspeed": null, "peft": null, "allocator_conf": "", "limit_bytes": null, "recorded": "2026-11-21T19:00:00Z"},
  "rows": [)" +
         rows + "]}";
}

std::string row(const std::string& name, std::int64_t value) {
  return R"({"name": ")" + name + R"(", "value": )" + std::to_string(value) +
         R"(, "unit": "bytes", "how": "by hand", "samples": []})";
}

}  // namespace

TEST_CASE("exit codes of compare: 0 agrees, 4 differs, 2 refused") {
  const Folder folder;
  const Json receipt = load(kGolden + "made-fake.json");
  save(folder / "same.json", receipt);
  const Ran agrees = compare(folder, "--re-predict same.json");
  CHECK_MESSAGE(agrees.code == 0, agrees.out, agrees.err);
  CHECK(agrees.out.starts_with("made-fake: agrees (fake, framework)\n"));
  CHECK(widest_line(agrees.out) <= 80);

  Json changed = receipt;
  Json& peak = changed["ranks"][0]["memory"]["peak"]["requested"];
  peak = peak.get<std::int64_t>() + 4;
  save(folder / "changed.json", changed);
  const Ran differs = compare(folder, "--re-predict changed.json");
  CHECK(differs.code == 4);
  CHECK(differs.out.find("made-fake: differs") == 0);
  CHECK(differs.out.find("+4\n") != std::string::npos);
  CHECK(compare(folder, "--re-predict changed.json --tolerance requested=4").code == 0);
  CHECK(compare(folder, "--re-predict changed.json --tolerance requested=3").code == 4);

  changed["inputs"]["training"]["sequence"] = 5;
  save(folder / "unknown.json", changed);
  const Ran refused = compare(folder, "--re-predict unknown.json");
  CHECK(refused.code == 2);
  CHECK(refused.err.find("unknown.json:") == 0);
  CHECK(refused.err.find("unknown key \"sequence\"") != std::string::npos);
}

TEST_CASE("a known difference is explained by a file, and only by a file") {
  const Folder folder;
  Json receipt = load(kGolden + "made-fake.json");
  Json& peak = receipt["ranks"][0]["memory"]["peak"]["requested"];
  peak = peak.get<std::int64_t>() + 4;
  save(folder / "r.json", receipt);
  Json known = {{"schema", "dsplan.explained/1"}, {"source", "by hand"}, {"differences", Json::array()}};
  known["differences"].push_back({{"receipt", "made-fake"},
                                  {"rank", 0},
                                  {"row", "memory.peak.requested"},
                                  {"bytes", 4},
                                  {"reason", "four bytes"}});
  save(folder / "known.json", known);
  const Ran explained = compare(folder, "--re-predict r.json --explained known.json");
  CHECK(explained.code == 0);
  CHECK(explained.out.find("explained +4: four bytes") != std::string::npos);
  known["differences"][0]["row"] = "memory.peak.request";
  save(folder / "known.json", known);
  const Ran refused = compare(folder, "--re-predict r.json --explained known.json");
  CHECK(refused.code == 2);
  CHECK(refused.err.find("known.json:") == 0);
  CHECK(refused.err.find("did you mean \"memory.peak.requested\"?") != std::string::npos);
}

TEST_CASE("a saved prediction against a receipt needs the same fingerprint") {
  const Folder folder;
  Json receipt = load(kGolden + "made-ddp.json");
  save(folder / "m.json", receipt["inputs"]["model"]);
  save(folder / "t.json", receipt["inputs"]["training"]);
  const std::string simulate =
      "simulate m.json --training t.json --gpus 8 --hardware h200-sxm --format json --out p.json";
  CHECK(run_binary(folder, split(simulate + " --rank 0")).code == 0);
  const Json prediction = load(folder / "p.json");
  receipt["inputs"]["fingerprint"] = prediction["fingerprint"];
  save(folder / "r.json", receipt);
  const Ran same = compare(folder, "p.json r.json --format json");
  CHECK_MESSAGE((same.code == 0 || same.code == 4), same.err);  // Its process holds no communicator.
  for (const Json& one : Json::parse(same.out)["receipts"][0]["ranks"][0]["rows"]) {
    const std::string kind = one["kind"];
    if (kind != "process" && kind != "verdict") CHECK_MESSAGE(one["state"] == "equal", one.dump());
  }
  receipt["inputs"]["fingerprint"] = "sha256:00";
  save(folder / "r.json", receipt);
  const Ran other = compare(folder, "p.json r.json");
  CHECK(other.code == 2);
  CHECK(other.err.find("the fingerprints differ") != std::string::npos);
  CHECK(other.err.find("--re-predict") != std::string::npos);
  receipt["inputs"]["fingerprint"] = nullptr;
  save(folder / "r.json", receipt);
  CHECK(compare(folder, "p.json r.json").err.find("has no fingerprint") != std::string::npos);
  receipt["inputs"]["fingerprint"] = prediction["fingerprint"];
  receipt["ranks"][0]["rank"] = 3;
  save(folder / "r.json", receipt);
  CHECK(compare(folder, "p.json r.json").err.find("no prediction of rank 3") != std::string::npos);
}

TEST_CASE("folders: receipts at any depth, other files passed over, one bad input listed beside the others") {
  const Folder folder;
  std::filesystem::create_directories(folder / "all/deep");
  Json receipt = load(kGolden + "made-fake.json");
  save(folder / "all/deep/a.json", receipt);
  receipt["name"] = "b";
  receipt["inputs"]["options"] = {"--sp", "2"};
  save(folder / "all/b.json", receipt);
  save(folder / "all/other.json", {{"schema", "something"}});
  const Ran ran = compare(folder, "--re-predict all --format json");
  CHECK(ran.code == 2);  // Nothing differs, and b was not compared.
  CHECK(ran.err.find("other.json: note: passed over, it is no receipt") != std::string::npos);
  const Json said = Json::parse(ran.out);
  CHECK(said["schema"] == "dsplan.comparison/1");
  check_schema(folder, "comparison", ran.out);
  REQUIRE(said["receipts"].size() == 2);
  CHECK(said["receipts"][0]["receipt"] == "b");
  CHECK(said["receipts"][0]["refused"].get<std::string>().find("sequence parallelism") != std::string::npos);
  CHECK(said["receipts"][1]["refused"].is_null());
  CHECK(said["receipts"][1]["strata"] == Json({"single GPU", "checkpointing"}));
  CHECK(said["strata"][0]["evidence"] == "insufficient");
  CHECK(said["strata"][0]["median_percent"].is_null());
  const Ran table = compare(folder, "--re-predict all");
  CHECK(table.out.find("insufficient evidence") != std::string::npos);
  CHECK(widest_line(table.out) <= 80);
  const auto count = [&](const std::string& part) {
    const Ran of_part = compare(folder, "--re-predict " + kGolden + " --format json --part " + part);
    return of_part.out.empty() ? std::size_t{0} : Json::parse(of_part.out)["receipts"].size();
  };
  CHECK(count("all") >= 4);
  CHECK(count("causes") + count("final") == count("all"));
}

TEST_CASE("formats of compare") {
  const Folder folder;
  const std::string file = kGolden + "made-zero2.json";
  const Ran csv = compare(folder, "--re-predict " + file + " --format csv");
  CHECK(
      csv.out.starts_with("receipt,rank,row,kind,predicted,measured,explained,unexplained,tolerance,state,note\nmade-"
                          "zero2,0,parameters.total,"));
  const Ran md = compare(folder, "--re-predict " + file + " --format md");
  CHECK(md.out.starts_with("| receipt | rank | row |"));
  CHECK(md.out.find("| ZeRO-2 | cuda | memory.peak.reserved | 1 |") != std::string::npos);
  CHECK(compare(folder, "--re-predict " + file + " --format xml").code == 2);
}

TEST_CASE("verdicts that were put to the test: a confusion matrix") {
  const Folder folder;
  const Json environment = load(kGolden + "made-ddp.json")["environment"];
  Json file = {{"schema", "dsplan.verdicts/1"}, {"source", "by hand"}, {"environment", environment}};
  const auto row_of = [](const char* name, int permille, const char* predicted, const char* measured) {
    return Json{{"name", name},
                {"predicted_bytes", 1000},
                {"limit_bytes", permille},
                {"factor_permille", permille},
                {"predicted", predicted},
                {"measured", measured},
                {"retries", 0}};
  };
  file["rows"] = {row_of("a", 1010, "fits", "ran"), row_of("a", 990, "does_not_fit", "out_of_memory")};
  save(folder / "v.json", file);
  const Ran right = compare(folder, "v.json --format json");
  CHECK(right.code == 0);
  CHECK(Json::parse(right.out)["right"] == 2);
  check_schema(folder, "confusion", right.out);
  file["rows"].push_back(row_of("b", 990, "does_not_fit", "ran"));
  save(folder / "v.json", file);
  const Ran wrong = compare(folder, "v.json");
  CHECK(wrong.code == 4);
  CHECK(wrong.out.find("wrong: b at 990 permille of the need: does_not_fit, and it ran") != std::string::npos);
}

TEST_CASE("words of compare that are refused") {
  const Folder folder;
  struct Case {
    const char* words;
    const char* says;
  };
  for (const Case& c : {Case{"", "RECEIPT is missing"}, Case{"a.json", "takes two files: PREDICTION RECEIPT"},
                        Case{"a.json b.json --level dispatch", "belongs to --re-predict"},
                        Case{"--re-predict x.json --tolerance reserved", "is not KIND=N"},
                        Case{"--re-predict x.json --tolerance reservd=1%", "did you mean reserved?"},
                        Case{"--re-predict x.json --tolerance reserved=101%", "is no tolerance"},
                        Case{"--re-predict x.json --tolerance reserved=1 --tolerance reserved=2", "more than once"},
                        Case{"--re-predict x.json --part all-of-it", "no part \"all-of-it\""},
                        Case{"--re-predict x.json --levl kernel", "did you mean --level?"}}) {
    spill(folder / "a.json", "{}");
    spill(folder / "x.json", "{}");
    const Ran ran = compare(folder, c.words);
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(c.says) != std::string::npos, c.words, ": ", ran.err);
  }
}

TEST_CASE("a calibration replaces the context, the workspaces and the communicator of as many ranks") {
  const Folder folder;
  spill(folder / "c.json", calibration("NVIDIA H200", row("context", 500'000'000) + "," + row("communicator_8", 77) +
                                                          "," + row("cublas_workspace", 1 << 20)));
  const auto predict = [&](const std::string& more) {
    const Ran ran = run_binary(folder, split("simulate tiny-gpt2 --gpus 8 --hardware h200-sxm --format json " + more));
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    return Json::parse(ran.out);
  };
  const Json without = predict("");
  const Json with = predict("--calibration c.json");
  CHECK(with["context_bytes"] == 500'000'000);
  CHECK(with["communicators_bytes"] == 77);
  CHECK(with["fingerprint"] != without["fingerprint"]);
  const auto workspace = [](const Json& p) { return p["memory"]["persistent"]["workspace"].get<std::int64_t>(); };
  CHECK(workspace(without) - workspace(with) > 0);
  CHECK(with["memory"]["peak"]["process"] == with["memory"]["peak"]["reserved"].get<std::int64_t>() + 500'000'077);

  spill(folder / "other.json", calibration("NVIDIA A100-SXM4-80GB", row("context", 1)));
  const Ran other = run_binary(folder, split("simulate tiny-gpt2 --hardware h200-sxm --calibration other.json"));
  CHECK(other.code == 2);
  CHECK(other.err.find("is of NVIDIA A100-SXM4-80GB, and the job runs on h200-sxm") != std::string::npos);
  const Ran none = run_binary(folder, split("simulate tiny-gpt2 --calibration c.json"));
  CHECK(none.code == 2);
  CHECK(none.err.find("name it with --hardware") != std::string::npos);
}
