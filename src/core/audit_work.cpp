// Which bytes hold which content: reads, writes, and what is lost unread.

#include <algorithm>

#include "core/auditor.h"

namespace dsplan {
namespace {

// Makes `where` a border between pieces; returns the index of the first piece at or after it.
template <class Piece>
std::size_t cut(std::vector<Piece>& pieces, std::int64_t where) {
  const auto found = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.to <= where; });
  const auto index = static_cast<std::size_t>(found - pieces.begin());
  if (found == pieces.end() || found->from >= where) return index;
  Piece left = *found;
  left.to = where;
  found->from = where;
  pieces.insert(found, left);
  return index + 1;
}

}  // namespace

// The state behind an access that is legal as to time and place; nullptr if it is not. Memory that a stream is given
// may have been in use on it until then: others wait for that.
Auditor::State* Auditor::touch(const Access& access, StreamId stream) {
  if (!known(access.buffer)) return nullptr;
  const Buffer& buffer = schedule_.buffers[access.buffer];
  State& state = states_[access.buffer];
  const std::int64_t from = access.offset.value();
  const std::int64_t bytes = access.bytes.value();
  const std::int64_t width = bytes_per_element(buffer.dtype);
  if (!state.allocated || state.released) find("buffer {} is touched while it is not there", named(access.buffer));
  if (is_stream(state.stream) && clocks_[stream][state.stream] < state.since) {
    find("stream {} touches buffer {} without having waited for stream {}", stream, named(access.buffer), state.stream);
  }
  if (bytes <= 0 || from < 0 || bytes > buffer.size.value() || from > buffer.size.value() - bytes) {
    find("[{}, +{}) is not inside buffer {}", from, bytes, named(access.buffer));
    return nullptr;
  }
  if (from % width != 0 || bytes % width != 0) {
    find("[{}, +{}) of buffer {} cuts an element", from, bytes, named(access.buffer));
  }
  state.extent = std::max(state.extent, from + bytes);
  state.touched = works_;
  return &state;
}

std::int64_t Auditor::read(const Access& access, StreamId stream) {
  State* const state = touch(access, stream);
  if (state == nullptr) return 0;
  std::int64_t covered = access.offset.value();
  const std::int64_t end = covered + access.bytes.value();
  const std::size_t first = cut(state->pieces, covered);
  const std::size_t last = cut(state->pieces, end);
  for (std::size_t i = first; i < last; ++i) {
    Piece& piece = state->pieces[i];
    if (piece.content != access.content || piece.from != covered) break;
    piece.read = true;
    piece.read_at[stream] = clocks_[stream][stream];
    partly_read_[access.content] = true;
    covered = piece.to;
  }
  if (covered != end) {
    find("buffer {} does not hold {} where it is read", named(access.buffer), access.content);
  } else {
    judge_read(access, stream);
  }
  return access.bytes.value();
}

std::int64_t Auditor::write(const Access& access, StreamId stream, bool ours, bool counts) {
  State* const state = touch(access, stream);
  if (state == nullptr || !identify(access.content)) return 0;
  ours_[access.content] = ours;
  maker_[access.content] = works_;
  made_at_[access.content] = {stream, clocks_[stream][stream]};
  const std::int64_t from = access.offset.value();
  const std::int64_t end = from + access.bytes.value();
  std::vector<Piece>& pieces = state->pieces;
  const auto first = static_cast<std::ptrdiff_t>(cut(pieces, from));
  const auto last = static_cast<std::ptrdiff_t>(cut(pieces, end));
  for (auto i = first; i < last; ++i) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    if (maker_[piece.content] == works_) find("two writes of one work overlap in buffer {}", named(access.buffer));
    judge_overwrite(access, piece, stream);
    lose(access.buffer, piece);
  }
  const auto where = pieces.erase(pieces.begin() + first, pieces.begin() + last);
  pieces.insert(where, {from, end, access.content, false, {}});
  if (in_step_ && counts) count_update(access);
  return access.bytes.value();
}

// Legal for what other ranks sent, for scratch, and for the padding of flat tensors that survive.
bool Auditor::is_unread(BufferId buffer, const Piece& piece) const {
  if (piece.read || !ours_[piece.content] || schedule_.buffers[buffer].scratch) return false;
  const bool padded = states_[buffer].survives && !schedule_.buffers[buffer].capacity;
  return !padded || !partly_read_[piece.content];
}

// What nobody has read is overwritten or released.
void Auditor::lose(BufferId buffer, const Piece& piece) {
  if (!is_unread(buffer, piece)) return;
  find("content {} in [{}, {}) of buffer {} was never read", piece.content, piece.from, piece.to, named(buffer));
}

void Auditor::count_update(const Access& access) {
  const auto first = std::partition_point(updates_.begin(), updates_.end(),
                                          [&](const Promise& p) { return p.what.buffer < access.buffer; });
  for (auto i = first; i != updates_.end() && i->what.buffer == access.buffer; ++i) {
    const Bytes from = std::max(access.offset, i->what.offset);
    const Bytes to = std::min(access.offset + access.bytes, i->what.offset + i->what.bytes);
    if (from < to) updated_[static_cast<std::size_t>(i - updates_.begin())] += (to - from).value();
  }
}

// Computes and collectives: what they touch, where they stand, and whether a payload is what its collective moves.

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
  const bool replicas = event.group == Group::Replicas;
  const bool data_parallel =
      event.group == Group::DataParallel || event.group == Group::DataParallelBetween || inside || replicas;
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

// Streams: what happens before what (core/schedule.h, RecordEvent).

bool Auditor::is_stream(StreamId stream) {
  if (stream < kStreams) return true;
  find("there is no stream {}", stream);
  return false;
}

void Auditor::on(std::size_t at, const RecordEvent& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  if (identify(event.id) && is_stream(event.stream)) recorded_.emplace_back(event.id, clocks_[event.stream]);
}

void Auditor::on(std::size_t at, const WaitEvent& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  const bool host = event.waiter == kHostSync;
  if (!host && !is_stream(event.waiter)) return;
  const auto found =
      std::find_if(recorded_.rbegin(), recorded_.rend(), [&](const auto& one) { return one.first == event.recorded; });
  if (found == recorded_.rend()) return find("a wait for {}, which nobody has recorded", event.recorded);
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    if (!host && stream != event.waiter) continue;
    for (std::size_t other = 0; other < kStreams; ++other) {
      clocks_[stream][other] = std::max(clocks_[stream][other], found->second[other]);
    }
  }
}

// What it gives back is nobody's.
void Auditor::on(std::size_t at, const EmptyCache& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
}

// What is read was made by the same stream, or by one that it has waited for.
void Auditor::judge_read(const Access& access, StreamId stream) {
  const Point made = made_at_[access.content];
  if (clocks_[stream][made.stream] >= made.time) return;
  find("stream {} reads buffer {} without having waited for stream {}", stream, named(access.buffer), made.stream);
}

// What is overwritten has been made, and read, by then.
void Auditor::judge_overwrite(const Access& access, const Piece& piece, StreamId stream) {
  Clock needed = piece.read_at;
  const Point made = made_at_[piece.content];
  needed[made.stream] = std::max(needed[made.stream], made.time);
  for (std::size_t other = 0; other < kStreams; ++other) {
    if (clocks_[stream][other] >= needed[other]) continue;
    find("stream {} writes to buffer {} without having waited for stream {}", stream, named(access.buffer), other);
  }
}

}  // namespace dsplan
