// Linear modules, with LoRA adapters or without.
#include "model/graphs/graphs.h"

namespace dsplan {
namespace {

TensorId plain_linear(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  g.enter(module);
  const TensorId weight = g.parameter("weight");
  const TensorId bias = g.parameter("bias");
  const bool direct = g.model().modules[static_cast<std::size_t>(module)].type == "Conv1D";
  const TensorId out = direct ? g.conv1d(x, weight, bias, features) : g.linear(x, weight, bias, features);
  g.exit(module);
  return out;
}

struct Factors {
  ModuleId dropout;
  ModuleId a;
  ModuleId b;
  std::int64_t rank;
  DType dtype;
};

Factors factors_of(const GraphBuilder& g, ModuleId module) {
  const auto active = [&](const char* kind) { return g.child(g.child(module, kind), "default"); };
  const ModuleId a = active("lora_A");
  const Parameter& thin = g.model().parameters[static_cast<std::size_t>(g.model().parameter(a, "weight"))];
  return {active("lora_dropout"), a, active("lora_B"), thin.shape.dims[0], g.dtype_of(thin)};
}

// B(A(dropout(x))) * scaling: each result dies when the next call returns.
TensorId adapter(GraphBuilder& g, const Factors& factors, TensorId x, std::int64_t features) {
  g.enter(factors.dropout);
  const TensorId dropped = g.dropout(x, g.model().dims.adapter_dropout);
  g.exit(factors.dropout);
  const TensorId down = plain_linear(g, factors.a, dropped, factors.rank);
  g.drop({dropped});
  const TensorId up = plain_linear(g, factors.b, down, features);
  g.drop({down});
  const TensorId scaled = g.unary(Op::MulScalar, up, g.model().dims.adapter_scale);
  g.drop({up});
  return scaled;
}

}  // namespace

TensorId linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  const ModuleId base = g.model().child(module, "base_layer");
  if (base == kNone) return plain_linear(g, module, x, features);
  const Factors factors = factors_of(g, module);
  g.enter(module);
  const TensorId result = plain_linear(g, base, x, features);
  const TensorId own = g.cast(x, factors.dtype);
  const TensorId scaled = adapter(g, factors, own, features);
  const TensorId sum = g.binary(Op::Add, result, scaled);
  const DType asked = g.dtype(result);
  g.drop({scaled, result});
  const TensorId out = g.cast(sum, asked);
  g.drop({sum, own});
  g.exit(module);
  return out;
}

}  // namespace dsplan
