// A recorded snapshot against the caching allocator: the requests and completed frees of its trace are fed to a fresh
// one, and what that does with the driver, where it puts each block and what is left at the end must be what was
// recorded. Rules: docs/snapshots.md.
#pragma once

#include <string>
#include <vector>

#include "core/snapshot.h"

namespace dsplan {

// One for each device that has segments or entries. Refuses, under `path`: a trace that its segments contradict
// (sim/snapshot_recording.h), more than 1024 streams.
[[nodiscard]] std::vector<DeviceReplay> replay_snapshot(const Snapshot& snapshot, const std::string& path);

// A recorded device beside a predicted one, each replayed.
[[nodiscard]] SnapshotComparison compare_snapshots(const DeviceReplay& recorded, const DeviceReplay& predicted);

}  // namespace dsplan
