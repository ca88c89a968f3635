#include "planner/lower/emitter.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan {

Emitter::Emitter(std::size_t events, const Until& until) : until_(until) {
  schedule_.events.reserve(events);
  schedule_.accesses.reserve(events);
  schedule_.buffers.reserve(events / 3);
  states_.reserve(events / 3);
}

BufferId Emitter::allocate(Bytes bytes, DType dtype, const What& what, ParameterId parameter, Space space) {
  DSPLAN_CHECK(bytes > Bytes(0), std::string("an empty buffer: ") + what.label);
  const BufferId id = schedule_.buffers.push({.size = bytes,
                                              .label = what.label,
                                              .source = what.source,
                                              .module = module_,
                                              .parameter = parameter,
                                              .dtype = dtype,
                                              .role = what.role,
                                              .capacity = what.capacity,
                                              .in_pieces = what.in_pieces,
                                              .space = space});
  states_.push({});
  states_.back().references = 1;
  states_.back().stream = stream_;
  schedule_.events.emplace_back(Allocate{id, stream_});
  if (!until_.given() || space != Space::Device) return id;
  live_ += bytes;
  if (!until_.reached(live_, schedule_)) return id;
  stopped_ = true;
  throw Ended{};
}

BufferId allocate_pieces(Emitter& emitter, std::size_t count, std::vector<Bytes> sizes, DType dtype, What what) {
  Schedule& schedule = emitter.schedule_;
  schedule.pieces.push_back({schedule.buffers.next(), count, std::move(sizes)});
  what.in_pieces = true;
  return emitter.allocate(schedule.pieces.back().bytes(count), dtype, what);
}

void Emitter::rename(BufferId buffer, const What& what) {
  schedule_.buffers[buffer].role = what.role;
  schedule_.buffers[buffer].label = what.label;
  schedule_.buffers[buffer].source = what.source;
}

void Emitter::release(BufferId buffer, Reason reason) {
  if (stopped_) return;
  State& state = states_[buffer];
  DSPLAN_CHECK(state.references > 0, std::string("released twice: ") + schedule_.buffers[buffer].label);
  if (--state.references > 0) return;
  if (until_.given() && space(buffer) == Space::Device) live_ -= size(buffer);
  const bool late = after_marker_ || state.last_touch != serial_;
  DSPLAN_CHECK(!late || reason != Reason::LastUse,
               std::string("late without a reason: ") + schedule_.buffers[buffer].label);
  schedule_.events.emplace_back(Release{buffer, late ? cause_ : kNone, state.stream, late ? reason : Reason::LastUse});
}

void Emitter::begin() {
  reads_begin_ = static_cast<std::uint32_t>(schedule_.accesses.size());
  writing_ = false;
  first_written_ = kNone;
  ++serial_;
  if (recording_ != nullptr) recording_->begin_work();
}

void Emitter::touch(BufferId buffer, const Contents::Piece& piece) {
  schedule_.accesses.push_back({buffer, piece.content, piece.offset, piece.bytes});
  states_[buffer].last_touch = serial_;
}

void Emitter::read(BufferId buffer) {
  DSPLAN_CHECK(!writing_, "reads come before writes");
  if (recording_ != nullptr) recording_->read({buffer, Bytes(0), size(buffer)});
  contents_.read(states_[buffer].held, [&](const Contents::Piece& piece) { touch(buffer, piece); });
}

void Emitter::read(BufferId buffer, Bytes offset, Bytes bytes) {
  DSPLAN_CHECK(!writing_, "reads come before writes");
  if (bytes == Bytes(0)) return;
  if (recording_ != nullptr) recording_->read({buffer, offset, bytes});
  contents_.read(states_[buffer].held, offset, bytes, [&](const Contents::Piece& piece) { touch(buffer, piece); });
}

void Emitter::write(BufferId buffer) { write(buffer, Bytes(0), size(buffer)); }

