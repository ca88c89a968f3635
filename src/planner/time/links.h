// How the groups of a job lie on its machine, and what a collective takes on them; what configs/hardware and
// configs/clusters say of links, with defaults where they say nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/job.h"
#include "core/schedule.h"
#include "planner/time/rates.h"

namespace dsplan::machine {

// Ranks of one full node.
[[nodiscard]] inline std::int64_t ranks_of_node(const Job& job) {
  return std::min(job.parallelism.world, job.parallelism.gpus_per_node);
}
// How many devices a link joins; 0: all of a node.
[[nodiscard]] inline std::int64_t link_devices(const Hardware& hardware) { return hardware.link_devices; }
// Links between host and devices that carry at once.
[[nodiscard]] inline std::int64_t host_links(const Job& job) {
  const std::int64_t ranks = ranks_of_node(job);
  return job.cluster && job.cluster->host_links ? std::min(*job.cluster->host_links, ranks) : ranks;
}
// Gigabytes per second of all files of a node; 0: unknown.
[[nodiscard]] inline double nvme_read(const Job& job) { return job.cluster ? job.cluster->nvme_read_gb_per_s : 0; }
[[nodiscard]] inline double nvme_write(const Job& job) { return job.cluster ? job.cluster->nvme_write_gb_per_s : 0; }

}  // namespace dsplan::machine

namespace dsplan {

// By Group. Bandwidths are 0 where the group needs none.
[[nodiscard]] std::array<GroupLinks, kGroups> group_links(const Job& job);

// Seconds of one call over `payload` bytes, the full logical buffer as in nccl-tests. Grows with the payload, and never
// with a bandwidth. Sources: docs/time.md.
[[nodiscard]] double collective_seconds(const GroupLinks& links, Collective collective, double payload);

}  // namespace dsplan
