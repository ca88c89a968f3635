#include "core/audit.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsplan {
namespace {

// A run of bytes with one content. Cut where reads and writes begin and end, so that each is wholly in or out.
struct Piece {
  std::int64_t from = 0;
  std::int64_t to = 0;
  ContentId content = 0;
  bool read = false;
};

struct State {
  bool allocated = false;
  bool released = false;
  bool survives = false;
  StreamId stream = 0;
  std::int64_t extent = 0;    // End of the furthest byte touched.
  std::size_t touched = 0;    // The latest work that did, counted from 1.
  std::vector<Piece> pieces;  // Ascending, disjoint.
};

class Auditor {
 public:
  Auditor(const Schedule& schedule, std::size_t most);
  std::vector<Finding> finish();

  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Compute& event);
  void on(std::size_t at, const Communicate& event);
  void on(std::size_t at, const Enter& event);
  void on(std::size_t at, const Exit& event);
  void on(std::size_t at, const Mark& event);

 private:
  // Who follows may be a release: `id` is what it must name, `work` whether it may be a last use.
  struct Before {
    ContentId id = 0;
    bool work = false;
  };
  struct Sums {
    std::int64_t read = 0;
    std::int64_t written = 0;
  };

  bool full() const { return findings_.size() >= most_; }
  template <class... Parts>
  void find(fmt::format_string<Parts...> text, Parts&&... parts) {
    if (!full()) findings_.push_back({at_, fmt::format(text, std::forward<Parts>(parts)...)});
  }
  std::string named(BufferId buffer) const { return fmt::format("{} ({})", buffer, schedule_.buffers[buffer].label); }

  bool known(BufferId buffer);
  bool identify(ContentId id);
  State* touch(const Access& access, StreamId stream);
  static std::size_t cut(std::vector<Piece>& pieces, std::int64_t where);
  // Both return the bytes that they found legal to touch.
  std::int64_t read(const Access& access, StreamId stream);
  std::int64_t write(const Access& access, StreamId stream, bool ours, bool counts);
  bool is_unread(BufferId buffer, const Piece& piece) const;
  void lose(BufferId buffer, const Piece& piece);
  template <class Work>
  Sums work(const Work& event, bool compute);
  void count_update(const Access& access);
  void judge_size(BufferId buffer);
  void judge_promise(const Promise& promise);

  const Schedule& schedule_;
  std::size_t most_;
  std::vector<Finding> findings_;
  std::vector<State> states_;          // By buffer.
  std::vector<bool> identified_;       // By content or marker.
  std::vector<bool> ours_;             // By content: made here, not sent by other ranks.
  std::vector<std::size_t> maker_;     // By content: the work that made it, counted from 1.
  std::vector<bool> partly_read_;      // By content.
  std::vector<Promise> updates_;       // By buffer, ascending.
  std::vector<std::int64_t> updated_;  // Bytes written in this step, as updates_.
  std::vector<Enter> modules_;         // Entered and not left.
  std::size_t at_ = 0;
  std::size_t works_ = 0;
  Before before_;
  bool in_step_ = false;
  bool stopped_ = false;  // A recomputation dropped what nobody has read, and must be abandoned.
};

Auditor::Auditor(const Schedule& schedule, std::size_t most)
    : schedule_(schedule),
      most_(most),
      states_(schedule.buffers.size()),
      identified_(schedule.accesses.size() + schedule.events.size() + 1),
      ours_(identified_.size()),
      maker_(identified_.size()),
      partly_read_(identified_.size()) {
  for (BufferId buffer : schedule.survivors) {
    if (known(buffer)) states_[buffer].survives = true;
  }
  for (const Promise& promise : schedule.promises) {
    if (known(promise.what.buffer) && promise.kind == PromiseKind::UpdatedEachStep) updates_.push_back(promise);
  }
  std::stable_sort(updates_.begin(), updates_.end(),
                   [](const Promise& a, const Promise& b) { return a.what.buffer < b.what.buffer; });
  updated_.assign(updates_.size(), 0);
}

bool Auditor::known(BufferId buffer) {
  if (buffer < states_.size()) return true;
  find("there is no buffer {}", buffer);
  return false;
}

// Contents and markers come into being once.
bool Auditor::identify(ContentId id) {
  if (id == 0 || id >= identified_.size()) {
    find("identity {} is out of range", id);
    return false;
  }
  if (identified_[id]) find("identity {} is given twice", id);
  identified_[id] = true;
  return true;
}

void Auditor::on(std::size_t at, const Allocate& event) {
  if (full()) return;
  at_ = at;
  before_ = {};
  if (!known(event.buffer)) return;
  State& state = states_[event.buffer];
  if (state.allocated) find("buffer {} is allocated twice", named(event.buffer));
  state.allocated = true;
  state.stream = event.stream;
}

