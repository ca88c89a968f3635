// What the layers of decoders are made of, by the kinds of model/parts.h: norms, positions, attention modules and MLPs,
// as transformers' modules compute them.
#include "model/graphs/pieces.h"

#include "model/graphs/activations.h"
#include "model/graphs/attention.h"
#include "model/graphs/linear.h"

namespace dsplan {

TensorId normalised(GraphBuilder& g, TensorId x, TensorId* variance) {
  const TensorId squared = g.unary(Op::PowScalar, x, 2);
  const TensorId mean = mean_last(g, squared);
  g.drop({squared});
  const TensorId shifted = g.unary(Op::AddScalar, mean, g.dims().norm_epsilon);
  if (variance == nullptr) {
    g.drop({mean});
  } else {
    *variance = mean;
  }
  const TensorId scale = g.unary(Op::Rsqrt, shifted);
  g.drop({shifted});
  const TensorId result = g.binary(Op::Mul, x, scale);
  g.drop({scale});
  return result;
}

namespace {

// `wide_product`: the product with the weight comes before the cast; `wide_weight`: and the weight is brought to fp32.
TensorId rms(GraphBuilder& g, TensorId weight, TensorId hidden, bool wide_product, bool wide_weight = false) {
  const TensorId wide = g.cast(hidden, DType::Float32);
  TensorId variance = kNone;
  const TensorId norm = normalised(g, wide, &variance);
  g.drop({wide});
  TensorId out = kNone;
  if (wide_product) {
    const TensorId factor = g.cast(weight, wide_weight ? DType::Float32 : g.dtype(weight));
    const TensorId product = g.binary(Op::Mul, factor, norm);
    g.drop({factor});
    out = g.cast(product, g.dtype(hidden));
    g.drop({product});
  } else {
    const TensorId narrow = g.cast(norm, g.dtype(hidden));
    out = g.binary(Op::Mul, weight, narrow);
    g.drop({narrow});
  }
  g.drop({norm, variance});
  return out;
}

TensorId rms_plus_one(GraphBuilder& g, TensorId weight, TensorId hidden) {
  const TensorId wide = g.cast(hidden, DType::Float32);
  const TensorId norm = normalised(g, wide, nullptr);
  g.drop({wide});
  const TensorId wide_weight = g.cast(weight, DType::Float32);
  const TensorId factor = g.unary(Op::AddScalar, wide_weight, 1);
  g.drop({wide_weight});
  const TensorId scaled = g.binary(Op::Mul, norm, factor);
  g.drop({factor, norm});
  const TensorId out = g.cast(scaled, g.dtype(hidden));
  g.drop({scaled});
  return out;
}

// x * pow(mean(x^2) + eps, -0.5), whose mean is a variable of the function that makes it.
TensorId rms_power(GraphBuilder& g, TensorId weight, TensorId hidden) {
  const TensorId wide = g.cast(hidden, DType::Float32);
  const TensorId squared = g.unary(Op::PowScalar, wide, 2);
  const TensorId mean = mean_last(g, squared);
  g.drop({squared});
  const TensorId shifted = g.unary(Op::AddScalar, mean, g.dims().norm_epsilon);
  g.drop({mean});
  const TensorId scale = g.unary(Op::PowScalar, shifted, -0.5);
  TensorId norm = g.binary(Op::Mul, wide, scale);
  g.drop({scale, wide, shifted});
  if (weight != kNone) {
    const TensorId factor = g.cast(weight, DType::Float32);
    const TensorId product = g.binary(Op::Mul, norm, factor);
    g.drop({factor, norm});
    norm = product;
  }
  const TensorId out = g.cast(norm, g.dtype(hidden));
  g.drop({norm});
  return out;
}

TensorId rms_last(GraphBuilder& g, TensorId weight, TensorId hidden) {
  const TensorId wide = g.cast(hidden, DType::Float32);
  const TensorId norm = normalised(g, wide, nullptr);
  g.drop({wide});
  const TensorId narrow = g.cast(norm, g.dtype(hidden));
  g.drop({norm});
  if (weight == kNone) return narrow;
  const TensorId out = g.binary(Op::Mul, narrow, weight);
  g.drop({narrow});
  return out;
}

// (x - mean) * rsqrt(mean((x - mean)^2) + eps), times the weight in fp32, back. Mean and variance are variables.
TensorId centred(GraphBuilder& g, TensorId weight, TensorId hidden) {
  const TensorId wide = g.cast(hidden, DType::Float32);
  const TensorId mean = mean_last(g, wide);
  const TensorId apart = g.binary(Op::Sub, wide, mean);
  const TensorId squared = g.unary(Op::PowScalar, apart, 2);
  g.drop({apart});
  const TensorId variance = mean_last(g, squared);
  g.drop({squared});
  const TensorId again = g.binary(Op::Sub, wide, mean);
  const TensorId shifted = g.unary(Op::AddScalar, variance, g.dims().norm_epsilon);
  const TensorId scale = g.unary(Op::Rsqrt, shifted);
  g.drop({shifted});
  const TensorId norm = g.binary(Op::Mul, again, scale);
  g.drop({again, scale, wide});
  const TensorId wide_weight = g.cast(weight, DType::Float32);
  const TensorId product = g.binary(Op::Mul, wide_weight, norm);
  g.drop({wide_weight, norm});
  const TensorId out = g.cast(product, g.dtype(hidden));
  g.drop({product, mean, variance});
  return out;
}

TensorId liger_rms(GraphBuilder& g, TensorId weight, TensorId hidden) {
  return g.make(Op::LigerRmsNorm, g.shape(hidden), g.dtype(hidden), {hidden, weight}, true);
}

// Under autocast in its dtype: it casts what it is given by itself.
TensorId layer_plus_one(GraphBuilder& g, TensorId weight, TensorId bias, TensorId hidden) {
  const TensorId factor = g.unary(Op::AddScalar, weight, 1);
  if (!g.options().autocast) {
    const TensorId out = layer_norm(g, hidden, factor, bias);
    g.drop({factor});
    return out;
  }
  const DType computed = *g.options().autocast;
  const TensorId x = g.cast(hidden, computed);
  const TensorId by = g.cast(factor, computed);
  const TensorId plus = bias == kNone ? kNone : g.cast(bias, computed);
  g.drop({factor});
  g.set_autocast_enabled(false);
  const TensorId out = layer_norm(g, x, by, plus);
  g.set_autocast_enabled(true);
  g.drop({x, by});
  if (plus != kNone) g.drop({plus});
  return out;
}

TensorId layer_bare(GraphBuilder& g, TensorId hidden) {
  const TensorId wide = g.cast(hidden, DType::Float32);
  const TensorId norm = layer_norm(g, wide, kNone, kNone);
  g.drop({wide});
  const TensorId out = g.cast(norm, g.dtype(hidden));
  g.drop({norm});
  return out;
}

}  // namespace

TensorId norm_module(GraphBuilder& g, NormKind kind, ModuleId module, TensorId x, bool strided) {
  g.enter(module);
  const TensorId weight = g.parameter("weight");
  TensorId out = kNone;
  switch (kind) {
    case NormKind::Rms:
      out = g.options().liger_kernels.norms ? liger_rms(g, weight, x) : rms(g, weight, x, false);
      break;
    case NormKind::RmsWide: out = rms(g, weight, x, true); break;
    case NormKind::RmsWideWeight: out = rms(g, weight, x, true, true); break;
    case NormKind::RmsPower: out = rms_power(g, weight, x); break;
    case NormKind::LayerBare: out = layer_bare(g, x); break;
    case NormKind::RmsPlusOne: out = rms_plus_one(g, weight, x); break;
    case NormKind::RmsLast: out = rms_last(g, weight, x); break;
    case NormKind::RmsBare: out = rms_last(g, kNone, x); break;
    case NormKind::Layer: out = layer_norm(g, x, weight, g.parameter("bias"), strided); break;
    case NormKind::LayerPlusOne: out = layer_plus_one(g, weight, g.parameter("bias"), x); break;
    case NormKind::Centred: out = centred(g, weight, x); break;
  }
  g.exit(module);
  return out;
}

TensorId table_module(GraphBuilder& g, ModuleId module, TensorId ids, std::int64_t padding, bool turned) {
  g.enter(module);
  const TensorId out = embedding(g, g.parameter("weight"), ids, turned, padding);
  g.exit(module);
  return out;
}

TensorId words_module(GraphBuilder& g, ModuleId module, TensorId ids) {
  g.enter(module);
  const TensorId out = vocabulary_embedding(g, g.parameter("weight"), ids);
  g.exit(module);
  return out;
}

TensorId scaled_words(GraphBuilder& g, ModuleId module, TensorId ids) {
  g.enter(module);
  const TensorId found = vocabulary_embedding(g, g.parameter("weight"), ids);
  const TensorId factor = g.cast(g.buffer("embed_scale"), g.options().dtype);
  const TensorId out = g.binary(Op::Mul, found, factor);
  g.drop({found, factor});
  g.exit(module);
  return out;
}

TensorId dropout_module(GraphBuilder& g, ModuleId module, TensorId x, double p) {
  if (module == kNone) return g.keep(x);
  g.enter(module);
  const TensorId out = g.dropout(x, p);
  g.exit(module);
  return out;
}

TensorId first_place(GraphBuilder& g, TensorId x) {
  const TensorId one = g.slice(x, 1, 0, 1);
  const TensorId out = g.view(one, Shape{g.shape(x).dims[0], g.shape(x).dims[2]});
  g.drop({one});
  return out;
}

TensorId patches_module(GraphBuilder& g, ModuleId module, std::int64_t side, TensorId pixels) {
  const ModuleId projection = g.child(module, "projection");
  g.enter(module);
  g.enter(projection);
  const std::int64_t width = g.shape(g.parameter_of(projection, "weight")).dims[0];
  const Shape grid{g.shape(pixels).dims[0], width, side, side};
  const TensorId made = convolution(g, grid, pixels, true);
  g.exit(projection);
  const Shape flat{grid.dims[0], width, side * side};
  const Shape places{grid.dims[0], side * side, width};
  const TensorId out = g.view(made, places, {step_reshape(flat), step_swap(1, 2)});
  g.drop({made});
  g.exit(module);
  return out;
}

TensorId behind_class_token(GraphBuilder& g, const Dimensions& d, ModuleId module, TensorId places,
                            const Positions& positions) {
  const Shape token{g.shape(places).dims[0], 1, g.shape(places).dims[2]};
  const TensorId spread = g.view(g.parameter("cls_token"), token, Op::Expand);
  const TensorId joint = g.cat(spread, places, Op::Cat, 1);
  g.drop({places});
  const TensorId at = positions ? positions() : g.keep(g.parameter("position_embeddings"));
  const TensorId placed = g.binary(Op::Add, joint, at);
  g.drop({at, joint});
  const TensorId out = dropout_module(g, g.child(module, "dropout"), placed, d.embedding_dropout);
  g.drop({placed, spread});
  return out;
}

TensorId activation_module(GraphBuilder& g, ModuleId module, TensorId x) {
  g.enter(module);
  const TensorId out = activated(g, g.dims().activation, x);
  g.exit(module);
  return out;
}

std::vector<ModuleId> modules_of(const ModelSpec& model, ModuleId parent) {
  std::vector<ModuleId> found;
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    if (model.modules[at].parent == parent) found.push_back(static_cast<ModuleId>(at));
  }
  return found;
}

