#include "exec/initial.h"

#include <cmath>

#include "core/error.h"

namespace dsplan::exec {

Initial initial_of(const ModelSpec& model, ParameterId parameter) {
  const Parameter& p = model.parameters[static_cast<std::size_t>(parameter)];
  const std::string& type = model.modules[static_cast<std::size_t>(p.module)].type;
  if (p.name.ends_with("bias") || p.name.find("lora_B") != std::string::npos) return Initial::Zeros;
  return type.find("Norm") != std::string::npos ? Initial::Ones : Initial::Normal;
}

std::vector<double> values_of(const ModelSpec& model, const ModelBuffer& buffer) {
  if (!buffer.name.ends_with("inv_freq")) {
    throw Refusal("run", "buffer \"" + buffer.name + "\" cannot be filled yet: only rotary frequencies can");
  }
  const std::int64_t count = buffer.shape.elements().value();
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(std::pow(model.dims.rotary_base, -static_cast<double>(i) / static_cast<double>(count)));
  }
  return values;
}

}  // namespace dsplan::exec
