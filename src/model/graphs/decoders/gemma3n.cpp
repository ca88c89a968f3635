// gemma3n's layers: of several running tensors, whose mixture is predicted, one goes through attention and MLP, and
// what comes of it corrects all; a product of low rank stands beside attention, and some MLPs keep only what of their
// gate is far above its mean. The functions follow transformers' modules one by one.
#include <cmath>

#include "model/graphs/decoders/gemma4.h"
#include "model/graphs/linear.h"

namespace dsplan {
namespace {

TensorId power_normed(GraphBuilder& g, ModuleId parent, std::string_view name, TensorId x) {
  return norm_module(g, NormKind::RmsPower, g.child(parent, name), x);
}

Shape without_first(const Shape& shape) { return Shape{shape.dims[1], shape.dims[2], shape.dims[3]}; }

// x[index] of the first dimension.
TensorId picked_first(GraphBuilder& g, TensorId x, std::int64_t index) {
  const TensorId one = g.slice(x, 0, index, 1);
  const TensorId out = g.view(one, without_first(g.shape(x)));
  g.drop({one});
  return out;
}

// torch.stack.
TensorId stacked_states(GraphBuilder& g, const std::vector<TensorId>& parts) {
  std::vector<TensorId> rows;
  for (const TensorId one : parts) {
    const Shape shape = g.shape(one);
    rows.push_back(g.view(one, Shape{1, shape.dims[0], shape.dims[1], shape.dims[2]}));
  }
  const TensorId out = g.cat(rows, 0);
  for (const TensorId row : rows) g.drop({row});
  return out;
}

TensorId mean_square(GraphBuilder& g, TensorId x) {
  const Shape shape = g.shape(x);
  const TensorId square = g.unary(Op::PowScalar, x, 2);
  const TensorId mean = g.make(Op::MeanLast, Shape{shape.dims[0], shape.dims[1], 1}, g.dtype(square), {square}, true);
  g.drop({square});
  return mean;
}

TensorId magnitude_of(GraphBuilder& g, TensorId x) {
  const TensorId mean = mean_square(g, x);
  const TensorId out = g.unary(Op::PowScalar, mean, 0.5);
  g.drop({mean});
  return out;
}

// What a projection has made, as long as the first is; `made` is the variable that holds it.
TensorId as_long(GraphBuilder& g, Several& held, TensorId made, DType dtype) {
  rebind(g, held.current, g.cast(made, dtype));
  rebind(g, held.own_magnitude, mean_square(g, held.current));
  const TensorId least = g.filled(Shape{}, DType::Float32, 1e-5);
  const TensorId bounded =
      g.make(Op::Maximum, g.shape(held.own_magnitude), g.dtype(held.own_magnitude), {held.own_magnitude, least}, true);
  g.drop({least});
  rebind(g, held.own_magnitude, g.unary(Op::Sqrt, bounded));
  g.drop({bounded});
  const TensorId product = g.binary(Op::Mul, held.current, held.magnitude);
  rebind(g, held.current, g.binary(Op::Div, product, held.own_magnitude));
  g.drop({product});
  return g.keep(held.current);
}

// AltUp.compute_router_modalities.
TensorId modalities_of(GraphBuilder& g, const DecoderParts& p, ModuleId altup, TensorId x) {
  const TensorId plain = power_normed(g, altup, "router_norm", x);
  const TensorId inputs = g.binary(Op::Mul, plain, g.buffer("router_input_scale", altup));
  g.drop({plain});
  const TensorId routed = linear_module(g, g.child(altup, "modality_router"), inputs, p.altup.inputs);
  const TensorId wide = g.cast(routed, DType::Float32);
  const TensorId bounded = g.unary(Op::Tanh, wide);
  g.drop({wide});
  const TensorId out = g.cast(bounded, g.dtype(x));
  g.drop({bounded, inputs, routed});
  return out;
}

// AltUp.predict: each token's tensors mixed by coefficients of its own, and added to what they were.
TensorId predicted_states(GraphBuilder& g, const DecoderParts& p, ModuleId altup, TensorId hidden) {
  const Shape shape = g.shape(hidden);
  const std::int64_t count = p.altup.inputs;
  const std::int64_t rows = shape.dims[1];
  const std::int64_t seq = shape.dims[2];
  const std::int64_t width = shape.dims[3];
  const TensorId active = picked_first(g, hidden, p.altup.active);
  const TensorId modalities = modalities_of(g, p, altup, active);
  g.drop({active});
  const TensorId flat = linear_module(g, g.child(altup, "prediction_coefs"), modalities, count * count);
  const Shape square{rows, seq, count, count};
  const TensorId coefficients = g.view_copied_back(flat, square, {step_reshape(square), step_swap(2, 3)});
  g.drop({flat});
  const Shape apart{rows, seq, width, count};
  const TensorId states = g.view(hidden, apart, {step_swap(0, 1), step_swap(1, 2), step_swap(2, 3)});
  const TensorId mixed = g.matmul(states, coefficients);
  g.drop({states});
  const TensorId turned = g.view(mixed, shape, {step_swap(2, 3), step_swap(1, 2), step_swap(0, 1)});
  g.drop({mixed});
  const TensorId sum = g.in_place(Op::AddInto, turned, hidden, 0, 0);
  g.drop({turned});
  const TensorId copied = g.copy(sum);
  const TensorId out = g.cast(copied, g.dtype(hidden));
  g.drop({copied, sum, coefficients, modalities});
  return out;
}

// AltUp.correct.
TensorId corrected_states(GraphBuilder& g, const DecoderParts& p, ModuleId altup, TensorId predictions,
                          TensorId activated) {
  const Shape shape = g.shape(predictions);
  const std::int64_t count = p.altup.inputs;
  const TensorId modalities = modalities_of(g, p, altup, activated);
  const TensorId before = picked_first(g, predictions, p.altup.active);
  const TensorId moved = g.binary(Op::Sub, activated, before);
  g.drop({before});
  const TensorId innovation = g.make(Op::Repeat, shape, g.dtype(moved), {moved}, true);
  g.drop({moved});
  const TensorId weight = g.unary(Op::Clamp, asked(g, g.child(altup, "correction_coefs"), "weight"), 120);
  const TensorId plain = g.linear(modalities, weight, kNone, count);
  const TensorId raised = g.unary(Op::AddScalar, plain, 1);
  g.drop({plain});
  const Shape first{count, shape.dims[1], shape.dims[2]};
  const Shape spread{count, shape.dims[1], shape.dims[2], 1};
  const TensorId factors =
      g.view(raised, spread, {step_swap(0, 2), step_swap(1, 2), step_reshape(first), step_reshape(spread)});
  g.drop({raised});
  const TensorId product = g.binary(Op::Mul, innovation, factors);
  const TensorId sum = g.in_place(Op::Add, product, predictions);
  g.drop({product, innovation, factors, modalities, weight});
  const TensorId out = g.cast(sum, g.dtype(activated));
  g.drop({sum});
  return out;
}

// Gemma3nTextMLP._gaussian_topk: how far above the mean comes from a share, by numbers of the device. Uses up `gate`.
TensorId far_above(GraphBuilder& g, TensorId gate) {
  const Shape shape = g.shape(gate);
  const Shape row{shape.dims[0], shape.dims[1], 1};
  const TensorId share = g.filled(Shape{}, DType::Float32, 0.95);
  TensorId factor = g.keep(share);
  for (std::size_t step = 0; step < 6; ++step) {  // loc + scale * erfinv(2 * share - 1) * sqrt(2)
    factor = rebound(g, factor, g.make(Op::MulScalar, Shape{}, DType::Float32, {factor}));
  }
  factor = rebound(g, factor, g.cast(factor, g.dtype(gate)));
  const TensorId mean = g.make(Op::MeanLast, row, g.dtype(gate), {gate}, true);
  const TensorId spread = g.make(Op::Std, row, g.dtype(gate), {gate}, true);
  const TensorId above = g.binary(Op::Mul, spread, factor);
  const TensorId least = g.binary(Op::Add, mean, above);
  g.drop({above});
  const TensorId rest = g.binary(Op::Sub, gate, least);
  const TensorId out = g.unary(Op::Relu, rest);
  g.drop({rest, share, factor, mean, spread, least, gate});
  return out;
}

TensorId sparse_mlp(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden, std::size_t index) {
  const Dimensions& d = g.dims();
  g.enter(module);
  TensorId gate = linear_module(g, g.child(module, p.gate), hidden, d.ffn);
  if (p.altup.sparse[index]) gate = far_above(g, gate);
  const TensorId active = activation_module(g, g.child(module, p.activation), gate);
  const TensorId up = linear_module(g, g.child(module, p.up), hidden, d.ffn);
  const TensorId product = g.binary(Op::Mul, active, up);
  const TensorId out = linear_module(g, g.child(module, p.down), product, d.hidden);
  g.drop({product, gate, active, up});
  g.exit(module);
  return out;
}

// Gemma3nTextLaurelBlock.
TensorId laurel(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden) {
  g.enter(module);
  const TensorId low = linear_module(g, g.child(module, "linear_left"), hidden, p.altup.rank);
  const TensorId wide = linear_module(g, g.child(module, "linear_right"), low, g.dims().hidden);
  g.drop({low});
  const TensorId plain = power_normed(g, module, "post_laurel_norm", wide);
  const TensorId out = g.binary(Op::Add, hidden, plain);
  g.drop({wide, plain});
  g.exit(module);
  return out;
}

// All tensors but the first take what the layer's own input makes of the active one.
TensorId with_layer_input(GraphBuilder& g, const DecoderParts& p, ModuleId layer, TensorId states, TensorId own) {
  const TensorId view = picked_first(g, states, p.altup.active);
  TensorId first = g.copy(view);
  g.drop({view});
  if (p.altup.scales) {
    const TensorId scale = asked(g, g.child(layer, "altup"), "correct_output_scale");
    const TensorId same = g.cast(first, g.dtype(scale));
    const TensorId scaled = g.binary(Op::Mul, same, scale);
    const TensorId back = g.cast(scaled, g.dtype(first));
    g.drop({same, scaled});
    rebind(g, first, back);
  }
  rebind(g, first, linear_module(g, g.child(layer, "per_layer_input_gate"), first, p.sharing.own_width));
  rebind(g, first, activation_module(g, g.child(layer, "act_fn"), first));
  rebind(g, first, g.binary(Op::Mul, first, own));
  rebind(g, first, linear_module(g, g.child(layer, "per_layer_projection"), first, g.dims().hidden));
  rebind(g, first, power_normed(g, layer, "post_per_layer_input_norm", first));
  const TensorId sum = g.in_place(Op::AddInto, states, first, 0, 1);
  // Python's `states[1:] += ...` writes the part that it has added to over itself.
  const TensorId part = g.slice(sum, 0, 1, p.altup.inputs - 1);
  const TensorId out = g.in_place(Op::CopyInto, sum, part, 0, 1);
  g.drop({part, sum, states, first});
  return out;
}

}  // namespace

TensorId several_of(GraphBuilder& g, ModuleId body, TensorId embedded, Several& held) {
  held.magnitude = magnitude_of(g, embedded);
  held.states = {g.keep(embedded)};
  for (const ModuleId one : modules_of(g.model(), g.child(body, "altup_projections"))) {
    rebind(g, held.made, linear_module(g, one, embedded, g.dims().hidden));
    held.states.push_back(as_long(g, held, held.made, g.dtype(embedded)));
  }
  return stacked_states(g, held.states);
}

TensorId one_of(GraphBuilder& g, ModuleId body, TensorId hidden, Several& held) {
  const DType dtype = g.dtype(held.states.front());
  const TensorId first = picked_first(g, hidden, 0);
  rebind(g, held.magnitude, magnitude_of(g, first));
  g.drop({first});
  const std::vector<TensorId> before = held.states;
  held.states = {picked_first(g, hidden, 0)};
  for (const TensorId one : before) g.drop({one});
  std::int64_t at = 0;
  for (const ModuleId one : modules_of(g.model(), g.child(body, "altup_unembed_projections"))) {
    const TensorId state = picked_first(g, hidden, ++at);
    rebind(g, held.merged, linear_module(g, one, state, g.dims().hidden));
    g.drop({state});
    held.states.push_back(as_long(g, held, held.merged, dtype));
  }
  const TensorId all = stacked_states(g, held.states);
  g.drop({hidden});
  const TensorId mean = g.make(Op::MeanLast, without_first(g.shape(all)), g.dtype(all), {all}, true);
  g.drop({all});
  return mean;
}

void drop_several(GraphBuilder& g, const Several& held) {
  for (const TensorId one : {held.magnitude, held.made, held.merged, held.current, held.own_magnitude}) {
    if (one != kNone) g.drop({one});
  }
  for (const TensorId one : held.states) g.drop({one});
}

TensorId own_inputs_by_buffers(GraphBuilder& g, const SharingParts& p, ModuleId body, TensorId own, TensorId embedded) {
  const Shape apart = g.shape(own);
  const TensorId flat =
      linear_module(g, g.child(body, "per_layer_model_projection"), embedded, apart.dims[2] * p.own_width);
  const TensorId factor = g.cast(g.buffer("per_layer_projection_scale", body), g.dtype(embedded));
  const TensorId scaled = g.in_place(Op::Mul, flat, factor);
  g.drop({flat, factor});
  TensorId projected = g.view(scaled, apart);
  g.drop({scaled});
  rebind(g, projected, power_normed(g, body, "per_layer_projection_norm", projected));
  const TensorId sum = g.binary(Op::Add, projected, own);
  const TensorId last = g.cast(g.buffer("per_layer_input_scale", body), g.dtype(embedded));
  const TensorId out = g.binary(Op::Mul, sum, last);
  g.drop({sum, last, projected, own});
  return out;
}

TensorId altup_layer(GraphBuilder& g, const DecoderParts& p, ModuleId layer, std::size_t index, TensorId hidden,
                     TensorId own, const LayerInputs& given, KeysOf does, QueryKey& shared) {
  const ModuleId altup = g.child(layer, "altup");
  g.enter(layer);
  const TensorId predictions = predicted_states(g, p, altup, hidden);
  const TensorId active = picked_first(g, predictions, p.altup.active);
  const TensorId plain = power_normed(g, layer, p.before_attention, active);
  const TensorId beside = laurel(g, p, g.child(layer, "laurel"), plain);
  Attended attended = attend_shared(g, p, g.child(layer, p.attention), plain, given, does, shared);
  rebind(g, attended.flat, power_normed(g, layer, p.after_attention, attended.flat));
  const TensorId gated = g.binary(Op::Add, active, attended.flat);
  const TensorId both = g.binary(Op::Add, gated, beside);
  const TensorId middle = g.unary(Op::DivScalar, both, std::sqrt(2.0));
  g.drop({both});
  const TensorId second = power_normed(g, layer, p.before_mlp, middle);
  const TensorId fed = sparse_mlp(g, p, g.child(layer, p.feed_forward), second, index);
  const TensorId fed_plain = power_normed(g, layer, p.after_mlp, fed);
  const TensorId activated = g.binary(Op::Add, middle, fed_plain);
  const TensorId states = corrected_states(g, p, altup, predictions, activated);
  const TensorId out = with_layer_input(g, p, layer, states, own);
  g.drop({predictions, active, plain, beside, attended.flat, gated, middle, second, fed, fed_plain, activated});
  if (attended.weights != kNone) g.drop({attended.weights});
  g.exit(layer);
  return out;
}

}  // namespace dsplan
