// `dsplan plan MODEL` as users see it: exit codes, formats, refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "paths.h"
#include "run_binary.h"
#include "schema.h"
#include "texts.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kSmall =
    "tiny-llama --cluster 8xh100 --seq 256 --vary tp=1,2 --vary micro_batch=1,2,4 --vary checkpoint=none,full "
    "--vary offload=none --vary reduce_bucket_size=1000000 ";

// Lines are broken where they are full.
std::string one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  return line;
}

Ran plan(const Folder& folder, const std::string& words) { return run_binary(folder, split("plan " + words)); }

}  // namespace

TEST_CASE("rows that fewer data-parallel ranks divide: which degrees that leaves out is said") {
  const Folder folder;
  const std::string small = "tiny-llama --cluster 8xh100 --seq 256 --vary checkpoint=none --vary offload=none ";
  const std::string out = one_line(plan(folder, small + "--global-batch 37").out);
  CHECK_MESSAGE(out.find("not searched: tp 1, 2, 4 (37 rows; 32 or 40 divide), ") != std::string::npos, out);
  const std::string few = one_line(plan(folder, small + "--global-batch 4").out);
  CHECK_MESSAGE(few.find("not searched: tp 1 (4 rows; 8 divides), ") != std::string::npos, few);
  CHECK(plan(folder, small + "--global-batch 40").out.find(" rows; ") == std::string::npos);
}

TEST_CASE("pictures: micro-batches that are not modelled are counted, and the others searched") {
  struct Case {
    const char* words;
    int chosen;
    const char* why;
  };
  for (const Case& one :
       {Case{"qwen2-vl-2b --images 1 --seq 512 --vary micro_batch=8,128", 8, "more than 64 pictures at once"}}) {
    CAPTURE(one.words);
    const Folder folder;
    const Ran ran = plan(folder, std::string(one.words) +
                                     " --cluster 8xh100 --gpus 8 --vary tp=1 --vary offload=none "
                                     "--vary checkpoint=none --format json");
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const Json answer = Json::parse(ran.out);
    CHECK(answer.at("chosen").at("settings").at("micro_batch") == one.chosen);
    CHECK(has(answer.at("counts").dump(), one.why));
  }
}

