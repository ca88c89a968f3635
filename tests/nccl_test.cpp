// Ranks over NCCL's calls, without a GPU: the lines of the CUDA plugin that call NCCL (cuda/nccl.h) over a library that
// has those calls (plugins/fake_nccl.cpp), in processes as launchers start them. What NCCL itself does on a GPU is not
// shown here.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "exec/plugin.h"
#include "launched.h"
#include "paths.h"
#include "planner/libraries/library_memory.h"

using namespace dsplan::test;

namespace {

using Json = nlohmann::json;

const std::string kBackend = DSPLAN_TEST_BACKENDS "/libdsplan_backend_on_host.so";
const std::string kLibrary = DSPLAN_TEST_BACKENDS "/libdsplan_fake_nccl.so";
const std::string kRun =
    "run " + test_paths::source_dir() + "/models/tiny-llama.json --micro-batch 1 --seq 16 --dtype bf16 --backend cuda ";

auto launched(const Folder& folder, int ranks, const std::string& line, const Variables& more = {}) {
  return launch(folder, torchrun, ranks, kRun + line + " --transport nccl --ranks " + std::to_string(ranks),
                [&](int, std::string&, Variables& variables) {
                  variables["DSPLAN_CUDA_PLUGIN"] = kBackend;
                  variables["DSPLAN_NCCL_LIBRARY"] = kLibrary;
                  for (const auto& [key, value] : more) variables[key] = value;
                });
}

}  // namespace

TEST_CASE("processes over NCCL's calls agree with the prediction, with the losses of virtual ranks") {
  for (const auto& [ranks, words] : {std::pair{2, "--zero-stage 3 --grad-accum 2"},
                                     {4, "--zero-stage 2"},
                                     {3, "--zero-stage 1 --nccl-max-ctas 4"}}) {
    CAPTURE(words);
    const Folder folder;
    ::setenv("DSPLAN_CUDA_PLUGIN", kBackend.c_str(), 1);
    const std::string plain = std::string(words).substr(0, std::string(words).find(" --nccl"));
    const Ran together = run_binary(folder, split(kRun + plain + " --ranks " + std::to_string(ranks)));
    ::unsetenv("DSPLAN_CUDA_PLUGIN");
    REQUIRE_MESSAGE(together.code == 0, together.err);
    auto all = launched(folder, ranks, std::string(words) + " --out nccl.json");
    for (const auto& each : all) CHECK_MESSAGE(each->end() == 0, each->err() << each->out());
    CHECK_MESSAGE(has(all[0]->out(), "tiny-llama-run: agrees (cuda, nccl)"), all[0]->out());
    CHECK(losses(all[0]->out()) == losses(together.out));
    CHECK(has(all[0]->out(),
              "communicators of rank 0 as they were made: " + std::string(has(words, "ctas 4") ? "28.00" : "196.00") +
                  " MiB by formula, measured "));
    const Json receipt = Json::parse(slurp(folder / "nccl.json"));
    CHECK(receipt["level"] == "nccl");
    for (const Json& rank : receipt["ranks"]) {
      REQUIRE(!rank["communication"].empty());
      for (const Json& row : rank["communication"]) {
        CHECK(row["calls"] > 0);
        CHECK(row["payload_bytes"] > 0);
        CHECK(row["wire_bytes"].is_null());  // NCCL does not say.
      }
    }
  }
}

TEST_CASE("NCCL that is missing, too old, or that fails: each rank ends, with the reason") {
  const Folder folder;
  struct Way {
    const char* variable;
    const char* value;
    const char* says;
  };
  for (const Way& way : {Way{"DSPLAN_NCCL_LIBRARY", "/nowhere/libnccl.so.2", "NCCL is not here: /nowhere/libnccl.so.2"},
                         Way{"DSPLAN_FAKE_NCCL_VERSION", "21703", "is NCCL 2.17.3; 2.18.0 or later is needed"},
                         Way{"DSPLAN_CUDA_PLUGIN", DSPLAN_TEST_BACKENDS "/libdsplan_backend_no_device.so",
                             "no usable device: none is plugged in"}}) {
    CAPTURE(way.says);
    auto all = launched(folder, 2, "--zero-stage 1", {{way.variable, way.value}});
    for (const auto& each : all) {
      CHECK(each->end(60s) == 6);
      CHECK_MESSAGE(has(each->err(), way.says), each->err());
    }
  }
}