TensorId led_in(GraphBuilder& g, ModuleId layer, TensorId hidden) {
  if (!g.options().layers_require_grad || g.graph().tensor(hidden).requires_grad) return hidden;
  const std::vector<bool>& trainable = g.options().trainable;
  for (std::size_t id = 0; id < trainable.size(); ++id) {
    if (!trainable[id] || !g.model().lies_in(g.model().parameters[id].module, layer)) continue;
    const TensorId leaf = rebound(g, hidden, g.view(hidden, g.shape(hidden)));
    g.require_grad(leaf);
    return leaf;
  }
  return hidden;
}

TensorId run_layers(GraphBuilder& g, ModuleId list, TensorId hidden, const Keywords& keywords, const LayerCall& call) {
  return run_layers(g, list, hidden, keywords, call, [](std::size_t, TensorId x) { return x; });
}

TensorId run_layers(GraphBuilder& g, ModuleId list, TensorId hidden, const Keywords& keywords, const LayerCall& call,
                    const BehindLayer& behind) {
  std::size_t layer = 0;
  for (const ModuleId module : modules_of(g.model(), list)) {
    std::vector<TensorId> given = keywords(layer);
    std::erase(given, kNone);
    hidden = led_in(g, module, hidden);
    const std::int32_t region = g.begin_region({{hidden}, std::move(given), {}, {}});
    const TensorId out = call(module, layer, hidden);
    g.end_region(region);
    g.drop({hidden});
    hidden = behind(layer, out);
    ++layer;
  }
  return hidden;
}

