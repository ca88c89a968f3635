// Processes that find each other: what launchers say of them, and bytes that rank 0 hands out. No device is needed.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
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

std::vector<std::byte> bytes(std::size_t count, unsigned first) {
  std::vector<std::byte> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>((first + i) % 256);
  return made;
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
  CHECK(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("\"x\" is no number from 0") != std::string::npos);
  CHECK(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}).find("rank 2 of 2") != std::string::npos);
  CHECK(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_NNODES", "2"}})
            .find("MASTER_ADDR") == 0);
}

TEST_CASE("rank 0's bytes reach every process, whoever starts first") {
  const std::vector<std::byte> id = bytes(128, 7);
  for (const bool late : {false, true}) {
    constexpr int kRanks = 4;
    std::vector<pid_t> others;
    for (int rank = 1; rank < kRanks; ++rank) {
      others.push_back(start([&] { return exec::share(place(rank, kRanks, 0), {}, 20s) == id ? 0 : 1; }));
    }
    if (late) std::this_thread::sleep_for(100ms);
    CHECK(exec::share(place(0, kRanks, 0), id, 20s) == id);
    for (const pid_t child : others) CHECK(end_of(child) == 0);
  }
  CHECK(exec::share(place(0, 1, 0), id, 1ms) == id);  // Alone: nobody listens.
}

TEST_CASE("who does not come is named, and nobody waits for ever") {
  try {
    (void)exec::share(place(0, 3, 1), bytes(8, 0), 50ms);
    FAIL("nobody came");
  } catch (const exec::RunFailure& failure) {
    CHECK(failure.failure().status == DSPLAN_TIMEOUT);
    CHECK(failure.failure().text == "did not come: 1, 2");
  }
  try {
    (void)exec::share(place(1, 2, 2), {}, 50ms);
    FAIL("there is no rank 0");
  } catch (const exec::RunFailure& failure) {
    CHECK(failure.failure().status == DSPLAN_TIMEOUT);
    CHECK(failure.failure().text.find("no rank 0 at localhost:") == 0);
  }
}

TEST_CASE("ranks that do not agree on their number end the run") {
  const pid_t other = start([&] {
    try {
      (void)exec::share(place(1, 5, 3), {}, 2s);
    } catch (const exec::RunFailure&) {
      return 7;
    }
    return 0;
  });
  try {
    (void)exec::share(place(0, 2, 3), bytes(8, 0), 20s);
    FAIL("they do not agree");
  } catch (const exec::RunFailure& failure) {
    CHECK(failure.failure().status == DSPLAN_INVALID);
    CHECK(failure.failure().text == "rank 1 of 5 came, where there are 2");
  }
  CHECK(end_of(other) == 7);
}
