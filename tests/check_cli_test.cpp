// `dsplan check` as users see it: their change apart from a newer dsplan, folders, --add, --update, formats, refusals.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "paths.h"
#include "run_binary.h"
#include "schema.h"
#include "texts.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

const std::string kRoot = test_paths::source_dir();

const std::string kDeepSpeed = R"({
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 1,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW"},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": 20000  # a comment, as DeepSpeed allows it
  }
}
)";
const std::string kTraining = R"({
  "dsplan": 1, "kind": "training", "source": "by hand",
  "seq": 64, "attention": "flash", "loss": "hf", "checkpoint": "none",
  "torch_version": "2.11.0", "transformers_version": "5.17.0", "deepspeed_version": "0.19.8", "model_init": "zero_init"
}
)";
const std::string kCommand = "config.json --deepspeed ds.json --training train.json --gpus 4 --hardware gpu.json";

Ran check(const Folder& folder, const std::string& words) { return run_binary(folder, split("check " + words)); }

// A project with one baseline, which agrees.
struct Project {
  Folder folder;
  std::string path = folder / "baselines/tiny.json";

  Project() {
    fs::copy(kRoot + "/models/tiny-llama.json", folder / "config.json");
    fs::copy(kRoot + "/docs/examples/ci/gpu.json", folder / "gpu.json");
    spill(folder / "ds.json", kDeepSpeed);
    spill(folder / "train.json", kTraining);
    const Ran added = check(folder, "--add baselines/tiny.json " + kCommand);
    REQUIRE_MESSAGE(added.code == 0, added.err);
  }
  void edit(const std::string& file, const std::string& from, const std::string& to) {
    spill(folder / file, with(slurp(folder / file), from, to));
  }
  [[nodiscard]] Json json(int code) const {
    const Ran ran = check(folder, "--format json");
    CHECK_MESSAGE(ran.code == code, ran.err, ran.out);
    check_schema(folder, "check", ran.out);
    return Json::parse(ran.out);
  }
};

const Json& row_of(const Json& baseline, const std::string& path) {
  for (const Json& row : baseline["ranks"][0]["rows"]) {
    if (row["row"] == path) return row;
  }
  FAIL("no row ", path);
  return baseline;
}

}  // namespace

TEST_CASE("an unchanged project agrees, in whatever folder check is called") {
  const Project project;
  for (const char* words : {"", "baselines", "baselines/tiny.json", "."}) {
    const Ran ran = check(project.folder, words);
    CAPTURE(ran.err);
    CHECK(ran.code == 0);
    CHECK(ran.out.find("tiny.json: agrees\n") != std::string::npos);
  }
  fs::create_directories(project.folder / "elsewhere");
  fs::copy(project.folder / "config.json", project.folder / "elsewhere/config.json");
  const Folder outside;
  const Ran ran = check(outside, project.path);
  CHECK_MESSAGE(ran.code == 0, ran.err);
}

TEST_CASE("a changed bucket is your change, attributed to the file, the line and the key") {
  Project project;
  project.edit("ds.json", "20000", "30000");
  const Ran ran = check(project.folder, "");
  CHECK(ran.code == 4);
  CHECK(ran.out.find("ds.json:8:5: zero_optimization.reduce_bucket_size: 20000 -> 30000") != std::string::npos);
  CHECK(ran.out.find("newer dsplan 0\n") != std::string::npos);
  CHECK(widest_line(ran.out) <= 80);
  const Json one = project.json(4)["baselines"][0];
  CHECK(one["moved_by_newer_dsplan"] == 0);
  CHECK(one["moved_by_your_change"].get<int>() > 0);
  CHECK(one["changes"].size() == 1);
  CHECK(one["changes"][0]["source"] == "deepspeed");
  CHECK(one["changes"][0]["keys"][0]["line"] == 8);
  CHECK(one["inputs_by_newer_dsplan"].empty());
  const Json& buffers = row_of(one, "memory.persistent.runtime_buffers");
  CHECK(buffers["your_change"] == 2 * 10000);  // One bucket of bf16.
  CHECK(buffers["by_change"][0] == buffers["your_change"]);
}

