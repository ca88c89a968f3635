#include "exec/memory.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "exec/memory_spaces.h"

namespace dsplan::exec {

std::string_view name(AllocatorKind kind) {
  switch (kind) {
    case AllocatorKind::Caching: return "caching";
    case AllocatorKind::Planned: return "planned";
    case AllocatorKind::Plain: break;
  }
  return "plain";
}

RankMemory::RankMemory(Device& device, MemoryOptions options)
    : device_(device),
      space_(make_device_space(device, std::move(options))),
      host_space_(std::make_unique<HostSpace>(device, host_)) {}

RankMemory::~RankMemory() {
  if (space_ == nullptr) return;
  try {
    for (std::size_t id = 0; id < held_.size(); ++id) {
      if (held_[id].live) give_back(held_[id], static_cast<BufferId>(id));
    }
  } catch (const std::exception&) {
    // A pattern that was broken. Whoever wants to know calls `finish`; the backend frees what is left.
  }
}

const RankMemory::Held& RankMemory::held(BufferId id) const {
  DSPLAN_CHECK(holds(id), formatted("buffer {} is not held", id));
  return held_[id];
}

void RankMemory::allocate(BufferId id, Bytes bytes, Role role, Space space, StreamId stream) {
  DSPLAN_CHECK(space_ && bytes > Bytes(0) && !holds(id),
               formatted("buffer {}: {} bytes, or held already", id, bytes.value()));
  if (id >= held_.size()) held_.resize(std::size_t{id} + 1);
  Held made{nullptr, nullptr, bytes, role, space, true};
  switch (space) {
    case Space::Device: made.memory = space_->allocate(id, bytes, stream); break;
    case Space::Pinned: made.memory = host_space_->take_pinned(bytes); break;
    case Space::Locked: made.memory = host_space_->take_locked(bytes); break;
    case Space::Pageable: made.memory = host_space_->take_pageable(bytes); break;
    case Space::Nvme: made.file = host_space_->make_file(id, bytes); break;
  }
  held_[id] = made;
  count(made, id, true);
}

void RankMemory::release(BufferId id) {
  DSPLAN_CHECK(holds(id), formatted("buffer {} is released, but not held", id));
  Held& gone = held_[id];
  give_back(gone, id);
  count(gone, id, false);
  device_.throw_if_noted();
}

void RankMemory::give_back(Held& gone, BufferId id) {
  gone.live = false;
  switch (gone.space) {
    case Space::Device: return space_->release(id);
    case Space::Pinned: return host_space_->return_pinned(gone.memory, gone.bytes);
    case Space::Locked: return host_space_->return_locked(gone.memory, gone.bytes);
    case Space::Pageable: return host_space_->return_pageable(gone.memory, gone.bytes);
    case Space::Nvme: return host_space_->drop_file(gone.file, gone.bytes);
  }
}

void RankMemory::count(const Held& what, BufferId id, bool allocated) {
  ByRole& roles = what.space == Space::Device ? by_role_ : host_by_role_;
  if (!allocated) {
    roles[what.role] -= what.bytes;
    if (what.space == Space::Device) requested_ -= what.bytes;
  } else {
    roles[what.role] += what.bytes;
    if (what.space == Space::Device) {
      requested_ += what.bytes;
      requested_total_ += what.bytes;
      if (what.bytes > Bytes(0)) ++allocations_;
    } else if (what.space != Space::Nvme) {
      host_requested_total_ += what.bytes;
    }
    if (requested_ > peak_requested_) {
      peak_requested_ = requested_;
      peak_by_role_ = by_role_;
    }
    HostCounters& most = host_peaks_.most;
    most.pinned = std::max(most.pinned, host_.pinned);
    most.locked = std::max(most.locked, host_.locked);
    most.pinned_requested = std::max(most.pinned_requested, host_.pinned_requested);
    most.pageable = std::max(most.pageable, host_.pageable);
    most.nvme = std::max(most.nvme, host_.nvme);
    host_peaks_.memory = std::max(host_peaks_.memory, host_.memory());
  }
  if (watch_) watch_({id, what.bytes, what.role, what.space, allocated});
}

void RankMemory::work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  space_->work(stream, reads, writes);
}

void RankMemory::record_event(const RecordEvent& event) { space_->record_event(event); }
void RankMemory::wait_event(const WaitEvent& event) { space_->wait_event(event); }

std::byte* RankMemory::pointer(BufferId id) const { return static_cast<std::byte*>(held(id).memory); }
dsplan_file* RankMemory::file(BufferId id) const { return held(id).file; }
Bytes RankMemory::size(BufferId id) const { return held(id).bytes; }
Space RankMemory::space(BufferId id) const { return held(id).space; }

AllocatorStatistics RankMemory::device() const { return space_ ? space_->statistics() : last_; }
AllocatorStatistics RankMemory::device_peaks() const { return space_ ? space_->peaks() : last_peaks_; }

void RankMemory::reset_peaks() {
  peak_requested_ = requested_;
  peak_by_role_ = by_role_;
  if (space_) space_->reset_peaks();
}

// The space goes too: an allocator may still have ranges of addresses without memory.
void RankMemory::finish() {
  if (!space_) return;
  device_
      .synchronize();  // With this rank's streams also what other ranks read: each collective ends with waiting for it.
  for (std::size_t id = 0; id < held_.size(); ++id) {
    if (!held_[id].live) continue;
    give_back(held_[id], static_cast<BufferId>(id));
    count(held_[id], static_cast<BufferId>(id), false);
  }
  space_->finish();
  last_ = space_->statistics();
  last_peaks_ = space_->peaks();
  space_.reset();
  host_space_->finish();
  device_.throw_if_noted();
}

}  // namespace dsplan::exec
