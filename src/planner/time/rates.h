// The rates of a job's machine: what a kernel, a collective, a copy and the host's optimizer take. From
// configs/hardware and configs/clusters, with efficiencies that were fitted to published steps (docs/time.md), each
// replaced by what --calibration measured.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/schedule.h"
#include "core/units.h"
#include "planner/time/constants.h"

namespace dsplan {

// How what is missing begins where nobody named a cluster.
inline constexpr std::string_view kNoCluster = "no cluster is named";

// How a group of ranks lies on the machine.
struct GroupLinks {
  std::int64_t ranks = 1;
  std::int64_t nodes = 1;     // That it spans.
  std::int64_t per_node = 1;  // Of its ranks.
  double link = 0;            // Bytes per second of one rank's ring inside a node, as reached with large buffers.
  double link_reduced = 0;    // The same where the switch adds (NVLS): all-reduces only.
  double network = 0;         // Bytes per second of the group's part of a node's network; 0: not needed.
  bool pcie = false;
};

class Rates {
 public:
  // Refuses a job without a device, or whose device has no rate that the job needs, naming each missing row.
  [[nodiscard]] static Rates of(const Job& job);
  // The same with other constants than the fitted ones: what fits them calls this.
  [[nodiscard]] static Rates of(const Job& job, const TimeConstants& constants);
  // What `of` would refuse, in words; empty: nothing.
  [[nodiscard]] static std::string missing(const Job& job);

  // Seconds of a matrix product [m, k] x [k, n], `batch` of them at once. `aligned`: rows begin on 16 bytes, without
  // which tensor cores are fed slowly.
  [[nodiscard]] double product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype,
                               bool aligned = true) const;
  // Seconds of a fused attention kernel of so many operations.
  [[nodiscard]] double attention(double flops, DType dtype) const;
  [[nodiscard]] double attention_backward(double flops, DType dtype) const;
  // Seconds of a kernel that only reads and writes.
  [[nodiscard]] double memory(Bytes moved) const;
  // The same of an operator that a compiler could fuse with its neighbours.
  [[nodiscard]] double elementwise(Bytes moved) const;
  // Seconds between two kernels that the host launches one after the other.
  [[nodiscard]] double launch() const;
  // Seconds of one call. `payload` as in Communicate: the full logical buffer.
  [[nodiscard]] double collective(Collective collective, Group group, Bytes payload) const;
  // Part of the compute rate that a collective beside it takes away, 0 to 1.
  [[nodiscard]] double collective_tax(Group group) const;
  // Seconds that the host takes between two steps.
  [[nodiscard]] double between_steps() const { return constants_.between_steps; }
  // Part of a stretch of computation under which collectives vanish, 0 to 1.
  [[nodiscard]] double overlap() const;
  // Seconds of a copy between device and host, in one direction, of one rank while all ranks of its node copy.
  [[nodiscard]] double host_copy(Bytes moved, bool pinned) const;
  // Seconds of the host's Adam over so many elements, while all ranks of the node run theirs.
  [[nodiscard]] double host_optimizer(Elements elements) const;
  // Seconds to read or write files, while all ranks of the node do.
  [[nodiscard]] double nvme(Bytes moved, bool write) const;

  // Peak rate by the data sheet, operations per second.
  [[nodiscard]] double peak(DType dtype) const;
  // The interval in which eight of ten steps lie, as parts of the estimate.
  [[nodiscard]] double low() const { return constants_.low; }
  [[nodiscard]] double high() const { return constants_.high; }
  [[nodiscard]] bool calibrated() const;
  [[nodiscard]] const std::string& basis() const;

 private:
  // What was measured on the user's own machine stands above data sheets and fits.
  void use(const Calibration& calibration, const Job& job);
  bool use_products(const Calibration& calibration, DType dtype);  // Whether any were measured; likewise memory.
  bool use_kernels(const Calibration& calibration, DType dtype);
  void use_host(const Calibration& calibration, const Job& job);
  void use_threads(const Calibration& calibration);
  using Curve = std::vector<std::pair<double, double>>;  // Sizes, ascending, and what was reached with them.
  [[nodiscard]] const Curve* measured_collective(Collective collective, std::int64_t ranks) const;
  [[nodiscard]] const GroupLinks& links(Group group) const { return links_[static_cast<std::size_t>(group)]; }

  TimeConstants constants_;
  double peak_half_ = 0;  // bf16
  double peak_fp16_ = 0;
  double peak_single_ = 0;
  double memory_ = 0;  // Bytes per second, as reached.
  double kernel_ = 0;  // Seconds that any kernel takes.
  bool hardware_tiles_ = true;
  // Where products are made by no tiles (a host): measured operations and operations per second, ascending.
  Curve measured_products_;
  // Between ranks that are threads of one host, by how many they are: bytes and bytes per second of calls.
  std::map<Collective, std::map<std::int64_t, Curve>> measured_collectives_;
  double multiprocessors_ = 0;
  double pinned_ = 0;  // Bytes per second of one rank's copies.
  double pageable_ = 0;
  double host_share_ = 1;  // Of a host link, while all ranks of the node copy.
  double host_adam_ = 0;   // Elements per second of one rank.
  double nvme_read_ = 0;   // Bytes per second of one rank; 0: unknown.
  double nvme_write_ = 0;
  std::array<GroupLinks, kGroups> links_;
  bool calibrated_ = false;
  std::vector<std::string> measured_;  // What of this was measured, in words.
  std::string basis_;
};

}  // namespace dsplan
