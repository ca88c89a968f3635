#include "io/loss_scaling.h"

#include <cmath>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

constexpr std::int64_t kMostPower = 1000;  // A scale is a double.
constexpr std::int64_t kMost = 1'000'000'000;

class Reader {
 public:
  Reader(const Document& document, const Value& fp16, std::vector<std::string>& keys)
      : reader_(document, fp16, faults_), keys_(keys) {}

  // "auto" is left to Hugging Face, which leaves it to DeepSpeed.
  [[nodiscard]] bool says(std::string_view key) {
    const Value* value = reader_.find(key);
    return value != nullptr && !value->is(Value::Kind::String) && !value->is(Value::Kind::Null);
  }
  double number(std::string_view key) {
    if (!says(key)) return 0;
    count(key);
    return reader_.number(key).value_or(0);
  }
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most, std::int64_t fallback) {
    if (!says(key)) return fallback;
    count(key);
    return reader_.integer(key, least, most).value_or(fallback);
  }
  bool boolean(std::string_view key) {
    if (!says(key)) return false;
    count(key);
    return reader_.boolean(key).value_or(false);
  }
  void finish() const { faults_.throw_if_any(); }

 private:
  void count(std::string_view key) { keys_.push_back(formatted("fp16.{}", key)); }

  Diagnostics faults_;
  ObjectReader reader_;
  std::vector<std::string>& keys_;
};

}  // namespace

LossScalingInput read_loss_scaling(const Document& deepspeed, bool zero) {
  LossScalingInput input;
  LossScaling& scaling = input.scaling;
  scaling.kind = zero ? LossScaling::Kind::Dynamic : LossScaling::Kind::Fused;
  scaling.scale = 65'536;
  const Value* fp16 = deepspeed.root.find("fp16");
  if (fp16 == nullptr || !fp16->is(Value::Kind::Object)) return input;
  Reader reader(deepspeed, *fp16, input.keys);
  if (const double fixed = reader.number("loss_scale"); fixed > 0) {
    scaling.kind = LossScaling::Kind::Static;
    scaling.scale = fixed;
    reader.finish();
    return input;
  }
  scaling.scale = std::ldexp(1.0, static_cast<int>(reader.integer("initial_scale_power", 0, kMostPower, 16)));
  scaling.window = reader.integer("loss_scale_window", 1, kMost, scaling.window);
  scaling.least = static_cast<double>(reader.integer("min_loss_scale", 1, kMost, 1));
  if (zero) {
    scaling.hysteresis = reader.integer("hysteresis", 1, kMost, scaling.hysteresis);
    scaling.refills = reader.boolean("consecutive_hysteresis");
  }
  reader.finish();
  return input;
}

}  // namespace dsplan
