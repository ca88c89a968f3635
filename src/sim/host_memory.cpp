#include "sim/host_memory.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace dsplan {

Bytes rounded_to_power_of_two(Bytes size) {
  DSPLAN_CHECK(size > Bytes(0) && size <= Bytes(1LL << 62), "no power of two for a pinned block");
  return Bytes(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size.value()))));
}

void PinnedPool::allocate(Bytes size) {
  requested_ += size;
  const Bytes block = rounded_to_power_of_two(size);
  const auto found = free_blocks_.find(block);
  if (found == free_blocks_.end()) {
    reserved_ += block;
  } else if (--found->second == 0) {
    free_blocks_.erase(found);
  }
}

void PinnedPool::free(Bytes size) {
  requested_ -= size;
  ++free_blocks_[rounded_to_power_of_two(size)];
}

void HostMeter::on(std::size_t, const Mark& event) {
  if (event.moment == Moment::StretchBegins) stretch_ = event.stretch;
  if (event.moment == Moment::StretchEnds && event.stretch == Stretch::Init) left_by_init_ = training_peak_ = taken();
}

void HostMeter::on(std::size_t, const Compute& event) {
  if (stretch_ != Stretch::SecondStep || nvme_ == Bytes(0)) return;  // Without files nobody touches any.
  const auto files = [&](Span span) {
    Bytes sum;
    for (const Access& access : schedule_.range(span)) {
      if (schedule_.buffers[access.buffer].space == Space::Nvme) sum += access.bytes;
    }
    return sum;
  };
  nvme_read_ += files(event.reads);
  nvme_written_ += files(event.writes);
}

void HostMeter::on(std::size_t, const Allocate& event) {
  if (stretch_ == Stretch::Save) return;
  const Buffer& buffer = schedule_.buffers[event.buffer];
  switch (buffer.space) {
    case Space::Device: return;
    case Space::Pinned: pool_.allocate(buffer.size); break;
    case Space::Locked: locked_ += buffer.size; break;
    case Space::Pageable: pageable_ += buffer.size; break;
    case Space::Nvme: nvme_ += buffer.size; break;
  }
  locked_peak_ = std::max(locked_peak_, locked_);
  pinned_requested_peak_ = std::max(pinned_requested_peak_, pool_.requested() + locked_);
  pageable_peak_ = std::max(pageable_peak_, pageable_);
  peak_ = std::max(peak_, taken());
  training_peak_ = std::max(training_peak_, taken());
  nvme_peak_ = std::max(nvme_peak_, nvme_);
}

void HostMeter::on(std::size_t, const Release& event) {
  if (stretch_ == Stretch::Save) return;
  const Buffer& buffer = schedule_.buffers[event.buffer];
  switch (buffer.space) {
    case Space::Device: return;
    case Space::Pinned: pool_.free(buffer.size); return;
    case Space::Locked: locked_ -= buffer.size; return;
    case Space::Pageable: pageable_ -= buffer.size; return;
    case Space::Nvme: nvme_ -= buffer.size; return;
  }
}

}  // namespace dsplan
