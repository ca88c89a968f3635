// The rates of a job's machine: what a kernel, a collective, a copy and the host's optimizer take. From
// configs/hardware and configs/clusters, with efficiencies that were fitted to published steps (docs/time.md), each
// replaced by what
// --calibration measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/schedule.h"
#include "core/units.h"

namespace dsplan {

class Rates {
 public:
  // Refuses a job without a device, or whose device has no rate that the job needs, naming each missing row.
  [[nodiscard]] static Rates of(const Job& job);
  // What `of` would refuse, in words; empty: nothing.
  [[nodiscard]] static std::string missing(const Job& job);

  // Seconds of a matrix product [m, k] x [k, n], `batch` of them at once.
  [[nodiscard]] double product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) const;
  // Seconds of a fused attention kernel of so many operations.
  [[nodiscard]] double attention(double flops, DType dtype) const;
  // Seconds of a kernel that only reads and writes.
  [[nodiscard]] double memory(Bytes moved) const;
  // Seconds between two kernels that the host launches one after the other.
  [[nodiscard]] double launch() const;
  // Seconds of one call. `payload` as in Communicate: the full logical buffer.
  [[nodiscard]] double collective(Collective collective, Group group, Bytes payload) const;
  // Part of the compute rate that a collective beside it takes away, 0 to 1.
  [[nodiscard]] double collective_tax(Group group) const;
  // Seconds of a copy between device and host, in one direction, of one rank while all ranks of its node copy.
  [[nodiscard]] double host_copy(Bytes moved, bool pinned) const;
  // Seconds of the host's Adam over so many elements, while all ranks of the node run theirs.
  [[nodiscard]] double host_optimizer(Elements elements) const;
  // Seconds to read or write files, while all ranks of the node do.
  [[nodiscard]] double nvme(Bytes moved, bool write) const;

  // Peak rate by the data sheet, operations per second.
  [[nodiscard]] double peak(DType dtype) const;
  [[nodiscard]] bool calibrated() const;
  [[nodiscard]] const std::string& basis() const;
};

}  // namespace dsplan
