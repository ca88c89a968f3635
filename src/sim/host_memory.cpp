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
  if (event.moment == Moment::StretchBegins && event.stretch == Stretch::Save) saving_ = true;
}

void HostMeter::on(std::size_t, const Allocate& event) {
  if (saving_) return;
  const Buffer& buffer = schedule_.buffers[event.buffer];
  switch (buffer.space) {
    case Space::Device: return;
    case Space::Pinned: pool_.allocate(buffer.size); break;
    case Space::Pageable: pageable_ += buffer.size; break;
    case Space::Nvme: nvme_ += buffer.size; break;
  }
  pinned_requested_peak_ = std::max(pinned_requested_peak_, pool_.requested());
  pageable_peak_ = std::max(pageable_peak_, pageable_);
  peak_ = std::max(peak_, pool_.reserved() + pageable_);
  nvme_peak_ = std::max(nvme_peak_, nvme_);
}

void HostMeter::on(std::size_t, const Release& event) {
  if (saving_) return;
  const Buffer& buffer = schedule_.buffers[event.buffer];
  switch (buffer.space) {
    case Space::Device: return;
    case Space::Pinned: pool_.free(buffer.size); return;
    case Space::Pageable: pageable_ -= buffer.size; return;
    case Space::Nvme: nvme_ -= buffer.size; return;
  }
}

}  // namespace dsplan
