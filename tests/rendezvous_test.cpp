// Processes that find each other: what launchers say of them, how they meet, and how each learns of what becomes of the
// others. No device is needed.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "exec/assembly.h"
#include "exec/failure.h"
#include "exec/rendezvous.h"

using namespace dsplan;
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

// Apart for test runs that go on at the same time; the same for the processes of one.
const int first_port = 20000 + static_cast<int>(::getpid()) % 20000;

exec::LaunchPlace place(int rank, int ranks, int which) {
  exec::LaunchPlace made;
  made.rank = rank;
  made.ranks = ranks;
  made.host = "localhost";
  made.port = first_port + which;
  return made;
}

// Runs `body` in a process of its own; what it returns is the exit code.
template <class Body>
pid_t start(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

int end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("launchers say which process this is") {
  CHECK(!placed({{"PATH", "/bin"}}).has_value());
  const auto torchrun = placed({{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "node-a"},
                                {"MASTER_PORT", "1234"},
                                {"SLURM_PROCID", "0"}});
  REQUIRE(torchrun.has_value());
  CHECK(torchrun->launcher == "torchrun");
  CHECK(torchrun->rank == 5);
  CHECK(torchrun->ranks == 8);
  CHECK(torchrun->local_rank == 1);
  CHECK(torchrun->host == "node-a");
  CHECK(torchrun->port == 1234);
  const auto mpi = placed({{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  REQUIRE(mpi.has_value());
  CHECK(mpi->launcher == "Open MPI");
  CHECK(mpi->host == "localhost");
  CHECK(mpi->port == 29500);
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
  std::map<std::string, std::string> slurm{
      {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_NNODES", "2"}};
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

// What a process says when it fails to meet the others, or the failure that reaches it within `body`.
template <class Body>
std::string failure_of(const exec::LaunchPlace& where, std::chrono::milliseconds patience, const Body& body) {
  try {
    exec::Assembly assembly(where, patience);
    body(assembly);
    return assembly.first_failure() ? exec::describe(*assembly.first_failure()) : "none";
  } catch (const exec::RunFailure& failure) {
    return failure.what();
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("all processes get everybody's bytes, whoever starts first, as often as they like") {
  for (const bool late : {false, true}) {
    constexpr int kRanks = 4;
    const auto body = [](exec::Assembly& assembly) {
      for (int round = 0; round < 20; ++round) {
        const std::vector<exec::Blob> all =
            assembly.exchange(blob(std::to_string(assembly.rank() * 100 + round)), "a number");
        for (int rank = 0; rank < kRanks; ++rank) {
          const auto said = exec::unpacked<std::string>(all.at(static_cast<std::size_t>(rank)));
          if (said != std::to_string(rank * 100 + round)) return 1;
        }
      }
      const auto reports = assembly.gather(blob("report of " + std::to_string(assembly.rank())));
      if (assembly.rank() != 0) {
        const auto word = assembly.hear();
        return word && exec::unpacked<std::string>(*word) == "the end" ? 0 : 2;
      }
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto& report = reports.at(static_cast<std::size_t>(rank));
        if (!report || exec::unpacked<std::string>(*report) != "report of " + std::to_string(rank)) return 3;
      }
      assembly.tell(blob("the end"));
      return 0;
    };
    std::vector<pid_t> others;
    for (int rank = 1; rank < kRanks; ++rank) {
      others.push_back(start([&] {
        exec::Assembly assembly(place(rank, kRanks, 0), 20s);
        return body(assembly);
      }));
    }
    if (late) std::this_thread::sleep_for(100ms);
    {
      exec::Assembly assembly(place(0, kRanks, 0), 20s);
      CHECK(body(assembly) == 0);
    }
    for (const pid_t child : others) CHECK(end_of(child) == 0);
  }
  exec::Assembly alone(place(0, 1, 0), 1ms);  // Nobody listens.
  CHECK(alone.exchange(blob("me"), "").size() == 1);
}

TEST_CASE("who does not come is named to all who came, and nobody waits for ever") {
  const pid_t other = start([] {
    const std::string text = failure_of(place(1, 4, 1), 20s, [](exec::Assembly&) {});
    return text == "rank 0, rendezvous: waited in vain: 0.3 s for ranks 2, 3, at port " + std::to_string(first_port + 1)
               ? 0
               : 1;
  });
  const std::string text = failure_of(place(0, 4, 1), 300ms, [](exec::Assembly&) {});
  CHECK_MESSAGE(has(text, "waited in vain: 0.3 s for ranks 2, 3"), text);
  CHECK(end_of(other) == 0);
  const std::string nobody = failure_of(place(1, 2, 2), 50ms, [](exec::Assembly&) {});
  CHECK_MESSAGE(has(nobody, "rank 1, rendezvous: waited in vain: 0.05 s for rank 0 at localhost:"), nobody);
  CHECK_MESSAGE(has(nobody, "Connection refused"), nobody);
}

TEST_CASE("a port that somebody else listens at") {
  std::string why;
  const exec::Socket stranger = exec::listen_on(first_port + 3, why);
  REQUIRE_MESSAGE(stranger.open(), why);
  const std::string host = failure_of(place(0, 2, 3), 5s, [](exec::Assembly&) {});
  CHECK_MESSAGE(has(host, "not available: port " + std::to_string(first_port + 3) + ": Address already in use"), host);
  // It takes the connection, and answers with something else.
  const pid_t answering = start([&] {
    const exec::Socket guest = exec::accept_from(stranger, exec::Clock::now() + 5s);
    const std::string words(100, 'x');
    return exec::send_all(guest, words.data(), words.size(), exec::Clock::now() + 1s) ? 0 : 1;
  });
  const std::string guest = failure_of(place(1, 2, 3), 200ms, [](exec::Assembly&) {});
  CHECK_MESSAGE(has(guest, "what answers there is no rank 0 of a run"), guest);
  CHECK(end_of(answering) == 0);
}

TEST_CASE("ranks that do not agree on their number, or are there twice, end the run of all") {
  for (const auto& [rank, ranks, what] : {std::tuple{1, 5, "rank 1 of 5 came, where there are 3"},
                                          {2, 3, "rank 2 of 3 came, where there are 3, for the second time"}}) {
    const pid_t sound =
        start([] { return has(failure_of(place(2, 3, 4), 20s, [](exec::Assembly&) {}), " came") ? 7 : 0; });
    const pid_t wrong = start([rank = rank, ranks = ranks, what = what] {
      std::this_thread::sleep_for(100ms);
      return has(failure_of(place(rank, ranks, 4), 20s, [](exec::Assembly&) {}), what) ? 7 : 0;
    });
    const std::string text = failure_of(place(0, 3, 4), 20s, [](exec::Assembly&) {});
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
    const auto body = [&](exec::Assembly& assembly) {
      (void)assembly.exchange({}, "a sign of life");
      if (assembly.rank() == way.who && way.word) assembly.abort({DSPLAN_DEVICE, way.who, 17, "copy", "on purpose"});
      if (assembly.rank() == way.who && !way.word) ::_exit(7);  // As if it were killed: no destructor runs.
      (void)assembly.exchange({}, "more");
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
    exec::Assembly assembly(place(1, 2, 6), 20s);
    std::this_thread::sleep_for(1s);
    return 0;
  });
  const std::string text =
      failure_of(place(0, 2, 6), 200ms, [](exec::Assembly& assembly) { (void)assembly.exchange({}, "a sign"); });
  CHECK_MESSAGE(has(text, "rank 0, rendezvous: waited in vain: 0.2 s for a sign of rank 1"), text);
  CHECK(end_of(still) == 0);
}
