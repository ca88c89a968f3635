// Linear modules, with LoRA adapters or without.
#include "model/graphs/linear.h"

#include "core/format.h"
#include "model/catalogue/rules.h"
#include "model/parts.h"
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
  const Product kind = g.options().stage3_linear ? Product::Function : Product::Transposed;
  const TensorId product = g.product(kind, {own, g.parameter("weight"), g.parameter("bias")}, shape, made, number);
  const TensorId out = g.cast(product, g.dtype(x));
  g.drop({product, own});
  return out;
}

// bitsandbytes 0.50, nn/modules.py, Linear8bitLt.forward: the result is in x's dtype, under autocast too.
TensorId int8_linear(GraphBuilder& g, TensorId x, std::int64_t features) {
  Shape shape = g.shape(x);
  shape.dims[shape.rank - 1U] = features;
  return g.make(Op::Linear, shape, g.dtype(x), {x, g.parameter("weight"), g.parameter("bias")}, true,
                rules::kEightBits);
}

// x @ weight.T, then + bias (FalconLinear): of the weight's view autocast keeps no copy, and a bias in fp32 makes the
// sum fp32 too.
TensorId product_then_bias(GraphBuilder& g, TensorId x, std::int64_t features) {
  const TensorId weight = g.parameter("weight");
  const TensorId bias = g.parameter("bias");
  const TensorId low_weight = g.options().autocast ? g.cast(weight, *g.options().autocast) : g.keep(weight);
  const TensorId low_x = g.lowered(x);
  Shape shape = g.shape(x);
  shape.dims[shape.rank - 1U] = features;
  const TensorId product = g.make(Op::Linear, shape, g.dtype(low_x), {low_x, low_weight}, true);
  g.drop({low_weight, low_x});
  if (bias == kNone) return product;
  const TensorId out = g.binary(Op::Add, product, bias);
  g.drop({product});
  return out;
}

TensorId plain_linear(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  g.enter(module);
  if (const auto packing = packing_of(g.model().module_at(module))) {
    const bool rows = packing->eight_bits();
    const TensorId out = rows ? int8_linear(g, x, features) : packed_linear(g, *packing, x, features);
    g.exit(module);
    return out;
  }
  if (g.model().module_at(module).type == "FalconLinear") {
    const TensorId out = product_then_bias(g, x, features);
    g.exit(module);
    return out;
  }
  const TensorId weight = g.parameter("weight");
  const TensorId bias = g.parameter("bias");
  const bool direct = g.model().module_at(module).type == "Conv1D";
  const TensorId out = direct ? g.conv1d(x, weight, bias, features) : g.linear(x, weight, bias, features);
  g.exit(module);
  return out;
}

struct Factors {
  ModuleId dropout;
  ModuleId a;
  ModuleId b;
  ModuleId magnitude;  // kNone without DoRA.
  std::int64_t rank;
  DType dtype;
};

Factors factors_of(const GraphBuilder& g, ModuleId module) {
  const auto active = [&](const char* kind) { return g.child(g.child(module, kind), "default"); };
  const ModuleId a = active("lora_A");
  const Parameter& thin = g.model().parameter_at(g.model().parameter(a, "weight"));
  const ModuleId magnitudes = g.model().child(module, "lora_magnitude_vector");
  const ModuleId magnitude = magnitudes == kNone ? ModuleId(kNone) : g.child(magnitudes, "default");
  const DType shown = g.options().shown_adapters.value_or(g.dtype_of(thin));
  return {active("lora_dropout"), a, active("lora_B"), magnitude, thin.shape.dims[0], shown};
}

// B(A(dropout(x))) * scaling: each result dies when the next call returns. `by_column`: its gradient comes so.
TensorId adapter(GraphBuilder& g, const Factors& factors, TensorId x, std::int64_t features, bool by_column = false) {
  g.enter(factors.dropout);
  const TensorId dropped = g.dropout(x, g.model().dims.adapter_dropout);
  g.exit(factors.dropout);
  // The hook before a group's forward casts what the factor is given (_fsdp_state.py, _pre_forward).
  const bool casts = g.options().shown_adapters && g.options().casts_inputs;
  const TensorId given = casts ? g.cast(dropped, g.options().dtype) : g.keep(dropped);
  const TensorId down = plain_linear(g, factors.a, given, factors.rank);
  g.drop({given, dropped});
  TensorId up = plain_linear(g, factors.b, down, features);
  g.drop({down});
  if (by_column) up = rebound(g, up, g.view_copied_back(up, g.shape(up)));
  const TensorId scaled = g.unary(Op::MulScalar, up, g.model().dims.adapter_scale);
  g.drop({up});
  return scaled;
}

