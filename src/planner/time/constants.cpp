#include "planner/time/constants.h"

#include <algorithm>
#include <array>

namespace dsplan {
namespace {

struct Row {
  std::string_view architecture;
  TimeConstants constants;
};

// Products are fitted where it says so, and overlap over all of these together. Others: the largest rates found by
// search (MAMF: A100 0.87, H100 0.80, B200 0.78, MI300X 0.51 of the peak), less what a step's own shapes lose
// elsewhere. Attention: FlashAttention-2's figures for causal heads of 128. Memory: 0.91 measured on A100, 0.67 on
// B200.
constexpr std::array kRows = {
    Row{"sm_70", {0.70, 0.30, 0.25, 0.80, 1, 15e-6, 0.47, 0.15, 0.02, 0.70, 1.45, 2e-3, false}},
    Row{"sm_75", {0.65, 0.30, 0.25, 0.80, 1, 15e-6, 0.47, 0.15, 0.02, 0.70, 1.45, 2e-3, false}},
    Row{"sm_80", {0.66, 0.55, 0.45, 0.85, 1, 15e-6, 0.47, 0.15, 0.02, 0.84, 1.28, 2e-3, true}},
    Row{"sm_86", {0.75, 0.55, 0.45, 0.85, 1, 15e-6, 0.47, 0.15, 0.02, 0.70, 1.45, 2e-3, false}},
    Row{"sm_89", {0.95, 0.60, 0.50, 0.85, 1, 15e-6, 0.47, 0.15, 0.02, 0.84, 1.28, 2e-3, true}},
    Row{"sm_90", {0.62, 0.40, 0.32, 0.85, 1, 15e-6, 0.47, 0.15, 0.02, 0.84, 1.28, 2e-3, true}},
    Row{"sm_100", {0.70, 0.40, 0.32, 0.70, 1, 15e-6, 0.47, 0.15, 0.02, 0.70, 1.45, 2e-3, false}},
    Row{"sm_120", {0.92, 0.60, 0.50, 0.85, 1, 15e-6, 0.47, 0.15, 0.02, 0.84, 1.28, 2e-3, true}},
    Row{"gfx90a", {0.55, 0.30, 0.25, 0.70, 1, 15e-6, 0.47, 0.15, 0.02, 0.60, 1.60, 2e-3, false}},
    Row{"gfx942", {0.50, 0.25, 0.20, 0.70, 1, 15e-6, 0.47, 0.15, 0.02, 0.60, 1.60, 2e-3, false}},
};

std::string_view family(std::string_view architecture) {
  if (architecture == "sm_103") return "sm_100";
  if (architecture.starts_with("sm_6")) return "sm_70";  // Nobody measured them here.
  return architecture;
}

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.push_back(row.architecture);
  return names;
}

TimeConstants time_constants(std::string_view architecture) {
  const auto row = std::find_if(kRows.begin(), kRows.end(),
                                [&](const Row& one) { return one.architecture == family(architecture); });
  if (row != kRows.end()) return row->constants;
  TimeConstants other;
  if (architecture == "host") {  // dsplan's own executor, whose ranks are threads that do one thing after the other.
    other.launch = other.overlap = other.tax_link = other.between_steps = 0;
  }
  other.low = 0.6;
  other.high = 1.7;
  return other;
}

}  // namespace dsplan