// view_as_complex(x.float()), as pairs.
TensorId complex_pairs(GraphBuilder& g, TensorId x) {
  const Shape& shape = g.shape(x);
  const Shape pairs{shape.dims[0], shape.dims[1], shape.dims[2], shape.dims[3] / 2, 2};
  const TensorId wide = g.cast(x, DType::Float32);
  const TensorId numbers = g.view(wide, pairs);
  g.drop({wide});
  return numbers;
}

namespace {

TensorId scaled_wave(GraphBuilder& g, Op op, TensorId angles) {
  const TensorId wave = g.unary(op, angles);
  const TensorId scaled = g.unary(Op::MulScalar, wave, 1);
  g.drop({wave});
  return scaled;
}

// cat((-x2, x1)) of the halves, or stack((-x2, x1), -1).flatten(-2) of neighbours.
TensorId turned_half(GraphBuilder& g, const RotaryParts& parts, TensorId x) {
  const std::int64_t half = g.shape(x).dims[3] / 2;
  const TensorId first = parts.pairs ? g.slice(x, 3, 0, half, true) : g.slice(x, 3, 0, half);
  const TensorId second = parts.pairs ? g.slice(x, 3, 1, half, true) : g.slice(x, 3, half, half);
  if (parts.flips) {
    const TensorId negated = g.unary(Op::Neg, first);
    const TensorId rotated = g.cat(second, negated);
    g.drop({negated, first, second});
    return rotated;
  }
  const TensorId negated = g.unary(Op::Neg, second);
  const TensorId rotated = parts.pairs ? g.cat(negated, first, Op::Stack) : g.cat(negated, first);
  g.drop({negated, first, second});
  return rotated;
}

// (x * cos) + (rotate_half(x) * sin).
TensorId turn(GraphBuilder& g, const RotaryParts& parts, TensorId x, const Waves& waves) {
  const bool widens = parts.wide_products || parts.wide_halves;
  const TensorId wide = widens ? g.cast(x, DType::Float32) : g.keep(x);
  const TensorId direct = g.binary(Op::Mul, wide, waves.cos);
  g.drop({wide});
  const TensorId source = parts.wide_halves ? g.cast(x, DType::Float32) : g.keep(x);
  TensorId rotated = turned_half(g, parts, source);
  g.drop({source});
  if (parts.wide_products) {
    const TensorId wide_half = g.cast(rotated, DType::Float32);
    g.drop({rotated});
    rotated = wide_half;
  }
  const TensorId crossed = g.binary(Op::Mul, rotated, waves.sin);
  g.drop({rotated});
  const TensorId out = g.binary(Op::Add, direct, crossed);
  g.drop({direct, crossed});
  return out;
}

// cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin)) of neighbours, with tables of half the width.
TensorId turn_sorted(GraphBuilder& g, const QueryKey& pair, const Waves& waves) {
  const auto combined = [&](TensorId direct, TensorId crossed, Op op) {
    const TensorId left = g.binary(Op::Mul, direct, waves.cos);
    const TensorId right = g.binary(Op::Mul, crossed, waves.sin);
    const TensorId out = g.binary(op, left, right);
    g.drop({left, right});
    return out;
  };
  const TensorId first = combined(pair.q, pair.k, Op::Sub);
  const TensorId second = combined(pair.k, pair.q, Op::Add);
  const TensorId out = g.cat(first, second);
  g.drop({first, second});
  return out;
}

// view_as_real(numbers * tables) in the shape and dtype of `x`; view_as_real wants its gradient contiguous.
TensorId turn_complex(GraphBuilder& g, TensorId x, TensorId numbers, TensorId tables) {
  const Shape shape = g.shape(x);
  const bool casts = g.dtype(x) != DType::Float32;
  const bool by_token =
      !g.options().eager_attention && !g.options().math_attention && g.options().attention != AttentionKernel::Flash;
  const bool copied = (by_token || !casts) && shape.dims[1] > 1 && shape.dims[2] > 1;
  const TensorId turned = g.make(Op::ComplexMul, g.shape(numbers), DType::Float32, {numbers, tables}, true);
  const TensorId flat = copied ? g.view_copied_back(turned, shape) : g.view(turned, shape);
  g.drop({turned});
  const TensorId out = g.cast(flat, g.dtype(x));
  g.drop({flat});
  return out;
}

TensorId turn_chunks(GraphBuilder& g, TensorId x, const Waves& waves) {
  const std::vector<TensorId> halves = split_last(g, x, equal_widths(g, x, 2));
  const TensorId out = turn_sorted(g, {halves[0], halves[1]}, waves);
  g.drop({halves[0], halves[1]});
  return out;
}

QueryKey sorted_pairs(GraphBuilder& g, const QueryKey& x, const Waves& whole) {
  const auto narrow = [&](TensorId wave) { return g.slice(wave, 3, 0, g.shape(wave).dims[3] / 2); };
  const Waves waves{narrow(whole.cos), narrow(whole.sin)};
  const std::int64_t half = g.shape(waves.cos).dims[3];
  const auto neighbours = [&](TensorId of) {
    return QueryKey{g.slice(of, 3, 0, half, true), g.slice(of, 3, 1, half, true)};
  };
  const QueryKey q = neighbours(x.q);
  const QueryKey k = neighbours(x.k);
  const QueryKey out{turn_sorted(g, q, waves), turn_sorted(g, k, waves)};
  g.drop({q.q, q.k, k.q, k.k, waves.cos, waves.sin, x.q, x.k});
  return out;
}

struct Parts {
  TensorId turns = kNone;
  TensorId rest = kNone;
};

Parts parts_of(GraphBuilder& g, TensorId x, std::int64_t width) {
  const std::int64_t whole = g.shape(x).dims[3];
  Parts parts;
  // All of a dimension is no slice.
  parts.turns = width == whole ? g.view(x, g.shape(x)) : g.slice(x, 3, 0, width);
  parts.rest = g.slice(x, 3, width, whole - width);
  return parts;
}

// cat((turned, rest), -1). What the two names of a call's own stand for dies when it returns; the attention's live on.
QueryKey turn_parts(GraphBuilder& g, const RotaryParts& parts, QueryKey x, const Waves& waves,
                    std::vector<TensorId>& held) {
  const std::int64_t width = g.shape(waves.cos).dims[3];
  const Parts q = parts_of(g, x.q, width);
  const Parts k = parts_of(g, x.k, width);
  QueryKey out;
  const TensorId q_turned = turn(g, parts, q.turns, waves);
  if (parts.part == RotaryPart::Joined) {
    out.q = g.cat(q_turned, q.rest);
    g.drop({q_turned});
  }
  const TensorId k_turned = turn(g, parts, k.turns, waves);
  if (parts.part == RotaryPart::Held) g.drop({q.turns, k.turns});
  if (parts.part != RotaryPart::Joined) out.q = g.cat(q_turned, q.rest);
  if (parts.part == RotaryPart::JoinedLast) g.drop({q_turned});
  if (parts.part == RotaryPart::Held) g.drop({x.q});
  out.k = g.cat(k_turned, k.rest);
  if (parts.part == RotaryPart::Held) {
    g.drop({x.k});
    held.insert(held.end(), {q_turned, q.rest, k_turned, k.rest});
  } else {
    if (parts.part == RotaryPart::JoinedAtOnce) g.drop({q_turned});
    g.drop({k_turned, q.turns, k.turns, q.rest, k.rest, x.q, x.k});
  }
  return out;
}

// torch.max(position_ids) + 1.
TensorId length_of(GraphBuilder& g, TensorId positions) {
  const TensorId last = g.make(Op::Max, Shape{}, DType::Int64, {positions});
  const TensorId length = g.make(Op::AddScalar, Shape{}, DType::Int64, {last}, false, 1);
  g.drop({last});
  return length;
}

// dynamic_frequency_update: longer than the table, or again as short as it was made for.
void look_at_length(GraphBuilder& g, TensorId positions) {
  const TensorId length = length_of(g, positions);
  for (int question = 0; question < 2; ++question) {
    const TensorId answer = g.make(Op::Greater, Shape{}, DType::Bool, {length});
    g.drop({answer});
  }
  g.drop({length});
}

// _compute_longrope_parameters with the long factors, operator by operator.
TensorId long_frequencies(GraphBuilder& g, std::int64_t count) {
  const TensorId factors = g.filled(Shape{count}, DType::Float32, 0);
  const TensorId numbers = arange(g, count);
  const TensorId wide = g.cast(numbers, DType::Float32);
  g.drop({numbers});
  const TensorId exponents = g.unary(Op::DivScalar, wide, static_cast<double>(2 * count));
  g.drop({wide});
  const TensorId raised = g.unary(Op::PowScalar, exponents, g.dims().rotary_base);
  const TensorId product = g.binary(Op::Mul, factors, raised);
  g.drop({raised});
  const TensorId inverse = g.unary(Op::Reciprocal, product);
  const TensorId made = g.unary(Op::MulScalar, inverse, 1);
  g.drop({inverse, product, exponents, factors});
  return made;
}

// longrope_frequency_update: `inv_freq` becomes the table that the constructor kept, or one that is made each time.
TensorId chosen_frequencies(GraphBuilder& g, const RotaryParts& parts, TensorId positions, std::string_view prefix) {
  const std::string name(prefix);
  const TensorId usual = g.buffer(name + "inv_freq");
  const TensorId length = length_of(g, positions);
  const TensorId longer = g.make(Op::Greater, Shape{}, DType::Bool, {length});
  g.drop({longer}, longer);
  if (g.options().seq <= parts.short_rows) {
    const bool kept_apart = g.options().transformers >= Version{5, 0, 0};  // Before, by another name.
    if (kept_apart) replace(g, usual);
    g.drop({length});
    return kept_apart ? g.buffer(name + "original_inv_freq") : usual;
  }
  const TensorId made = long_frequencies(g, g.shape(usual).dims[0]);
  replace(g, usual);
  const TensorId seen = g.view(made, g.shape(made));
  keep_for_next(g, made);
  g.drop({length});
  return seen;
}

}  // namespace