void Emitter::write(BufferId buffer, Bytes offset, Bytes bytes) {
  if (bytes == Bytes(0)) return;
  if (!writing_) {
    writing_ = true;
    writes_begin_ = static_cast<std::uint32_t>(schedule_.accesses.size());
    first_written_ = ContentId(next_content_);
  }
  if (recording_ != nullptr) recording_->write({buffer, offset, bytes});
  const Contents::Piece made{ContentId(next_content_++), offset, bytes};
  touch(buffer, made);
  contents_.write(states_[buffer].held, made, bytes == size(buffer));
}

void Emitter::end_work() {
  if (!writing_) writes_begin_ = static_cast<std::uint32_t>(schedule_.accesses.size());
  cause_ = first_written_;
  after_marker_ = false;
  order_.work_on(stream_);
  DSPLAN_CHECK(first_written_ != kNone, "work that makes nothing");
}

void Emitter::end_compute(Label work, Cost cost) {
  end_work();
  const auto end = static_cast<std::uint32_t>(schedule_.accesses.size());
  schedule_.events.emplace_back(
      Compute{work, module_, stream_, pass_, {reads_begin_, writes_begin_}, {writes_begin_, end}, cost});
}

void Emitter::compute_unexecutable(Label work) {
  if (recording_ != nullptr) recording_->end_unexecutable(work, next_event());
  end_compute(work, Cost::Memory);
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
  cause_ = ContentId(next_content_++);
  return cause_;
}

std::optional<ContentId> Emitter::record_event(StreamId on) {
  if (!schedule_.several_streams) return std::nullopt;
  schedule_.events.emplace_back(RecordEvent{on, begin_marker()});
  order_.record(cause_, on);
  return cause_;
}

void Emitter::wait_event(StreamId waiter, std::optional<ContentId> event) {
  if (!event || !order_.wait(waiter, *event)) return;
  schedule_.events.emplace_back(WaitEvent{*event, waiter, begin_marker()});
}

void Emitter::wait_stream(StreamId waiter, StreamId on) {
  if (schedule_.several_streams && !order_.is_behind(waiter, on)) wait_event(waiter, record_event(on));
}

void Emitter::enter(ModuleId module) { schedule_.events.emplace_back(Enter{module, pass_, begin_marker()}); }

void Emitter::exit(ModuleId module, bool abandoned) {
  schedule_.events.emplace_back(Exit{module, pass_, abandoned, begin_marker()});
}

void Emitter::mark(Moment moment, Stretch stretch, std::int32_t micro_batch) {
  if (stretch == Stretch::Save) until_.room.reset();
  schedule_.events.emplace_back(Mark{moment, stretch, micro_batch, begin_marker()});
}

void tell_uses(Emitter& emitter, BufferId buffer, bool told) {
  if (buffer == kNoBuffer) emitter.schedule_.untold.all = !told;
  if (buffer == kNoBuffer) return;
  std::vector<BufferId>& untold = emitter.schedule_.untold.of;
  const auto at = std::lower_bound(untold.begin(), untold.end(), buffer);
  const bool found = at != untold.end() && *at == buffer;
  if (told && found) untold.erase(at);
  if (!told && !found) untold.insert(at, buffer);
}

void Emitter::promise_update(BufferId buffer, Bytes offset, Bytes bytes) {
  schedule_.promises.push_back({PromiseKind::UpdatedEachStep, {buffer, kNone, offset, bytes}});
}

Schedule Emitter::finish() {
  if (until_.still_wanted && !until_.still_wanted(schedule_)) {
    stopped_ = true;
    throw Ended{};
  }
  for (const BufferId buffer : states_.ids()) {
    if (states_[buffer].references == 0) continue;
    schedule_.survivors.push_back(buffer);
    contents_.read(states_[buffer].held, [&](const Contents::Piece& piece) {
      if (piece.content == kNone) return;  // Nothing was ever written.
      schedule_.promises.push_back({PromiseKind::HeldAtTheEnd, {buffer, piece.content, piece.offset, piece.bytes}});
    });
  }
  stopped_ = true;  // Whoever still holds a buffer lets go of it unseen.
  return std::move(schedule_);
}

}  // namespace dsplan