TEST_CASE("a comment or another spelling of the same value is no change") {
  Project project;
  project.edit("ds.json", "20000  # a comment, as DeepSpeed allows it", "2e4");
  CHECK(project.json(0)["baselines"][0]["changes"].empty());
}

TEST_CASE("figures that this dsplan predicts otherwise are a newer dsplan's") {
  Project project;
  Json baseline = Json::parse(slurp(project.path));
  Json& peak = baseline["ranks"][0]["rows"]["memory.peak.requested"];
  const std::int64_t today = peak;
  peak = today - 100;
  baseline["written"]["dsplan"] = "0.0.9";
  spill(project.path, baseline.dump());
  const Ran ran = check(project.folder, "");
  CHECK(ran.code == 4);
  CHECK(ran.out.find("the baseline is by dsplan 0.0.9") != std::string::npos);
  CHECK(ran.out.find("your change moved 0, a newer dsplan 1") != std::string::npos);
  const Json one = project.json(4)["baselines"][0];
  CHECK(row_of(one, "memory.peak.requested")["newer_dsplan"] == 100);
  CHECK(row_of(one, "memory.peak.requested")["your_change"] == 0);

  // Both at once: each keeps its own.
  project.edit("ds.json", "20000", "30000");
  const Json both = project.json(4)["baselines"][0];
  const Json& row = row_of(both, "memory.peak.requested");
  CHECK(row["newer_dsplan"] == 100);
  CHECK(row["your_change"].get<std::int64_t>() > 0);
  CHECK(row["now"].get<std::int64_t>() ==
        row["baseline"].get<std::int64_t>() + 100 + row["your_change"].get<std::int64_t>());
  CHECK(row["moved_by_newer_dsplan"] == true);
  CHECK(row["moved_by_your_change"] == true);
  CHECK(check(project.folder, "--tolerance requested=99").code == 4);
}