Waves rotary_tables(GraphBuilder& g, const RotaryParts& parts, ModuleId module, TensorId positions,
                    std::string_view prefix) {
  g.enter(module);
  g.set_grad_enabled(false);
  g.set_autocast_enabled(false);
  if (parts.scaling == RotaryScaling::Lengths) look_at_length(g, positions);
  // A table in fp32 already is not copied.
  const bool chosen = parts.scaling == RotaryScaling::LongRope;
  const bool long_rows = chosen && g.options().seq > parts.short_rows;
  const TensorId table =
      chosen ? chosen_frequencies(g, parts, positions, prefix) : g.buffer(std::string(prefix) + "inv_freq");
  const TensorId length = parts.made_anew ? length_of(g, positions) : kNone;
  const TensorId frequencies = parts.made_anew ? g.filled(Shape{1, g.shape(table).dims[0], 1}, DType::Float32, 0)
                               : g.dtype(table) == DType::Float32 ? table
                                                                  : g.cast(table, DType::Float32);
  const auto leave = [&](const Waves& made) {
    if (frequencies != table) g.drop({frequencies});
    if (long_rows) g.drop({table});
    if (length != kNone) g.drop({length});
    g.set_autocast_enabled(true);
    g.set_grad_enabled(true);
    g.exit(module);
    return made;
  };
  const std::int64_t half = g.shape(table).dims[0];
  const std::int64_t seq = g.options().seq;
  const TensorId row = g.view(positions, Shape{1, 1, seq});
  const TensorId wide = g.make(Op::Cast, Shape{1, 1, seq}, DType::Float32, {row});
  g.drop({row});
  const TensorId column = g.view(frequencies, Shape{1, half, 1});
  const TensorId product = g.make(Op::Matmul, Shape{1, half, seq}, DType::Float32, {column, wide});
  g.drop({column});
  const TensorId angles = g.view(product, Shape{1, seq, half}, {step_swap(1, 2)});
  g.drop({product});
  if (parts.complex) {
    const TensorId numbers = g.make(Op::Polar, Shape{1, seq, half, 2}, DType::Float32, {angles});
    const Waves complex{g.unary(Op::MulScalar, numbers, 1), kNone};
    g.drop({numbers, wide, angles});
    return leave(complex);
  }
  const TensorId both = parts.half_tables ? g.keep(angles)
                        : parts.paired_tables
                            ? g.make(Op::RepeatInterleave, Shape{1, seq, 2 * half}, DType::Float32, {angles})
                            : g.cat(angles, angles);
  Waves waves{scaled_wave(g, Op::Cos, both), scaled_wave(g, Op::Sin, both)};
  if (!parts.wide_tables) {
    const Waves narrow{g.cast(waves.cos, g.options().dtype), g.cast(waves.sin, g.options().dtype)};
    g.drop({wide, angles, both, waves.cos, waves.sin});
    waves = narrow;
  } else {
    g.drop({wide, angles, both});
  }
  return leave(waves);
}

