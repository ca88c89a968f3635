// The step time in the report of `simulate`.
#pragma once

#include <string>

#include "core/step_time.h"

namespace dsplan {

// Seconds by phase, what communication and copies add to them, and how sure that is. "estimated" until rates were
// measured on the user's own machine.
[[nodiscard]] std::string time_report(const StepTime& time);

// "1.24 s", "35.1 ms"
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace dsplan
