#include "core/chain.h"

#include <algorithm>
#include <cmath>

namespace dsplan {

bool Chain::gathers() const {
  return std::any_of(stages.begin(), stages.end(),
                     [](const ChainStage& stage) { return stage.gathered > Bytes(0) || stage.gather_time > Ticks(0); });
}

bool Chain::spares() const {
  return std::any_of(stages.begin(), stages.end(),
                     [](const ChainStage& stage) { return stage.spared_time > Ticks(0); });
}

Ticks Chain::time_without_recompute() const {
  Ticks sum;
  for (const ChainStage& stage : stages) sum += stage.forward_time + stage.backward_time + 2 * stage.gather_time;
  return sum;
}

double Chain::time(Ticks ticks) const {
  const auto value = static_cast<double>(ticks.value());
  // Powers of ten up to 10^22 are doubles, so that this is the double nearest to the exact quotient.
  return digits >= 0 ? value / std::pow(10.0, digits) : value * std::pow(10.0, -digits);
}

std::string_view name(ChainStep step) {
  switch (step) {
    case ChainStep::ForwardNone: return "forward_none";
    case ChainStep::ForwardKeepInput: return "forward_keep_input";
    case ChainStep::ForwardSave: return "forward_save";
    case ChainStep::Backward: return "backward";
    case ChainStep::Gather: return "gather";
    case ChainStep::Release: return "release";
  }
  return "?";
}

std::string_view name(ChainSegment::Mode mode) {
  switch (mode) {
    case ChainSegment::Mode::Store: return "store";
    case ChainSegment::Mode::Recompute: return "recompute";
    case ChainSegment::Mode::RecomputeHeld: return "recompute_held";
  }
  return "?";
}

}  // namespace dsplan
