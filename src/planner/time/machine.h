// What the files of a machine do not say of its links: rules by what is known of such machines.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "core/job.h"

namespace dsplan::machine {

// Ranks of one full node.
[[nodiscard]] inline std::int64_t ranks_of_node(const Job& job) {
  return std::min(job.parallelism.world, job.parallelism.gpus_per_node);
}

// How many devices a link joins; 0: all of a node. Cards have bridges for two (their files' sources say so).
[[nodiscard]] inline std::int64_t link_devices(const Hardware& hardware) {
  constexpr std::array<std::string_view, 6> kBridged = {"a100-pcie-80", "a40",     "a6000",
                                                        "h100-pcie",    "rtx3090", "titanrtx"};
  return std::find(kBridged.begin(), kBridged.end(), hardware.name) == kBridged.end() ? 0 : 2;
}

// Links between host and devices that carry at once: boards with eight V100 or A100 have two behind each PCIe uplink.
[[nodiscard]] inline std::int64_t host_links(const Job& job) {
  const std::int64_t ranks = ranks_of_node(job);
  const Hardware& hardware = *job.hardware;
  const bool shared = job.parallelism.gpus_per_node == 8 && hardware.link_gb_per_s > 0 && link_devices(hardware) == 0 &&
                      (hardware.architecture == "sm_70" || hardware.architecture == "sm_80");
  return shared ? std::min<std::int64_t>(ranks, 4) : ranks;
}

}  // namespace dsplan::machine
