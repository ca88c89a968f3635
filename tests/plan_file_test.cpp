// Plan files as users see them: one file that is the prediction, what is run, the DeepSpeed JSON and the gate's word.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/text.h"
#include "paths.h"
#include "report/plan_file.h"
#include "run_binary.h"

using namespace dsplan;
using namespace dsplan::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

const std::string kRoot = test_paths::source_dir();
const std::string kPlans = kRoot + "/tests/golden/plans";

const std::string kZero3 = "tiny-llama --zero-stage 3 --gpus 4 --hardware h100-sxm --seq 64";

struct Bench {
  Folder folder;

  [[nodiscard]] Ran run(const std::string& words) const { return run_binary(folder, split(words)); }
  void plan(const std::string& words, const std::string& name = "p.json") const {
    const Ran ran = run("emit --format plan --out " + name + " " + words);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
  }
  [[nodiscard]] Json prediction(const std::string& words) const {
    const Ran ran = run("simulate --format json " + words);
    REQUIRE_MESSAGE((ran.code == 0 || ran.code == 3), ran.err);
    Json json = Json::parse(ran.out);
    json.erase("assumptions");  // A plan assumes nothing.
    if (json.contains("ranks")) {
      for (Json& rank : json["ranks"]) rank.erase("assumptions");
    }
    return json;
  }
  void edit(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = slurp(folder / file);
    const std::size_t at = text.find(from);
    REQUIRE_MESSAGE(at != std::string::npos, from);
    spill(folder / file, text.replace(at, from.size(), to));
  }
};

void says(const Ran& ran, int code, const std::string& part) {
  CHECK_MESSAGE(ran.code == code, ran.err);
  CHECK_MESSAGE(ran.err.find(part) != std::string::npos, part, "\n", ran.err);
}

}  // namespace

TEST_CASE("a plan predicts what the words that made it predict") {
  const Bench at;
  spill(at.folder / "ds.json",
        R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e4, "offload_optimizer": {"device": "cpu", "pin_memory": false}}})");
  spill(at.folder / "args.yaml", "bf16: true\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 2\n");
  spill(at.folder / "groups.json",
        R"({"dsplan": 1, "kind": "checkpoint", "source": "x", "groups": [[0, 1, "recompute"]]})");
  for (const std::string words :
       {"tiny-llama", "tiny-llama --gpus 2 --hardware h100-sxm --autocast bf16 --optimizer sgd:foreach",
        "tiny-llama --zero-stage 3 --gpus 4 --hardware h100-sxm --checkpoint full",
        "tiny-llama --deepspeed ds.json --gpus 4 --cluster 8xh100 --checkpoint groups.json",
        "tiny-llama --zero-stage 1 --gpus 2 --lora r=8,targets=q_proj+v_proj,dtype=fp32 --freeze *embed*",
        "tiny-llama --training args.yaml --gpus 2 --capacity 1GiB --reserve 1MiB",
        "tiny-llama --seq-list 32,64 --rank all",
        "tiny-llama --tp 2 --gpus 4 --alloc-conf expandable_segments:True --zero-stage 1",
        "tiny-llama --gpus 2 --checkpoint keep:linear --loss chunked:4 --seq 64 -- accelerate launch --mixed_precision "
        "bf16 --num_processes 2 train.py"}) {
    CAPTURE(words);
    at.plan(words);
    CHECK(at.prediction("p.json") == at.prediction(words));
    // Made again from itself it is itself.
    at.plan("p.json", "q.json");
    CHECK(slurp(at.folder / "q.json") == slurp(at.folder / "p.json"));
  }
}

