// Computes and collectives: what they touch, where they stand, and whether a payload is what its collective moves.
#include <algorithm>

#include "core/auditor.h"

namespace dsplan {
namespace {

// Payloads are the full logical buffer, as in nccl-tests. Only the sizes of data-parallel groups are known here.
bool payload_fits(Collective collective, std::int64_t payload, std::int64_t read, std::int64_t written,
                  std::int64_t ranks) {
  switch (collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::Reduce:
    case Collective::AllToAll: return read == payload && written == payload;
    case Collective::AllGather: return written == payload && checked_mul(read, ranks) == payload;
    case Collective::ReduceScatter: return read == payload && checked_mul(written, ranks) == payload;
    case Collective::SendRecv: return std::max(read, written) == payload;
  }
  return false;
}

// Collectives within one buffer: all-reduce and its like in place, shares where this rank's share lies.
bool shares_fit(const Communicate& event, const Access& read, const Access& write, std::int64_t rank) {
  if (read.buffer != write.buffer) return true;
  const Bytes share(event.collective == Collective::ReduceScatter ? write.bytes : read.bytes);
  switch (event.collective) {
    case Collective::AllGather: return read.offset == write.offset + share * rank;
    case Collective::ReduceScatter: return write.offset == read.offset + share * rank;
    default: return read.offset == write.offset;
  }
}

}  // namespace

template <class Work>
Auditor::Sums Auditor::work(const Work& event, bool compute) {
  ++works_;
  before_ = {};
  Sums sums;
  const auto legal = [&](Span span) { return span.begin <= span.end && span.end <= schedule_.accesses.size(); };
  if (!legal(event.reads) || !legal(event.writes)) {
    find("a span lies outside the pool of accesses");
    return sums;
  }
  if (!is_stream(event.stream)) return sums;
  ++clocks_[event.stream][event.stream];
  // A copy of nothing but what other ranks sent is theirs as well.
  bool ours = compute && event.reads.begin == event.reads.end;
  for (const Access& access : schedule_.range(event.reads)) {
    ours = ours || (compute && ours_.has(access.content) && ours_[access.content]);
    sums.read = checked_add(sums.read, read(access, event.stream));
  }
  for (const Access& access : schedule_.range(event.writes)) {
    sums.written = checked_add(sums.written, write(access, event.stream, ours, compute));
  }
  if (event.writes.begin == event.writes.end) {
    find("work that makes nothing");
  } else {
    before_ = {schedule_.accesses[event.writes.begin].content, true};
  }
  if (stopped_) find("work between an early stop and the exit that abandons its module");
  if (event.module != (modules_.empty() ? kNone : modules_.back().module))
    find("work outside its module {}", event.module);
  // An operator alone, checkpointed without its module, runs again in the middle of that module's backward.
  const bool again = !modules_.empty() && event.pass == Pass::Recompute && modules_.back().pass == Pass::Backward;
  if (!modules_.empty() && event.pass != modules_.back().pass && !again)
    find("work in a module that was entered in another pass");
  return sums;
}

void Auditor::on(std::size_t at, const Compute& event) {
  if (full()) return;
  at_ = at;
  work(event, true);
}

void Auditor::on(std::size_t at, const Communicate& event) {
  if (full()) return;
  at_ = at;
  const Sums sums = work(event, false);
  for (const Span span : {event.reads, event.writes}) {
    for (std::uint32_t i = span.begin; i < span.end && i < schedule_.accesses.size(); ++i) {
      const BufferId buffer = schedule_.accesses[i].buffer;
      // DeepSpeed broadcasts parameters as bytes.
      const bool as_bytes = event.collective == Collective::Broadcast && event.dtype == DType::UInt8;
      if (states_.has(buffer) && schedule_.buffers[buffer].dtype != event.dtype && !as_bytes) {
        find("{} of {} touches buffer {} of {}", name(event.collective), name(event.dtype), named(buffer),
             name(schedule_.buffers[buffer].dtype));
      }
    }
  }
  const bool inside = event.group == Group::DataParallelInside;
  const bool data_parallel = event.group == Group::DataParallel || event.group == Group::DataParallelBetween || inside;
  const bool tensor_parallel = event.group == Group::TensorParallel;
  const bool known_group = data_parallel || tensor_parallel;
  const std::int64_t ranks = known_group ? schedule_.ranks_of(event.group) : schedule_.world;
  if (ranks < 2) find("{} in a group of one rank", name(event.collective));
  if (known_group && !payload_fits(event.collective, event.payload.value(), sums.read, sums.written, ranks)) {
    find("{} of {} bytes reads {} and writes {}", name(event.collective), event.payload.value(), sums.read,
         sums.written);
  }
  if (sums.read == 0 || sums.written == 0) return;
  // Among ranks that share layers the first one's schedule stands for all.
  const std::int64_t place = tensor_parallel ? 0 : inside ? schedule_.rank % ranks : schedule_.rank;
  if (!shares_fit(event, schedule_.accesses[event.reads.begin], schedule_.accesses[event.writes.begin], place)) {
    find("{} reads and writes different places of one buffer", name(event.collective));
  }
}

}  // namespace dsplan
