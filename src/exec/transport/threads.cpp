#include "exec/transport/threads.h"

#include "core/error.h"
#include "core/format.h"
#include "exec/transport/collective_calls.h"
#include "exec/transport/thread_group.h"

namespace dsplan::exec {
namespace {

// Messages between two ranks of a group; only the two call.
class ThreadExchange {
 public:
  ThreadExchange(ThreadTransport& transport, ThreadGroup& group, int me, Device& device)
      : transport_(transport), group_(group), me_(me), device_(device) {}

  // Returns what this rank sent.
  Bytes run(const CollectiveCall& call);

 private:
  std::int64_t await_sent(const CollectiveCall& call, std::exception_ptr& trouble);
  void receive(const CollectiveCall& call);

  ThreadTransport& transport_;
  ThreadGroup& group_;
  int me_;
  Device& device_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(ThreadTransport& transport, ThreadGroup& group, int me, Device& device)
      : transport_(transport), group_(group), barrier_(group.barrier), me_(me), device_(device) {
    std::array<DeviceEvent, 2> arrived{DeviceEvent(device), DeviceEvent(device)};
    DeviceEvent passed(device);
    Barrier::Slot& slot = barrier_.slot(me_);
    slot.arrived = std::move(arrived);
    slot.passed = std::move(passed);
  }
  // The device goes before the group does.
  ~ThreadCommunicator() override {
    barrier_.wait_until_empty();
    Barrier::Slot& slot = barrier_.slot(me_);
    const std::array<DeviceEvent, 2> arrived = std::move(slot.arrived);
    const DeviceEvent passed = std::move(slot.passed);
  }

  [[nodiscard]] int rank() const override { return me_; }
  [[nodiscard]] int ranks() const override { return group_.wait.size(); }
  CallRecord run(const CollectiveCall& call) override;

 private:
  void carry_out(const CollectiveCall& call);
  void all_reduce(const CollectiveCall& call);
  void reduce_scatter(const CollectiveCall& call);
  void all_gather(const CollectiveCall& call);
  void broadcast(const CollectiveCall& call);
  void reduce(const CollectiveCall& call);
  void all_to_all(const CollectiveCall& call);

  // All ranks' work so far comes before what follows on this rank's stream.
  void fence(const CollectiveCall& call);
  // Elements of rank `from` that stand at `source` in its memory.
  void pull(const CollectiveCall& call, void* to, const void* source, std::int64_t elements, int from);
  // The sum over all ranks of `length` elements from `begin` of their inputs.
  void combine(const CollectiveCall& call, void* to, std::int64_t begin, std::int64_t length);
  void lose(const CollectiveCall& call, Failure failure);
  [[nodiscard]] const CollectiveCall& theirs(int rank) const { return barrier_.slot(rank).call; }

  ThreadTransport& transport_;
  ThreadGroup& group_;
  Barrier& barrier_;
  int me_;
  Device& device_;
  unsigned rounds_ = 0;
  std::vector<const void*> pieces_;
};

CallRecord ThreadCommunicator::run(const CollectiveCall& call) {
  validate(call, me_, ranks(), device_.rank());
  CallRecord record{
      call.kind, group_.wait.group(), call.dtype, call.elements, storage(Elements(call.elements), call.dtype),
      Bytes(0)};
  Barrier::Slot& slot = barrier_.slot(me_);
  slot.call = call;
  if (call.kind == Collective::SendRecv) {
    record.sent = ThreadExchange(transport_, group_, me_, device_).run(call);
    return record;
  }
  slot.arrived[rounds_ % 2].record(call.stream);
  barrier_.enter(me_);
  try {
    // Only now: before, others may still be adding up the last call's.
    slot.taken.assign(slot.taken.size(), 0);
    carry_out(call);
    fence(call);
  } catch (const RunFailure& failure) {
    lose(call, failure.failure());
    throw;
  } catch (...) {
    lose(call, {DSPLAN_INVALID, device_.rank(), call.event, std::string(dsplan::name(call.kind)), "a bug in dsplan"});
    throw;
  }
  Bytes sent;
  for (int rank = 0; rank < ranks(); ++rank) {
    sent += Bytes(barrier_.slot(rank).taken[static_cast<std::size_t>(me_)]);
  }
  record.sent = sent;
  barrier_.exit(false);
  return record;
}

// The others are told first. Then this rank stays until nobody reads its memory any more, and has itself ended what it
// began to read of theirs.
void ThreadCommunicator::lose(const CollectiveCall& call, Failure failure) {
  if (failure.status != DSPLAN_ABORTED) {
    failure.rank = device_.rank();
    if (failure.event == kNoEvent) failure.event = call.event;
    transport_.abort(failure);
  }
  try {
    device_.synchronize(call.stream);
  } catch (const RunFailure&) {
    // The first failure is the one that is told.
  }
  barrier_.exit(true);
}

void ThreadCommunicator::fence(const CollectiveCall& call) {
  ++rounds_;
  barrier_.slot(me_).arrived[rounds_ % 2].record(call.stream);
  barrier_.arrive_and_wait(me_);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != me_) device_.wait(call.stream, barrier_.slot(rank).arrived[rounds_ % 2]);
  }
}

