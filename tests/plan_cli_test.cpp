// `dsplan plan` on chains, as users see it: exit codes, formats, refusals, and the page that shows it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "chain_file.h"
#include "chains.h"
#include "paths.h"
#include "run_binary.h"
#include "schema.h"

using namespace dsplan::test;
using Json = nlohmann::ordered_json;

namespace {

void write_uniform(const Folder& folder, const std::string& name, std::size_t stages) {
  dsplan::Chain chain = uniform_chain(stages);
  chain.source = "test";
  spill(folder / name, chain_json(chain));
}

Ran plan(const Folder& folder, const std::string& words) { return run_binary(folder, split("plan " + words)); }

}  // namespace

TEST_CASE("the promised figures: uniform chains of 32 and 96 stages") {
  const Folder folder;
  for (const auto& [stages, bytes] : {std::pair<std::size_t, int>{32, 88}, {96, 136}}) {
    write_uniform(folder, "chain.json", stages);
    const Ran ran = plan(folder, "chain.json --method flat --minimum --format json");
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const Json answer = Json::parse(ran.out);
    CHECK(answer.at("schema") == "dsplan.chain/1");
    check_schema(folder, "chain", ran.out);
    CHECK(answer.at("feasible") == true);
    CHECK(answer.at("method") == "flat");
    CHECK(answer.at("minimum_bytes") == bytes);
    CHECK(answer.at("peak_bytes") == bytes);
    CHECK(answer.at("time_without_recompute") == 3 * stages);
    CHECK(answer.at("lower_bound") <= answer.at("time"));
    // Every backward once, from the last stage to the first.
    std::vector<int> backward;
    for (const Json& operation : answer.at("operations")) {
      CHECK(operation.size() == 2);
      if (operation[0] == "backward") backward.push_back(operation[1]);
    }
    REQUIRE(backward.size() == stages);
    CHECK(std::is_sorted(backward.rbegin(), backward.rend()));
    CHECK(backward.back() == 1);
    CHECK(plan(folder, "chain.json --budget " + std::to_string(bytes)).code == 0);
    CHECK(plan(folder, "chain.json --budget " + std::to_string(bytes - 1) + "B").code == 5);
  }
}

TEST_CASE("no plan: exit code 5, the missing bytes, the smallest budget, and who has one") {
  const Folder folder;
  write_uniform(folder, "chain.json", 32);
  const Ran table = plan(folder, "chain.json --budget 90 --method megatron-block");
  CHECK(table.code == 5);
  CHECK(table.out.starts_with("no plan fits: megatron-block needs 102 B, 12 B more than the budget of 90 B\n"));
  CHECK(table.out.find("smallest change: --budget 102B\n") != std::string::npos);
  CHECK(table.out.find("or another method: flat\n") != std::string::npos);
  const Ran json = plan(folder, "chain.json --budget 30 --format json");
  CHECK(json.code == 5);
  const Json answer = Json::parse(json.out);
  CHECK(answer.at("feasible") == false);
  CHECK(answer.at("time").is_null());
  CHECK(answer.at("lower_bound").is_null());
  CHECK(answer.at("peak_bytes").is_null());
  CHECK(answer.at("minimum_bytes") == 88);
  CHECK(answer.at("memory_bound") == Json{{"bytes", 42}, {"stage", 2}});
  CHECK(answer.at("operations").empty());
}

TEST_CASE("formats say the same") {
  const Folder folder;
  spill(folder / "chain.json",
        R"({"dsplan": 1, "kind": "chain", "source": "test", "input_bytes": 2, "input_gradient": 2,
    "stages": [{"output": 2, "saved": 34, "gradient": 2, "forward_time": 0.5, "backward_time": 1.25, "gathered": 3,
      "options": [{"name": "core attn, x", "saved": 10, "time": 0.25, "forward_temporary": 0, "backward_temporary": 0}]},
     {"output": 2, "saved": 34, "gradient": 2, "forward_time": 0.5, "backward_time": 1.25}]})");
  const Json json = Json::parse(plan(folder, "chain.json --budget 60B --format json").out);
  CHECK(json.at("time") == 3.75);
  CHECK(json.at("segments") == Json::parse(R"([[1, 1, "store", "core attn, x"], [2, 2, "store"]])"));
  CHECK(json.at("operations")[1] == Json::parse(R"(["forward_save", 1, "core attn, x"])"));
  const std::string csv = plan(folder, "chain.json --budget 60B --format csv").out;
  CHECK(csv.starts_with("path,value\nschema,dsplan.chain/1\nfeasible,true\nmethod,flat\ntime,3.75\n"));
  CHECK(csv.find("\nsegments.1,\"1 1 store core attn, x\"\n") != std::string::npos);
  CHECK(csv.find("\nmemory_bound.stage,") != std::string::npos);
  CHECK(csv.find("\noperations.1,gather 1\n") != std::string::npos);
  const std::string md = plan(folder, "chain.json --budget 60B --format md").out;
  CHECK(md.starts_with("## chain\n\n| figure | value |\n"));
  CHECK(md.find("| time | 3.75 |\n") != std::string::npos);
  CHECK(md.find("| 1 to 1 | store core attn, x |\n") != std::string::npos);
  const std::string table = plan(folder, "chain.json --budget 60B").out;
  CHECK(table.find("stored by core attn, x\n") != std::string::npos);
  CHECK(widest_line(table) <= 80);
  CHECK(plan(folder, "chain.json --budget 60B --format json --out plan.json").out.empty());
  CHECK(Json::parse(slurp(folder / "plan.json")) == json);
}

