// Where the threads of one group wait for each other, and leave each other messages. Private to exec/threads.cpp.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "exec/transport.h"

namespace dsplan::exec {

class ThreadTransport;

class Barrier {
 public:
  // What a rank shows the others while a call is open.
  struct Slot {
    CollectiveCall call;
    std::array<dsplan_event*, 2> arrived{};  // Recorded in turn, before it waits for the others.
    dsplan_event* passed = nullptr;          // Recorded when it may be copied from in a chain.
    std::vector<std::int64_t> taken;         // Bytes that it took from each rank in this call.
  };
  // A message from one rank to another, in the order of sending. At most one is under way.
  struct Message {
    enum class State : std::uint8_t { Empty, Waiting, Copying, Taken };
    State state = State::Empty;
    CollectiveCall call;
    dsplan_event* ready = nullptr;
    dsplan_event* copied = nullptr;
    std::int64_t bytes = 0;
  };

  Barrier(ThreadTransport& transport, Group group, std::vector<int> members);

  [[nodiscard]] Group group() const { return group_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int member(int at) const { return members_[static_cast<std::size_t>(at)]; }
  [[nodiscard]] Slot& slot(int at) { return slots_[static_cast<std::size_t>(at)]; }

  // All ranks have shown the same call; nobody is in before all have come. Throws without having let anybody in.
  void enter(int me);
  // All ranks have come so far. Only in an open call.
  void arrive_and_wait(int me);
  // A chain: waits for `turn` ranks to have passed, and lets the next one through.
  void await_turn(int me, int turn);
  void pass_turn();
  // Out of an open call. `wait_for_all`: only when all are out, so that this rank's memory may go.
  void exit(bool wait_for_all) noexcept;
  void wait_until_empty() noexcept;

  void send(int me, int to, dsplan_event* ready);
  // Waits for the receiver, also when the run is lost while it copies. Returns the bytes that it took. The message
  // stays until it is `collected`, unless this throws.
  std::int64_t await_taken(int me, int to, dsplan_event*& copied);
  void collect(int me, int to) noexcept;
  // Waits for a message from `from`, which stays until `take` is called.
  [[nodiscard]] Message receive(int me, int from);
  void take(int me, int from, dsplan_event* copied, std::int64_t bytes) noexcept;
  // The sender has seen `copied`.
  void await_collected(int me, int from);

  void wake() noexcept;

 private:
  [[nodiscard]] Message& message_between(int from, int to) {
    return messages_[static_cast<std::size_t>(from) * members_.size() + static_cast<std::size_t>(to)];
  }
  [[nodiscard]] std::string difference() const;
  [[nodiscard]] std::string missing() const;
  // Until `done()`; throws where the run is lost, a rank that `needs(rank)` has left, or timeout ends.
  template <class Done, class Needs>
  void wait(std::unique_lock<std::mutex>& lock, int me, Done done, Needs needs);
  void arrive(int me, bool enters);
  [[noreturn]] void lose(std::unique_lock<std::mutex>& lock, int me, dsplan_status status, std::string text);

  ThreadTransport& transport_;
  Group group_;
  std::vector<int> members_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::vector<bool> here_;
  std::vector<Message> messages_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  int inside_ = 0;  // Ranks in the open call.
  int passed_ = 0;  // Of its chain.
};

}  // namespace dsplan::exec