// The factors' product, whose graph nobody walks: it dies with the last of these tensors.
struct FactorProduct {
  TensorId down;
  TensorId up;
  TensorId value;
};

// peft 0.21, tuners/lora/dora.py, DoraLinearLayer.get_lora_weight: B A as the factors' own forward makes it of the unit
// matrix, and a cast to the input's dtype.
FactorProduct product_of_factors(GraphBuilder& g, const Factors& factors, std::int64_t in, std::int64_t out, DType to) {
  const TensorId unit = g.filled({in, in}, factors.dtype, 1);
  const TensorId down = plain_linear(g, factors.a, unit, factors.rank);
  const TensorId up = plain_linear(g, factors.b, down, out);
  g.drop({down, unit});
  const TensorId turned = g.view(up, {out, in});
  g.drop({up});
  const TensorId value = g.cast(turned, to);
  g.drop({turned});
  return {down, up, value};
}

// The layer's weight as peft's dequantize_module_weight gives it, in the input's dtype: packed scales first, where they
// are quantized themselves; rows of int8 by their scales in fp32, and then by 1 / 127 (bitsandbytes 0.50, _ops.py).
TensorId whole_weight(GraphBuilder& g, ModuleId base, Shape shape, DType to) {
  const TensorId weight = g.parameter_of(base, "weight");
  const auto packing = packing_of(g.model().module_at(base));
  if (!packing) return g.cast(weight, to);
  TensorId value = kNone;
  if (packing->eight_bits()) {
    const TensorId rows = g.make(Op::Cast, shape, DType::Float32, {weight}, false);
    value = g.unary(Op::MulScalar, rows, 1.0 / 127);
    g.drop({rows});
  } else {
    const std::int64_t blocks = div_ceil(shape.elements().value(), kQuantizedBlock);
    const TensorId scales =
        packing->nested ? g.make(Op::Cast, {blocks}, DType::Float32, {weight}, false) : TensorId(kNone);
    value = g.make(Op::Cast, shape, packing->loaded, {weight}, false);
    if (scales != kNone) g.drop({scales});
  }
  const TensorId own = g.cast(value, to);
  g.drop({value});
  return own;
}

// DoraLinearLayer.get_weight_norm, of the weight and the product that was detached.
TensorId norm_of_sum(GraphBuilder& g, TensorId weight, TensorId product) {
  const TensorId detached = g.view(product, g.shape(product), Op::Detach);
  const TensorId scaled = g.unary(Op::MulScalar, detached, g.model().dims.adapter_scale);
  const TensorId sum = g.binary(Op::Add, weight, scaled);
  g.drop({scaled});
  const TensorId norm = g.make(Op::Norm, {g.shape(weight).dims[0]}, g.dtype(sum), {sum}, true, 2);
  g.drop({sum, detached});
  const TensorId constant = g.view(norm, g.shape(norm), Op::Detach);
  g.drop({norm});
  return constant;
}

