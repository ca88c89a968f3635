// Processes that find each other: what launchers say of them, how they meet, and how each learns of what becomes of the
// others. No device is needed.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "exec/failure.h"
#include "exec/rendezvous/launch_place.h"
#include "exec/rendezvous/rendezvous.h"
#include "meeting.h"

using namespace dsplan;
using namespace dsplan::test;
using namespace std::chrono_literals;

namespace {

std::optional<exec::LaunchPlace> placed(const std::map<std::string, std::string>& variables) {
  return exec::launch_place([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const std::map<std::string, std::string>& variables) {
  try {
    (void)placed(variables);
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("launchers say which process this is") {
  CHECK(!placed({{"PATH", "/bin"}}).has_value());
  const auto torchrun = placed({{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "node-a"},
                                {"MASTER_PORT", "1234"},
                                {"TORCHELASTIC_RUN_ID", "tuesday"},
                                {"SLURM_PROCID", "0"}});
  REQUIRE(torchrun.has_value());
  CHECK(torchrun->launcher == "torchrun");
  CHECK(torchrun->rank == 5);
  CHECK(torchrun->ranks == 8);
  CHECK(torchrun->local_rank == 1);
  CHECK(torchrun->host == "node-a");
  CHECK(torchrun->port == 1234);
  CHECK_FALSE(torchrun->local);
  const auto mpi = placed({{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  REQUIRE(mpi.has_value());
  CHECK(mpi->launcher == "Open MPI");
  CHECK(mpi->host == "localhost");
  CHECK(mpi->port == 29500);
  CHECK(mpi->local);
  // Nothing names the run: all that this process starts is told apart from what others start.
  CHECK(mpi->identity_source == "the launcher's process");
  CHECK(mpi->identity.find(std::to_string(getppid()) + " since ") == 0);
  CHECK(mpi->identity.back() != ' ');  // When that began is read.
  const auto slurm =
      placed({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "3"}, {"SLURM_NNODES", "1"}});
  REQUIRE(slurm.has_value());
  CHECK(slurm->launcher == "Slurm");
  CHECK(slurm->rank == 3);
  CHECK(placed({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}})->launcher == "PMI");
}

TEST_CASE("what is half there, or contradicts itself, is refused by name") {
  CHECK(refusal({{"RANK", "0"}}).find("WORLD_SIZE") == 0);
  CHECK(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("\"x\" is no number from 0 to ") != std::string::npos);
  CHECK(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}).find("rank 2 of 2") != std::string::npos);
  CHECK(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_NNODES", "2"}})
            .find("MASTER_ADDR") == 0);
}

TEST_CASE("what tells a run's processes from others, and that no run over several machines does without") {
  std::map<std::string, std::string> several{
      {"RANK", "0"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node-a"}};
  const std::string why = refusal(several);
  CHECK_MESSAGE(why.find("DSPLAN_RUN_KEY: error: is not set, and torchrun gives the run no identity") == 0, why);
  several["TORCHELASTIC_RUN_ID"] = "none";  // What torchrun says where nobody says anything.
  several["DSPLAN_RUN_KEY"] = "";
  CHECK(refusal(several) == why);
  several["SLURM_JOB_ID"] = "77";
  CHECK(placed(several)->identity == "77");
  several["TORCHELASTIC_RUN_ID"] = "tuesday";
  CHECK(placed(several)->identity == "tuesday");
  several["DSPLAN_RUN_KEY"] = "k3y";
  CHECK(placed(several)->identity == "k3y");
  CHECK(placed(several)->identity_source == "DSPLAN_RUN_KEY");
  CHECK(exec::describe_identity(*placed(several)).find("k3y") == std::string::npos);

  std::map<std::string, std::string> steps{{"SLURM_PROCID", "3"},    {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"},
                                           {"SLURM_NNODES", "2"},    {"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "1"},
                                           {"SLURM_NODELIST", "a,b"}};
  CHECK(placed(steps)->identity == "5.1");
  std::map<std::string, std::string> mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                                         {"OMPI_COMM_WORLD_SIZE", "2"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                         {"MASTER_ADDR", "10.0.0.1"},
                                         {"PMIX_NAMESPACE", "prterun-a-1@1"}};
  CHECK(placed(mpi)->identity == "prterun-a-1@1");
  mpi["OMPI_MCA_ess_base_jobid"] = "123";
  CHECK(placed(mpi)->identity == "123");
  const std::map<std::string, std::string> hydra{
      {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MASTER_ADDR", "10.0.0.1"}};
  CHECK(refusal(hydra).find("DSPLAN_RUN_KEY") == 0);
}

TEST_CASE("where all ranks are on one machine they meet at its loopback, whatever its name is") {
  std::map<std::string, std::string> one{{"RANK", "0"},
                                         {"WORLD_SIZE", "4"},
                                         {"LOCAL_RANK", "0"},
                                         {"LOCAL_WORLD_SIZE", "4"},
                                         {"MASTER_ADDR", "node-a.example.org"}};
  CHECK(placed(one)->local);
  CHECK(placed(one)->host == "localhost");
  one.erase("LOCAL_WORLD_SIZE");
  CHECK(refusal(one).find("DSPLAN_RUN_KEY") == 0);
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    one["MASTER_ADDR"] = host;
    CHECK(placed(one)->local);
  }
}

TEST_CASE("where rank 0 is, and at which port it listens") {
  const std::map<std::string, std::string> torchrun{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_PORT", "700"}};
  CHECK(placed(torchrun)->port == 700);
  std::map<std::string, std::string> with_store = torchrun;
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // torchrun itself listens at MASTER_PORT.
  CHECK(placed(with_store)->port == 701);
  with_store["DSPLAN_PORT"] = "900";
  CHECK(placed(with_store)->port == 900);
  with_store["DSPLAN_PORT"] = "65536";
  CHECK_MESSAGE(refusal(with_store).find("\"65536\" is no number from 1 to 65535") != std::string::npos,
                refusal(with_store));
  std::map<std::string, std::string> slurm{{"SLURM_PROCID", "3"},
                                           {"SLURM_NTASKS", "4"},
                                           {"SLURM_LOCALID", "1"},
                                           {"SLURM_NNODES", "2"},
                                           {"SLURM_JOB_ID", "5"}};
  for (const auto& [list, first] : {std::pair{"gpu[03-05,07],login", "gpu03"},
                                    {"gpu7,gpu9", "gpu7"},
                                    {"a-1.example.org", "a-1.example.org"},
                                    {"rack[2,4-9]", "rack2"}}) {
    slurm["SLURM_NODELIST"] = list;
    CHECK(placed(slurm)->host == first);
  }
  slurm["MASTER_ADDR"] = "10.0.0.1";
  CHECK(placed(slurm)->host == "10.0.0.1");
}

namespace {

exec::Blob blob(const std::string& text) { return exec::packed(text); }

}  // namespace

TEST_CASE("all processes get everybody's bytes, whoever starts first, as often as they like") {
  for (const bool late : {false, true}) {
    constexpr int kRanks = 4;
    const auto body = [](exec::Rendezvous& rendezvous) {
      for (int round = 0; round < 20; ++round) {
        const std::vector<exec::Blob> all =
            rendezvous.exchange(blob(std::to_string(rendezvous.rank() * 100 + round)), "a number");
        for (int rank = 0; rank < kRanks; ++rank) {
          const auto said = exec::unpacked<std::string>(all.at(static_cast<std::size_t>(rank)));
          if (said != std::to_string(rank * 100 + round)) return 1;
        }
      }
      const auto reports = rendezvous.gather(blob("report of " + std::to_string(rendezvous.rank())));
      if (rendezvous.rank() != 0) {
        const auto word = rendezvous.await_announcement();
        return word && exec::unpacked<std::string>(*word) == "the end" ? 0 : 2;
      }
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto& report = reports.at(static_cast<std::size_t>(rank));
        if (!report || exec::unpacked<std::string>(*report) != "report of " + std::to_string(rank)) return 3;
      }
      rendezvous.announce(blob("the end"));
      return 0;
    };
    std::vector<pid_t> others;
    for (int rank = 1; rank < kRanks; ++rank) {
      others.push_back(start([&] {
        exec::Rendezvous rendezvous(place(rank, kRanks, 0), 20s);
        return body(rendezvous);
      }));
    }
    if (late) std::this_thread::sleep_for(100ms);
    {
      exec::Rendezvous rendezvous(place(0, kRanks, 0), 20s);
      CHECK(body(rendezvous) == 0);
    }
    for (const pid_t child : others) CHECK(end_of(child) == 0);
  }
  exec::Rendezvous alone(place(0, 1, 0), 1ms);  // Nobody listens.
  CHECK(alone.exchange(blob("me"), "").size() == 1);
}

TEST_CASE("who does not come is named to all who came, and nobody waits for ever") {
  const pid_t other = start([] {
    const std::string text = failure_of(place(1, 4, 1), 20s, [](exec::Rendezvous&) {});
    return text == "rank 0, rendezvous: timed out: 0.3 s for ranks 2, 3, at port " + std::to_string(first_port + 1) ? 0
                                                                                                                    : 1;
  });
  const std::string text = failure_of(place(0, 4, 1), 300ms, [](exec::Rendezvous&) {});
  CHECK_MESSAGE(has(text, "timed out: 0.3 s for ranks 2, 3"), text);
  CHECK(end_of(other) == 0);
  const std::string nobody = failure_of(place(1, 2, 2), 50ms, [](exec::Rendezvous&) {});
  CHECK_MESSAGE(has(nobody, "rank 1, rendezvous: timed out: 0.05 s for rank 0 at localhost:"), nobody);
  CHECK_MESSAGE(has(nobody, "Connection refused"), nobody);
}

TEST_CASE("a port that somebody else listens at") {
  std::string why;
  const exec::Socket stranger = exec::listen_on(exec::Reach::Everywhere, first_port + 3, why);
  REQUIRE_MESSAGE(stranger.open(), why);
  const std::string host = failure_of(place(0, 2, 3), 5s, [](exec::Rendezvous&) {});
  CHECK_MESSAGE(has(host, "not available: port " + std::to_string(first_port + 3) + ": Address already in use"), host);
  // It takes the connection, and answers with something else.
  const pid_t answering = start([&] {
    const exec::Socket guest = exec::accept_from(stranger, exec::Clock::now() + 5s);
    const std::string words(100, 'x');
    return exec::send_all(guest, words.data(), words.size(), exec::Clock::now() + 1s) ? 0 : 1;
  });
  const std::string guest = failure_of(place(1, 2, 3), 200ms, [](exec::Rendezvous&) {});
  CHECK_MESSAGE(has(guest, "what answers there is no rank of a run"), guest);
  CHECK(end_of(answering) == 0);
}

TEST_CASE("ranks that do not agree on their number, or are there twice, end the run of all") {
  for (const auto& [rank, ranks, what] : {std::tuple{1, 5, "rank 1 of 5 came, where there are 3"},
                                          {2, 3, "rank 2 of 3 came, where there are 3, for the second time"}}) {
    const pid_t sound =
        start([] { return has(failure_of(place(2, 3, 4), 20s, [](exec::Rendezvous&) {}), " came") ? 7 : 0; });
    const pid_t wrong = start([rank = rank, ranks = ranks, what = what] {
      std::this_thread::sleep_for(100ms);
      return has(failure_of(place(rank, ranks, 4), 20s, [](exec::Rendezvous&) {}), what) ? 7 : 0;
    });
    const std::string text = failure_of(place(0, 3, 4), 20s, [](exec::Rendezvous&) {});
    CHECK_MESSAGE(has(text, std::string("invalid call: ") + what), text);
    CHECK(end_of(sound) == 7);
    CHECK(end_of(wrong) == 7);
  }
}

TEST_CASE("a failure of one reaches all, and so does the end of a process") {
  struct Way {
    int who;
    const char* text;
    bool word;  // It says so itself.
  };
  for (const Way& way : {Way{1, "rank 1, event 17, copy: device failed: on purpose", true},
                         Way{2, "rank 2, process: not available: it ended without a word", false},
                         Way{0, "rank 0, process: not available: it ended without a word", false}}) {
    CAPTURE(way.text);
    const auto body = [&](exec::Rendezvous& rendezvous) {
      (void)rendezvous.exchange({}, "a sign of life");
      if (rendezvous.rank() == way.who && way.word)
        rendezvous.abort({DSPLAN_DEVICE, way.who, 17, "copy", "on purpose"});
      if (rendezvous.rank() == way.who && !way.word) ::_exit(7);  // As if it were killed: no destructor runs.
      (void)rendezvous.exchange({}, "more");
    };
    std::vector<pid_t> all;
    for (int rank = 0; rank < 3; ++rank) {
      all.push_back(start([&] {
        const std::string text = failure_of(place(rank, 3, 5), 20s, body);
        return has(text, way.text) ? 7 : 1;
      }));
    }
    for (const pid_t each : all) CHECK(end_of(each) == 7);
  }
}

TEST_CASE("a process that stands still is waited for as long as was said") {
  const pid_t still = start([] {
    exec::Rendezvous rendezvous(place(1, 2, 6), 20s);
    std::this_thread::sleep_for(1s);
    return 0;
  });
  const std::string text =
      failure_of(place(0, 2, 6), 200ms, [](exec::Rendezvous& rendezvous) { (void)rendezvous.exchange({}, "a sign"); });
  CHECK_MESSAGE(has(text, "rank 0, rendezvous: timed out: 0.2 s for a sign of rank 1"), text);
  CHECK(end_of(still) == 0);
}
