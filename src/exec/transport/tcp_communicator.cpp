#include "exec/transport/tcp_communicator.h"

#include <cstring>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::exec {
namespace {

// Of one rank's piece: what waits to be added up is bounded, however large the buffers are.
constexpr std::int64_t kBlock = 1 << 20;

// What a rank says of its call before anything else.
struct Announcement {
  std::int32_t group = 0;
  std::int32_t kind = 0;
  std::int32_t dtype = 0;
  std::int32_t reduction = 0;
  std::int64_t elements = 0;
  std::int64_t event = 0;
  std::int32_t root = 0;
  std::int32_t rank = 0;
};

}  // namespace

void TcpCommunicator::move(std::vector<Outgoing> out, std::vector<Incoming> in, const CollectiveCall& call) {
  for (const Outgoing& each : out) sent_ += each.bytes;
  transport_.move(std::move(out), std::move(in), call, group_);
}

void TcpCommunicator::copy(char* to, const char* from, std::int64_t elements, const CollectiveCall& call) {
  if (elements > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes_of(elements, call)));
}

// All say what they call; the first who hears something else than its own ends the run.
void TcpCommunicator::agree_with(const CollectiveCall& call, const std::vector<int>& others_out,
                                 const std::vector<int>& others_in) {
  const Announcement own{static_cast<std::int32_t>(group_),
                         static_cast<std::int32_t>(call.kind),
                         static_cast<std::int32_t>(call.dtype),
                         call.reduction,
                         call.elements,
                         static_cast<std::int64_t>(call.event),
                         call.root,
                         device_.rank()};
  std::vector<Announcement> theirs(others_in.size());
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (const int other : others_out) out.push_back({member(other), reinterpret_cast<const char*>(&own), sizeof own});
  for (std::size_t at = 0; at < others_in.size(); ++at) {
    in.push_back({member(others_in[at]), reinterpret_cast<char*>(&theirs[at]), sizeof(Announcement)});
  }
  transport_.move(std::move(out), std::move(in), call, group_);
  for (const Announcement& other : theirs) {
    CollectiveCall said;
    said.kind = static_cast<Collective>(other.kind);
    said.dtype = static_cast<DType>(other.dtype);
    said.reduction = other.reduction;
    said.elements = other.elements;
    said.root = other.root;
    said.event = static_cast<std::size_t>(other.event);
    if (other.group == own.group && agree(call, said)) continue;
    Failure failure{
        DSPLAN_INVALID, device_.rank(), call.event, std::string(dsplan::name(call.kind)),
        formatted("the ranks of group {} disagree: {}, {}{}", dsplan::name(group_), describe(call, device_.rank()),
                  describe(said, other.rank), other.group == own.group ? "" : " in another group")};
    transport_.abort(failure);
    throw RunFailure(std::move(failure));
  }
}

CallRecord TcpCommunicator::run(const CollectiveCall& call) {
  validate(call, me_, ranks(), device_.rank());
  device_.synchronize(call.stream);
  sent_ = 0;
  if (call.kind == Collective::SendRecv) {
    const auto one = [](int rank) { return rank == kNobody ? std::vector<int>{} : std::vector<int>{rank}; };
    agree_with(call, one(call.to), one(call.from));
    const std::int64_t size = bytes_of(call.elements, call);
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    if (call.to != kNobody) out.push_back({member(call.to), element_at(call.input, 0, call), size});
    if (call.from != kNobody) in.push_back({member(call.from), element_at(call.output, 0, call), size});
    move(std::move(out), std::move(in), call);
  } else {
    std::vector<int> others;
    for (int at = 0; at < ranks(); ++at) {
      if (at != me_) others.push_back(at);
    }
    agree_with(call, others, others);
    carry_out(call);
  }
  const Bytes payload = storage(Elements(call.elements), call.dtype);
  return {call.kind, group_, call.dtype, call.elements, payload, Bytes(sent_)};
}

void TcpCommunicator::carry_out(const CollectiveCall& call) {
  const std::int64_t share = call.elements / ranks();
  switch (call.kind) {
    case Collective::AllReduce: return all_reduce(call);
    case Collective::ReduceScatter: {
      std::vector<Chunk> chunks;
      for (int at = 0; at < ranks(); ++at) chunks.push_back({share * at, share});
      return combine_chunks(call, chunks, element_at(call.output, 0, call));
    }
    case Collective::AllGather: return all_gather(call, element_at(call.input, 0, call));
    case Collective::Broadcast: return broadcast(call);
    case Collective::Reduce: return reduce(call);
    case Collective::AllToAll: return all_to_all(call);
    case Collective::SendRecv: break;
  }
  DSPLAN_CHECK(false, "a point-to-point call among collectives");
}

