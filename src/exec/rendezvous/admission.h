// How the processes of a run find each other, and know each other from strangers.
//
// Who connects sends one message of constant length: a magic with a version, a proof of the run's identity
// (exec/rendezvous/launch_place.h), its rank and the number of ranks. Magic and proof are compared before the rest is
// read. Who sends others, or nothing within two seconds, or half of it, or comes when more wait than a run may have, is
// dropped and counted; it keeps nobody waiting. Who listens answers with a proof of its own, so that a rank does not
// follow whoever took the port. Proofs are digests of the identity and the direction: neither shows the identity, nor
// serves as the other. What goes over the connections is not encrypted: whoever reads the network can repeat a proof.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/failure.h"
#include "exec/rendezvous/launch_place.h"
#include "exec/rendezvous/sockets.h"

namespace dsplan::exec {

// What a rank sends first, as it lies in memory.
struct Hello {
  std::array<char, 8> magic{};
  std::array<char, 64> proof{};  // In hexadecimal digits.
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
};

// A listening socket that lets in the ranks of one run.
class Listener {
 public:
  // At the loopback alone in a local run; port 0: any free one. Not `open`: `why` says it.
  Listener(const LaunchPlace& place, int port, std::string& why);

  [[nodiscard]] bool open() const { return socket_.open(); }
  [[nodiscard]] const Socket& socket() const { return socket_; }

  struct Guest {
    Socket socket;
    int rank = 0;
    int ranks = 0;
  };
  // The next rank of this run; nullopt: none until `end`.
  [[nodiscard]] std::optional<Guest> accept(Clock::time_point end);
  // All have come: whoever still waits is a stranger.
  void close();

  [[nodiscard]] std::int64_t strangers() const { return strangers_; }
  // "; 3 connections were not of this run (identity 1a2b3c4d of DSPLAN_RUN_KEY), the last from 10.0.0.7: garbage", or
  // nothing.
  [[nodiscard]] std::string describe_strangers() const;

 private:
  struct Caller {
    Socket socket;
    Clock::time_point end;  // By which it has said who it is.
    std::size_t got = 0;
    Hello hello;
  };
  enum class Progress { Unfinished, Admitted, Dropped };

  void take_in();
  Progress read(Caller& caller);
  Progress drop(const Caller& caller, const char* why);
  void drop_late();

  LaunchPlace place_;
  std::string proof_;  // That ranks must have.
  Socket socket_;
  std::vector<Caller> callers_;  // In the order in which they came.
  std::int64_t strangers_ = 0;
  std::string last_;
};

// The other side: says who this is to whoever listens, and looks at its proof. False: `why` says what answered. Throws
// RunFailure, DSPLAN_INVALID, where it is a process of another run; `there` names it for the message.
[[nodiscard]] bool introduce(const Socket& host, const LaunchPlace& place, const std::string& there,
                             Clock::time_point end, std::string& why);

// The connections of one process once all ranks have come: rank 0's to each of the others, the others' to rank 0.
struct Meeting {
  std::vector<Socket> connections;  // By rank.
  std::string address;              // Where others reach this process.
  std::int64_t strangers = 0;       // That were dropped meanwhile.
};

// Collective: returns when all ranks have come. Others try to reach rank 0 again and again; rank 0 waits. Throws
// RunFailure: DSPLAN_TIMEOUT with who did not come, DSPLAN_UNAVAILABLE where rank 0 cannot listen, DSPLAN_INVALID where
// two ranks do not agree on the identity or the number of ranks, or one comes twice.
[[nodiscard]] Meeting meet(const LaunchPlace& place, std::chrono::milliseconds timeout);

[[nodiscard]] constexpr Reach reach_of(const LaunchPlace& place) {
  return place.local ? Reach::Loopback : Reach::Everywhere;
}

}  // namespace dsplan::exec
