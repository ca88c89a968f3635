// Measures a machine through its backend's table: what its kernels, copies, collectives, files and the host's Adam
// take, and what a process holds on it beside its own memory. Rates are medians of times between the backend's own
// events, of work that is repeated until it is long enough for them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "core/calibration.h"
#include "exec/backend.h"

namespace dsplan::exec {

struct CalibrateOptions {
  const dsplan_backend* backend = nullptr;
  std::string directory;                           // Of files; it must exist.
  std::chrono::nanoseconds time{100'000'000'000};  // For all of it; what does not fit is named as not measured.
  bool quick = false;                              // Fewer and smaller inputs.
  // Once it is true nothing more is measured; what there is stays.
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> progress;  // Of each part, when it begins.
};

// Throws RunFailure only where the device cannot be opened; every other trouble is a row of `failed`.
[[nodiscard]] MeasuredMachine calibrate(const CalibrateOptions& options);

}  // namespace dsplan::exec
