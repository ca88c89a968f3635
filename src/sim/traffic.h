// The traffic meter: payload and wire bytes by collective, from the schedule's Communicate events alone.
#pragma once

#include <vector>

#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

// What one rank of `ranks` sends under the ring for a row whose payloads sum to `payload`:
// floor(k * (ranks - 1) * payload / ranks) with k = 2 for all-reduce and 1 for all-gather, reduce-scatter and
// all-to-all; the payload itself for broadcast, reduce and point-to-point. 0 for a group of one.
// Source: nccl-tests' PERFORMANCE.md; interface.md, "Wire".
[[nodiscard]] Bytes wire_bytes(Collective collective, Bytes payload, std::int64_t ranks);

// Counts the init stretch (rows of phase init), saving, and the second step (all others): one optimizer step in steady
// state, all micro-batches summed.
class TrafficMeter : public Ignores<Allocate, Release, Compute, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  using Ignores<Allocate, Release, Compute, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t at, const Communicate& event);
  void on(std::size_t at, const Mark& event);

  // Rows with their wire bytes for groups of `ranks`, those inside a node for groups of `inside`, tensor-parallel ones
  // for groups of `tensor`; by phase, then in order of first appearance.
  [[nodiscard]] std::vector<TrafficRow> rows(std::int64_t ranks, std::int64_t inside = 1,
                                             std::int64_t tensor = 1) const;

 private:
  Stretch stretch_ = Stretch::Init;
  std::vector<TrafficRow> rows_;
};

}  // namespace dsplan