TEST_CASE("every method answers by its name") {
  const Folder folder;
  write_uniform(folder, "chain.json", 12);
  for (const char* method : {"flat", "flat:50", "selective", "none", "full", "every", "every:3", "segments",
                             "segments:4", "checkpoint_sequential:4", "nth", "nth:2", "sqrt", "chen", "megatron-block",
                             "megatron-block:5", "megatron-uniform", "megatron-uniform:3"}) {
    CAPTURE(method);
    const Ran ran = plan(folder, std::string("chain.json --budget 500B --format json --method ") + method);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    const Json answer = Json::parse(ran.out);
    CHECK(answer.at("method").get<std::string>().starts_with(method));
    CHECK(answer.at("peak_bytes") <= 500);
  }
}

TEST_CASE("refusals of plan") {
  const Folder folder;
  write_uniform(folder, "chain.json", 12);
  const std::pair<const char*, const char*> cases[] = {
      {"chain.json", "--budget: error: is missing; or --minimum: the smallest that has a plan\n"},
      {"chain.json --budget 5x", "--budget: error: \"5x\" is not a size; write 80GiB, 512MiB, 80GB or 1024B\n"},
      {"chain.json --budget 99999999999999999999", "--budget: error: 99999999999999999999 does not fit in 63 bits\n"},
      {"chain.json --minimum --method flatt", "--method: error: no method \"flatt\"; did you mean \"flat\"?\n"},
      {"chain.json --minimum --method flat:0", "--method: error: flat takes a number from 1 to 100000, not 0\n"},
      {"chain.json --minimum --method flat:x", "--method: error: \"flat:x\" needs a whole number after the colon\n"},
      {"chain.json --minimum --method none:3", "--method: error: none takes no number\n"},
      {"chain.json --minimum --method segments:13",
       "--method: error: 13 segments of 12 stages; checkpoint_sequential needs a stage for each segment\n"},
      {"chain.json --minimum --format xml --gpus 8 --pareto",
       "--gpus: error: has no meaning for a chain\n--pareto: error: has no meaning for a chain\n"
       "--format: error: no format \"xml\"; formats are table, json, csv, md\n"},
      {"llama-3-8b --budget 70GiB --gpus 8",
       "--hardware: error: is missing: a search compares times, which need the device's rates; name it, or a "
       "--cluster\n"},
      {"--budget 70GiB", "dsplan plan: error: MODEL is missing; `dsplan show models` lists the bundled ones\n"},
  };
  for (const auto& [words, expected] : cases) {
    CAPTURE(words);
    const Ran ran = plan(folder, words);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.err == expected);
  }
}

TEST_CASE("times that were rounded are said to be") {
  const Folder folder;
  spill(folder / "chain.json",
        R"({"dsplan": 1, "kind": "chain", "source": "test", "input_bytes": 2, "input_gradient": 2,
    "stages": [{"output": 2, "saved": 34, "gradient": 2, "forward_time": 0.1000000000000000055, "backward_time": 1}]})");
  const Ran ran = plan(folder, "chain.json --minimum --format json");
  CHECK(ran.err == "chain: note: the times have more digits than fit together; they are rounded to 1e-15\n");
  CHECK(Json::parse(ran.out).at("times_rounded") == true);
}

TEST_CASE("docs/recompute-plans.md shows what its commands print") {
  const std::string path = test_paths::source_dir() + "/docs/recompute-plans.md";
  std::string page = slurp(path);
  // Each command stands alone in a fenced block; the next one is its output. The chain is the first block of all.
  const std::string fence = "\n```\n";
  const auto block = [&](std::size_t from) {
    const std::size_t begin = page.find(fence, from) + fence.size();
    return std::pair(begin, page.find("```", begin));
  };
  const Folder folder;
  const auto [first, end] = block(0);
  spill(folder / "chain.json", page.substr(first, end - first));
  const bool update = std::getenv("DSPLAN_UPDATE_DOCS") != nullptr;
  int shown = 0;
  const std::string command = "\n```\ndsplan ";
  for (std::size_t at = page.find(command); at != std::string::npos; at = page.find(command, at + 1)) {
    const std::size_t words = at + command.size();
    const std::string line = page.substr(words, page.find('\n', words) - words);
    const auto [from, to] = block(page.find("```", words) + 3 - 1);
    const Ran ran = run_binary(folder, split(line));
    CHECK_MESSAGE((ran.code == 0 || ran.code == 5), ran.err);
    ++shown;
    if (update) {
      page.replace(from, to - from, ran.out);
    } else {
      CHECK(page.substr(from, to - from) == ran.out);
    }
  }
  CHECK(shown >= 2);
  if (update) spill(path, page);
}