TEST_CASE("JSON: the space, the counts, the chosen plan and its whole prediction") {
  const Folder folder;
  const Ran ran = plan(folder, std::string(kSmall) + "--format json --pareto");
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json answer = Json::parse(ran.out);
  CHECK(answer.at("schema") == "dsplan.search/1");
  check_schema(folder, "search", ran.out);
  CHECK(answer.at("objective") == "tokens_per_second");
  CHECK(answer.at("feasible") == true);
  CHECK(answer.at("complete") == true);
  CHECK(answer.at("space").at("zero_stage").at("values").size() == 5);  // FSDP2 beside ZeRO's.
  CHECK(answer.at("counts").at("candidates") == 5 * 2 * 3 * 2);
  CHECK(answer.at("space").at("tp").at("values") == Json({1, 2}));
  CHECK(answer.at("space").at("tp").at("origin") == "given");
  const Json& chosen = answer.at("chosen");
  CHECK(chosen.at("time").at("kind") == "estimated");
  CHECK(chosen.at("time").at("low_s") <= chosen.at("time").at("total_s"));
  CHECK(chosen.at("time").at("total_s") <= chosen.at("time").at("high_s"));
  CHECK(chosen.at("process_bytes") == answer.at("prediction").at("memory").at("peak").at("process"));
  CHECK(chosen.at("process_bytes") >= chosen.at("least_process_bytes"));
  CHECK(answer.at("front").size() >= 1);
  for (const Json& row : answer.at("neighbours")) CHECK(row.at("changed").size() == 1);
  // What was chosen is predicted the same by `simulate`.
  const auto setting = [&](const char* key) {
    const Json& value = chosen.at("settings").at(key);
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  const std::string states =
      setting("zero_stage") == "fsdp2"
          ? std::string(
                "--dtype fp32 --runtime fsdp2 --set model_init=rank0 --set fsdp.wrap=layers+ends "
                "--set fsdp.param_dtype=bf16 --set fsdp.reduce_dtype=bf16")
          : "--zero-stage " + setting("zero_stage");
  const Ran again =
      run_binary(folder, split("simulate tiny-llama --cluster 8xh100 --seq 256 --rank worst --format json " + states +
                               " --tp " + setting("tp") + " --micro-batch " + setting("micro_batch") +
                               " --checkpoint " + setting("checkpoint")));
  REQUIRE_MESSAGE(again.code == 0, again.err);
  // The bucket is not an option of `simulate`: everything but it.
  CHECK(Json::parse(again.out).at("memory").at("states") == answer.at("prediction").at("memory").at("states"));
}

TEST_CASE("the chosen plan is handed over: as a plan that simulate takes, and as DeepSpeed's JSON") {
  const Folder folder;
  const std::string asked =
      "llama-3.2-1b --cluster 8xh100 --seq 512 --budget 9GiB --vary tp=1 --vary micro_batch=1,2,4 ";
  const Ran answer = plan(folder, asked + "--format json");
  REQUIRE_MESSAGE(answer.code == 0, answer.err);
  const Json chosen = Json::parse(answer.out);
  const Ran saved = plan(folder, asked + "--emit plan --out chosen.json");
  REQUIRE_MESSAGE(saved.code == 0, saved.err);
  CHECK(has(saved.err, "BEST  "));
  const Ran again = run_binary(folder, split("simulate chosen.json --format json"));
  REQUIRE_MESSAGE(again.code == 0, again.err);
  const Json predicted = Json::parse(again.out);
  CHECK(predicted.at("memory") == chosen.at("prediction").at("memory"));
  CHECK(predicted.at("fingerprint") == chosen.at("prediction").at("fingerprint"));
  const Json& peak = predicted.at("memory").at("peak");
  const std::int64_t beside = peak.at("process_high").get<std::int64_t>() - peak.at("reserved").get<std::int64_t>();
  CHECK(peak.at("reserved_low").get<std::int64_t>() + beside <= chosen.at("budget_bytes").get<std::int64_t>());
  // A file of one framework is of the best plan under that.
  const Json zero = Json::parse(plan(folder, asked + "--runtime deepspeed --format json").out).at("chosen");
  const Ran emitted = plan(folder, asked + "--emit deepspeed");
  const Json deepspeed = Json::parse(emitted.out);
  CHECK(deepspeed.at("train_micro_batch_size_per_gpu") == zero.at("settings").at("micro_batch"));
  CHECK(deepspeed.at("zero_optimization").at("stage") == zero.at("settings").at("zero_stage"));
  const Json shards = Json::parse(plan(folder, asked + "--runtime fsdp2 --format json").out);
  const Ran yaml = plan(folder, asked + "--emit accelerate --out acc.yaml");
  REQUIRE_MESSAGE(yaml.code == 0, yaml.err);
  const Json settings = shards.at("chosen").at("settings");
  const Ran read = run_binary(
      folder,
      split("simulate llama-3.2-1b --cluster 8xh100 --seq 512 --format json --training acc.yaml --micro-batch " +
            settings.at("micro_batch").dump() + " --checkpoint " + settings.at("checkpoint").get<std::string>()));
  REQUIRE_MESSAGE(read.code == 0, read.err);
  CHECK(Json::parse(read.out).at("memory").at("peak").at("requested") ==
        shards.at("prediction").at("memory").at("peak").at("requested"));
  const Ran toml =
      plan(folder, "llama-3.1-8b --cluster 8xh100 --seq 512 --vary checkpoint=none,full --emit torchtitan");
  CHECK_MESSAGE(has(toml.out, "flavor = \"8B\""), toml.err);
  const Ran nothing = plan(folder, asked + "--budget 3GiB --emit deepspeed");
  CHECK(nothing.code == 2);  // Two budgets.
  const Ran small =
      plan(folder, "llama-3.2-1b --cluster 8xh100 --seq 512 --budget 2GiB --zero-stage 0 --emit deepspeed");
  CHECK(small.code == 5);
  CHECK(small.out.empty());
}

TEST_CASE("fully_shard's states go to the host where the device has no room, and accelerate's file says so") {
  const Folder folder;
  const std::string asked =
      "llama-3.2-1b --gpus 2 --hardware h100-sxm --seq 512 --host-memory 64GiB --budget 6GiB --runtime fsdp2 "
      "--vary checkpoint=none,full ";
  const Ran answer = plan(folder, asked + "--format json");
  REQUIRE_MESSAGE(answer.code == 0, answer.err);
  const Json found = Json::parse(answer.out);
  const Json& settings = found.at("chosen").at("settings");
  CHECK(settings.at("offload") == "optimizer+parameters");
  REQUIRE(plan(folder, asked + "--emit accelerate --out acc.yaml").code == 0);
  const Ran read = run_binary(
      folder,
      split("simulate llama-3.2-1b --gpus 2 --hardware h100-sxm --seq 512 --host-memory 64GiB --format json "
            "--training acc.yaml --micro-batch " +
            settings.at("micro_batch").dump() + " --checkpoint " + settings.at("checkpoint").get<std::string>()));
  REQUIRE_MESSAGE(read.code == 0, read.err);
  CHECK(Json::parse(read.out).at("memory").at("peak").at("requested") ==
        found.at("prediction").at("memory").at("peak").at("requested"));
}

TEST_CASE("the table within 80 columns, CSV and Markdown with one row for each plan that is named") {
  const Folder folder;
  const Ran table = plan(folder, kSmall);
  CHECK(table.code == 0);
  CHECK((table.out.starts_with("BEST  ZeRO-") || table.out.starts_with("BEST  FSDP2")));
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') <= 16);
  CHECK(has(plan(folder, std::string(kSmall) + "--verbose").out, "estimated"));
  std::size_t begin = 0;
  for (std::size_t end = table.out.find('\n'); end != std::string::npos; end = table.out.find('\n', begin)) {
    CHECK_MESSAGE(end - begin <= 80, table.out.substr(begin, end - begin));
    begin = end + 1;
  }
  const Ran csv = plan(folder, std::string(kSmall) + "--format csv");
  const Ran md = plan(folder, std::string(kSmall) + "--format md");
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  CHECK(csv.out.starts_with("what,gpus,zero_stage,"));
  CHECK(lines(md.out) == lines(csv.out) + 1);
  CHECK(lines(csv.out) > 5);
}

TEST_CASE("no plan fits: exit code 5, what misses least, and what would do") {
  const Folder folder;
  const Ran ran = plan(folder,
                       "llama-3.2-1b --cluster 8xh100 --seq 512 --budget 8GiB --zero-stage 0 --vary tp=1 "
                       "--vary micro_batch=1 --vary checkpoint=full --vary offload=none");
  CHECK(ran.code == 5);
  CHECK(ran.out.starts_with("NO PLAN FITS  "));
  CHECK(has(ran.out, "the states alone take"));
  CHECK(has(ran.out, "what makes it fit"));
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') <= 16);
  CHECK(has(ran.out, "zero_stage"));
}

TEST_CASE("one GPU: PyTorch alone is in the space, and what does not fit is offered adapters and the host") {
  const Folder folder;
  const Ran fits =
      run_binary(folder, {"plan", "llama-3-8b", "--hardware", "h100-sxm", "--gpus", "1", "--format", "json"});
  REQUIRE(fits.code == 0);
  CHECK(Json::parse(fits.out)["chosen"]["settings"]["zero_stage"] == "pytorch");
  const Ran none = run_binary(folder, {"plan", "llama-3-8b", "--hardware", "rtx-4090", "--verbose"});
  CHECK(none.code == 5);
  for (const char* way :
       {"--quantization nf4", "--lora r=16", "--optimizer adamw_8bit", "--zero-stage 2 \"offload_optimizer\"",
        "--zero-stage 3 \"offload_optimizer\", \"offload_param\": cpu", "of each node's host memory"}) {
    INFO((std::string(way)));
    CHECK(one_line(none.out).find(way) != std::string::npos);
  }
}

TEST_CASE("a recording is no space to search") {
  const Folder folder;
  const std::string recording = test_paths::source_dir() + "/tests/witnesses/modules/nanogpt.json";
  const Ran ran = run_binary(folder, {"plan", recording, "--gpus", "8", "--cluster", "8xh100"});
  CHECK(ran.code == 2);
  CHECK_MESSAGE(has(ran.err, "a search over a recorded module is not modelled yet"), ran.err);
}

TEST_CASE("what would fit: the screen asks for as many as it shows, which are among all") {
  const Folder folder;
  const std::string job = "simulate llama-3-8b --zero-stage 3 --gpus 4 --hardware a100-sxm-40";
  const std::string screen = run_binary(folder, split(job)).out;
  const std::string all = run_binary(folder, split(job + " --verbose")).out;
  std::size_t shown = 0;
  std::istringstream rows(screen.substr(screen.find("what would fit")));
  for (std::string row; std::getline(rows, row);) {
    const std::size_t unit = row.find(" GiB  ");
    if (unit == std::string::npos || row.find('%') == std::string::npos) continue;
    const std::string takes = row.substr(0, unit);
    CAPTURE(row);
    CHECK(all.find(takes.substr(takes.find_last_of(' ') + 1) + " GiB  fits: ") != std::string::npos);
    ++shown;
  }
  CHECK(shown == 3);
}

TEST_CASE("what would fit stands in the whole report with its options whole, and once") {
  const Folder folder;
  const Ran ran = run_binary(folder, split("simulate llama-3-70b --hardware h100-sxm --gpus 8 --verbose"));
  CHECK(ran.code == 3);
  const std::string text = one_line(ran.out);
  const std::size_t at = text.find("what would fit");
  REQUIRE(at != std::string::npos);
  CHECK(text.find("fits: --quantization nf4 --quant-compute-dtype bf16 --lora r=16", at) != std::string::npos);
  // Packed weights bring checkpoints by themselves: the same again with --checkpoint full is no other way.
  CHECK(text.find("nf4 --quant-compute-dtype bf16 --lora r=16 --checkpoint full", at) == std::string::npos);
}

TEST_CASE("a budget holds the process: each plan stays within it") {
  const Folder folder;
  for (const char* budget : {"4GiB", "5GiB", "7GiB"}) {
    const Ran ran = plan(folder, std::string("llama-3.2-1b --cluster 8xh100 --seq 512 --vary tp=1 --vary "
                                             "checkpoint=full --format json --budget ") +
                                     budget);
    const Json answer = Json::parse(ran.out);
    CHECK(answer.at("budget_bytes") == answer.at("limit_bytes"));
    if (ran.code != 0 || answer.at("chosen").at("fate") != "fits") continue;
    CHECK(answer.at("chosen").at("process_bytes") <= answer.at("budget_bytes"));
  }
}

TEST_CASE("without time there is no plan, and the answer says that it is not complete") {
  const Folder folder;
  const Ran ran = plan(folder, std::string(kSmall) + "--timeout 0 --format json");
  CHECK(ran.code == 5);
  CHECK(Json::parse(ran.out).at("complete") == false);
}

TEST_CASE("objectives") {
  const Folder folder;
  const std::string fixed =
      "tiny-llama --cluster 8xh100 --capacity 1600MiB --vary tp=1 --vary zero_stage=2 "
      "--vary checkpoint=full --vary offload=none --vary reduce_bucket_size=1000000 ";
  const Ran rows = plan(folder, fixed + "--maximize micro_batch --format json");
  REQUIRE_MESSAGE(rows.code == 0, rows.err);
  const Json answer = Json::parse(rows.out);
  CHECK(answer.at("objective") == "micro_batch");
  CHECK(answer.at("found") == answer.at("chosen").at("settings").at("micro_batch"));
  for (const char* both : {"--maximize micro_batch --micro-batch 2", "--maximize seq --seq 64"}) {
    const Ran refused = plan(folder, fixed + both);
    CHECK(refused.code == 2);
    CHECK_MESSAGE(refused.err.find("is what --maximize seeks") != std::string::npos, refused.err);
  }
  const Ran few = plan(folder, "tiny-llama --cluster 8xh100 --vary tp=1 --minimize gpus --format json");
  CHECK(Json::parse(few.out).at("chosen").at("world_size") == 1);
}

TEST_CASE("bad input, all of it together") {
  const Folder folder;
  spill(folder / "space.json", R"({"dsplan": 1, "kind": "space", "source": "test", "zero_stge": [1]})");
  const Ran ran = plan(folder,
                       "tiny-llama --cluster 8xh100 --space space.json --vary micro_batc=1 --vary tp "
                       "--maximize speed --emit yaml --budget 70 --method flat --timeout soon");
  CHECK(ran.code == 2);
  CHECK(ran.out.empty());
  for (const char* part :
       {"space.json:1:", "zero_stage", "did you mean \"micro_batch\"?", "\"tp\" is no AXIS=V1,V2",
        "cannot maximize \"speed\"", "nothing is called \"yaml\"", "--budget", "--method", "--timeout"}) {
    CHECK_MESSAGE(has(ran.err, part), part);
  }
}

TEST_CASE("a device without rates is refused by the row that is missing") {
  const Folder folder;
  const Ran none = plan(folder, "tiny-llama --gpus 8");
  CHECK(none.code == 2);
  CHECK(has(none.err, "--hardware"));
}