TensorId turned_by(GraphBuilder& g, TensorId x, const Waves& waves, const RotaryParts& parts) {
  return turn(g, parts, x, waves);
}

// liger_rotary_pos_emb.
QueryKey liger_rotary(GraphBuilder& g, QueryKey x, const Waves& waves) {
  const Dimensions& d = g.dims();
  const bool queries = g.options().seq > 1 && d.heads > 1 && queries_come_back_by_head(g.options(), d, false);
  const bool keys = g.options().seq > 1 && d.kv_heads > 1 && values_come_back_by_head(g.options(), d, false);
  const auto [q, k] = turned_in_place(g, {x.q, x.k, waves.cos, waves.sin}, (queries ? 1 : 0) + (keys ? 2 : 0));
  g.drop({x.q, x.k});
  return {q, k};
}

QueryKey apply_rotary(GraphBuilder& g, const RotaryParts& parts, QueryKey x, const Waves& waves,
                      std::vector<TensorId>& held) {
  if (g.options().liger_kernels.rotary) return liger_rotary(g, x, waves);
  const Shape& table = g.shape(waves.cos);
  const Shape by_head = parts.complex ? Shape{1, 1, table.dims[1], table.dims[2], 2}
                                      : Shape{table.dims[0], 1, table.dims[1], table.dims[2]};
  Waves seen{g.view(waves.cos, by_head), waves.sin == kNone ? kNone : g.view(waves.sin, by_head)};
  if (parts.repeats_tables) {
    const auto repeat = [&](TensorId wave) {
      const TensorId half = g.slice(wave, 3, 0, by_head.dims[3] / 2);
      const TensorId twice = g.make(Op::RepeatInterleave, by_head, g.dtype(wave), {half});
      g.drop({half, wave});
      return twice;
    };
    seen.cos = repeat(seen.cos);
    seen.sin = repeat(seen.sin);
  }
  QueryKey out;
  if (parts.half_tables) {
    out = {turn_chunks(g, x.q, seen), turn_chunks(g, x.k, seen)};
    g.drop({x.q, x.k});
  } else if (parts.complex) {
    const QueryKey numbers{complex_pairs(g, x.q), complex_pairs(g, x.k)};
    out = {turn_complex(g, x.q, numbers.q, seen.cos), turn_complex(g, x.k, numbers.k, seen.cos)};
    g.drop({numbers.q, numbers.k, x.q, x.k});
  } else if (parts.sorts_pairs) {
    out = sorted_pairs(g, x, seen);
  } else if (parts.part != RotaryPart::Whole) {
    out = turn_parts(g, parts, x, seen, held);
  } else if (parts.wide_operands) {
    const DType narrow = g.dtype(x.q);
    const QueryKey wide{g.cast(x.q, DType::Float32), g.cast(x.k, DType::Float32)};
    const QueryKey turned{turn(g, parts, wide.q, seen), turn(g, parts, wide.k, seen)};
    out = {g.cast(turned.q, narrow), g.cast(turned.k, narrow)};
    g.drop({turned.q, turned.k, wide.q, wide.k, x.q, x.k});
  } else {
    const DType narrow = g.dtype(x.q);
    out = {turn(g, parts, x.q, seen), turn(g, parts, x.k, seen)};
    if (parts.wide_tables || parts.wide_halves) {
      const QueryKey cast{g.cast(out.q, narrow), g.cast(out.k, narrow)};
      g.drop({out.q, out.k});
      out = cast;
    }
    g.drop({x.q, x.k});
  }
  g.drop({seen.cos});
  if (seen.sin != kNone) g.drop({seen.sin});
  return out;
}