void ThreadCommunicator::pull(const CollectiveCall& call, void* to, const void* source, std::int64_t elements,
                              int from) {
  if (elements == 0 || to == source) return;
  device_.copy(to, Space::Device, source, Space::Device, Bytes(bytes_of(elements, call)), call.stream);
  if (from != me_) barrier_.slot(me_).taken[static_cast<std::size_t>(from)] += bytes_of(elements, call);
}

void ThreadCommunicator::combine(const CollectiveCall& call, void* to, std::int64_t begin, std::int64_t length) {
  if (length == 0) return;
  pieces_.clear();
  for (int rank = 0; rank < ranks(); ++rank) pieces_.push_back(element_at(theirs(rank).input, begin, call));
  device_.combine(call.reduction, call.dtype, to, pieces_, length, call.stream);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != me_) barrier_.slot(me_).taken[static_cast<std::size_t>(rank)] += bytes_of(length, call);
  }
}

void ThreadCommunicator::carry_out(const CollectiveCall& call) {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != me_) device_.wait(call.stream, barrier_.slot(rank).arrived[rounds_ % 2]);
  }
  switch (call.kind) {
    case Collective::AllReduce: return all_reduce(call);
    case Collective::ReduceScatter: return reduce_scatter(call);
    case Collective::AllGather: return all_gather(call);
    case Collective::Broadcast: return broadcast(call);
    case Collective::Reduce: return reduce(call);
    case Collective::AllToAll: return all_to_all(call);
    case Collective::SendRecv: break;
  }
  DSPLAN_CHECK(false, "a point-to-point call among collectives");
}

// Each rank makes the sum of one chunk, then all take each other's. In place nobody writes what another reads: of a
// buffer its owner alone reads the chunk that it writes.
void ThreadCommunicator::all_reduce(const CollectiveCall& call) {
  const Chunk mine = chunk_of(call.elements, ranks(), me_);
  combine(call, element_at(call.output, mine.begin, call), mine.begin, mine.length);
  fence(call);
  for (int step = 1; step < ranks(); ++step) {
    const int rank = (me_ + step) % ranks();
    const Chunk chunk = chunk_of(call.elements, ranks(), rank);
    pull(call, element_at(call.output, chunk.begin, call), element_at(theirs(rank).output, chunk.begin, call),
         chunk.length, rank);
  }
}

void ThreadCommunicator::reduce_scatter(const CollectiveCall& call) {
  const std::int64_t share = call.elements / ranks();
  combine(call, call.output, share * me_, share);
}

void ThreadCommunicator::all_gather(const CollectiveCall& call) {
  const std::int64_t share = call.elements / ranks();
  for (int step = 0; step < ranks(); ++step) {
    const int rank = (me_ + step) % ranks();
    pull(call, element_at(call.output, share * rank, call), theirs(rank).input, share, rank);
  }
}

// A chain from the root: each copies from the one before it.
void ThreadCommunicator::broadcast(const CollectiveCall& call) {
  const int place = (me_ - call.root + ranks()) % ranks();
  if (place == 0) {
    if (call.output != nullptr) pull(call, call.output, call.input, call.elements, me_);
  } else {
    const int before = (me_ - 1 + ranks()) % ranks();
    barrier_.await_turn(me_, place);
    device_.wait(call.stream, barrier_.slot(before).passed);
    const CollectiveCall& from = theirs(before);
    pull(call, call.output, place == 1 ? from.input : from.output, call.elements, before);
  }
  barrier_.slot(me_).passed.record(call.stream);
  barrier_.pass_turn();
}

void ThreadCommunicator::reduce(const CollectiveCall& call) {
  if (me_ == call.root) combine(call, call.output, 0, call.elements);
}

void ThreadCommunicator::all_to_all(const CollectiveCall& call) {
  const std::int64_t share = call.elements / ranks();
  for (int step = 0; step < ranks(); ++step) {
    const int rank = (me_ + step) % ranks();
    pull(call, element_at(call.output, share * rank, call), element_at(theirs(rank).input, share * me_, call), share,
         rank);
  }
}

