// The processes of a run together: they meet at rank 0 (exec/rendezvous/admission.h), hand each other a few bytes, and
// learn of each other's failures while the run goes on. Each holds one connection to rank 0, which passes on what
// concerns all; a thread in each process listens. Data go elsewhere (exec/transport/tcp.h, or a backend's own
// communicators).
//
// Nobody waits for ever: whoever does not come within `timeout` is named, a process that ends without a word is
// noticed by its connection, and the first failure of any rank reaches all.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/failure.h"
#include "exec/rendezvous/admission.h"
#include "exec/rendezvous/launch_place.h"
#include "exec/rendezvous/sockets.h"

namespace dsplan::exec {

// The first failure of any rank, for whoever must hear of it. From any thread.
class FirstFailure {
 public:
  FirstFailure();
  ~FirstFailure();
  FirstFailure(const FirstFailure&) = delete;
  FirstFailure& operator=(const FirstFailure&) = delete;

  // False: there was one before, which stays.
  bool set(const Failure& failure);
  [[nodiscard]] std::optional<Failure> get() const;
  // Throws it, if there is one, as DSPLAN_ABORTED on `rank`.
  void check(int rank) const;
  // Readable from the first failure on; for poll.
  [[nodiscard]] int descriptor() const { return pipe_[0]; }
  // Called by whichever thread sets it; at once where it is set. With none: nothing is called any more when this
  // returns.
  void on_set(std::function<void()> call);

 private:
  int pipe_[2] = {-1, -1};  // It is never read.
  mutable std::mutex mutex_;
  std::optional<Failure> first_;
  std::mutex calling_;  // Of the next; taken before the other.
  std::function<void()> call_;
};

// The connections of one process to others of its run: rank 0 has one to each, the others have one to rank 0. A thread
// of its own receives.
class Connections {
 public:
  // What the thread does with a message, and with a connection that is over or says what nobody understands.
  struct Reader {
    std::function<void(int from, Message)> take;
    std::function<void(int who)> lose;
  };
  // `sockets`: by rank.
  Connections(int rank, std::vector<Socket> sockets, Reader reader);
  // The thread has ended when this returns.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // From any thread. False: it did not go.
  bool send(int to, const Message& message) noexcept;
  // From rank 0 to all others, from others to rank 0. Two messages reach all in the same order.
  void pass_on(const Message& message) noexcept;

 private:
  bool put(int to, const Message& message) noexcept;  // With the lock held.
  void listen();
  [[nodiscard]] bool receive_from(std::size_t rank);

  int rank_;
  std::vector<Socket> sockets_;  // By rank.
  Reader reader_;
  int stop_[2] = {-1, -1};  // A pipe that is never read: ends the thread.
  std::mutex sending_;
  std::thread listener_;
};

class Rendezvous {
 public:
  // Collective: returns when all ranks have come. Throws what `meet` throws.
  Rendezvous(const LaunchPlace& place, std::chrono::milliseconds timeout)
      : Rendezvous(place, timeout, meet(place, timeout)) {}
  ~Rendezvous() { connections_.pass_on({Kind::Bye, rank(), {}}); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  [[nodiscard]] const LaunchPlace& place() const { return place_; }
  [[nodiscard]] int rank() const { return place_.rank; }
  [[nodiscard]] int ranks() const { return place_.ranks; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  // Where others reach this process.
  [[nodiscard]] const std::string& address() const { return address_; }
  // Connections to this process that were not of this run, and were dropped; by the rank's own thread.
  [[nodiscard]] std::int64_t strangers() const { return strangers_; }
  void count_strangers(std::int64_t more) { strangers_ += more; }

  // Collective, in the same order on all ranks: everybody's bytes, by rank. Throws the first failure of any rank as
  // DSPLAN_ABORTED unless all have given theirs before it, DSPLAN_TIMEOUT where `what` of a rank does not come.
  [[nodiscard]] std::vector<Blob> exchange(const Blob& own, const std::string& what);
  // The last things, also after a failure. `gather`: rank 0 gets the bytes of all that are still there; the others send
  // theirs and get nothing. `announce` is rank 0's last message to all, which the others wait for; nullopt: rank 0 is
  // gone.
  [[nodiscard]] std::vector<std::optional<Blob>> gather(const Blob& own);
  void announce(const Blob& bytes) noexcept;
  [[nodiscard]] std::optional<Blob> await_announcement();

  // The run is lost: all ranks learn of it. The first failure stays. From any thread.
  void abort(const Failure& failure) noexcept;
  [[nodiscard]] FirstFailure& failure() { return failure_; }
  // This rank makes no more calls; others learn of it.
  void leave() noexcept;
  [[nodiscard]] bool has_left(int rank) const;
  // Waits a moment for the first failure of any rank, or until `rank` has left; -1: for the failure alone.
  void await_failure(int rank = -1) const;

 private:
  using Kind = Message::Kind;
  // What is known of one rank.
  struct Peer {
    std::vector<Blob> given;
    std::optional<Blob> report;
    bool left = false;
    bool gone = false;
    bool said_bye = false;
  };

  Rendezvous(const LaunchPlace& place, std::chrono::milliseconds timeout, Meeting meeting);
  // By the thread that receives.
  void take(int from, Message message);
  void lose(int who);
  bool note(const Failure& failure);

  LaunchPlace place_;
  std::chrono::milliseconds timeout_;
  std::string address_;
  std::int64_t strangers_;
  FirstFailure failure_;

  mutable std::mutex mutex_;  // Of what follows, but for the connections.
  mutable std::condition_variable changed_;
  std::vector<Peer> peers_;  // By rank.
  std::vector<std::vector<Blob>> all_;
  std::optional<Blob> announced_;
  Connections connections_;  // Last: its thread uses all of this.
};

}  // namespace dsplan::exec
