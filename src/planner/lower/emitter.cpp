#include "planner/lower/emitter.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "core/error.h"

namespace dsplan {

Emitter::Emitter(std::size_t events) {
  schedule_.events.reserve(events);
  schedule_.accesses.reserve(events);
  schedule_.buffers.reserve(events / 3);
  states_.reserve(events / 3);
}

BufferId Emitter::allocate(Bytes bytes, DType dtype, Role role, Label label, ParameterId parameter, bool capacity,
                           Space space) {
  DSPLAN_CHECK(bytes > Bytes(0), std::string("an empty buffer: ") + label);
  const auto id = static_cast<BufferId>(schedule_.buffers.size());
  schedule_.buffers.push_back({.size = bytes,
                               .label = label,
                               .module = module_,
                               .parameter = parameter,
                               .dtype = dtype,
                               .role = role,
                               .capacity = capacity,
                               .space = space});
  states_.emplace_back();
  states_.back().references = 1;
  states_.back().stream = stream_;
  schedule_.events.emplace_back(Allocate{id, stream_});
  return id;
}

BufferId Emitter::allocate(Bytes bytes, DType dtype, const What& what, ParameterId parameter, Space space) {
  const BufferId made = allocate(bytes, dtype, what.role, what.label, parameter, what.capacity, space);
  schedule_.buffers[made].source = what.source;
  return made;
}

void Emitter::release(BufferId buffer, Reason reason) {
  State& state = states_[buffer];
  DSPLAN_CHECK(state.references > 0, std::string("released twice: ") + schedule_.buffers[buffer].label);
  if (--state.references > 0) return;
  const bool late = after_marker_ || state.last_touch != serial_;
  DSPLAN_CHECK(!late || reason != Reason::LastUse,
               std::string("late without a reason: ") + schedule_.buffers[buffer].label);
  schedule_.events.emplace_back(Release{buffer, late ? cause_ : 0, state.stream, late ? reason : Reason::LastUse});
}

void Emitter::begin() {
  reads_begin_ = static_cast<std::uint32_t>(schedule_.accesses.size());
  writing_ = false;
  first_written_ = 0;
  ++serial_;
  if (recording_ != nullptr) recording_->begin_work();
}

void Emitter::touch(BufferId buffer, const Piece& piece) {
  schedule_.accesses.push_back({buffer, piece.content, piece.offset, piece.bytes});
  states_[buffer].last_touch = serial_;
}

void Emitter::read(BufferId buffer) {
  DSPLAN_CHECK(!writing_, "reads come before writes");
  const State& state = states_[buffer];
  if (recording_ != nullptr) recording_->read({buffer, Bytes(0), size(buffer)});
  if (state.pieces < 0) {
    touch(buffer, state.whole);
    return;
  }
  for (const Piece& piece : pieces_[static_cast<std::size_t>(state.pieces)]) touch(buffer, piece);
}

void Emitter::read(BufferId buffer, Bytes offset, Bytes bytes) {
  DSPLAN_CHECK(!writing_, "reads come before writes");
  if (bytes == Bytes(0)) return;
  if (recording_ != nullptr) recording_->read({buffer, offset, bytes});
  const State& state = states_[buffer];
  if (state.pieces < 0) {
    touch(buffer, {state.whole.content, offset, bytes});
    return;
  }
  // A flat buffer of a large model has thousands of pieces, in order of their offsets.
  const std::vector<Piece>& pieces = pieces_[static_cast<std::size_t>(state.pieces)];
  const Bytes end = offset + bytes;
  auto piece =
      std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.offset + p.bytes <= offset; });
  for (; piece != pieces.end() && piece->offset < end; ++piece) {
    const Bytes from = std::max(offset, piece->offset);
    touch(buffer, {piece->content, from, std::min(end, piece->offset + piece->bytes) - from});
  }
}

std::vector<Emitter::Piece>& Emitter::split(State& state) {
  if (state.pieces < 0) {
    state.pieces = static_cast<std::int32_t>(pieces_.size());
    pieces_.emplace_back();
    if (state.whole.content != 0) pieces_.back().push_back(state.whole);
  }
  return pieces_[static_cast<std::size_t>(state.pieces)];
}

void Emitter::write(BufferId buffer) { write(buffer, Bytes(0), size(buffer)); }

void Emitter::write(BufferId buffer, Bytes offset, Bytes bytes) {
  if (bytes == Bytes(0)) return;
  if (!writing_) {
    writing_ = true;
    writes_begin_ = static_cast<std::uint32_t>(schedule_.accesses.size());
    first_written_ = next_content_;
  }
  if (recording_ != nullptr) recording_->write({buffer, offset, bytes});
  const Piece made{next_content_++, offset, bytes};
  touch(buffer, made);
  State& state = states_[buffer];
  if (bytes == size(buffer)) {
    if (state.pieces >= 0) pieces_[static_cast<std::size_t>(state.pieces)].assign(1, made);
    state.whole = made;
    return;
  }
  insert(split(state), made);
}