TEST_CASE("a collective that fails on one rank ends all of them, with rank, event and call") {
  const Folder folder;
  auto all = launch(folder, torchrun, 2, kRun + "--zero-stage 1 --transport nccl --ranks 2 --out receipt.json",
                    [&](int rank, std::string&, Variables& variables) {
                      variables["DSPLAN_CUDA_PLUGIN"] = kBackend;
                      variables["DSPLAN_NCCL_LIBRARY"] = kLibrary;
                      if (rank == 1) variables["DSPLAN_FAKE_NCCL_FAILS"] = "3";
                    });
  CHECK(all[0]->end(60s) != 0);
  CHECK(all[1]->end(60s) != 0);
  CHECK_MESSAGE(has(all[0]->out(), "rank 1, event "), all[0]->out());
  CHECK_MESSAGE(has(all[0]->out(), "remote error: of the fake"), all[0]->out());
}

TEST_CASE("a rank that is killed, and one that stands still, within NCCL's calls") {
  const Folder folder;
  const Variables where{{"DSPLAN_CUDA_PLUGIN", kBackend}, {"DSPLAN_NCCL_LIBRARY", kLibrary}};
  const std::string line = kRun + "--transport nccl --zero-stage 1";
  {
    auto all = endless(folder, 2, line, where);
    all[1]->kill(SIGKILL);
    (void)all[1]->end();
    CHECK(all[0]->end(30s) == 6);
    CHECK_MESSAGE(has(all[0]->out(), "rank 1, process: not available: it ended without a word"), all[0]->out());
  }
  {
    auto all = endless(folder, 2, line + " --timeout 2", where);
    all[1]->kill(SIGSTOP);
    CHECK(all[0]->end(60s) == 6);
    CHECK_MESSAGE(has(all[0]->out(), "2 s for the other ranks of 2"), all[0]->out());
    all[1]->kill(SIGCONT);
    CHECK(all[1]->end(60s) == 6);
  }
}

TEST_CASE("NCCL's own memory by formula: the figures that were worked out by hand") {
  constexpr std::int64_t kMiB = 1 << 20;
  CHECK(dsplan::nccl_tables(1).value() == 10 * kMiB);    // One rank, maxCTAs 1.
  CHECK(dsplan::nccl_tables(64).value() == 388 * kMiB);  // One rank, as the search on a Hopper may choose.
  CHECK((dsplan::nccl_tables(8) + dsplan::nccl_ring(8)).value() == 148 * kMiB);
  CHECK((dsplan::nccl_tables(32) + dsplan::nccl_ring(32)).value() == 580 * kMiB);
}

TEST_CASE("words of NCCL are refused elsewhere") {
  const Folder folder;
  for (const auto& [words, why] : {std::pair{"--nccl-max-ctas 4", "is of --transport nccl"},
                                   {"--transport nccl --nccl-max-ctas 65", "from 1 to 64"},
                                   {"--transport tcp", "its ranks are processes on hosts; the backend is cuda"}}) {
    const Ran ran = run_binary(folder, split(kRun + "--zero-stage 1 --ranks 2 " + words));
    CHECK(ran.code == 2);
    CHECK_MESSAGE(has(ran.err, why), ran.err);
  }
}

#ifdef DSPLAN_CUDA_LIBRARY
TEST_CASE("the CUDA plugin finds NCCL without a driver, and makes ids; or says why not") {
  const dsplan::exec::Plugin plugin = dsplan::exec::load_plugin_from(DSPLAN_CUDA_LIBRARY);
  REQUIRE_MESSAGE(plugin.table != nullptr, plugin.why);
  char text[256] = "";
  const dsplan_status status = plugin.table->comm_library(plugin.table, text, sizeof text);
  if (status != DSPLAN_OK) {
    CHECK(status == DSPLAN_UNAVAILABLE);
    CHECK(has(plugin.table->last_error(plugin.table, nullptr), "NCCL is not here: "));
    return;
  }
  CHECK_MESSAGE(has(text, "NCCL 2."), text);
  char ids[2][DSPLAN_COMMUNICATOR_ID_BYTES] = {};
  for (char(&id)[DSPLAN_COMMUNICATOR_ID_BYTES] : ids) REQUIRE(plugin.table->comm_id(plugin.table, id) == DSPLAN_OK);
  CHECK(std::memcmp(ids[0], ids[1], sizeof ids[0]) != 0);
}
#endif
