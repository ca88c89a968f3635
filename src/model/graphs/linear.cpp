// Linear modules, with LoRA adapters or without.
#include "model/catalogue_rules.h"
#include "model/graphs/graphs.h"
#include "model/quantized.h"

namespace dsplan {
namespace {

// bitsandbytes 0.50, nn/modules.py, Linear4bit.forward.
TensorId packed_linear(GraphBuilder& g, const Quantization& packing, TensorId x, std::int64_t features) {
  const TensorId own = g.cast(x, packing.compute);
  Shape shape = g.shape(x);
  shape.dims[shape.rank - 1U] = features;
  const double number = static_cast<double>(packing.loaded) + (packing.nested ? rules::kNestedScales : 0);
  // The product inside is torch's linear, which autocast takes for its own.
  const DType made =
      packing.compute == DType::Float32 ? g.options().autocast.value_or(packing.compute) : packing.compute;
  const TensorId product =
      g.make(Op::Linear, shape, made, {own, g.parameter("weight"), g.parameter("bias")}, true, number);
  const TensorId out = g.cast(product, g.dtype(x));
  g.drop({product, own});
  return out;
}

TensorId plain_linear(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  g.enter(module);
  if (const auto packing = packing_of(g.model().modules[static_cast<std::size_t>(module)])) {
    const TensorId out = packed_linear(g, *packing, x, features);
    g.exit(module);
    return out;
  }
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

// peft 0.21, tuners/lora/bnb.py, Linear4bit.forward: the result is cloned, and autocast does the adapters' casts.
TensorId packed_linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  const Factors factors = factors_of(g, module);
  g.enter(module);
  const TensorId product = plain_linear(g, g.child(module, "base_layer"), x, features);
  const TensorId result = g.copy(product);
  g.drop({product});
  const bool converts = !g.options().autocast;
  const TensorId own = converts ? g.cast(x, factors.dtype) : g.keep(x);
  const TensorId scaled = adapter(g, factors, own, features);
  const TensorId narrow = converts ? g.cast(scaled, g.dtype(result)) : g.keep(scaled);
  g.drop({scaled});
  const TensorId out = g.binary(Op::Add, result, narrow);
  g.drop({result, narrow, own});
  g.exit(module);
  return out;
}

}  // namespace

TensorId linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  const ModuleId base = g.model().child(module, "base_layer");
  if (base == kNone) return plain_linear(g, module, x, features);
  if (packing_of(g.model().modules[static_cast<std::size_t>(base)])) {
    return packed_linear_module(g, module, x, features);
  }
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