// Sends first and receives then, so that two ranks may exchange; the sender waits for its own message last.
Bytes ThreadExchange::run(const CollectiveCall& call) {
  Barrier::Slot& slot = group_.barrier.slot(me_);
  if (call.to != kNobody) {
    slot.arrived[0].record(call.stream);
    group_.mailbox.send({me_, call}, slot.arrived[0]);
  }
  std::exception_ptr trouble;
  if (call.from != kNobody) {
    try {
      receive(call);
    } catch (const RunFailure& failure) {
      if (call.to == kNobody) throw;
      trouble = std::current_exception();
      if (failure.failure().status != DSPLAN_ABORTED) transport_.abort(failure.failure());
    }
  }
  const std::int64_t sent = call.to == kNobody ? 0 : await_sent(call, trouble);
  if (trouble) std::rethrow_exception(trouble);
  if (call.from != kNobody) group_.mailbox.await_collected({me_, call});
  return Bytes(sent);
}

// Also in trouble: the receiver may be copying from this rank's memory. Adds to `trouble`, and does not throw.
std::int64_t ThreadExchange::await_sent(const CollectiveCall& call, std::exception_ptr& trouble) {
  Mailbox::Message message;
  try {
    message = group_.mailbox.await_taken({me_, call});
    if (!trouble) device_.wait(call.stream, *message.copied);
  } catch (...) {
    if (!trouble) trouble = std::current_exception();
  }
  if (message.copied != nullptr) group_.mailbox.collect(me_, call.to);
  return message.bytes;
}

void ThreadExchange::receive(const CollectiveCall& call) {
  const Mailbox::Message message = group_.mailbox.receive({me_, call});
  Barrier::Slot& slot = group_.barrier.slot(me_);
  try {
    device_.wait(call.stream, *message.ready);
    const std::int64_t size = bytes_of(call.elements, call);
    if (size > 0) {
      device_.copy(call.output, Space::Device, message.call.input, Space::Device, Bytes(size), call.stream);
    }
    slot.passed.record(call.stream);
    group_.mailbox.take(me_, call.from, slot.passed, size);
  } catch (const RunFailure& failure) {
    Failure told = failure.failure();
    told.rank = device_.rank();
    if (told.event == kNoEvent) told.event = call.event;
    transport_.abort(told);
    group_.mailbox.take(me_, call.from, slot.passed, 0);
    throw;
  }
}

}  // namespace

ThreadTransport::ThreadTransport(int ranks, std::chrono::milliseconds timeout)
    : ranks_(ranks), timeout_(timeout), left_(static_cast<std::size_t>(ranks)) {
  DSPLAN_CHECK(ranks > 0, "a run without ranks");
}

ThreadTransport::~ThreadTransport() = default;

void ThreadTransport::divide(Group group, std::vector<std::vector<int>> groups) {
  std::vector<int> seen(static_cast<std::size_t>(ranks_), 0);
  for (const std::vector<int>& members : groups) {
    for (const int rank : members) {
      DSPLAN_CHECK(rank >= 0 && rank < ranks_ && seen[static_cast<std::size_t>(rank)]++ == 0,
                   "each rank is in exactly one group of a kind");
    }
  }
  std::vector<std::unique_ptr<ThreadGroup>>& made = groups_[group];
  DSPLAN_CHECK(made.empty(), "a kind of group is divided once");
  for (std::vector<int>& members : groups) {
    made.push_back(std::make_unique<ThreadGroup>(*this, group, std::move(members)));
  }
}

std::unique_ptr<Communicator> ThreadTransport::connect(Group group, Device& device) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return alone(group, device);
  for (const std::unique_ptr<ThreadGroup>& each : found->second) {
    const GroupWait& members = each->wait;
    for (int at = 0; at < members.size(); ++at) {
      if (members.member(at) != device.rank()) continue;
      if (members.size() == 1) return alone(group, device);
      return std::make_unique<ThreadCommunicator>(*this, *each, at, device);
    }
  }
  check_failed("each rank is in a group of each kind", __FILE__, __LINE__, std::string(dsplan::name(group)));
}

void ThreadTransport::abort(const Failure& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (first_) return;
    first_ = failure;
    aborted_.store(true, std::memory_order_release);
  }
  wake_all();
}

std::optional<Failure> ThreadTransport::first_failure() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void ThreadTransport::leave(int rank) noexcept {
  left_[static_cast<std::size_t>(rank)].store(true);
  wake_all();
}

void ThreadTransport::wake_all() noexcept {
  for (const auto& [group, list] : groups_) {
    for (const std::unique_ptr<ThreadGroup>& each : list) each->wait.wake();
  }
}

}  // namespace dsplan::exec
