#include "planner/lower/eager.h"

#include <exception>
#include <utility>

namespace dsplan {

Variable& Variable::operator=(Variable&& other) noexcept(false) {
  if (this == &other) return *this;
  Variable before(std::move(*this));  // Goes when the new value is there.
  emitter_ = other.emitter_;
  buffer_ = std::exchange(other.buffer_, kNoBuffer);
  reason_ = other.reason_;
  return *this;
}

Variable::~Variable() noexcept(false) {
  if (std::uncaught_exceptions() == 0) reset();
}

void Variable::reset() { reset(reason_); }

void Variable::reset(Reason reason) {
  if (buffer_ != kNoBuffer) emitter_->release(std::exchange(buffer_, kNoBuffer), reason);
}

Variable Variable::share() const {
  if (buffer_ == kNoBuffer) return {};
  emitter_->retain(buffer_);
  return {*emitter_, buffer_, reason_};
}

Variables& Variables::operator=(Variables&& other) noexcept(false) {
  if (this == &other) return *this;
  const Variables before(std::move(*this));
  emitter_ = other.emitter_;
  buffers_ = std::exchange(other.buffers_, {});
  reason_ = other.reason_;
  return *this;
}

Variables::~Variables() noexcept(false) {
  if (std::uncaught_exceptions() == 0) reset();
}

void Variables::append(Variable made) {
  emitter_ = made.emitter_;
  reason_ = made.reason_;
  buffers_.push_back(made.hand_over());
}

void Variables::reset(Reason reason) {
  for (const BufferId buffer : std::exchange(buffers_, {})) emitter_->release(buffer, reason);
}

void let_go(std::vector<Variable>& list) {
  for (Variable& variable : list) variable.reset();
  list.clear();
}

void let_go(std::vector<Variable>& list, Reason reason) {
  for (Variable& variable : list) variable.reset(reason);
  list.clear();
}

Work& Work::read(const Part& part) {
  part.whole ? emitter_.read(part.buffer) : emitter_.read(part.buffer, part.offset, part.bytes);
  return *this;
}

Work& Work::read(std::span<const BufferId> whole) {
  for (const BufferId buffer : whole) emitter_.read(buffer);
  return *this;
}

Work& Work::read(std::span<const Part> parts) {
  for (const Part& part : parts) read(part);
  return *this;
}

Work& Work::read(std::span<const Variable> whole) {
  for (const Variable& variable : whole) emitter_.read(variable.id());
  return *this;
}

Work& Work::write(const Part& part) {
  part.whole ? emitter_.write(part.buffer) : emitter_.write(part.buffer, part.offset, part.bytes);
  return *this;
}

Work& Work::write(std::span<const BufferId> whole) {
  for (const BufferId buffer : whole) emitter_.write(buffer);
  return *this;
}

Work& Work::write(std::span<const Variable> whole) {
  for (const Variable& variable : whole) emitter_.write(variable.id());
  return *this;
}

Work& Work::really_reads(std::vector<ByteRange> ranges) {
  if (Recording* recording = emitter_.recording()) recording->reads(std::move(ranges));
  return *this;
}

Work& Work::really_writes(std::vector<ByteRange> ranges) {
  if (Recording* recording = emitter_.recording()) recording->writes(std::move(ranges));
  return *this;
}

Work& Work::states(std::size_t count) {
  emitter_.states_of_update(count);
  return *this;
}

Work& Work::root(std::int64_t rank) {
  if (Recording* recording = emitter_.recording()) recording->root(rank);
  return *this;
}

Bytes Eager::bytes_of(const Part& part) const { return part.whole ? emitter_.size(part.buffer) : part.bytes; }

Variable Eager::empty(Bytes bytes, DType dtype, What what, ParameterId parameter, Space space) {
  return {emitter_, emitter_.allocate(bytes, dtype, what, parameter, space)};
}

Variable Eager::scratch(Bytes bytes, DType dtype, What what, Space space) {
  Variable made = empty(bytes, dtype, what, kNone, space);
  emitter_.mark_scratch(made.id());
  return made;
}

Variable Eager::empty_on_host(Bytes bytes, DType dtype, What what, bool pinned, ParameterId parameter) {
  if (!pinned) return empty(bytes, dtype, what, parameter, Space::Pageable);
  const Variable source = empty(bytes, dtype, {what.role, "tensor before it is pinned", ""}, kNone, Space::Pageable);
  source.mark_scratch();
  Variable made = empty(bytes, dtype, what, parameter, Space::Pinned);
  zero(source, "pin tensor");
  return made;
}

Variable Eager::zeros(Bytes bytes, DType dtype, What what, Label work, ParameterId parameter, Space space) {
  Variable made = empty(bytes, dtype, what, parameter, space);
  zero(made, work);
  return made;
}

Variable Eager::cast(const Part& from, DType dtype, What what, Label work, ParameterId parameter) {
  const std::int64_t elements = bytes_of(from).value() / bytes_per_element(emitter_.dtype(from.buffer));
  Variable made = empty(storage(Elements(elements), dtype), dtype, what, parameter);
  copy(made, from, work);
  return made;
}

Variable Eager::clone(const Part& from, What what, Label work, ParameterId parameter, Space space) {
  Variable made = empty(bytes_of(from), emitter_.dtype(from.buffer), what, parameter, space);
  copy(made, from, work);
  return made;
}

void Eager::copy(const Part& to, const Part& from, Label work) {
  this->work().read(from).write(to).run(Body::Copy, work);
}

void Eager::copy_across(const Part& to, const Part& from, Label work) {
  const bool to_host = emitter_.space(from.buffer) == Space::Device;
  const bool crosses = to_host != (emitter_.space(to.buffer) == Space::Device);
  if (!crosses || emitter_.dtype(from.buffer) == emitter_.dtype(to.buffer)) return copy(to, from, work);
  const Part& like = to_host ? from : to;
  const Variable staging = empty(bytes_of(like), emitter_.dtype(like.buffer),
                                 {Role::Temporaries, "staging of a copy", ""}, kNone, Space::Pageable);
  copy(staging, from, to_host ? "copy to host" : "convert on the host");
  copy(to, staging, work);
}

void Eager::concatenate(const Part& to, std::span<const BufferId> parts, Label work) {
  this->work().read(parts).write(to).run(Body::Copy, work);
}

void Eager::split(std::span<const BufferId> parts, const Part& from, Label work) {
  this->work().read(from).write(parts).run(Body::Copy, work);
}

void Eager::zero(const Part& part, Label work) { this->work().write(part).run(Body::Clear, work); }

void Eager::zero(std::span<const BufferId> whole, Label work) { this->work().write(whole).run(Body::Clear, work); }

void Eager::add(const Part& to, const Part& from, Label work) {
  this->work().read(to).read(from).write(to).run(Body::Add, work);
}

void Eager::all_gather(const Part& to, const Part& from, std::int64_t ranks, Group group) {
  all_gather(to, std::span<const Part>(&from, 1), ranks, group);
}

void Eager::all_gather(const Part& to, std::span<const Part> from, std::int64_t ranks, Group group) {
  Work gather = work().read(from).write(to);
  if (ranks == 1) return gather.run(Body::Copy, "local copy");
  gather.collective(Collective::AllGather, emitter_.dtype(to.buffer), bytes_of(to), group);
}

void Eager::reduce_scatter(const Part& to, const Part& from, std::int64_t ranks, Group group) {
  Work scatter = work().read(from).write(to);
  if (ranks == 1) return scatter.run(Body::Copy, "local copy");
  scatter.collective(Collective::ReduceScatter, emitter_.dtype(from.buffer), bytes_of(from), group);
}

void Eager::all_reduce(const Part& part, std::int64_t ranks, Group group) {
  if (ranks == 1) return;
  work().read(part).write(part).collective(Collective::AllReduce, emitter_.dtype(part.buffer), bytes_of(part), group);
}

void Eager::reduce(const Part& part, std::int64_t to_rank, std::int64_t ranks, Group group) {
  if (ranks == 1) return;
  work().read(part).write(part).root(to_rank).collective(Collective::Reduce, emitter_.dtype(part.buffer),
                                                         bytes_of(part), group);
}

void Eager::broadcast(const Part& part, std::int64_t from_rank, std::int64_t ranks, Group group) {
  if (ranks == 1) return;
  work().read(part).write(part).root(from_rank).collective(Collective::Broadcast, emitter_.dtype(part.buffer),
                                                           bytes_of(part), group);
}

}  // namespace dsplan
