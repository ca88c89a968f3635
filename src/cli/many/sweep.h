// What `dsplan sweep` found, for those who print it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/prediction.h"

namespace dsplan {

// An axis of a sweep: the option that it varies, "--micro-batch", or "model".
struct SweepAxis {
  std::string name;
  std::string option;
  std::vector<std::string> values;
};

struct SweepPoint {
  std::vector<std::string> values;  // By axis.
  std::optional<Prediction> prediction;
  std::string reason;  // Why there is none.
};

// What a row says of a point; a size is absent where it is not known.
struct SweepFigures {
  std::optional<Bytes> process, needed, persistent, shortfall, host, wire, capacity, doubt;
  std::optional<double> tokens, seconds;
  std::optional<std::int64_t> retries;
  std::optional<std::string> fingerprint;
};

[[nodiscard]] SweepFigures figures_at(const Prediction& p);
// Why a point is none, or what it misses.
[[nodiscard]] std::string remark(const SweepPoint& point);
// What a process that fits takes of its device: all of it where it gives memory back to fit.
[[nodiscard]] std::string taken(const Prediction& p);
// The answer first: how many fit, and the fastest of them.
[[nodiscard]] std::string summary(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points);

[[nodiscard]] std::string sweep_csv(const std::vector<SweepAxis>& axes, const std::vector<SweepPoint>& points);
// "dsplan.sweep/1".
[[nodiscard]] std::string sweep_json(const std::string& model, const std::vector<SweepAxis>& axes,
                                     const std::vector<SweepPoint>& points);

// One page with lines over the axis that has the most values, and the device's limit. `command` made it.
[[nodiscard]] std::string sweep_page(const std::string& model, const std::vector<SweepAxis>& axes,
                                     const std::vector<SweepPoint>& points, std::string command);

}  // namespace dsplan