// DoraLinearLayer.forward. `result` is the base layer's; with dropout the product runs again, over the dropped input.
TensorId magnitude_part(GraphBuilder& g, const Factors& factors, ModuleId base, TensorId x, TensorId result) {
  const Shape out = g.shape(result);
  const std::int64_t features = out.dims[out.rank - 1U];
  const std::int64_t in = g.shape(x).dims[g.shape(x).rank - 1U];
  g.enter(factors.magnitude);
  const FactorProduct product = product_of_factors(g, factors, in, features, g.dtype(x));
  const TensorId weight = whole_weight(g, base, {features, in}, g.dtype(x));
  const TensorId norm = norm_of_sum(g, weight, product.value);
  const TensorId ratio = g.binary(Op::Div, g.parameter("weight"), norm);
  const TensorId scale = g.view(ratio, {1, features});
  g.drop({ratio});
  const TensorId down = plain_linear(g, factors.a, x, factors.rank);
  const TensorId up = plain_linear(g, factors.b, down, features);
  g.drop({down});
  const TensorId bias = g.parameter_of(base, "bias");
  TensorId own = kNone;
  if (g.model().dims.adapter_dropout > 0) {
    own = g.linear(x, weight, kNone, features);
  } else {
    own = bias == kNone ? g.keep(result) : g.binary(Op::Sub, result, bias);
  }
  const TensorId less = g.unary(Op::SubScalar, scale, 1);
  const TensorId of_base = g.binary(Op::Mul, less, own);
  g.drop({less});
  const TensorId of_factors = g.binary(Op::Mul, scale, up);
  const TensorId scaled = g.unary(Op::MulScalar, of_factors, g.model().dims.adapter_scale);
  g.drop({of_factors});
  const TensorId sum = g.binary(Op::Add, of_base, scaled);
  g.drop({of_base, scaled});
  g.drop({product.value, weight, norm, scale, up, own});
  g.forget(product.up);
  g.forget(product.down);
  g.exit(factors.magnitude);
  return sum;
}

// peft 0.21, tuners/lora/variants.py, DoraLinearVariant.forward. `result` is dropped.
TensorId with_magnitudes(GraphBuilder& g, const Factors& factors, ModuleId base, TensorId own, TensorId result) {
  TensorId dropped = g.keep(own);
  if (g.model().dims.adapter_dropout > 0) {
    g.drop({dropped});
    g.enter(factors.dropout);
    dropped = g.dropout(own, g.model().dims.adapter_dropout);
    g.exit(factors.dropout);
  }
  const TensorId part = magnitude_part(g, factors, base, dropped, result);
  const TensorId sum = g.binary(Op::Add, result, part);
  g.drop({part, dropped, result});
  return sum;
}

// The same inside of Linear.forward.
TensorId dora_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  const Factors factors = factors_of(g, module);
  const ModuleId base = g.child(module, "base_layer");
  g.enter(module);
  const TensorId result = plain_linear(g, base, x, features);
  const DType asked = g.dtype(result);
  const TensorId own = g.cast(x, factors.dtype);
  const TensorId sum = with_magnitudes(g, factors, base, own, result);
  const TensorId out = g.cast(sum, asked);
  g.drop({sum, own});
  g.exit(module);
  return out;
}

// peft 0.21, tuners/lora/bnb.py, Linear4bit.forward and Linear8bitLt.forward: a 4-bit result is cloned, and autocast
// does the adapters' casts.
TensorId packed_linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  const Factors factors = factors_of(g, module);
  const ModuleId base = g.child(module, "base_layer");
  g.enter(module);
  const TensorId product = plain_linear(g, base, x, features);
  const bool rows = packing_of(g.model().module_at(base))->eight_bits();
  const TensorId result = rows ? g.keep(product) : g.copy(product);
  g.drop({product});
  const bool converts = !g.options().autocast;
  const TensorId own = converts ? g.cast(x, factors.dtype) : g.keep(x);
  const DType asked = g.dtype(result);
  TensorId out = kNone;
  if (factors.magnitude != kNone) {
    const TensorId sum = with_magnitudes(g, factors, base, own, result);
    out = converts ? g.cast(sum, asked) : g.keep(sum);
    g.drop({sum, own});
  } else {
    const TensorId scaled = adapter(g, factors, own, features);
    const TensorId narrow = converts ? g.cast(scaled, asked) : g.keep(scaled);
    g.drop({scaled});
    out = g.binary(Op::Add, result, narrow);
    g.drop({result, narrow, own});
  }
  g.exit(module);
  return out;
}

// Around a layer that is not packed, without magnitudes.
TensorId adapted_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features, bool by_column) {
  const Factors factors = factors_of(g, module);
  g.enter(module);
  TensorId result = plain_linear(g, g.child(module, "base_layer"), x, features);
  if (by_column) result = rebound(g, result, g.view_copied_back(result, g.shape(result)));
  const TensorId own = g.cast(x, factors.dtype);
  const TensorId scaled = adapter(g, factors, own, features, by_column);
  const TensorId sum = g.binary(Op::Add, result, scaled);
  const DType asked = g.dtype(result);
  g.drop({scaled, result});
  const TensorId out = g.cast(sum, asked);
  g.drop({sum, own});
  g.exit(module);
  return out;
}

}  // namespace