TEST_CASE("the DeepSpeed JSON of a plan is the one that is handed over") {
  const Bench at;
  at.plan(kZero3);
  const Json plan = Json::parse(slurp(at.folder / "p.json"));
  const Ran direct = at.run("emit " + kZero3 + " --format deepspeed");
  CHECK(Json::parse(direct.out) == plan["deepspeed"]);
  CHECK(at.run("emit p.json --format deepspeed").out == direct.out);
  CHECK(plan["fingerprint"] == at.prediction("p.json")["fingerprint"]);
  CHECK(plan["ranks"][0]["rows"]["memory.peak.requested"] == at.prediction(kZero3)["memory"]["peak"]["requested"]);
  CHECK(plan["written"]["deepspeed"] == "0.19.8");
  CHECK(std::any_of(plan["assumed"].begin(), plan["assumed"].end(),
                    [](const Json& one) { return one["name"] == "attention" && one["value"] == "cudnn"; }));
}

TEST_CASE("options stand above a plan as above a training file, and a changed job is said") {
  const Bench at;
  at.plan(kZero3);
  const Ran ran = at.run("simulate p.json --micro-batch 2 --gpus 8 --format json");
  says(ran, 0,
       "p.json:6:17: note: what is said beside the plan changes it: GPUs 4 -> 8, micro-batch 1 -> 2; the plan's own "
       "figures are not of this job");
}

TEST_CASE("a plan that was edited is refused until it is written anew") {
  const Bench at;
  at.plan(kZero3);
  at.edit("p.json", "\"seq\": 64", "\"seq\": 32");
  for (const char* words : {"simulate p.json", "explain p.json --explain peak", "emit p.json --format deepspeed",
                            "run p.json", "check --add b.json p.json"}) {
    says(at.run(words), 2, "p.json:6:17: error: the plan's own inputs resolve to sha256:");
  }
  says(at.run("simulate p.json"), 2, "`dsplan emit p.json --format plan --out NEW.json` writes it anew");
  at.plan("p.json", "new.json");
  CHECK(at.prediction("new.json") == at.prediction("tiny-llama --zero-stage 3 --gpus 4 --hardware h100-sxm --seq 32"));
}

TEST_CASE("files beside a plan replace its parts, except the training file") {
  const Bench at;
  at.plan(kZero3);
  spill(at.folder / "ds.json",
        R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000}})");
  const Json replaced = at.prediction("p.json --deepspeed ds.json --hardware h200-sxm");
  const Json direct = at.prediction("tiny-llama --gpus 4 --hardware h200-sxm --seq 64 --deepspeed ds.json");
  CHECK(replaced == direct);
  says(at.run("simulate p.json --training ds.json"), 2, "--training: error: a plan is its own training file");
}

TEST_CASE("a plan is run, and its receipt compared with it") {
  const Bench at;
  at.plan("tiny-llama --zero-stage 2 --gpus 2 --hardware h100-sxm --seq 32 --attention flash");
  const Ran ran = at.run("run p.json --out receipt.json");
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  CHECK(at.run("compare p.json receipt.json").code == 0);
  CHECK(at.run("compare --re-predict receipt.json").code == 0);
  at.plan("tiny-llama --zero-stage 1 --gpus 2 --hardware h100-sxm --seq 32 --attention flash", "other.json");
  says(at.run("compare other.json receipt.json"), 2, "other.json: error: the fingerprints differ");
  at.plan("tiny-llama --zero-stage 2 --gpus 4 --hardware h100-sxm --seq 32 --attention flash", "four.json");
  says(at.run("compare four.json receipt.json"), 2, "is of 4 ranks, and 2 were measured");
}

TEST_CASE("the gate takes a plan as its model") {
  const Bench at;
  fs::copy(kRoot + "/docs/examples/ci/gpu.json", at.folder / "gpu.json");  // Its context is measured.
  at.plan("tiny-llama --zero-stage 3 --gpus 4 --hardware gpu.json --seq 64");
  const Ran added = at.run("check --add b.json p.json");
  REQUIRE_MESSAGE(added.code == 0, added.err);
  CHECK(at.run("check b.json").code == 0);
  at.plan("p.json --micro-batch 4", "p.json");
  const Ran moved = at.run("check b.json");
  CHECK_MESSAGE(moved.code == 4, moved.err);
  CHECK_MESSAGE(moved.out.find("micro_batch") != std::string::npos, moved.out);
}