void Auditor::on(std::size_t at, const Release& event) {
  if (full()) return;
  at_ = at;
  if (!known(event.buffer)) return;
  State& state = states_[event.buffer];
  if (!state.allocated) find("buffer {} is released before it is allocated", named(event.buffer));
  if (state.released) find("buffer {} is released twice", named(event.buffer));
  if (state.stream != event.stream) find("buffer {} is released on another stream", named(event.buffer));
  state.released = true;
  const bool last_use = before_.work && state.touched == works_;
  if (event.reason == Reason::LastUse) {
    if (!last_use || event.cause != 0) find("buffer {} is not released right after its last use", named(event.buffer));
  } else {
    if (last_use) find("buffer {} gives {} for a release at its last use", named(event.buffer), name(event.reason));
    if (event.cause == 0 || event.cause != before_.id) {
      find("buffer {} is not released right after its cause {}", named(event.buffer), event.cause);
    }
  }
  // Modules are gathered whole. An early stop unwinds a recomputation before its last readers have run, but then
  // nothing more may run in it.
  const bool recomputing = !modules_.empty() && modules_.back().pass == Pass::Recompute;
  for (const Piece& piece : state.pieces) {
    if (recomputing && is_unread(event.buffer, piece)) {
      stopped_ = true;
    } else if (event.reason != Reason::ModuleExit) {
      lose(event.buffer, piece);
    }
  }
  state.pieces.clear();
}

// The state behind an access that is legal as to time, place and stream; nullptr if it is not.
State* Auditor::touch(const Access& access, StreamId stream) {
  if (!known(access.buffer)) return nullptr;
  const Buffer& buffer = schedule_.buffers[access.buffer];
  State& state = states_[access.buffer];
  const std::int64_t from = access.offset.value();
  const std::int64_t bytes = access.bytes.value();
  const std::int64_t width = bytes_per_element(buffer.dtype);
  if (!state.allocated || state.released) find("buffer {} is touched while it is not there", named(access.buffer));
  if (state.stream != stream) find("buffer {} is touched on another stream", named(access.buffer));
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

// Makes `where` a border between pieces; returns the index of the first piece at or after it.
std::size_t Auditor::cut(std::vector<Piece>& pieces, std::int64_t where) {
  const auto found = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.to <= where; });
  const auto index = static_cast<std::size_t>(found - pieces.begin());
  if (found == pieces.end() || found->from >= where) return index;
  Piece left = *found;
  left.to = where;
  found->from = where;
  pieces.insert(found, left);
  return index + 1;
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
    partly_read_[access.content] = true;
    covered = piece.to;
  }
  if (covered != end) find("buffer {} does not hold {} where it is read", named(access.buffer), access.content);
  return access.bytes.value();
}

std::int64_t Auditor::write(const Access& access, StreamId stream, bool ours, bool counts) {
  State* const state = touch(access, stream);
  if (state == nullptr || !identify(access.content)) return 0;
  ours_[access.content] = ours;
  maker_[access.content] = works_;
  const std::int64_t from = access.offset.value();
  const std::int64_t end = from + access.bytes.value();
  std::vector<Piece>& pieces = state->pieces;
  const auto first = static_cast<std::ptrdiff_t>(cut(pieces, from));
  const auto last = static_cast<std::ptrdiff_t>(cut(pieces, end));
  for (auto i = first; i < last; ++i) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    if (maker_[piece.content] == works_) find("two writes of one work overlap in buffer {}", named(access.buffer));
    lose(access.buffer, piece);
  }
  const auto where = pieces.erase(pieces.begin() + first, pieces.begin() + last);
  pieces.insert(where, {from, end, access.content, false});
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
  // A copy of nothing but what other ranks sent is theirs as well.
  bool ours = compute && event.reads.begin == event.reads.end;
  for (const Access& access : schedule_.range(event.reads)) {
    ours = ours || (compute && access.content < ours_.size() && ours_[access.content]);
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
  if (!modules_.empty() && event.pass != modules_.back().pass)
    find("work in a module that was entered in another pass");
  return sums;
}

void Auditor::on(std::size_t at, const Compute& event) {
  if (full()) return;
  at_ = at;
  work(event, true);
}

// Payloads are the full logical buffer, as in nccl-tests. Only the size of the data-parallel group is known here.
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