// Pieces are in order and do not overlap. A bucket is filled from left to right, and a flat tensor written again in
// the same pieces: both are found by bisection and cost no copy.
void Emitter::insert(std::vector<Piece>& pieces, const Piece& made) {
  const Bytes offset = made.offset;
  const auto touched =
      std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.offset + p.bytes <= offset; });
  if (touched == pieces.end()) {
    pieces.push_back(made);
    return;
  }
  if (touched->offset == offset && touched->bytes == made.bytes) {
    *touched = made;
    return;
  }
  // What is overwritten in part keeps its identity outside the new piece.
  const Bytes end = offset + made.bytes;
  const auto beyond = std::partition_point(touched, pieces.end(), [&](const Piece& p) { return p.offset < end; });
  std::array<Piece, 3> parts;
  std::ptrdiff_t count = 0;
  if (touched != beyond && touched->offset < offset) {
    parts[static_cast<std::size_t>(count++)] = {touched->content, touched->offset, offset - touched->offset};
  }
  parts[static_cast<std::size_t>(count++)] = made;
  if (touched != beyond) {
    const Piece& last = *std::prev(beyond);
    const Bytes last_end = last.offset + last.bytes;
    if (last_end > end) parts[static_cast<std::size_t>(count++)] = {last.content, end, last_end - end};
  }
  const std::ptrdiff_t replaced = std::min(count, beyond - touched);
  const auto rest = std::copy(parts.begin(), parts.begin() + replaced, touched);
  if (rest != beyond) {
    pieces.erase(rest, beyond);
  } else {
    pieces.insert(rest, parts.begin() + replaced, parts.begin() + count);
  }
}

void Emitter::end_work() {
  if (!writing_) writes_begin_ = static_cast<std::uint32_t>(schedule_.accesses.size());
  cause_ = first_written_;
  after_marker_ = false;
  ++behind_[stream_][stream_];
  DSPLAN_CHECK(first_written_ != 0, "work that makes nothing");
}

void Emitter::compute(Label work) {
  end_work();
  const auto end = static_cast<std::uint32_t>(schedule_.accesses.size());
  if (recording_ != nullptr) recording_->end_work(work, next_event());
  schedule_.events.emplace_back(
      Compute{work, module_, stream_, pass_, {reads_begin_, writes_begin_}, {writes_begin_, end}});
}

void Emitter::communicate(Collective collective, DType dtype, Bytes payload, TrafficKind kind, Group group) {
  end_work();
  const auto end = static_cast<std::uint32_t>(schedule_.accesses.size());
  if (recording_ != nullptr) recording_->end_collective(next_event());
  schedule_.events.emplace_back(Communicate{collective,
                                            group,
                                            dtype,
                                            kind,
                                            stream_,
                                            pass_,
                                            module_,
                                            payload,
                                            {reads_begin_, writes_begin_},
                                            {writes_begin_, end}});
}

ContentId Emitter::begin_marker() {
  after_marker_ = true;
  cause_ = next_content_++;
  return cause_;
}

bool Emitter::is_behind(StreamId waiter, const Clock& what) const {
  const auto knows = [&](std::size_t stream) {
    return std::equal(what.begin(), what.end(), behind_[stream].begin(), std::less_equal<>());
  };
  if (waiter != kHostWaits) return knows(waiter);
  for (std::size_t stream = 0; stream < kStreams; ++stream) {
    if (!knows(stream)) return false;
  }
  return true;
}

std::optional<ContentId> Emitter::signal(StreamId on) {
  if (!several()) return std::nullopt;
  const Clock behind = behind_[on];
  schedule_.events.emplace_back(Signal{on, begin_marker()});
  given_.push_back({cause_, behind});
  return cause_;
}

void Emitter::await(std::optional<ContentId> signal, StreamId waiter) {
  if (!signal) return;
  const auto given =
      std::partition_point(given_.begin(), given_.end(), [&](const Given& one) { return one.id < *signal; });
  if (is_behind(waiter, given->behind)) return;
  schedule_.events.emplace_back(Await{*signal, waiter, begin_marker()});
  for (std::size_t stream = 0; stream < kStreams; ++stream) {
    if (waiter != kHostWaits && waiter != stream) continue;
    for (std::size_t other = 0; other < kStreams; ++other) {
      behind_[stream][other] = std::max(behind_[stream][other], given->behind[other]);
    }
  }
}

void Emitter::wait(StreamId waiter, StreamId on) {
  if (several() && !is_behind(waiter, behind_[on])) await(signal(on), waiter);
}

void Emitter::enter(ModuleId module) { schedule_.events.emplace_back(Enter{module, pass_, begin_marker()}); }

void Emitter::exit(ModuleId module, bool abandoned) {
  schedule_.events.emplace_back(Exit{module, pass_, abandoned, begin_marker()});
}

void Emitter::mark(Moment moment, Stretch stretch, std::int32_t micro_batch) {
  schedule_.events.emplace_back(Mark{moment, stretch, micro_batch, begin_marker()});
}

void Emitter::promise_update(BufferId buffer, Bytes offset, Bytes bytes) {
  schedule_.promises.push_back({PromiseKind::UpdatedEachStep, {buffer, 0, offset, bytes}});
}

void Emitter::promise_contents(BufferId buffer) {
  const State& state = states_[buffer];
  const auto promise = [&](const Piece& piece) {
    schedule_.promises.push_back({PromiseKind::HeldAtTheEnd, {buffer, piece.content, piece.offset, piece.bytes}});
  };
  if (state.pieces >= 0) {
    for (const Piece& piece : pieces_[static_cast<std::size_t>(state.pieces)]) promise(piece);
  } else if (state.whole.content != 0) {
    promise(state.whole);
  }
}

Schedule Emitter::finish() {
  for (std::size_t id = 0; id < states_.size(); ++id) {
    if (states_[id].references == 0) continue;
    schedule_.survivors.push_back(static_cast<BufferId>(id));
    promise_contents(static_cast<BufferId>(id));
  }
  return std::move(schedule_);
}

}  // namespace dsplan
