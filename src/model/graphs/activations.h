// Activations by the names that transformers has for them (activations.py, ACT2FN).
#pragma once

#include <string_view>

#include "model/graphs/builder.h"

namespace dsplan {

// An activation by transformers' name, where it has a row (activations.cpp). Node::number of Op::Gelu is 0 for
// the exact form, 1 for the one with tanh.
[[nodiscard]] bool activation_has_graph(std::string_view activation);
[[nodiscard]] TensorId activated(GraphBuilder& g, std::string_view activation, TensorId x);

}  // namespace dsplan