TEST_CASE("several changed files: what each moves alone") {
  Project project;
  project.edit("ds.json", "20000", "30000");
  project.edit("train.json", "\"seq\": 64", "\"seq\": 128");
  project.edit("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  const Json one = project.json(4)["baselines"][0];
  REQUIRE(one["changes"].size() == 3);
  CHECK(one["changes"][0]["source"] == "model");
  CHECK(one["changes"][1]["source"] == "deepspeed");
  CHECK(one["changes"][2]["source"] == "training");
  const Json& buffers = row_of(one, "memory.persistent.runtime_buffers");
  CHECK(buffers["by_change"][1] == 2 * 10000);
  CHECK(buffers["by_change"][2] == 0);
  const Json& parameters = row_of(one, "memory.persistent.parameters");
  CHECK(parameters["by_change"][0] == parameters["your_change"]);
  CHECK(parameters["by_change"][1] == 0);
  const Ran ran = check(project.folder, "");
  CHECK(ran.out.find("config.json +") != std::string::npos);
  CHECK(ran.out.find("seq: 64 -> 128") != std::string::npos);
  CHECK(widest_line(ran.out) <= 80);
}

TEST_CASE("an edited command is your change, too") {
  Project project;
  project.edit("baselines/tiny.json", "\"--gpus\", \"4\"", "\"--gpus\", \"2\"");  // The first: today's command.
  const Json one = project.json(4)["baselines"][0];
  REQUIRE(one["changes"].size() == 1);
  CHECK(one["changes"][0]["source"] == "command");
  CHECK(one["changes"][0]["keys"][0]["key"] == "--gpus");
  CHECK(one["changes"][0]["keys"][0]["file"] == "baselines/tiny.json");
  CHECK(one["moved_by_newer_dsplan"] == 0);
}

TEST_CASE("--update rewrites, and what it wrote agrees; nothing is written where one baseline cannot be") {
  Project project;
  const std::string before = slurp(project.path);
  const Ran same = check(project.folder, "--update");
  CHECK(same.code == 0);
  CHECK(same.err.find("every baseline is as it would be written") != std::string::npos);
  CHECK(slurp(project.path) == before);
  project.edit("ds.json", "20000", "30000");
  REQUIRE(check(project.folder, "--add baselines/other.json " + kCommand + " --seq 32").code == 0);
  project.edit("ds.json", "\"stage\": 3", "\"stage\": 7");
  const Ran refused = check(project.folder, "--update");
  CHECK(refused.code == 2);
  CHECK(refused.err.find("nothing is rewritten") != std::string::npos);
  CHECK(slurp(project.path) == before);
  project.edit("ds.json", "\"stage\": 7", "\"stage\": 3");
  const Ran updated = check(project.folder, "--update");
  CHECK_MESSAGE(updated.code == 0, updated.err);
  CHECK(updated.err.find("baselines/tiny.json: rewritten") != std::string::npos);
  CHECK(updated.err.find("other.json: rewritten") == std::string::npos);
  CHECK(updated.out.find("20000 -> 30000") != std::string::npos);
  CHECK(slurp(project.path) != before);
  CHECK(check(project.folder, "").code == 0);
}

TEST_CASE("folders: every baseline below them, other files passed over, the worst decides") {
  Project project;
  fs::create_directories(project.folder / "baselines/deep");
  REQUIRE(check(project.folder, "--add baselines/deep/seq.json " + kCommand + " --seq 32").code == 0);
  spill(project.folder / "baselines/notes.json", "{\"a\": 1}");
  spill(project.folder / "baselines/damaged.json", "{\"dsplan\": 1, \"kind\": \"baseline\",");
  spill(project.folder / "baselines/comments.json", "{  // As DeepSpeed allows it.\n}");
  const Ran ran = check(project.folder, "");
  CHECK(ran.code == 2);
  CHECK(ran.err.find("baselines/notes.json: note: passed over, it is no baseline") != std::string::npos);
  CHECK(ran.err.find("baselines/damaged.json:1:34: error:") != std::string::npos);
  CHECK(ran.out.find("3 baselines: 2 agree, 0 differ, 1 refused\n") != std::string::npos);
  project.edit("train.json", "\"seq\": 64", "\"seq\": 96");  // The other one has --seq.
  const Ran moved = check(project.folder, "");
  CHECK(moved.code == 4);
  CHECK(moved.out.find("3 baselines: 1 agree, 1 differ, 1 refused\n") != std::string::npos);
  fs::create_directories(project.folder / "empty");
  CHECK(check(project.folder, "empty").err.find("empty: error: holds no baseline") != std::string::npos);
}

TEST_CASE("what is refused says where") {
  Project project;
  const auto refused = [&](const std::string& said) {
    const Ran ran = check(project.folder, "");
    CHECK(ran.code == 2);
    CHECK_MESSAGE(ran.err.find(said) != std::string::npos, ran.err);
    return ran;
  };
  const std::string good = slurp(project.path);
  project.edit("baselines/tiny.json", "\"kind\": \"baseline\"", "\"kind\": \"baseline\", \"kin\": 1");
  CHECK(refused("baselines/tiny.json:3:").err.find('^') != std::string::npos);
  spill(project.path, with(good, "\"dsplan\": 1", "\"dsplan\": 2"));
  refused("baselines/tiny.json:2:12: error: file version 2 is not known");
  spill(project.path, with(good, "\"--gpus\", \"4\"", "\"--gpu\", \"4\""));
  refused("--gpus");
  spill(project.path, with(good, "\"--gpus\", \"4\"", "\"--phase\", \"init\""));
  refused("baselines/tiny.json:6:13: error: --phase says what to print, and has no place in a baseline");
  spill(project.path, good);
  project.edit("train.json", "\"loss\": \"hf\",", "");
  refused("--loss: loss is assumed to be hf");
  fs::rename(project.folder / "ds.json", project.folder / "gone.json");
  refused("ds.json");
  CHECK(check(project.folder, "nothing.json").code == 2);
}

TEST_CASE("--add: strict, never over a file, with nothing that says what to print") {
  const Folder folder;
  const Ran strict = check(folder, "--add b.json gpt2");
  CHECK(strict.code == 2);
  CHECK(strict.err.find("--seq: error: seq is assumed") != std::string::npos);
  CHECK(!fs::exists(folder / "b.json"));
  fs::copy(kRoot + "/docs/examples/ci/gpu.json", folder / "gpu.json");  // Without a device there is no verdict.
  const std::string words =
      " gpt2 --hardware gpu.json --gpus 1 --seq 64 --dtype bf16 --micro-batch 1 --grad-accum 1 --optimizer adamw:fused "
      "--attention flash "
      "--loss hf --checkpoint none --torch-version 2.11.0 --transformers-version 5.17.0";
  const Ran added = check(folder, "--add b.json" + words + " --strict");
  CHECK_MESSAGE(added.code == 0, added.err);
  CHECK(slurp(folder / "b.json").find("{\"bundled\": \"gpt2\"}") != std::string::npos);
  CHECK(slurp(folder / "b.json").find("--strict") == std::string::npos);
  CHECK(check(folder, "b.json").code == 0);
  CHECK(check(folder, "--add b.json" + words).err.find("b.json is there already") != std::string::npos);
  CHECK(check(folder, "--add c.json --format json" + words).err.find("--format says what to print") !=
        std::string::npos);
  CHECK(check(folder, "--add c.txt" + words).err.find("does not end in .json") != std::string::npos);
  CHECK(check(folder, "").err.find("there is no folder baselines") != std::string::npos);
}

TEST_CASE("formats: JUnit, GitHub's annotations and Markdown name the key and the rows") {
  Project project;
  CHECK(check(project.folder, "--format junit").out.find("failures=\"0\" errors=\"0\"") != std::string::npos);
  project.edit("ds.json", "20000", "30000");
  const Ran junit = check(project.folder, "--format junit --out report.xml");
  CHECK(junit.code == 4);
  const std::string xml = slurp(project.folder / "report.xml");
  CHECK(xml.find("<testcase classname=\"dsplan.check\" name=\"baselines/tiny.json\">") != std::string::npos);
  CHECK(xml.find("<failure message=\"of ") != std::string::npos);
  CHECK(xml.find("20000 -&gt; 30000") != std::string::npos);
  const Ran github = check(project.folder, "--format github");
  CHECK(github.code == 4);
  CHECK(github.out.starts_with("::error file=ds.json,line=8,col=5,title=Memory moved by your change::"));
  CHECK(github.out.find("%0Abaselines/tiny.json: persistent.requested +20,000") != std::string::npos);
  const Ran markdown = check(project.folder, "--format md");
  CHECK(markdown.out.starts_with("## Memory and traffic: 1 baseline: 0 agree, 1 differ, 0 refused\n"));
  CHECK(markdown.out.find("| baseline | rank | row | was | newer dsplan | your change | now |") != std::string::npos);
  CHECK(check(project.folder, "--format xml").err.find("no format \"xml\"") != std::string::npos);
  // What is refused points into its file as well.
  project.edit("ds.json", "\"stage\": 3", "\"stage\": 7");
  CHECK(check(project.folder, "--format github").out.starts_with("::error file=ds.json,line=7,col="));
  CHECK(check(project.folder, "--format junit").out.find("<error message=\"ds.json:7:") != std::string::npos);
}

TEST_CASE("baselines of every version stay readable") {
  const std::string golden = kRoot + "/tests/golden/baselines";
  int versions = 0;
  for (const auto& version : fs::directory_iterator(golden)) {
    ++versions;
    const Folder folder;
    fs::copy(version.path(), folder / "all", fs::copy_options::recursive);
    const Ran ran = check(folder, "all --format json");
    CAPTURE(version.path().string());
    CHECK_MESSAGE((ran.code == 0 || ran.code == 4), ran.err);
    const Json said = Json::parse(ran.out);
    CHECK(said["baselines"].size() >= 3);
    CHECK(said["refused"] == 0);
    for (const Json& one : said["baselines"]) {
      CHECK_MESSAGE(one["moved_by_your_change"] == 0, one["baseline"]);  // Their files have not changed.
    }
  }
  CHECK(versions >= 1);
}

TEST_CASE("--init: what is assumed is recorded as given, in one try") {
  const Folder folder;
  const std::string words = " tiny-llama --gpus 2 --zero-stage 2 --hardware h100-sxm";
  CHECK(check(folder, "--add a.json" + words).code == 2);
  const Ran ran = check(folder, "--init a.json" + words);
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json baseline = Json::parse(slurp(folder / "a.json"));
  const std::string command = baseline.at("command").dump();
  for (const char* option : {"--seq", "--dtype", "--optimizer", "adamw:fused", "--torch-version"}) {
    CHECK_MESSAGE(command.find(option) != std::string::npos, command);
  }
  // No option says a context.
  REQUIRE(baseline.at("accepted").size() == 1);
  CHECK(baseline.at("accepted")[0] == Json({{"name", "context"}, {"value", "600.00 MiB"}}));
  CHECK(check(folder, "a.json").code == 0);
  CHECK(baseline.at("fingerprint") ==
        Json::parse(run_binary(folder, split("simulate" + words + " --format json")).out).at("fingerprint"));
  // What was accepted with another value is asked for anew.
  spill(folder / "a.json", with(slurp(folder / "a.json"), "600.00 MiB", "500.00 MiB"));
  const Ran other = check(folder, "a.json");
  CHECK(other.code == 2);
  CHECK(other.err.find("context was accepted as 500.00 MiB, and is now assumed to be 600.00 MiB") != std::string::npos);
}

TEST_CASE("--init: an optimizer on the host has no form that an option names") {
  const Folder folder;
  spill(folder / "off.json", R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})");
  const Ran ran = check(folder, "--init a.json tiny-llama --gpus 2 --deepspeed off.json --hardware h100-sxm");
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const std::string command = Json::parse(slurp(folder / "a.json")).at("command").dump();
  CHECK_MESSAGE(command.find("\"--optimizer\",\"adamw\"") != std::string::npos, command);
  const Ran again = check(folder, "a.json");
  CHECK_MESSAGE(again.code == 0, again.out, again.err);
  CHECK(check(folder, "nowhere").err.find("no such file") != std::string::npos);
}

