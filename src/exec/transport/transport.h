// Collectives between the ranks of a run, whatever carries them: threads of this process over their backend's copies
// (exec/transport/threads.h; also virtual ranks on one GPU), processes of a host over connections
// (exec/transport/tcp.h), or a backend's own communicators (exec/transport/library_transport.h).
//
// But for the last, which do as their library does, sums are made in rank order by whoever needs them (`combine` of
// exec/backend.h), never around a ring: an element's value depends neither on how a buffer is cut into calls nor on
// where it stands in one.
//
// Payload is the full logical buffer, as in nccl-tests. What is counted as sent is what other ranks really copied or
// read from this rank; summed over the ranks of a group that is exactly k (W - 1) payload, k = 2 for all-reduce, else
// 1, as around a ring (interface.md, "Wire"). By rank: of all-gather, reduce-scatter, all-to-all and all-reduce each
// sends the same up to one element of a chunk; of broadcast each but the last of the chain sends the payload; of reduce
// each but the root.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/schedule.h"
#include "core/units.h"
#include "exec/backend.h"
#include "exec/device.h"
#include "exec/failure.h"

namespace dsplan::exec {

inline constexpr int kNobody = -1;

// One collective, as one rank calls it. All ranks of a group make the same calls in the same order; kind, dtype,
// reduction, elements and root are compared, and the first difference ends the run. With W ranks and n elements:
//
//   AllReduce      input n, output n; may be the same
//   ReduceScatter  input n, output n / W: this rank's share; it may lie in the input at its place
//   AllGather      input n / W, output n; the input may lie in the output at its place
//   Broadcast      the root's input n; output n, on the root none or the same will do
//   Reduce         input n; the root's output n, which may be its input
//   AllToAll       input n, output n, apart: block r of the input goes to rank r, block r of the output came from it
//   SendRecv       input n goes to `to`, output n comes from `from`; only the two ranks concerned call
//
// n / W must have no remainder. Buffers are in device memory and contiguous.
struct CollectiveCall {
  Collective kind = Collective::AllReduce;
  DType dtype = DType::Float32;
  dsplan_reduction reduction = DSPLAN_SUM;
  std::int64_t elements = 0;  // n: the full logical buffer.
  const void* input = nullptr;
  void* output = nullptr;
  int root = 0;        // Its rank within the group.
  int to = kNobody;    // SendRecv, likewise.
  int from = kNobody;  // Likewise.
  StreamId stream = 0;
  std::size_t event = kNoEvent;  // Of the schedule; for messages.
};

// What one call did, for the rank that made it.
struct CallRecord {
  Collective kind = Collective::AllReduce;
  Group group = Group::DataParallel;
  DType dtype = DType::Float32;
  std::int64_t elements = 0;
  Bytes payload;
  std::optional<Bytes> sent;  // Counted where it was copied; absent: whoever carries it does not say.
};

// One rank's end of one group. Used by that rank's thread alone.
class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;   // Within the group.
  [[nodiscard]] virtual int ranks() const = 0;  // Of the group.
  // Enqueues on the call's stream, and returns when the other ranks have enqueued theirs. Throws RunFailure: its own
  // trouble, or DSPLAN_ABORTED with the first failure of another rank. Then nobody reads this rank's buffers any more.
  virtual CallRecord run(const CollectiveCall& call) = 0;
};

// Shared by all ranks of a run.
class Transport {
 public:
  virtual ~Transport() = default;
  // Before the ranks start: how they are divided into groups of one kind. Each rank is in exactly one; the order within
  // a group is the order of sums. Of a kind that was not divided every rank is alone in its own.
  virtual void divide(Group group, std::vector<std::vector<int>> groups) = 0;
  // By the rank's own thread; what it returns must go before the device does.
  [[nodiscard]] virtual std::unique_ptr<Communicator> connect(Group group, Device& device) = 0;

  // The run is lost: whoever waits for another rank leaves with DSPLAN_ABORTED. The first failure stays; what comes
  // later is ignored. From any thread.
  virtual void abort(const Failure& failure) noexcept = 0;
  [[nodiscard]] virtual std::optional<Failure> first_failure() const = 0;
  // What the communicators took of the device when they were made, as the machine counts; absent: nobody knows.
  [[nodiscard]] virtual std::optional<Bytes> communicator_bytes() const { return std::nullopt; }
  // `rank` makes no more calls: whoever waits for it fails instead of waiting for ever.
  virtual void leave(int rank) noexcept = 0;
};

// A rank's ends of all the groups that it is in.
class Communicators {
 public:
  void add(Group group, std::unique_ptr<Communicator> end) { ends_[static_cast<std::size_t>(group)] = std::move(end); }
  // InternalError where the rank is in no such group.
  [[nodiscard]] Communicator& of(Group group) {
    DSPLAN_CHECK(ends_[static_cast<std::size_t>(group)] != nullptr, "a collective of a group that was not formed");
    return *ends_[static_cast<std::size_t>(group)];
  }

 private:
  std::array<std::unique_ptr<Communicator>, kGroups> ends_{};  // By Group.
};

}  // namespace dsplan::exec