TEST_CASE("broken plans are refused where they are broken") {
  const Bench at;
  at.plan(kZero3);
  const std::string whole = slurp(at.folder / "p.json");
  const auto broken = [&](const std::string& from, const std::string& to, const std::string& said) {
    CAPTURE(from);
    spill(at.folder / "b.json", whole);
    at.edit("b.json", from, to);
    says(at.run("simulate b.json"), 2, said);
  };
  broken(R"("dsplan": 1)", R"("dsplan": 2)", "b.json:2:12: error: file version 2 is not known");
  broken(R"("kind": "plan")", R"("kind": "plans")", "b.json:3:10: error: \"plans\" is no kind of model");
  broken(R"("fingerprint")", R"("fingerprnt")", "unknown key \"fingerprnt\" in a plan; did you mean \"fingerprint\"?");
  broken(R"("kind": "training")", R"("kind": "graph")", "\"kind\" must be \"training\"");
  broken(R"("gpus": 4)", R"("gpsu": 4)", "unknown key \"gpsu\"");
  broken(R"("gpus": 4)", R"("hardware": "h100-sxm", "gpus": 4)", "\"hardware\" names a file, and a plan is whole");
  broken(R"("stage": 3)", R"("stage": 7)", "ZeRO stage 7 does not exist");
  broken(R"("overlap_comm")", R"("overlap_com")",
         "unknown key \"overlap_com\" in zero_optimization: DeepSpeed forbids it");
  broken(R"("hidden_size": 64)", R"("hidden_size": "64")", "hidden_size");
  broken(R"("memory.peak.requested")", R"("memry.peak.requested")", "no row \"memry.peak.requested\"");
  broken(R"("rank": 0)", R"("rank": "0")", "\"rank\"");
  broken(R"("cluster": null)", R"("cluster": 8)", "\"cluster\" must be an object");
  broken(R"("training": {)", R"("training": null, "x": {)", "\"training\" must not be null");
  broken(R"("assumed": [)", R"("assumed": [ 3,)", "an assumed input must be an object");
  broken(R"("time": {)", R"("time": {"totl": 1, )", "unknown key \"totl\"");
  broken(R"("cluster": null,)", "", "\"cluster\" is missing");
  broken(R"("deepspeed": {)", R"("deepspeed": {"train_batch_size": 4, )", "train_batch_size");
  for (std::size_t cut : {std::size_t{1}, whole.size() / 3, whole.size() / 2, whole.size() - 3}) {
    spill(at.folder / "b.json", whole.substr(0, cut));
    CHECK(at.run("simulate b.json").code == 2);
  }
  // Several faults at once.
  spill(at.folder / "b.json", whole);
  at.edit("b.json", R"("fingerprint")", R"("fingerprnt")");
  at.edit("b.json", R"("cluster": null,)", "");
  const Ran ran = at.run("simulate b.json");
  says(ran, 2, "\"cluster\" is missing");
  says(ran, 2, "\"fingerprnt\"");
}

TEST_CASE("what no plan can say is refused when it is written") {
  const Bench at;
  says(at.run("emit tiny-llama --format plam"), 2, "no format \"plam\" of emit; did you mean plan?");
  says(at.run("emit tiny-llama --format deepspeed"), 2,
       "is trained by plain PyTorch here, which no DeepSpeed JSON can say");
  says(at.run("emit tiny-llama"), 2, "--format: error: is missing");
}

TEST_CASE("plans of every earlier dsplan are read") {
  const Bench at;
  int plans = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kPlans)) {
    if (entry.path().extension() != ".json") continue;
    ++plans;
    const std::string path = entry.path().string();
    CAPTURE(path);
    const SavedPlan plan = read_plan(read_document(path));
    CHECK(plan_json(plan) == slurp(path));
    const Ran ran = at.run("simulate " + path + " --format json");
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    CHECK(Json::parse(ran.out)["fingerprint"] == plan.fingerprint);
  }
  CHECK(plans >= 4);
}
