#include "exec/memory/memory.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "exec/memory/spaces.h"

namespace dsplan::exec {

std::string_view name(AllocatorKind kind) {
  switch (kind) {
    case AllocatorKind::Caching: return "caching";
    case AllocatorKind::Planned: return "planned";
    case AllocatorKind::Plain: break;
  }
  return "plain";
}

void Demand::add(Role role, Bytes more) {
  by_role[role] += more;
  bytes += more;
  total += more;
  if (more > Bytes(0)) ++allocations;
  if (bytes > peak) reset_peak();
}

void Demand::subtract(Role role, Bytes less) {
  by_role[role] -= less;
  bytes -= less;
}

void Demand::reset_peak() {
  peak = bytes;
  peak_by_role = by_role;
}

void HostUse::take_peaks() {
  HostCounters& most = peaks.most;
  most.pinned = std::max(most.pinned, now.pinned);
  most.locked = std::max(most.locked, now.locked);
  most.pinned_requested = std::max(most.pinned_requested, now.pinned_requested);
  most.pageable = std::max(most.pageable, now.pageable);
  most.nvme = std::max(most.nvme, now.nvme);
  peaks.memory = std::max(peaks.memory, now.memory());
}

RankMemory::RankMemory(Device& device, MemoryOptions options)
    : device_(device),
      space_(make_device_space(device, std::move(options))),
      host_space_(std::make_unique<HostSpace>(device, host_.now)) {}

RankMemory::~RankMemory() {
  if (space_ == nullptr) return;
  try {
    for (const BufferId id : held_.ids()) {
      if (held_[id].live) give_back(held_[id], id);
    }
  } catch (const std::exception&) {
    // A pattern that was broken. Whoever wants to know calls `finish`; the backend frees what is left.
  }
}

const RankMemory::Held& RankMemory::at(BufferId id) const {
  DSPLAN_CHECK(holds(id), formatted("buffer {} is not held", id));
  return held_[id];
}

void RankMemory::allocate(BufferId id, Bytes bytes, Role role, Space space, StreamId stream) {
  DSPLAN_CHECK(space_ && bytes > Bytes(0) && !holds(id),
               formatted("buffer {}: {} bytes, or held already", id, bytes.value()));
  held_.reach(id);
  Held made{nullptr, nullptr, bytes, role, space, true};
  switch (space) {
    case Space::Device: made.memory = space_->allocate(id, bytes, stream); break;
    case Space::Pinned: made.memory = host_space_->take_pinned(bytes); break;
    case Space::Locked: made.memory = host_space_->take_locked(bytes); break;
    case Space::Pageable: made.memory = host_space_->take_pageable(bytes); break;
    case Space::Nvme: made.file = host_space_->make_file(id, bytes); break;
  }
  held_[id] = made;
  if (space == Space::Device) return demand_.add(role, bytes);
  host_.by_role[role] += bytes;
  if (space != Space::Nvme) host_.requested_total += bytes;
  host_.take_peaks();
}

void RankMemory::release(BufferId id) {
  DSPLAN_CHECK(holds(id), formatted("buffer {} is released, but not held", id));
  give_back(held_[id], id);
  device_.throw_if_noted();
}

void RankMemory::give_back(Held& gone, BufferId id) {
  gone.live = false;
  switch (gone.space) {
    case Space::Device: space_->release(id); break;
    case Space::Pinned: host_space_->return_pinned(gone.memory, gone.bytes); break;
    case Space::Locked: host_space_->return_locked(gone.memory, gone.bytes); break;
    case Space::Pageable: host_space_->return_pageable(gone.memory, gone.bytes); break;
    case Space::Nvme: host_space_->drop_file(gone.file, gone.bytes); break;
  }
  if (gone.space == Space::Device) return demand_.subtract(gone.role, gone.bytes);
  host_.by_role[gone.role] -= gone.bytes;
}

void RankMemory::work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  space_->work(stream, reads, writes);
}

void RankMemory::happens(const Event& event) {
  if (const auto* recorded = std::get_if<RecordEvent>(&event)) space_->record_event(*recorded);
  if (const auto* wait = std::get_if<WaitEvent>(&event)) space_->wait_event(*wait);
  if (std::holds_alternative<EmptyCache>(event)) space_->empty_cache();
}

AllocatorStatistics RankMemory::device() const { return space_ ? space_->statistics() : last_; }
AllocatorStatistics RankMemory::device_peaks() const { return space_ ? space_->peaks() : last_peaks_; }

void RankMemory::reset_peaks() {
  demand_.reset_peak();
  if (space_) space_->reset_peaks();
}

// The space goes too: an allocator may still have ranges of addresses without memory.
void RankMemory::finish() {
  if (!space_) return;
  // With this rank's streams also what other ranks read: each collective ends with waiting for it.
  device_.synchronize();
  for (const BufferId id : held_.ids()) {
    if (held_[id].live) give_back(held_[id], id);
  }
  space_->finish();
  last_ = space_->statistics();
  last_peaks_ = space_->peaks();
  space_.reset();
  host_space_->finish();
  device_.throw_if_noted();
}

}  // namespace dsplan::exec
