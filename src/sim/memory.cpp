#include "sim/memory.h"

#include <algorithm>
#include <utility>

namespace dsplan {

namespace {

// In the allocator's smallest blocks.
Bytes rounded(const Schedule& schedule, BufferId id, const Buffer& buffer) {
  if (!buffer.in_pieces) [[likely]]
    return rounded_to_block(buffer.size);
  return Bytes(kBlockBytes) * static_cast<std::int64_t>(schedule.pieces_of(id).count);
}

}  // namespace

void MemoryMeter::on(std::size_t at, const Allocate& event) {
  const Buffer& buffer = schedule_.buffers[event.buffer];
  if (buffer.space != Space::Device) {
    if (buffer.space != Space::Nvme) host_requested_total_ += buffer.size;
    return;
  }
  requested_ += buffer.size;
  requested_total_ += buffer.size;
  if (buffer.in_pieces) [[unlikely]]
    allocations_ += static_cast<std::int64_t>(schedule_.pieces_of(event.buffer).count);
  else if (buffer.size > Bytes(0))
    ++allocations_;
  allocated_ += rounded(schedule_, event.buffer, buffer);
  by_role_[buffer.role] += buffer.size;
  most_requested_ = std::max(most_requested_, requested_);
  most_allocated_ = std::max(most_allocated_, allocated_);
  if (inside_) take_peak(at);
}

void MemoryMeter::take_peak(std::size_t at) {
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  if (requested_ <= peak_requested_) return;
  peak_requested_ = requested_;
  peak_by_role_ = by_role_;
  peak_event_ = at;
  peak_stretch_ = stretch_;
}

void MemoryMeter::on(std::size_t, const Release& event) {
  const Buffer& buffer = schedule_.buffers[event.buffer];
  if (buffer.space != Space::Device) return;
  requested_ -= buffer.size;
  allocated_ -= rounded(schedule_, event.buffer, buffer);
  by_role_[buffer.role] -= buffer.size;
}

void MemoryMeter::on(std::size_t at, const Mark& event) {
  const Stretched since{most_requested_, most_allocated_, {}, {}};
  most_requested_ = requested_;
  most_allocated_ = allocated_;
  if (!phases_.empty()) {
    Phase& phase = phases_.back();
    phase.peak_requested = std::max(phase.peak_requested, since.requested);
    phase.peak_allocated = std::max(phase.peak_allocated, since.allocated);
    phase.requested_total = phase.requested_total.value_or(Bytes(0)) + std::exchange(requested_total_, Bytes(0));
    phase.allocations = phase.allocations.value_or(0) + std::exchange(allocations_, 0);
    phase.host_requested_total =
        phase.host_requested_total.value_or(Bytes(0)) + std::exchange(host_requested_total_, Bytes(0));
  }
  // The middle steps are one phase, with the marks of its first step.
  if (event.stretch == Stretch::MiddleStep && stretch_ == Stretch::MiddleStep) {
    const bool again = event.moment == Moment::StretchBegins || repeated_;
    repeated_ = again;
    if (again) return;
  }
  if (event.moment == Moment::StretchBegins) {
    stretch_ = event.stretch;
    phases_.push_back({std::string(name(event.stretch)), {}, requested_, allocated_, {}, {}, {}, {}, {}, {}, {}});
    if (!only_ && event.stretch == Stretch::Save) inside_ = false;  // Saving counts only where it is asked for.
  }
  if (only_) {
    const bool before = std::exchange(inside_, only_->inside_after(event));
    if (inside_ && !before) take_peak(at);
  }
  phases_.back().marks.push_back({std::string(name(event.moment)), requested_, allocated_, {}, {}, at, since});
}

std::vector<BufferId> live_after(const Schedule& schedule, std::size_t at) {
  Indexed<BufferId, char> live(schedule.buffers.size(), 0);  // Bytes: bits take twice as long.
  for (std::size_t i = 0; i <= at && i < schedule.events.size(); ++i) {
    if (const auto* made = std::get_if<Allocate>(&schedule.events[i])) live[made->buffer] = 1;
    if (const auto* freed = std::get_if<Release>(&schedule.events[i])) live[freed->buffer] = 0;
  }
  std::vector<BufferId> list;
  for (const BufferId id : live.ids()) {
    if (live[id] != 0 && schedule.buffers[id].space == Space::Device) list.push_back(id);
  }
  return list;
}

void AboveInputsMeter::on(std::size_t, const Allocate& event) {
  const Buffer& buffer = schedule_.buffers[event.buffer];
  if (buffer.space != Space::Device) return;
  now_ += buffer.size;
  if (peak_ != nullptr) *peak_ = std::max(*peak_, now_ - inputs_);
}

void AboveInputsMeter::on(std::size_t, const Release& event) {
  const Buffer& buffer = schedule_.buffers[event.buffer];
  if (buffer.space == Space::Device) now_ -= buffer.size;
}

void AboveInputsMeter::on(std::size_t, const Mark& event) {
  switch (event.moment) {
    case Moment::ForwardBegins:
      inputs_ = now_;
      peak_ = &figures_.forward_peak;
      break;
    case Moment::ForwardEnds:
      figures_.after_forward = now_ - inputs_;
      peak_ = nullptr;
      break;
    case Moment::BackwardBegins:
      figures_.backward_peak = now_ - inputs_;
      peak_ = &*figures_.backward_peak;
      break;
    case Moment::BackwardEnds:
      figures_.after_backward = now_ - inputs_;
      peak_ = nullptr;
      break;
    default: break;
  }
}

}  // namespace dsplan
