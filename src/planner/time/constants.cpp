#include "planner/time/constants.h"

#include <algorithm>
#include <array>

namespace dsplan {
namespace {

struct Row {
  std::string_view architecture;
  TimeConstants constants;
};

// Achievable products: MAMF of the accelerator benchmarks (A100 0.87, H100 0.80, B200 0.78, MI300X 0.51 of the peak),
// less what a step's own shapes lose. Attention: FlashAttention-2's figures for causal heads of 128.
constexpr std::array kRows = {
    Row{"sm_70", {0.70, 0.30, 0.25, 0.80, 6e-6, 0.8, 0.15, 0.02, 0.70, 1.45, false}},
    Row{"sm_75", {0.65, 0.30, 0.25, 0.80, 6e-6, 0.8, 0.15, 0.02, 0.70, 1.45, false}},
    Row{"sm_80", {0.80, 0.55, 0.45, 0.85, 6e-6, 0.8, 0.15, 0.02, 0.80, 1.30, false}},
    Row{"sm_86", {0.75, 0.55, 0.45, 0.85, 6e-6, 0.8, 0.15, 0.02, 0.70, 1.45, false}},
    Row{"sm_89", {0.80, 0.60, 0.50, 0.85, 6e-6, 0.8, 0.15, 0.02, 0.70, 1.45, false}},
    Row{"sm_90", {0.70, 0.40, 0.32, 0.85, 6e-6, 0.8, 0.15, 0.02, 0.80, 1.30, false}},
    Row{"sm_100", {0.70, 0.40, 0.32, 0.70, 6e-6, 0.8, 0.15, 0.02, 0.70, 1.45, false}},
    Row{"gfx90a", {0.55, 0.30, 0.25, 0.70, 8e-6, 0.8, 0.15, 0.02, 0.60, 1.60, false}},
    Row{"gfx942", {0.50, 0.25, 0.20, 0.70, 8e-6, 0.8, 0.15, 0.02, 0.60, 1.60, false}},
};

std::string_view family(std::string_view architecture) {
  if (architecture == "sm_103" || architecture == "sm_120") return "sm_100";
  return architecture;
}

}  // namespace

TimeConstants time_constants(std::string_view architecture) {
  const auto row = std::find_if(kRows.begin(), kRows.end(),
                                [&](const Row& one) { return one.architecture == family(architecture); });
  if (row != kRows.end()) return row->constants;
  TimeConstants other;
  other.low = 0.6;
  other.high = 1.7;
  return other;
}

}  // namespace dsplan