TEST_CASE("--init without FILE: the baseline is called as MODEL is, whatever names it") {
  const Folder folder;
  const std::string words = " --gpus 2 --zero-stage 2 --hardware h100-sxm";
  fs::create_directory(folder / "mine");
  fs::copy(kRoot + "/models/tiny-llama.json", folder / "mine/config.json");
  for (const char* model : {"mine", "mine/config.json"}) {
    const Ran ran = check(folder, std::string("--init ") + model + words);
    CHECK_MESSAGE(ran.code == 0, ran.err);
    CHECK(fs::remove(folder / "baselines/mine.json"));
  }
  CHECK(check(folder, "--init a.json tiny-llama" + words).code == 0);
  CHECK(check(folder, "--init a.json tiny-llama" + words).err.starts_with("--init: error: a.json is there already"));
}

TEST_CASE("a baseline has a verdict, and may have a threshold") {
  const Project project;
  const Ran unknown = check(project.folder, "--init u.json tiny-llama");
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("the verdict of rank 0 is unknown: no capacity is known: name --hardware") !=
        std::string::npos);
  CHECK(!fs::exists(project.folder / "u.json"));
  CHECK(check(project.folder, "--at-most 72GiB").code == 0);
  const Ran above = check(project.folder, "--at-most 600MiB");
  CHECK(above.code == 4);
  CHECK(above.out.find("and at most 600.00 MiB are allowed") != std::string::npos);
  const Ran closed = check(project.folder, "--add baselines/small.json " + kCommand + " --at-most 600MiB");
  REQUIRE(closed.code == 0);
  CHECK(closed.err.find("and may take 600.00 MiB: `dsplan check` fails from the start") != std::string::npos);
  CHECK(check(project.folder, "baselines/small.json").code == 4);
  const Json json = Json::parse(check(project.folder, "baselines/small.json --format json").out);
  CHECK(json.at("baselines")[0].at("state") == "differs");
  CHECK(json.at("baselines")[0].at("at_most_bytes") == 600 * 1024 * 1024);
  CHECK(check(project.folder, "baselines/small.json --format github").out.find("Memory above its threshold") !=
        std::string::npos);
  CHECK(check(project.folder, "--at-most 72").code == 2);
}

TEST_CASE("a comment says GiB beside bytes") {
  Project project;
  project.edit("ds.json", "20000", "2000000");
  const Ran comment = check(project.folder, "--format md");
  CHECK(comment.code == 4);
  CHECK(comment.out.find(" MiB) |") != std::string::npos);
}