void TcpCommunicator::combine_chunks(const CollectiveCall& call, const std::vector<Chunk>& chunks, char* target) {
  const std::int64_t block = std::max<std::int64_t>(kBlock / bytes_per_element(call.dtype), 1);
  const char* input = element_at(call.input, 0, call);
  const Chunk& mine = chunks[static_cast<std::size_t>(me_)];
  std::int64_t longest = 0;
  for (const Chunk& chunk : chunks) longest = std::max(longest, chunk.length);
  const auto part = [&](const Chunk& chunk, std::int64_t done) {
    return std::clamp<std::int64_t>(chunk.length - done, 0, block);
  };
  pieces_.resize(static_cast<std::size_t>(bytes_of(std::min(mine.length, block), call) * ranks()));
  for (std::int64_t done = 0; done < longest; done += block) {
    const std::int64_t own = part(mine, done);
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<const void*> pieces;
    for (int at = 0; at < ranks(); ++at) {
      const Chunk& theirs = chunks[static_cast<std::size_t>(at)];
      char* piece = pieces_.data() + bytes_of(own, call) * at;
      pieces.push_back(at == me_ ? element_at(input, mine.begin + done, call) : piece);
      if (at == me_) continue;
      out.push_back({member(at), element_at(input, theirs.begin + done, call), bytes_of(part(theirs, done), call)});
      in.push_back({member(at), piece, bytes_of(own, call)});
    }
    move(std::move(out), std::move(in), call);
    if (own == 0) continue;
    device_.combine(call.reduction, call.dtype, target + bytes_of(done, call), pieces, own, call.stream);
    device_.synchronize(call.stream);
  }
}

// Each rank makes the sum of one chunk, then all take each other's.
void TcpCommunicator::all_reduce(const CollectiveCall& call) {
  std::vector<Chunk> chunks;
  for (int at = 0; at < ranks(); ++at) chunks.push_back(chunk_of(call.elements, ranks(), at));
  const Chunk& mine = chunks[static_cast<std::size_t>(me_)];
  char* output = element_at(call.output, 0, call);
  combine_chunks(call, chunks, element_at(output, mine.begin, call));
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int at = 0; at < ranks(); ++at) {
    const Chunk& theirs = chunks[static_cast<std::size_t>(at)];
    if (at == me_) continue;
    out.push_back({member(at), element_at(output, mine.begin, call), bytes_of(mine.length, call)});
    in.push_back({member(at), element_at(output, theirs.begin, call), bytes_of(theirs.length, call)});
  }
  move(std::move(out), std::move(in), call);
}

void TcpCommunicator::all_gather(const CollectiveCall& call, const char* input) {
  const std::int64_t share = call.elements / ranks();
  char* output = element_at(call.output, 0, call);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int at = 0; at < ranks(); ++at) {
    if (at == me_) continue;
    out.push_back({member(at), input, bytes_of(share, call)});
    in.push_back({member(at), element_at(output, share * at, call), bytes_of(share, call)});
  }
  move(std::move(out), std::move(in), call);
  copy(element_at(output, share * me_, call), input, share, call);
}

void TcpCommunicator::all_to_all(const CollectiveCall& call) {
  const std::int64_t share = call.elements / ranks();
  const char* input = element_at(call.input, 0, call);
  char* output = element_at(call.output, 0, call);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int at = 0; at < ranks(); ++at) {
    if (at == me_) continue;
    out.push_back({member(at), element_at(input, share * at, call), bytes_of(share, call)});
    in.push_back({member(at), element_at(output, share * at, call), bytes_of(share, call)});
  }
  move(std::move(out), std::move(in), call);
  copy(element_at(output, share * me_, call), element_at(input, share * me_, call), share, call);
}

// A chain from the root: each hands on a block while the next one comes.
void TcpCommunicator::broadcast(const CollectiveCall& call) {
  const int place = (me_ - call.root + ranks()) % ranks();
  const int before = member((me_ - 1 + ranks()) % ranks());
  const int next = member((me_ + 1) % ranks());
  const bool last = place == ranks() - 1;
  const std::int64_t size = bytes_of(call.elements, call);
  if (place == 0) {
    move({{next, element_at(call.input, 0, call), size}}, {}, call);
    if (call.output != nullptr)
      copy(element_at(call.output, 0, call), element_at(call.input, 0, call), call.elements, call);
    return;
  }
  char* output = element_at(call.output, 0, call);
  std::int64_t handed_on = 0;
  for (std::int64_t come = 0; come < size || (!last && handed_on < size);) {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    const std::int64_t arriving = std::min(size - come, kBlock);
    if (!last) out.push_back({next, output + handed_on, come - handed_on});
    in.push_back({before, output + come, arriving});
    handed_on = last ? handed_on : come;
    come += arriving;
    move(std::move(out), std::move(in), call);
  }
}

void TcpCommunicator::reduce(const CollectiveCall& call) {
  std::vector<Chunk> chunks(members_.size());
  chunks[static_cast<std::size_t>(call.root)] = {0, call.elements};
  combine_chunks(call, chunks, element_at(call.output, 0, call));
}

}  // namespace dsplan::exec
