// The reports of `replay` and `explain` as JSON. Bytes are integers; an absent value is null.
#pragma once

#include <string>
#include <vector>

#include "core/explanation.h"
#include "core/snapshot.h"

namespace dsplan {

// "dsplan.replay/1". `comparisons` is empty where no prediction was asked for.
[[nodiscard]] std::string replay_json(const std::vector<DeviceReplay>& devices,
                                      const std::vector<SnapshotComparison>& comparisons);
[[nodiscard]] std::string replay_schema();

// "dsplan.explain/1".
[[nodiscard]] std::string explanation_json(const Explanation& explanation);
[[nodiscard]] std::string explanation_schema();

}  // namespace dsplan
