// `dsplan run --transport tcp` and `nccl` as launchers start it: each rank a process of the real program, with the
// variables of torchrun, mpirun or srun. They measure what threads measure, and whatever becomes of one of them, all of
// them end, in time, with a message that names it.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exec/rendezvous/sockets.h"
#include "launched.h"
#include "paths.h"
#include "strangers.h"

using namespace dsplan::test;

namespace {

using Json = nlohmann::json;

const std::string kModel = test_paths::source_dir() + "/models/tiny-llama.json";
const std::string kRun = "run " + kModel + " --micro-batch 1 --seq 16 --dtype bf16 ";

const std::string kEndless = "run " + kModel + " --micro-batch 2 --seq 128 --dtype bf16 --transport tcp --zero-stage 1";

}  // namespace

TEST_CASE("processes measure what threads measure, row by row, with the same losses, under each launcher") {
  struct Way {
    Launcher launcher;
    int ranks;
    const char* words;
  };
  for (const Way& way : {Way{torchrun, 2, "--zero-stage 3 --grad-accum 2"}, Way{mpirun, 4, "--zero-stage 2 --tp 2"},
                         Way{srun, 4, "--zero-stage 1 --steps 3"}}) {
    CAPTURE(way.words);
    const Folder folder;
    const std::string line = kRun + way.words + " --ranks " + std::to_string(way.ranks);
    const Ran threads = run_binary(folder, split(line + " --out threads.json"));
    REQUIRE_MESSAGE(threads.code == 0, threads.err);
    auto all = launch(folder, way.launcher, way.ranks, line + " --transport tcp --out tcp.json");
    for (const auto& each : all) CHECK_MESSAGE(each->end() == 0, each->err() << each->out());
    for (std::size_t rank = 1; rank < all.size(); ++rank) CHECK(all[rank]->out().empty());
    CHECK(has(all[0]->out(), "tiny-llama-run: agrees (host, tcp)"));
    CHECK(losses(all[0]->out()) == losses(threads.out));
    const Json a = Json::parse(slurp(folder / "threads.json"));
    const Json b = Json::parse(slurp(folder / "tcp.json"));
    CHECK(b["level"] == "tcp");
    CHECK(b["complete"] == true);
    CHECK(a["ranks"].size() == b["ranks"].size());
    for (std::size_t rank = 0; rank < a["ranks"].size(); ++rank) {
      for (const char* part : {"rank", "parameters", "memory", "communication"}) {
        CAPTURE(part);
        CHECK(a["ranks"][rank][part] == b["ranks"][rank][part]);
      }
    }
    CHECK(a["samples"].size() == b["samples"].size());
  }
}

TEST_CASE("what does not fit together is refused by name on every rank") {
  const Folder folder;
  const std::string line = kRun + "--transport tcp --zero-stage 1 ";
  const Ran alone = run_binary(folder, split(line + "--ranks 2"));
  CHECK(alone.code == 2);
  CHECK_MESSAGE(has(alone.err, "nobody launched this process as one rank of several"), alone.err);
  const auto refused = [&](const std::vector<std::unique_ptr<Process>>& all, const std::string& why) {
    for (const auto& each : all) {
      CHECK(each->end() == 2);
      CHECK_MESSAGE(has(each->err(), why), each->err());
      CHECK(each->out().empty());
    }
  };
  refused(launch(folder, torchrun, 2, line + "--ranks 4"), "torchrun launched 2 processes, and the plan is of 4 ranks");
  refused(launch(folder, torchrun, 2, line,
                 [](int rank, std::string& own, Variables& variables) {
                   own += rank == 1 ? "--ranks 3" : "--ranks 2";
                   if (rank == 1) variables["WORLD_SIZE"] = "3";
                 }),
          "rank 1 of 3 came, where there are 2");
  refused(launch(folder, torchrun, 2, line + "--ranks 2",
                 [](int rank, std::string& own, Variables&) { own += rank == 1 ? " --seed 5" : ""; }),
          "rank 1, --seed: invalid call: \"5\", and on rank 0 \"0\"");
  refused(launch(folder, torchrun, 2, line + "--ranks 2",
                 [](int rank, std::string& own, Variables&) { own += rank == 1 ? " --grad-accum 2" : ""; }),
          "rank 1, the plan's fingerprint: invalid call: ");
}

