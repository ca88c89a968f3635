// Strangers at the ports of a run: they are dropped and counted, other runs do not mix with it, and it goes on.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "meeting.h"
#include "strangers.h"

using namespace dsplan;
using namespace dsplan::test;
using namespace std::chrono_literals;

namespace {

exec::LaunchPlace place_of(const std::string& identity, int rank, int ranks, int which) {
  exec::LaunchPlace made = place(rank, ranks, which);
  made.identity = identity;
  made.identity_source = "DSPLAN_RUN_KEY";
  return made;
}

}  // namespace

TEST_CASE("strangers at the door of a run are dropped and counted, and all ranks meet") {
  for (const bool local : {true, false}) {
    const auto at = [&](int rank) {
      exec::LaunchPlace made = place_of("ours", rank, 2, 7);
      made.local = local;
      return made;
    };
    const pid_t late = start([&] {
      const auto addresses = listening_at(first_port + 7);
      if (addresses.size() != 1 || (addresses[0] == kLoopbackInKernel) != local) return 2;
      const auto open = knock_in_all_ways(first_port + 7);
      std::vector<exec::Socket> flood;
      for (int one = 0; one < 300; ++one) flood.push_back(knock(first_port + 7, ""));
      return has(failure_of(at(1), 20s, [](exec::Rendezvous&) {}), "none") ? 0 : 1;
    });
    {
      exec::Rendezvous rendezvous(at(0), 20s);
      CHECK(rendezvous.strangers() == kWaysToKnock + 300);
    }
    CHECK(end_of(late) == 0);
  }
}

TEST_CASE("a stranger that says nothing keeps no rank waiting, and is dropped in time") {
  std::vector<exec::Socket> silent;
  const pid_t first = start([] {
    const std::string text = failure_of(place_of("ours", 0, 2, 8), 3s, [](exec::Rendezvous&) {});
    return has(text, "timed out: 3 s for rank 1, at port ") &&
                   has(text, "; 2 connections were not of this run (identity ") &&
                   has(text, " of DSPLAN_RUN_KEY), the last from 127.0.0.1: it said half of who it is")
               ? 0
               : 1;
  });
  REQUIRE(listening_at(first_port + 8).size() == 1);
  silent.push_back(knock(first_port + 8, ""));
  silent.push_back(knock(first_port + 8, "dsplan 3"));
  CHECK(end_of(first) == 0);
}

TEST_CASE("two runs at one port do not mix") {
  const pid_t other_host = start([] {
    (void)listening_at(first_port + 9);
    return has(failure_of(place_of("theirs", 0, 2, 9), 5s, [](exec::Rendezvous&) {}), "Address already in use") ? 0 : 1;
  });
  const pid_t other = start([] {
    const std::string text = failure_of(place_of("theirs", 1, 2, 9), 20s, [](exec::Rendezvous&) {});
    return has(text, "rank 1, rendezvous: invalid call: rank 0 at localhost:") &&
                   has(text, " is of another run: rank 1 has identity ")
               ? 0
               : 1;
  });
  const pid_t ours = start([&] {
    std::this_thread::sleep_for(500ms);
    return has(failure_of(place_of("ours", 1, 2, 9), 20s, [](exec::Rendezvous&) {}), "none") ? 0 : 1;
  });
  exec::Rendezvous rendezvous(place_of("ours", 0, 2, 9), 20s);
  CHECK(rendezvous.strangers() == 1);
  for (const pid_t each : {other_host, other, ours}) CHECK(end_of(each) == 0);
}

TEST_CASE("a rank does not follow whoever took the port of its rank 0") {
  std::string why;
  const exec::Socket thief = exec::listen_on(exec::Reach::Loopback, first_port + 10, why);
  REQUIRE_MESSAGE(thief.open(), why);
  // It knows the protocol, and says back what it is told.
  const pid_t answering = start([&] {
    const exec::Socket guest = exec::accept_from(thief, exec::Clock::now() + 5s);
    std::array<char, 80> hello{};
    return exec::receive(guest, hello.data(), hello.size(), exec::Clock::now() + 5s) &&
                   exec::send_all(guest, hello.data(), 72, exec::Clock::now() + 1s)
               ? 0
               : 1;
  });
  const std::string text = failure_of(place_of("ours", 1, 2, 10), 5s, [](exec::Rendezvous&) {});
  CHECK_MESSAGE(has(text, "is of another run"), text);
  CHECK(end_of(answering) == 0);
}