void Auditor::on(std::size_t at, const Communicate& event) {
  if (full()) return;
  at_ = at;
  const Sums sums = work(event, false);
  for (const Span span : {event.reads, event.writes}) {
    for (std::uint32_t i = span.begin; i < span.end && i < schedule_.accesses.size(); ++i) {
      const BufferId buffer = schedule_.accesses[i].buffer;
      if (buffer < states_.size() && schedule_.buffers[buffer].dtype != event.dtype) {
        find("{} of {} touches buffer {} of {}", name(event.collective), name(event.dtype), named(buffer),
             name(schedule_.buffers[buffer].dtype));
      }
    }
  }
  const bool data_parallel = event.group == Group::DataParallel;
  if ((data_parallel ? schedule_.dp : schedule_.world) < 2) find("{} in a group of one rank", name(event.collective));
  if (data_parallel && !payload_fits(event.collective, event.payload.value(), sums.read, sums.written, schedule_.dp)) {
    find("{} of {} bytes reads {} and writes {}", name(event.collective), event.payload.value(), sums.read,
         sums.written);
  }
  if (sums.read == 0 || sums.written == 0) return;
  if (!shares_fit(event, schedule_.accesses[event.reads.begin], schedule_.accesses[event.writes.begin],
                  schedule_.rank)) {
    find("{} reads and writes different places of one buffer", name(event.collective));
  }
}

void Auditor::on(std::size_t at, const Enter& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  modules_.push_back(event);
}

void Auditor::on(std::size_t at, const Exit& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  if (stopped_ && !event.abandoned) find("an early stop does not abandon module {}", event.module);
  stopped_ = false;
  if (event.abandoned && event.pass != Pass::Recompute) find("only recomputation abandons a module");
  if (modules_.empty() || modules_.back().module != event.module || modules_.back().pass != event.pass) {
    find("module {} is left but is not the innermost", event.module);
    return;
  }
  modules_.pop_back();
}

void Auditor::on(std::size_t at, const Mark& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  if (!modules_.empty()) find("\"{}\" inside module {}", name(event.moment), modules_.back().module);
  if (event.moment == Moment::StepBegins) {
    in_step_ = true;
    updated_.assign(updates_.size(), 0);
  } else if (event.moment == Moment::StepEnds) {
    in_step_ = false;
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const Access& what = updates_[i].what;
      if (updated_[i] != what.bytes.value()) {
        find("the step wrote {} of the {} bytes at {} of buffer {}", updated_[i], what.bytes.value(),
             what.offset.value(), named(what.buffer));
      }
    }
  }
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

void Auditor::judge_size(BufferId id) {
  const Buffer& buffer = schedule_.buffers[id];
  const State& state = states_[id];
  const std::int64_t size = buffer.size.value();
  if (!state.allocated) find("buffer {} is never allocated", named(id));
  if (state.survives == state.released) find("buffer {} is released or survives, one of both", named(id));
  if (size <= 0 || size % bytes_per_element(buffer.dtype) != 0) find("buffer {} cuts an element", named(id));
  if (buffer.capacity ? state.extent > size : state.extent != size) {
    find("buffer {} of {} bytes is touched up to {}", named(id), size, state.extent);
  }
}

void Auditor::judge_promise(const Promise& promise) {
  const Access& what = promise.what;
  std::int64_t held = 0;
  for (const Piece& piece : states_[what.buffer].pieces) {
    const std::int64_t from = std::max(piece.from, what.offset.value());
    const std::int64_t to = std::min(piece.to, (what.offset + what.bytes).value());
    if (from < to && piece.content == what.content) held += to - from;
  }
  if (held != what.bytes.value()) find("buffer {} does not hold {} at the end", named(what.buffer), what.content);
}

std::vector<Finding> Auditor::finish() {
  if (full()) return std::move(findings_);
  at_ = schedule_.events.size();
  if (!modules_.empty()) find("module {} is never left", modules_.back().module);
  if (in_step_) find("a step never ends");
  if (schedule_.rank < 0 || schedule_.rank >= schedule_.dp || schedule_.dp > schedule_.world) find("impossible rank");
  if (std::adjacent_find(schedule_.survivors.begin(), schedule_.survivors.end(), std::greater_equal<>()) !=
      schedule_.survivors.end()) {
    find("survivors are not ascending");
  }
  std::int64_t promised = 0;
  for (const Promise& promise : schedule_.promises) {
    if (promise.kind != PromiseKind::HeldAtTheEnd || !known(promise.what.buffer)) continue;
    judge_promise(promise);
    promised += promise.what.bytes.value();
  }
  for (BufferId id = 0; id < states_.size(); ++id) {
    judge_size(id);
    for (const Piece& piece : states_[id].pieces) promised -= piece.to - piece.from;
  }
  if (promised != 0) find("what survivors hold and what is promised differ by {} bytes", promised);
  return std::move(findings_);
}

}  // namespace

std::vector<Finding> audit(const Schedule& schedule, std::size_t most) {
  Auditor auditor(schedule, most);
  replay(schedule, auditor);
  return auditor.finish();
}

}  // namespace dsplan
