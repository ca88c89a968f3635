// Parameters that have adapters themselves, as peft's ParamWrapper shows them to the module inside of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/model.h"

namespace dsplan {

class GraphBuilder;

// Around the calls of the modules inside. A parameter is made of weight and factors when it is first asked for, and
// stays until the outermost wrapper returns (torch.nn.utils.parametrize.cached).
// Source: peft 0.21.2, tuners/lora/layer.py, ParamWrapper._activate_lora; torch 2.11, nn/utils/parametrize.py.
class AdaptedParameters {
 public:
  void enter(GraphBuilder& g, ModuleId wrapper, std::string_view leaf);
  void exit(GraphBuilder& g);
  // What stands in the place of a module's parameter; kNone: nothing does.
  [[nodiscard]] TensorId shown(GraphBuilder& g, ModuleId module, std::string_view leaf);

 private:
  struct One {
    ModuleId module = kNone;
    std::string leaf;
    TensorId weight = kNone;
    TensorId left = kNone;  // Of two factors, or the whole change.
    TensorId right = kNone;
    TensorId value = kNone;  // Once it was asked for.
  };
  std::vector<One> active_;       // From the outermost wrapper on.
  std::vector<TensorId> cached_;  // Of wrappers inside that have returned.
};

}  // namespace dsplan