TensorId linear_by_column(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features, const Shape& shape,
                          std::initializer_list<ViewStep> steps) {
  const ModuleId base = g.model().child(module, "base_layer");
  const bool inside = base != kNone && !g.options().reference && !packing_of(g.model().module_at(base)) &&
                      g.model().child(module, "lora_magnitude_vector") == kNone;
  const TensorId out = inside ? adapted_module(g, module, x, features, true) : linear_module(g, module, x, features);
  return rebound(g, out, inside ? g.view(out, shape, steps) : g.view_copied_back(out, shape, steps));
}

TensorId linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  const ModuleId base = g.model().child(module, "base_layer");
  if (base == kNone) return plain_linear(g, module, x, features);
  if (g.options().reference) {  // peft's disable_adapter.
    g.enter(module);
    const TensorId out = plain_linear(g, base, x, features);
    g.exit(module);
    return out;
  }
  if (packing_of(g.model().module_at(base))) {
    return packed_linear_module(g, module, x, features);
  }
  const bool magnitudes = factors_of(g, module).magnitude != kNone;
  return magnitudes ? dora_module(g, module, x, features) : adapted_module(g, module, x, features, false);
}

namespace {

// axolotl patches the language model's layers alone (monkeypatch/lora_kernels.py, get_layers).
bool in_tower(const ModelSpec& model, ModuleId module) {
  if (model.parts == nullptr || model.parts->tower == nullptr) return false;
  const std::string& path = model.module_at(module).path;
  return path.find(formatted("{}.", model.parts->tower->module)) != std::string::npos;
}

// Those of `op`, with the dropout of the first projection; empty where a module has no adapters.
std::vector<TensorId> functions_of(GraphBuilder& g, Op op, std::span<const Projection> projections, TensorId x) {
  for (const Projection& one : projections) {
    if (g.options().reference || g.model().child(one.module, "base_layer") == kNone) return {};
    if (in_tower(g.model(), one.module)) return {};
  }
  if (g.options().shown_adapters) {  // get_lora_parameters gathers what has a group of its own, factor by factor.
    for (const Projection& one : projections) {
      for (const char* kind : {"lora_A", "lora_B"}) {
        const ModuleId holder = g.child(one.module, kind);
        g.enter(holder);
        g.exit(holder);
      }
    }
  }
  const Factors first = factors_of(g, projections[0].module);
  std::vector<TensorId> inputs{x};
  TensorId dropped = kNone;
  if (g.model().dims.adapter_dropout > 0) {
    g.enter(first.dropout);
    dropped = g.dropout(x, g.model().dims.adapter_dropout);
    g.exit(first.dropout);
    inputs.push_back(dropped);
  }
  double number = 0;
  std::vector<std::int64_t> features;
  for (const Projection& one : projections) {
    const Factors factors = factors_of(g, one.module);
    const ModuleId base = g.child(one.module, "base_layer");
    for (const ModuleId read : {base, factors.a, factors.b}) inputs.push_back(g.parameter_of(read, "weight"));
    features.push_back(one.features);
    if (const auto packing = packing_of(g.model().module_at(base))) {
      number = static_cast<double>(packing->loaded) + (packing->nested ? rules::kNestedScales : 0);
    }
  }
  if (op == Op::AdaptedGated) features = {features.back()};
  std::vector<TensorId> made = adapted(g, op, inputs, features, number);
  if (dropped != kNone) g.drop({dropped});
  return made;
}

}  // namespace

std::vector<TensorId> adapted_linears(GraphBuilder& g, std::span<const Projection> projections, TensorId x) {
  return functions_of(g, Op::AdaptedLinear, projections, x);
}

TensorId adapted_gated(GraphBuilder& g, const std::array<Projection, 3>& projections, TensorId x) {
  const std::vector<TensorId> made = functions_of(g, Op::AdaptedGated, projections, x);
  return made.empty() ? TensorId(kNone) : made.front();
}

}  // namespace dsplan