namespace {

// Each head's norm, if the family has one at this place.
TensorId head_norm(GraphBuilder& g, const DecoderParts& p, ModuleId attention, std::string_view name, HeadNorm place,
                   TensorId x) {
  const ModuleId module = p.head_norm == place ? g.model().child(attention, name) : kNone;
  if (module == kNone) return x;
  const TensorId normed = norm_module(g, p.norm, module, x);
  g.drop({x});
  return normed;
}

struct HeadRow {
  std::string_view projection;
  std::string_view norm;
  std::int64_t count = 0;
  bool by_head = false;  // Its gradient comes head by head.
};

bool normed_by_token(const GraphBuilder& g, const DecoderParts& p, ModuleId attention, const HeadRow& head) {
  const bool by_token = p.head_norm == HeadNorm::ByToken || p.head_norm == HeadNorm::BehindByToken;
  return by_token && g.model().child(attention, head.norm) != kNone;
}

bool copied_back(const GraphBuilder& g, const HeadRow& head) {
  return head.by_head && head.count > 1 && g.options().seq > 1;
}

// proj(x), with the norm of all heads together where the family has one.
TensorId flat_heads(GraphBuilder& g, const DecoderParts& p, ModuleId attention, const HeadRow& head, TensorId x) {
  const std::int64_t width = head.count * g.dims().head_dim;
  const TensorId flat = linear_module(g, g.child(attention, head.projection), x, width);
  return head_norm(g, p, attention, head.norm, HeadNorm::Whole, flat);
}

// .view(B, S, heads, D), rebinding the variable.
TensorId split_heads(GraphBuilder& g, const DecoderParts& p, ModuleId attention, const HeadRow& head, TensorId flat) {
  const Dimensions& d = g.dims();
  const Shape by_token{g.options().micro_batch, g.options().seq, head.count, d.head_dim};
  const bool copied = copied_back(g, head) && normed_by_token(g, p, attention, head);
  const TensorId split = copied ? g.view_copied_back(flat, by_token) : g.view(flat, by_token);
  g.drop({flat});
  return head_norm(g, p, attention, head.norm, HeadNorm::ByToken, split);
}

// .transpose(1, 2), rebinding the variable.
TensorId turned_heads(GraphBuilder& g, const DecoderParts& p, ModuleId attention, const HeadRow& head, TensorId split) {
  const Shape& by_token = g.shape(split);
  const Shape swapped{by_token.dims[0], by_token.dims[2], by_token.dims[1], by_token.dims[3]};
  const bool copied = copied_back(g, head) && !normed_by_token(g, p, attention, head);
  const ViewStep swap = step_swap(1, 2);
  const TensorId out = copied ? g.view_copied_back(split, swapped, {swap}) : g.view(split, swapped, {swap});
  g.drop({split});
  return out;
}

// The norm of all heads together behind the projections, or the Identity in its place.
TensorId normed_behind(GraphBuilder& g, const DecoderParts& p, ModuleId attention, const HeadRow& head, TensorId flat) {
  const ModuleId module = p.head_norm == HeadNorm::WholeBehind ? g.child(attention, head.norm) : kNone;
  if (module == kNone) return flat;
  if (g.model().module_at(module).type != "Identity") {
    return head_norm(g, p, attention, head.norm, HeadNorm::WholeBehind, flat);
  }
  g.enter(module);
  g.exit(module);
  return flat;
}

struct Projected {
  TensorId q = kNone;
  TensorId k = kNone;
  TensorId v = kNone;
  TensorId fused = kNone;  // A variable of the attention.
  TensorId gate = kNone;   // Likewise.
};

// Queries and a gate from one product, head by head: chunk(proj(x).view(B, S, heads, 2 * D), 2, -1).
// `functions`: of axolotl's, the query's first.
TensorId gated_queries(GraphBuilder& g, const DecoderParts& p, ModuleId attention, const HeadRow& head,
                       const Projection& own, const std::vector<TensorId>& functions, TensorId x, TensorId& gate) {
  const TensorId flat = functions.empty() ? linear_module(g, own.module, x, own.features) : functions.front();
  const Dimensions& d = g.dims();
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const TensorId pairs = g.view(flat, Shape{rows, seq, head.count, 2 * d.head_dim});
  g.drop({flat});
  const std::vector<TensorId> halves = split_last(g, pairs, equal_widths(g, pairs, 2));
  g.drop({pairs});
  const TensorId joined = head.count > 1 ? g.copy(halves[1]) : g.keep(halves[1]);
  gate = g.view(joined, Shape{rows, seq, head.count * d.head_dim});
  const TensorId split = g.view(halves[0], g.shape(halves[0]));
  g.drop({joined, halves[1], halves[0]});
  return turned_heads(g, p, attention, head, head_norm(g, p, attention, head.norm, HeadNorm::ByToken, split));
}

std::int64_t query_features(const DecoderParts& p, const Dimensions& d) {
  return (p.gates_queries ? 2 : 1) * d.heads * d.head_dim;
}

// axolotl's attention asks for all three before it views them, by its function or module by module
// (original_apply_qkv); empty in everybody else's.
std::vector<TensorId> asked_at_once(GraphBuilder& g, const std::array<Projection, 3>& all, TensorId x) {
  const AdapterKernels& kernels = g.options().lora_kernels;
  std::vector<TensorId> made;
  if (kernels.qkv) made = adapted_linears(g, all, x);
  if (!made.empty() || !(kernels.qkv || kernels.o)) return made;
  for (const Projection& one : all) made.push_back(linear_module(g, one.module, x, one.features));
  return made;
}

Projected separate(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId x, const LayerInputs& given) {
  const Dimensions& d = g.dims();
  // Rotation's backward sums in fresh zeros, laid out head by head: what is not turned keeps the layout in which the
  // kernel returns it.
  const bool values = values_come_back_by_head(g.options(), d, given.mask != kNone);
  const bool keys = keys_come_back_by_head(g.options(), d, given.mask != kNone);
  // Liger's lies as the projection does.
  const bool liger = given.turns && g.options().liger_kernels.rotary;
  const bool queries = !liger && (given.turns || queries_come_back_by_head(g.options(), d, given.mask != kNone));
  const TensorId whole = copy_to_parallel(g, x);
  Projected made;
  const HeadRow query{"q_proj", p.query_norm, d.heads, queries};
  // What a product makes of the keys' gradient comes back to the projection as a view, which is copied there.
  const bool late =
      p.views_behind && keys && !given.turns && (g.options().eager_attention || g.options().math_attention);
  const HeadRow key{"k_proj", p.key_norm, d.kv_heads, !liger && (given.turns || keys) && !late};
  const HeadRow value{"v_proj", {}, d.kv_heads, values};
  const auto viewed = [&](const HeadRow& head, TensorId flat) {
    const TensorId split = split_heads(g, p, module, head, flat);
    return p.head_norm == HeadNorm::BehindByToken ? split : turned_heads(g, p, module, head, split);
  };
  const std::array<Projection, 3> all{{{g.child(module, query.projection), query_features(p, d)},
                                       {g.child(module, key.projection), key.count * d.head_dim},
                                       {g.child(module, value.projection), value.count * d.head_dim}}};
  const std::vector<TensorId> functions = asked_at_once(g, all, whole);
  const auto project = [&](const HeadRow& head) {
    const std::size_t at = head.projection == query.projection ? 0 : head.projection == key.projection ? 1 : 2;
    const TensorId flat = functions.empty() ? flat_heads(g, p, module, head, whole) : functions[at];
    if (!p.views_behind) return viewed(head, flat);
    if (!late || head.projection != key.projection) return flat;
    const TensorId back = g.view_copied_back(flat, g.shape(flat));
    g.drop({flat});
    return back;
  };
  made.q = p.gates_queries ? gated_queries(g, p, module, query, all[0], functions, whole, made.gate) : project(query);
  made.k = project(key);
  made.v = project(value);
  if (p.views_behind) {
    made.q = normed_behind(g, p, module, query, made.q);
    made.k = normed_behind(g, p, module, key, made.k);
    made.q = viewed(query, made.q);
    made.k = viewed(key, made.k);
    made.v = viewed(value, made.v);
  }
  if (p.head_norm == HeadNorm::BehindByToken) {
    made.q = head_norm(g, p, module, p.query_norm, HeadNorm::BehindByToken, made.q);
    made.k = head_norm(g, p, module, p.key_norm, HeadNorm::BehindByToken, made.k);
    made.q = turned_heads(g, p, module, query, made.q);
    made.k = turned_heads(g, p, module, key, made.k);
    made.v = turned_heads(g, p, module, value, made.v);
  }
  g.drop({whole});
  return made;
}

// Slices of one product, each viewed by heads.
Projected fused(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId x, const LayerInputs& given) {
  const Dimensions& d = g.dims();
  const std::int64_t query = d.heads * d.head_dim;
  const std::int64_t key = d.kv_heads * d.head_dim;
  Projected made;
  made.fused = linear_module(g, g.child(module, p.fused_projection), x, query + 2 * key);
  const TensorId q = g.slice(made.fused, 2, 0, query);
  const TensorId k = g.slice(made.fused, 2, query, key);
  const TensorId v = g.slice(made.fused, 2, query + key, key);
  made.q = by_heads(g, q, d.heads, d.head_dim, true);
  made.k = by_heads(g, k, d.kv_heads, d.head_dim, true);
  made.v = by_heads(g, v, d.kv_heads, d.head_dim, values_come_back_by_head(g.options(), d, given.mask != kNone));
  return made;
}

// proj(x).view(B, S, heads, 3 * D).transpose(1, 2).chunk(3, -1); the three gradients are joined head by head.
Projected fused_heads(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId x) {
  const Dimensions& d = g.dims();
  const TensorId flat = linear_module(g, g.child(module, p.fused_projection), x, 3 * d.heads * d.head_dim);
  Projected made;
  made.fused = by_heads(g, flat, d.heads, 3 * d.head_dim, true);
  const std::vector<TensorId> parts = split_last(g, made.fused, equal_widths(g, made.fused, 3));
  made.q = parts[0];
  made.k = parts[1];
  made.v = parts[2];
  return made;
}

// proj(x).view(B, S, 3, heads, D).unbind(2), each transposed; the gradients are brought together by one copy.
Projected fused_thirds(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId x) {
  const Dimensions& d = g.dims();
  Projected made;
  made.fused = linear_module(g, g.child(module, p.fused_projection), x, 3 * d.heads * d.head_dim);
  const std::vector<TensorId> parts = split_last(g, made.fused, equal_widths(g, made.fused, 3));
  made.q = by_heads(g, parts[0], d.heads, d.head_dim, false);
  made.k = by_heads(g, parts[1], d.heads, d.head_dim, false);
  made.v = by_heads(g, parts[2], d.heads, d.head_dim, false);
  return made;
}

Projected projected(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId x, const LayerInputs& given) {
  switch (p.projections) {
    case Projections::Fused: return fused(g, p, module, x, given);
    case Projections::FusedHeads: return fused_heads(g, p, module, x);
    case Projections::FusedThirds: return fused_thirds(g, p, module, x);
    default: break;
  }
  return separate(g, p, module, x, given);
}

// nn.functional.dropout at the end of attention and MLP; rebinds the variable.
TensorId inner_dropout(GraphBuilder& g, const DecoderParts& p, TensorId x) {
  const Dimensions& d = g.dims();
  if (!p.inner_dropout) return x;
  const TensorId out = g.dropout(x, d.residual_dropout);
  g.drop({x});
  return out;
}

// LigerSwiGLUMLP.
TensorId liger_gated(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden, std::int64_t ffn) {
  const TensorId gate = linear_module(g, g.child(module, p.gate), hidden, ffn);
  const TensorId up = linear_module(g, g.child(module, p.up), hidden, ffn);
  const TensorId product = g.make(Op::LigerSiluMul, g.shape(gate), g.dtype(gate), {gate, up}, true);
  g.drop({gate, up});
  const TensorId out = linear_module(g, g.child(module, p.down), product, g.dims().hidden);
  g.drop({product});
  return out;
}

TensorId gated(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden, std::int64_t ffn) {
  if (g.options().lora_kernels.mlp) {
    const std::array<Projection, 3> all{
        {{g.child(module, p.gate), ffn}, {g.child(module, p.up), ffn}, {g.child(module, p.down), g.dims().hidden}}};
    if (const TensorId out = adapted_gated(g, all, hidden); out != kNone) return out;
  }
  if (g.options().liger_kernels.swiglu) return liger_gated(g, p, module, hidden, ffn);
  const TensorId whole = copy_to_parallel(g, hidden);
  const TensorId gate = linear_module(g, g.child(module, p.gate), whole, ffn);
  const TensorId active = p.activation.empty() ? activated(g, g.dims().activation, gate)
                                               : activation_module(g, g.child(module, p.activation), gate);
  g.drop({gate});
  const TensorId up = linear_module(g, g.child(module, p.up), whole, ffn);
  g.drop({whole});
  const TensorId product = g.binary(Op::Mul, active, up);
  g.drop({active, up});
  const TensorId out = row_linear_module(g, g.child(module, p.down), product, g.dims().hidden);
  g.drop({product});
  return inner_dropout(g, p, out);
}

TensorId fused_gate(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden, std::int64_t ffn) {
  const TensorId both = linear_module(g, g.child(module, p.up), hidden, 2 * ffn);
  const std::vector<TensorId> halves = split_last(g, both, equal_widths(g, both, 2));
  g.drop({both});
  const TensorId active = activation_module(g, g.child(module, p.activation), halves[0]);
  const TensorId product = p.gates_first ? g.binary(Op::Mul, active, halves[1]) : g.binary(Op::Mul, halves[1], active);
  g.drop({active});
  if (!p.gates_first) g.drop({halves[1]});  // Whose name the product takes.
  const TensorId out = linear_module(g, g.child(module, p.down), product, g.dims().hidden);
  g.drop({product, halves[0]});
  if (p.gates_first) g.drop({halves[1]});
  return out;
}

TensorId plain(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden, std::int64_t ffn) {
  const TensorId wide = linear_module(g, g.child(module, p.up), hidden, ffn);
  const TensorId active = activation_module(g, g.child(module, p.activation), wide);
  g.drop({wide});
  const TensorId out = linear_module(g, g.child(module, p.down), active, g.dims().hidden);
  g.drop({active});
  return inner_dropout(g, p, out);
}

// `held` takes what the attention's own variables hold until it returns.
QueryKey turned_projections(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                            const LayerInputs& given, TensorId& value, TensorId& gate, std::vector<TensorId>& held) {
  if (p.projections == Projections::ByToken) return token_projections(g, p, module, hidden, given, value, held);
  const Projected made = projected(g, p, module, hidden, given);
  value = made.v;
  gate = made.gate;
  QueryKey x{made.q, made.k};
  x.q = head_norm(g, p, module, p.query_norm, HeadNorm::ByHead, x.q);
  x.k = head_norm(g, p, module, p.key_norm, HeadNorm::ByHead, x.k);
  if (given.turns) x = apply_rotary(g, p.rotary, x, given.waves, held);
  if (p.tempered_behind) x.q = tempered_behind(g, p, x.q, given.ids);
  x.q = head_norm(g, p, module, p.query_norm, HeadNorm::AfterRotary, x.q);
  x.k = head_norm(g, p, module, p.key_norm, HeadNorm::AfterRotary, x.k);
  if (made.fused != kNone) held.insert(held.begin(), made.fused);
  return x;
}

}  // namespace

