#include "planner/time/links.h"

#include <algorithm>
#include <cmath>

namespace dsplan {
namespace {

constexpr double kGigaPerSecond = 1e9;

// Seconds before the first byte moves, and for each step of a ring inside a node (NCCL's tables for NVLink and PCIe,
// Simple protocol, and 39 us that eight H200 take for any small all-reduce: 14 steps).
constexpr double kStart = 8.4e-6;
constexpr double kLinkStep = 2.2e-6;
constexpr double kBusStep = 5.7e-6;
// Between the small and the large: `S + sqrt(S0 S)` bytes instead of S. On eight H200 and eight A100 within 10 % of the
// measured tables from 4 MiB to 16 GiB.
constexpr double kRamp = 3.5 * 1024 * 1024;
// Between nodes: half of the network's rate is reached with 12 MiB for each node at 400 GB/s, which is a time for each
// node and pass; and 0.93 of the network's rate at most.
constexpr double kNodeStep = 33e-6;
constexpr double kNetwork = 0.93;
// Trees: a logarithm of steps at part of the rate; all-reduces only.
constexpr double kTreeStep = 45e-6;
constexpr double kTree = 0.6;

// What rings reach of a data sheet's link rate with large buffers: A100 235 of 300, H200 367 of 450, B200 682 of 900.
double ring_part(const std::string& architecture) {
  if (architecture == "sm_80") return 0.78;
  if (architecture == "sm_90") return 0.81;
  if (architecture.starts_with("sm_1")) return 0.757;
  if (architecture.starts_with("gfx")) return 0.70;
  return 0.78;
}

// Where the switch adds: 482 of 450 and 838 of 900, with eight in a node; it takes more than four ranks.
double reduced_part(const std::string& architecture) {
  if (architecture == "sm_90") return 1.05;
  if (architecture.starts_with("sm_1")) return 0.93;
  return 0;
}

// Links that join pairs of devices: V100's hybrid cube mesh (measured bus bandwidth of 2 to 8 in 150 GB/s), AMD's full
// mesh. A switch gives any group the full rate.
double mesh_part(const Hardware& hardware, std::int64_t ranks) {
  if (hardware.architecture == "sm_70") {
    constexpr std::array kPart = {1.0, 1.0, 0.15, 0.30, 0.57, 0.25, 0.30, 0.58, 0.89};
    return ranks < 9 ? kPart[static_cast<std::size_t>(ranks)] : 0.89;
  }
  if (hardware.architecture.starts_with("gfx")) {
    return ring_part(hardware.architecture) * static_cast<double>(std::min<std::int64_t>(ranks - 1, 7)) / 7;
  }
  return 0;
}

// A ring over PCIe: 21 of 25 GB/s with two cards, 10 to 13 with eight.
double bus_part(std::int64_t ranks) { return ranks <= 2 ? 0.84 : ranks <= 4 ? 0.80 : 0.48; }

// Ranks of the group stand `stride` apart.
GroupLinks lay(const Job& job, std::int64_t ranks, std::int64_t stride) {
  GroupLinks group;
  group.ranks = ranks;
  if (ranks <= 1) return group;
  const std::int64_t node = machine::ranks_of_node(job);
  group.per_node = std::clamp<std::int64_t>(node / stride, 1, ranks);
  group.nodes = div_ceil(ranks, group.per_node);
  const Hardware& hardware = *job.hardware;
  if (group.per_node > 1) {
    const std::int64_t joined = machine::link_devices(hardware);
    const bool linked = hardware.link_gb_per_s > 0 && (joined == 0 || group.per_node * stride <= joined);
    group.pcie = !linked;
    if (linked) {
      const double mesh = mesh_part(hardware, group.per_node);
      const double part = mesh > 0 ? mesh : ring_part(hardware.architecture);
      group.link = hardware.link_gb_per_s * kGigaPerSecond * part;
      const double reduced = group.per_node > 4 && group.nodes == 1 ? reduced_part(hardware.architecture) : 0;
      group.link_reduced = std::max(group.link, hardware.link_gb_per_s * kGigaPerSecond * reduced);
    } else {
      group.link = group.link_reduced = hardware.host_link_gb_per_s * kGigaPerSecond * bus_part(group.per_node);
    }
  }
  if (group.nodes > 1 && job.cluster) {
    const double share = static_cast<double>(group.per_node) / static_cast<double>(node);
    group.network = job.cluster->node_network_gb_per_s * kGigaPerSecond * share * kNetwork;
  }
  return group;
}

struct Form {
  double factor;  // What one rank sends, as a part of the buffer.
  double steps;   // Of the ring.
};

Form form_of(Collective collective, double n) {
  switch (collective) {
    case Collective::AllReduce: return {2 * (n - 1) / n, 2 * (n - 1)};
    case Collective::AllGather:
    case Collective::ReduceScatter:
    case Collective::AllToAll: return {(n - 1) / n, n - 1};
    case Collective::Broadcast:
    case Collective::Reduce: return {1, n};
    case Collective::SendRecv: return {1, 1};
  }
  return {1, n};
}

}  // namespace

std::array<GroupLinks, kGroups> group_links(const Job& job) {
  const Parallelism& p = job.parallelism;
  std::array<GroupLinks, kGroups> all;
  const auto put = [&](Group group, std::int64_t ranks, std::int64_t stride) {
    all[static_cast<std::size_t>(group)] = lay(job, ranks, stride);
  };
  put(Group::TensorParallel, p.tp, 1);
  put(Group::SequenceParallel, p.sp, p.tp);
  put(Group::ExpertParallel, p.ep, p.tp * p.sp);
  put(Group::DataParallel, p.dp, p.tp * p.sp);
  const Fsdp& fsdp = job.training.fsdp;
  const bool shards = is_fsdp(job.training.runtime);
  const std::int64_t inside = !shards              ? job.training.zero.hpz_partition_size
                              : fsdp.replicate > 1 ? p.dp / fsdp.replicate
                                                   : fsdp.reshard_after_forward;
  put(Group::DataParallelInside, std::clamp<std::int64_t>(inside, 1, p.dp), p.tp * p.sp);
  put(Group::Replicas, fsdp.replicate, p.tp * p.sp * (p.dp / fsdp.replicate));
  all[static_cast<std::size_t>(Group::DataParallelBetween)] = all[static_cast<std::size_t>(Group::DataParallel)];
  return all;
}

double collective_seconds(const GroupLinks& links, Collective collective, double payload) {
  if (links.ranks <= 1 || payload <= 0) return 0;
  const Form form = form_of(collective, static_cast<double>(links.ranks));
  const double latency = kStart + form.steps / static_cast<double>(links.nodes) * (links.pcie ? kBusStep : kLinkStep);
  double inside = 0;
  if (links.per_node > 1) {
    const double rate = collective == Collective::AllReduce ? links.link_reduced : links.link;
    inside = form.factor / rate * (payload + std::sqrt(kRamp * payload));
  }
  if (links.nodes == 1) return latency + inside;
  const auto nodes = static_cast<double>(links.nodes);
  const double sent = form.factor * payload / links.network;
  double between = sent + form.factor * nodes * kNodeStep;
  if (collective == Collective::AllReduce) {
    between = std::min(between, sent / kTree + 2 * std::log2(nodes) * kTreeStep);
  }
  return latency + std::max(inside, between);
}

}  // namespace dsplan
