// --tolerance KIND=N, as several commands have it.
#pragma once

#include <string>
#include <vector>

#include "report/comparison.h"

namespace dsplan {

// "reserved=1%", "process=1048576", "reserved=0.5%": bytes, or percent with at most one decimal. Refused, all together:
// unknown kinds, kinds that stand twice, what is no number of bytes and no percentage up to 100.
[[nodiscard]] Tolerances read_tolerances(const std::vector<std::string>& texts);

}  // namespace dsplan
