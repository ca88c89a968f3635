#include "io/loss_scaling.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace dsplan {
namespace {

constexpr std::int64_t kMostPower = 1000;  // A scale is a double.
constexpr std::int64_t kMost = 1'000'000'000;

// "auto" is left to Hugging Face, which leaves it to DeepSpeed.
bool says(ObjectReader& reader, std::string_view key) {
  const Value* value = reader.find(key);
  return value != nullptr && !value->is(Value::Kind::String);
}

}  // namespace

LossScaling read_loss_scaling(const Document& deepspeed, bool zero) {
  LossScaling scaling;
  scaling.kind = zero ? LossScaling::Kind::Dynamic : LossScaling::Kind::Fused;
  scaling.scale = 65'536;
  const Value* fp16 = deepspeed.root.find("fp16");
  if (fp16 == nullptr || !fp16->is(Value::Kind::Object)) return scaling;
  Diagnostics faults;
  ObjectReader reader(deepspeed, *fp16, faults);
  const auto integer = [&](std::string_view key, std::int64_t least, std::int64_t most, std::int64_t fallback) {
    return says(reader, key) ? reader.integer(key, least, most).value_or(fallback) : fallback;
  };
  if (says(reader, "loss_scale")) {
    if (const double fixed = reader.number("loss_scale").value_or(0); fixed > 0) {
      scaling.kind = LossScaling::Kind::Static;
      scaling.scale = fixed;
    }
  }
  if (scaling.kind != LossScaling::Kind::Static) {
    scaling.scale = std::ldexp(1.0, static_cast<int>(integer("initial_scale_power", 0, kMostPower, 16)));
    scaling.window = integer("loss_scale_window", 1, kMost, scaling.window);
    scaling.least = static_cast<double>(integer("min_loss_scale", 1, kMost, 1));
    scaling.hysteresis = integer("hysteresis", 1, kMost, scaling.hysteresis);
    if (says(reader, "consecutive_hysteresis"))
      scaling.refills = reader.boolean("consecutive_hysteresis").value_or(false);
  }
  faults.throw_if_any();
  return scaling;
}

}  // namespace dsplan