TensorId heads_of_tokens(GraphBuilder& g, ModuleId projection, TensorId x, std::int64_t heads, bool copied_back) {
  const std::int64_t width = g.dims().head_dim;
  const TensorId flat = linear_module(g, projection, x, heads * width);
  const Shape apart{g.options().micro_batch, g.options().seq, heads, width};
  const TensorId out = copied_back ? g.view_copied_back(flat, apart) : g.view(flat, apart);
  g.drop({flat});
  return out;
}

void keep_in_cache(GraphBuilder& g, TensorId& key, TensorId& value, std::vector<TensorId>& cache, bool slides) {
  if (slides) cache.push_back(g.filled(Shape{}, DType::Int64, 0));
  const auto joined = [&](TensorId& x) {
    const TensorId made = g.make(Op::Cat, g.shape(x), g.dtype(key), {x}, true);
    cache.push_back(g.keep(made));
    return made;
  };
  const std::array<TensorId, 2> before{key, value};
  const TensorId keys = joined(key);
  value = joined(value);
  key = keys;
  g.drop({before[0], before[1]});
}

Attended attention_module(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                          const LayerInputs& given) {
  const Dimensions& d = g.dims();
  g.enter(module);
  AttentionCall call;
  std::vector<TensorId> held;
  QueryKey x;
  TensorId gate = kNone;
  if (p.projections == Projections::Latent) {
    Latents made = latent_projections(g, p, module, hidden, given);
    x = made.turned;
    call.v = made.v;
    held = std::move(made.held);
    call.by_head = true;
  } else {
    x = turned_projections(g, p, module, hidden, given, call.v, gate, held);
    call.by_head = given.turns && (p.rotary.part != RotaryPart::Whole || p.rotary.half_tables);
  }
  if (given.cache != nullptr) {
    keep_in_cache(g, x.k, call.v, *given.cache, given.slides);
    call.keys_by_head = call.values_by_head = true;
  }
  call.q = x.q;
  call.k = x.k;
  call.mask = given.mask;
  call.full = p.full;
  if (p.bare_softmax) call.softmax = SoftmaxKind::Bare;
  if (p.sinks || p.sinks_scale) call.sinks = g.parameter("sinks");
  call.sinks_scale = p.sinks_scale;
  call.softcap = d.attention_softcap;
  call.dropout = d.attention_dropout;
  call.scale = p.attention_scale;
  Attended attended = attend(g, call);
  if (gate != kNone) {
    const TensorId open = g.unary(Op::Sigmoid, gate);
    const TensorId product = g.binary(Op::Mul, attended.flat, open);
    g.drop({open, attended.flat});
    attended.flat = product;
    held.push_back(gate);
  }
  const Projection last{g.child(module, p.output), d.hidden};
  std::vector<TensorId> function;
  if (g.options().lora_kernels.o) function = adapted_linears(g, {&last, 1}, attended.flat);
  TensorId out = function.empty() ? row_linear_module(g, last.module, attended.flat, d.hidden) : function.front();
  g.drop({attended.flat});
  out = inner_dropout(g, p, out);
  if (!p.output_dropout.empty()) {
    const ModuleId dropout = g.child(module, p.output_dropout);
    const bool none = g.model().module_at(dropout).type == "Identity";
    const TensorId dropped = dropout_module(g, dropout, out, none ? 0 : d.attention_dropout);
    g.drop({out});
    out = dropped;
  }
  g.drop({call.q, call.k, call.v});
  for (TensorId one : held) g.drop({one});
  g.exit(module);
  return {out, attended.weights};
}

TensorId mlp_module(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden, std::int64_t ffn) {
  g.enter(module);
  TensorId out = kNone;
  switch (p.mlp) {
    case MlpKind::Gated: out = gated(g, p, module, hidden, ffn); break;
    case MlpKind::FusedGate: out = fused_gate(g, p, module, hidden, ffn); break;
    case MlpKind::Plain: out = plain(g, p, module, hidden, ffn); break;
  }
  g.exit(module);
  return out;
}

}  // namespace dsplan
