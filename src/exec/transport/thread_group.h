// One group of ranks that are threads: where they wait for each other, meet for a call, and leave each other messages.
// Private to exec/transport/threads.cpp.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "exec/transport/transport.h"

namespace dsplan::exec {

class ThreadTransport;

// The members of a group, and the one lock under which they wait. Nobody waits for ever: who waits leaves when the run
// is lost, when a rank that it needs has left, or when time is over.
class GroupWait {
 public:
  using Lock = std::unique_lock<std::mutex>;

  GroupWait(ThreadTransport& transport, Group group, std::vector<int> members)
      : transport_(transport), group_(group), members_(std::move(members)) {}

  [[nodiscard]] Group group() const { return group_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int member(int at) const { return members_[static_cast<std::size_t>(at)]; }

  // Who waits, in which call.
  struct Caller {
    int me = 0;
    const CollectiveCall& call;
  };
  [[nodiscard]] Lock lock() { return Lock(mutex_); }
  void changed() { changed_.notify_all(); }
  // Until `done()`. Throws where the run is lost, where a rank that `needs(rank)` has left, and with `missing()` where
  // time is over; then the lock is let go.
  void until(
      Lock& lock, const Caller& who, const std::function<bool()>& done,
      const std::function<bool(int)>& needs = [](int) { return false; });
  // Until `done()`, whatever happens.
  void surely_until(Lock& lock, const std::function<bool()>& done) { changed_.wait(lock, done); }
  void throw_if_lost(Lock& lock, const Caller& who);
  // The run is lost by this rank.
  [[noreturn]] void lose(Lock& lock, const Caller& who, dsplan_status status, std::string text);
  void wake() noexcept;

 private:
  ThreadTransport& transport_;
  Group group_;
  std::vector<int> members_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Where all ranks of a group come together for a call.
class Barrier {
 public:
  // What a rank shows the others while a call is open.
  struct Slot {
    CollectiveCall call;
    std::array<DeviceEvent, 2> arrived;  // Recorded in turn, before it waits for the others.
    DeviceEvent passed;                  // Recorded when it may be copied from in a chain.
    std::vector<std::int64_t> taken;     // Bytes that it took from each rank in this call.
  };

  explicit Barrier(GroupWait& wait);

  [[nodiscard]] Slot& slot(int at) { return slots_[static_cast<std::size_t>(at)]; }

  // All ranks have shown the same call; nobody is in before all have come. Throws without having let anybody in.
  void enter(int me) { arrive(me, true); }
  // All ranks have come so far. Only in an open call.
  void arrive_and_wait(int me) { arrive(me, false); }
  // A chain: waits for `turn` ranks to have passed, and lets the next one through.
  void await_turn(int me, int turn);
  void pass_turn();
  // Out of an open call. `wait_for_all`: only when all are out, so that this rank's memory may go.
  void exit(bool wait_for_all) noexcept;
  void wait_until_empty() noexcept;

 private:
  void arrive(int me, bool enters);
  [[nodiscard]] std::string difference() const;

  GroupWait& wait_;
  std::vector<Slot> slots_;
  std::vector<bool> here_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  int inside_ = 0;  // Ranks in the open call.
  int passed_ = 0;  // Of its chain.
};

// Messages from one rank to another, in the order of sending. At most one is under way between two ranks.
class Mailbox {
 public:
  struct Message {
    enum class State : std::uint8_t { Empty, Waiting, Copying, Taken };
    State state = State::Empty;
    CollectiveCall call;
    const DeviceEvent* ready = nullptr;
    const DeviceEvent* copied = nullptr;
    std::int64_t bytes = 0;
  };
  using Caller = GroupWait::Caller;

  explicit Mailbox(GroupWait& wait)
      : wait_(wait), messages_(static_cast<std::size_t>(wait.size()) * static_cast<std::size_t>(wait.size())) {}

  void send(const Caller& who, const DeviceEvent& ready);
  // Waits for the receiver, also when the run is lost while it copies. Returns the message with the bytes that were
  // taken; it stays until it is `collected`, unless this throws.
  [[nodiscard]] Message await_taken(const Caller& who);
  void collect(int me, int to) noexcept;
  // Waits for a message from the call's `from`, which stays until `take` is called.
  [[nodiscard]] Message receive(const Caller& who);
  void take(int me, int from, const DeviceEvent& copied, std::int64_t bytes) noexcept;
  // The sender has seen `copied`.
  void await_collected(const Caller& who);

 private:
  [[nodiscard]] Message& between(int from, int to) {
    return messages_[static_cast<std::size_t>(from) * static_cast<std::size_t>(wait_.size()) +
                     static_cast<std::size_t>(to)];
  }

  GroupWait& wait_;
  std::vector<Message> messages_;
};

struct ThreadGroup {
  ThreadGroup(ThreadTransport& transport, Group group, std::vector<int> members)
      : wait(transport, group, std::move(members)) {}

  GroupWait wait;
  Barrier barrier{wait};
  Mailbox mailbox{wait};
};

}  // namespace dsplan::exec
