// The host's ledger: what one rank takes of its node's memory and disks while a schedule is replayed. Tensors and byte
// arrays only: of what Python and the libraries need nothing is known here.
#pragma once

#include <array>
#include <map>

#include "core/schedule.h"
#include "core/units.h"

namespace dsplan {

// PyTorch's caching allocator of pinned memory (ATen/core/CachingHostAllocator.h, CachingHostAllocatorImpl::allocate):
// each request is rounded up to a power of two, a free block of exactly that size is taken again, and nothing is given
// back before empty_cache.
class PinnedPool {
 public:
  void allocate(Bytes size);
  void free(Bytes size);

  [[nodiscard]] Bytes requested() const { return requested_; }  // Handed out.
  [[nodiscard]] Bytes reserved() const { return reserved_; }    // Taken from the host: never falls.

 private:
  std::map<Bytes, std::int64_t> free_blocks_;  // By rounded size.
  Bytes requested_;
  Bytes reserved_;
};

// The smallest power of two that is not below `size` > 0.
[[nodiscard]] Bytes rounded_to_power_of_two(Bytes size);

// Peaks are those of training: saving, where rank 0 alone copies the model to its host, is left out as on the device.
// Reads and writes of files are those of one optimizer step in steady state.
class HostMeter : public Ignores<Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  explicit HostMeter(const Schedule& schedule) : schedule_(schedule) {}

  using Ignores<Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t at, const Compute& event);
  void on(std::size_t at, const Allocate& event);
  void on(std::size_t at, const Release& event);
  void on(std::size_t at, const Mark& event);

  [[nodiscard]] Bytes pinned() const { return pool_.reserved() + locked_peak_; }
  [[nodiscard]] Bytes pinned_requested_peak() const { return pinned_requested_peak_; }
  [[nodiscard]] Bytes pageable_peak() const { return pageable_peak_; }
  [[nodiscard]] Bytes peak() const { return peak_; }  // Of the pool and the pageable memory together.
  // Of training alone, above what init left.
  [[nodiscard]] Bytes peak_above_init() const { return training_peak_ - left_by_init_; }
  [[nodiscard]] Bytes left_by_init() const { return left_by_init_; }
  [[nodiscard]] Bytes nvme_peak() const { return nvme_peak_; }
  [[nodiscard]] Bytes nvme_read() const { return nvme_read_; }
  [[nodiscard]] Bytes nvme_written() const { return nvme_written_; }

 private:
  [[nodiscard]] Bytes taken() const { return pool_.reserved() + locked_ + pageable_; }

  const Schedule& schedule_;
  PinnedPool pool_;
  Bytes locked_;
  Bytes locked_peak_;
  Bytes pageable_;
  Bytes nvme_;
  Bytes pinned_requested_peak_;
  Bytes pageable_peak_;
  Bytes peak_;
  Bytes left_by_init_;
  Bytes training_peak_;
  Bytes nvme_peak_;
  Bytes nvme_read_;
  Bytes nvme_written_;
  Stretch stretch_ = Stretch::Init;
};

}  // namespace dsplan
