#include "exec/runner/loss_scale.h"

#include <algorithm>

namespace dsplan::exec {
namespace {

constexpr double kFactor = 2;

}  // namespace

LossScale::LossScale(const LossScaling& rules)
    : rules_(rules), now_(rules.scale), hysteresis_(rules.kind == LossScaling::Kind::Dynamic ? rules.hysteresis : 1) {}

bool LossScale::step(bool overflow) {
  if (rules_.kind == LossScaling::Kind::None || rules_.kind == LossScaling::Kind::Static) return true;
  const std::int64_t step = steps_++;
  const bool torch = rules_.kind == LossScaling::Kind::GradScaler;
  if (!overflow) {
    if (rules_.refills) hysteresis_ = rules_.hysteresis;
    // torch counts the steps since the last overflow, this one included.
    const std::int64_t stable = step - last_overflow_ - (torch ? 0 : 1);
    if (stable > 0 && stable % rules_.window == 0) grow();
    return true;
  }
  last_overflow_ = step;
  if (hysteresis_ > 1) {
    --hysteresis_;
    return true;
  }
  if (rules_.kind == LossScaling::Kind::Dynamic && now_ == rules_.least) return false;
  now_ = torch ? now_ / kFactor : std::max(now_ / kFactor, rules_.least);
  return true;
}

void LossScale::grow() {
  if (rules_.kind == LossScaling::Kind::Dynamic && !rules_.refills) hysteresis_ = rules_.hysteresis;
  now_ *= kFactor;
}

}  // namespace dsplan::exec
