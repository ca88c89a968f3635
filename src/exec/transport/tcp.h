// Transport between ranks that are processes, over a connection between every two of them. Device memory must be the
// host's own: what is sent is read where it lies, and lands where it belongs; pieces of a sum wait in a block of the
// transport's own. The same sums in the same order as between threads (exec/transport/threads.h), and the same bytes
// sent by each rank.
//
// A call begins when all ranks of the group have said what they call, and ends for a rank when it has what it needs and
// has handed over what it gives. A failure anywhere ends all waits (exec/rendezvous/rendezvous.h).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "exec/rendezvous/rendezvous.h"
#include "exec/rendezvous/sockets.h"
#include "exec/transport/transport.h"

namespace dsplan::exec {

class TcpTransport : public Transport {
 public:
  // Collective: connects every two processes. Throws RunFailure.
  explicit TcpTransport(Rendezvous& rendezvous);

  void divide(Group group, std::vector<std::vector<int>> groups) override;
  // Refuses (RunFailure, DSPLAN_UNSUPPORTED) a device whose memory the host cannot read.
  [[nodiscard]] std::unique_ptr<Communicator> connect(Group group, Device& device) override;
  void abort(const Failure& failure) noexcept override { rendezvous_.abort(failure); }
  [[nodiscard]] std::optional<Failure> first_failure() const override { return rendezvous_.failure().get(); }
  void leave(int rank) noexcept override;

  // What goes to a rank and what comes from it at the same time; at most one of each to and from a rank.
  struct Outgoing {
    int rank = 0;
    const char* from = nullptr;
    std::int64_t bytes = 0;
  };
  struct Incoming {
    int rank = 0;
    char* into = nullptr;
    std::int64_t bytes = 0;
  };
  // All of it. Throws RunFailure where a rank is gone or has left, another failed, or nothing moves for as long as the
  // rendezvous's timeout; `about` is what the message is told of.
  void move(std::vector<Outgoing> out, std::vector<Incoming> in, const CollectiveCall& about, Group group);

 private:
  void meet_peers();
  bool push(Outgoing& out);
  bool pull(Incoming& in, const CollectiveCall& about, Group group);
  [[noreturn]] void lose(int rank, const CollectiveCall& about, Group group);
  [[nodiscard]] std::vector<bool> await_ready(const std::vector<Outgoing>& out, const std::vector<Incoming>& in,
                                              const CollectiveCall& about, Group group);
  [[noreturn]] void fail(dsplan_status status, const CollectiveCall& about, std::string text);

  Rendezvous& rendezvous_;
  std::vector<Socket> peers_;  // By rank.
  std::map<Group, std::vector<std::vector<int>>> groups_;
};

}  // namespace dsplan::exec