TEST_CASE("memory that runs out ends all ranks with exit code 3, and rank 0 with what there is") {
  const Folder folder;
  auto all = launch(folder, torchrun, 2,
                    kRun + "--transport tcp --ranks 2 --zero-stage 2 --capacity 640MiB --out receipt.json");
  for (const auto& each : all) CHECK_MESSAGE(each->end() == 3, each->err());
  CHECK(has(all[0]->out(), "out of memory"));
  const Json receipt = Json::parse(slurp(folder / "receipt.json"));
  CHECK(receipt["outcome"] == "out_of_memory");
  CHECK(receipt["ranks"].size() == 2);
}

TEST_CASE("what one rank alone cannot do ends the others with its words") {
  const Folder folder;
  auto all = launch(folder, torchrun, 3, kRun + "--transport tcp --ranks 3 --zero-stage 1",
                    [](int rank, std::string&, Variables& variables) {
                      if (rank == 2) variables["TMPDIR"] = "/nonexistent";
                    });
  CHECK(all[0]->end() == 6);
  CHECK(all[1]->end() == 6);
  CHECK(all[2]->end() != 0);
  CHECK_MESSAGE(has(all[0]->err(), "rank 2, run: invalid call: "), all[0]->err());
  CHECK_MESSAGE(has(all[0]->err(), "temp_directory_path"), all[0]->err());
}

TEST_CASE("a rank that is killed ends the others at once, and is named") {
  const Folder folder;
  {
    auto all = endless(folder, 3, kEndless);
    all[1]->kill(SIGKILL);
    CHECK(all[1]->end() == 128 + SIGKILL);
    CHECK_MESSAGE(all[0]->end(30s) == 6, all[0]->err());
    CHECK_MESSAGE(all[2]->end(30s) == 6, all[2]->err());
    CHECK_MESSAGE(has(all[0]->out(), "rank 1, process: not available: it ended without a word"), all[0]->out());
    const Json receipt = Json::parse(slurp(folder / "receipt.json"));
    CHECK(receipt["complete"] == false);
    CHECK(receipt["outcome"] == "error");
    CHECK(receipt["ranks"].size() == 2);
  }
  {
    auto all = endless(folder, 2, kEndless);
    all[0]->kill(SIGKILL);
    CHECK(all[0]->end() == 128 + SIGKILL);
    CHECK(all[1]->end(30s) == 6);
    CHECK_MESSAGE(has(all[1]->err(), "rank 0, process: not available: it ended without a word"), all[1]->err());
  }
}

TEST_CASE("a rank that stands still is waited for as long as was said") {
  const Folder folder;
  auto all = endless(folder, 2, kEndless + " --timeout 2");
  all[1]->kill(SIGSTOP);
  CHECK_MESSAGE(all[0]->end(60s) == 6, all[0]->err());
  CHECK_MESSAGE(has(all[0]->out(), "timed out: 2000 ms for rank 1 of group dp"), all[0]->out());
  all[1]->kill(SIGCONT);
  CHECK(all[1]->end(60s) == 6);
}

TEST_CASE("Ctrl-C on one rank ends all of them with what there is") {
  const Folder folder;
  auto all = endless(folder, 2, kEndless);
  all[1]->kill(SIGINT);
  for (const auto& each : all) CHECK_MESSAGE(each->end(60s) == 130, each->err());
  CHECK(Json::parse(slurp(folder / "receipt.json"))["complete"] == false);
}

