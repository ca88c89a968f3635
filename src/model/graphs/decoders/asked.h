// A parameter of a module that is not called for it: Instruction::Kind::Read of it tells the runtime.
#pragma once

#include <string_view>

#include "model/graphs/builder.h"

namespace dsplan {

// kNone where the module has none of that name. Adapters wrap the layer that the framework's own code asks.
[[nodiscard]] inline TensorId asked(GraphBuilder& g, ModuleId module, std::string_view leaf) {
  const ModuleId base = g.model().child(module, "base_layer");
  const TensorId parameter = g.parameter_of(base == kNone ? module : base, leaf);
  g.drop({}, parameter);
  return parameter;
}

}  // namespace dsplan