TEST_CASE("a rank that never comes, and a port in use") {
  const Folder folder;
  const std::string line = kRun + "--transport tcp --ranks 2 --zero-stage 1 --timeout 0.5";
  const int port = next_port();
  {
    Process only(folder, "only", line, torchrun(0, 2, port));
    CHECK(only.end() == 6);
    CHECK_MESSAGE(has(only.err(), "timed out: 0.5 s for rank 1, at port"), only.err());
    Process other(folder, "other", line, torchrun(1, 2, port));
    CHECK(other.end() == 6);
    CHECK_MESSAGE(has(other.err(), "timed out: 0.5 s for rank 0 at localhost:"), other.err());
  }
  std::string why;
  const dsplan::exec::Socket stranger = dsplan::exec::listen_on(dsplan::exec::Reach::Loopback, port, why);
  REQUIRE_MESSAGE(stranger.open(), why);
  Process first(folder, "first", line, torchrun(0, 2, port));
  Process second(folder, "second", line, torchrun(1, 2, port));
  CHECK(first.end() == 6);
  CHECK_MESSAGE(has(first.err(), "port " + std::to_string(port) + ": Address already in use"), first.err());
  CHECK(second.end() == 6);
  CHECK_MESSAGE(has(second.err(), "what answers there is no rank of a run"), second.err());
}

TEST_CASE("a local run listens on the loopback alone; strangers there are dropped, counted and reported") {
  const Folder folder;
  const std::string line = kRun + "--transport tcp --ranks 2 --zero-stage 1 --out receipt.json";
  const int port = next_port();
  Process first(folder, "first", line, torchrun(0, 2, port));
  const std::vector<std::string> addresses = listening_at(port);
  REQUIRE(addresses.size() == 1);
  CHECK(addresses[0] == kLoopbackInKernel);
  const auto open = knock_in_all_ways(port);
  Process second(folder, "second", line, torchrun(1, 2, port));
  CHECK_MESSAGE(first.end() == 0, first.err() << first.out());
  CHECK_MESSAGE(second.end() == 0, second.err());
  const std::string count = "strangers: " + std::to_string(kWaysToKnock) + " connections were not of this run";
  CHECK_MESSAGE(has(first.out(), count), first.out());
  CHECK(has(first.out(), "tiny-llama-run: agrees (host, tcp)"));
  const Json receipt = Json::parse(slurp(folder / "receipt.json"));
  CHECK(receipt["complete"] == true);
  CHECK(receipt["strangers"] == kWaysToKnock);
}

TEST_CASE("a wrong key on one rank is told on both sides, in time; without any a run over machines is refused") {
  const Folder folder;
  const std::string line = kRun + "--transport tcp --ranks 2 --zero-stage 1 --timeout 2";
  int port = 0;
  auto all = launch(folder, torchrun, 2, line, [&](int rank, std::string&, Variables& variables) {
    port = std::stoi(variables["MASTER_PORT"]);
    variables["DSPLAN_RUN_KEY"] = rank == 0 ? "one" : "another";
  });
  CHECK(all[0]->end(30s) == 6);
  CHECK_MESSAGE(has(all[0]->err(), "timed out: 2 s for rank 1, at port " + std::to_string(port) +
                                       "; 1 connection was not of this run (identity "),
                all[0]->err());
  CHECK(has(all[0]->err(), " of DSPLAN_RUN_KEY), the last from 127.0.0.1: its run has another identity"));
  CHECK(all[1]->end(30s) == 2);
  CHECK_MESSAGE(has(all[1]->err(), "rank 0 at localhost:" + std::to_string(port) +
                                       " is of another run: rank 1 has "
                                       "identity "),
                all[1]->err());
  auto open = launch(folder, torchrun, 2, line,
                     [](int, std::string&, Variables& variables) { variables["MASTER_ADDR"] = "node-a"; });
  for (const auto& each : open) {
    CHECK(each->end() == 2);
    CHECK_MESSAGE(has(each->err(), "DSPLAN_RUN_KEY: error: is not set"), each->err());
  }
}
