// gemma4's layers: heads that are normed and turned before they change places with the tokens, values normed as well,
// keys and values that later layers read, a second embedding's part for each layer, and experts beside the MLP.
#include "model/graphs/decoders/gemma4.h"

#include <cmath>

#include "model/graphs/linear.h"
#include "model/graphs/mixtures/experts.h"

namespace dsplan {
namespace {

TensorId normed(GraphBuilder& g, ModuleId parent, std::string_view name, TensorId x) {
  return norm_module(g, NormKind::RmsPower, g.child(parent, name), x);
}

// apply_rotary_pos_emb(x, cos, sin, unsqueeze_dim=2), rebinding the variable.
void turn_by_token(GraphBuilder& g, const Waves& waves, TensorId& x) {
  const Shape& table = g.shape(waves.cos);
  const Shape by_token{table.dims[0], table.dims[1], 1, table.dims[2]};
  const Waves seen{g.view(waves.cos, by_token), g.view(waves.sin, by_token)};
  const TensorId out = turned_by(g, x, seen);
  g.drop({seen.cos, seen.sin});
  rebind(g, x, out);
}

// Keys and values of the layer's own.
// `in_turn`: the values' projection is asked behind all that is done to keys (gemma3n).
QueryKey own_keys(GraphBuilder& g, ModuleId module, TensorId hidden, const Waves& waves, bool by_head, bool in_turn) {
  const std::int64_t heads = g.dims().kv_heads;
  const ModuleId projection = g.model().child(module, "v_proj");
  TensorId keys = heads_of_tokens(g, g.child(module, "k_proj"), hidden, heads, by_head && projection == kNone);
  const auto viewed = [&] {
    return projection == kNone ? g.keep(keys) : heads_of_tokens(g, projection, hidden, heads, by_head);
  };
  TensorId values = in_turn ? kNone : viewed();
  rebind(g, keys, normed(g, module, "k_norm", keys));
  turn_by_token(g, waves, keys);
  keys = heads_before_tokens(g, keys);
  if (in_turn) values = viewed();
  rebind(g, values, normed(g, module, "v_norm", values));
  return {keys, heads_before_tokens(g, values)};
}

KeysOf keys_of(const DecoderParts& p, std::int64_t layers, std::size_t layer) {
  const auto first = static_cast<std::size_t>(p.sharing.first_reader(layers));
  if (layer >= first) return {true, false};
  for (std::size_t later = layer + 1; later < first; ++later) {
    if (p.kinds[later] == p.kinds[layer]) return {};
  }
  return {false, true};
}

// Whether heads are repeated for the kernel: each where there is a mask, and wide ones always (use_gqa_in_sdpa).
bool repeats_heads(const GraphBuilder& g, bool masked) {
  const Dimensions& d = g.dims();
  if (d.heads == d.kv_heads) return false;
  return g.options().eager_attention || masked || d.head_dim > kWidestHeads;
}

}  // namespace

Attended attend_shared(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                       const LayerInputs& given, KeysOf does, QueryKey& shared) {
  const Dimensions& d = g.dims();
  g.enter(module);
  AttentionCall call;
  call.q = heads_of_tokens(g, g.child(module, "q_proj"), hidden, d.heads, false);
  rebind(g, call.q, normed(g, module, "q_norm", call.q));
  turn_by_token(g, given.waves, call.q);
  call.q = heads_before_tokens(g, call.q);
  const bool repeats = repeats_heads(g, given.mask != kNone);
  const bool several = d.kv_heads > 1 && g.options().seq > 1;
  const bool by_head = several && values_come_back_by_head(g.options(), d, repeats);
  const QueryKey keys = does.reads ? QueryKey{g.keep(shared.q), g.keep(shared.k)}
                                   : own_keys(g, module, hidden, given.waves, by_head, p.altup.inputs > 0);
  if (does.stores) {
    shared = {g.keep(keys.q), g.keep(keys.k)};
    share(g, keys.q);
    share(g, keys.k);
  }
  call.k = keys.q;
  call.v = keys.k;
  call.shared = true;
  call.mask = given.mask;
  call.dropout = d.attention_dropout;
  call.scale = p.attention_scale;
  Attended attended = attend(g, call);
  const TensorId out = linear_module(g, g.child(module, "o_proj"), attended.flat, d.hidden);
  g.drop({attended.flat, call.q, call.k, call.v});
  attended.flat = out;
  g.exit(module);
  return attended;
}

namespace {

// router_probabilities, weights and experts of rows of tokens.
Routed route_normed(GraphBuilder& g, ModuleId router, TensorId rows) {
  const Dimensions& d = g.dims();
  const Shape chosen{g.shape(rows).dims[0], d.experts_per_token};
  g.enter(router);
  const TensorId plain = normed(g, router, "norm", rows);
  const TensorId scaled = g.binary(Op::Mul, plain, g.parameter("scale"));
  const TensorId narrowed = g.unary(Op::MulScalar, scaled, 1 / std::sqrt(static_cast<double>(d.hidden)));
  g.drop({scaled, plain});
  const TensorId scores = linear_module(g, g.child(router, "proj"), narrowed, d.experts);
  const TensorId probabilities = wide_probabilities(g, scores);
  const auto [top, experts] = g.select(Op::TopK, probabilities, chosen);
  const TensorId divided = divided_by_sum(g, top);
  const TensorId of_expert = g.parameter("per_expert_scale");
  const TensorId factors = g.make(Op::Index, chosen, g.dtype(of_expert), {of_expert, experts}, true);
  const TensorId weights = g.binary(Op::Mul, divided, factors);
  g.drop({factors, divided, scores, narrowed});
  g.exit(router);
  return {probabilities, weights, experts};
}

// What the layer's own variables hold of its experts until it returns.
struct Beside {
  TensorId sum = kNone;
  std::vector<TensorId> held;
};

// norm_1(fed) + norm_2(experts(norm(residual))).
Beside beside_experts(GraphBuilder& g, const DecoderParts& p, ModuleId layer, TensorId residual, TensorId fed) {
  const Shape shape = g.shape(residual);
  const TensorId first = normed(g, layer, "post_feedforward_layernorm_1", fed);
  const TensorId flat = g.view(residual, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  const Routed routed = route_normed(g, g.child(layer, "router"), flat);
  TensorId second = normed(g, layer, "pre_feedforward_layernorm_2", flat);
  const TensorId rows = run_experts(g, p.experts, g.child(layer, "experts"), second, routed);
  g.drop({second});
  second = g.view(rows, shape);
  g.drop({rows});
  rebind(g, second, normed(g, layer, "post_feedforward_layernorm_2", second));
  const TensorId sum = g.binary(Op::Add, first, second);
  return {sum, {first, flat, routed.logits, routed.weights, routed.experts, second}};
}

// residual + norm(branch), which is used up.
TensorId joined(GraphBuilder& g, ModuleId layer, std::string_view norm, TensorId residual, TensorId branch) {
  rebind(g, branch, normed(g, layer, norm, branch));
  const TensorId out = g.binary(Op::Add, residual, branch);
  g.drop({branch});
  return out;
}

// residual + norm(project(act(gate(residual)) * own)); uses up the residual.
TensorId with_own_input(GraphBuilder& g, ModuleId layer, TensorId residual, TensorId own) {
  const std::int64_t width = g.shape(own).dims[2];
  const TensorId gate = linear_module(g, g.child(layer, "per_layer_input_gate"), residual, width);
  const TensorId active = activation_module(g, g.child(layer, "act_fn"), gate);
  g.drop({gate});
  const TensorId product = g.binary(Op::Mul, active, own);
  g.drop({active});
  const TensorId wide = linear_module(g, g.child(layer, "per_layer_projection"), product, g.dims().hidden);
  g.drop({product});
  const TensorId out = joined(g, layer, "post_per_layer_input_norm", residual, wide);
  g.drop({residual});
  return out;
}

// Keys and values that layers read which have none, by kind of layer; a variable of the body's.
struct SharedKeys {
  QueryKey full;  // `q`: the keys; `k`: the values.
  QueryKey sliding;
};

// The layer's own widths: of heads by its kind, of its feed-forward by whether it reads keys of others.
Dimensions dims_of(const GraphBuilder& g, const DecoderParts& p, std::size_t layer, bool reads) {
  Dimensions d = g.dims();
  if (p.kinds[layer] == LayerKind::Full) {
    d.head_dim = p.sharing.wide.head_dim;
    d.kv_heads = p.sharing.wide.kv_heads;
  }
  if (reads && p.sharing.wide_readers) d.ffn *= 2;
  return d;
}

// One layer, called with the running tensor and `own`, its part of what own_inputs gives, or kNone.
TensorId sharing_layer(GraphBuilder& g, const DecoderParts& p, ModuleId layer, std::size_t index, TensorId hidden,
                       TensorId own, const LayerInputs& given, SharedKeys& shared) {
  const KeysOf does = keys_of(p, static_cast<std::int64_t>(p.kinds.size()), index);
  const Dimensions dims = dims_of(g, p, index, does.reads);
  const GraphBuilder::Within within(g, dims, g.options().micro_batch, g.options().seq);
  const bool wide = p.kinds[index] == LayerKind::Full;
  QueryKey& of_kind = wide ? shared.full : shared.sliding;
  if (p.altup.inputs > 0) return altup_layer(g, p, layer, index, hidden, own, given, does, of_kind);
  g.enter(layer);
  TensorId normal = normed(g, layer, p.before_attention, hidden);
  Attended attended = attend_shared(g, p, g.child(layer, p.attention), normal, given, does, of_kind);
  g.drop({normal});
  const TensorId middle = joined(g, layer, p.after_attention, hidden, attended.flat);
  normal = normed(g, layer, p.before_mlp, middle);
  TensorId fed = mlp_module(g, p, g.child(layer, p.feed_forward), normal, dims.ffn);
  g.drop({normal});
  Beside beside;
  if (dims.experts > 0) {
    beside = beside_experts(g, p, layer, middle, fed);
    if (attended.weights != kNone) g.drop({attended.weights});  // Whose name the router's first result takes.
    attended.weights = kNone;
    g.drop({fed});
    fed = beside.sum;
  }
  TensorId out = joined(g, layer, p.after_mlp, middle, fed);
  g.drop({middle});
  if (own != kNone) out = with_own_input(g, layer, out, own);
  const TensorId scaled = g.in_place(Op::Mul, out, g.buffer("layer_scalar"));
  g.drop({out});
  if (attended.weights != kNone) g.drop({attended.weights});
  for (const TensorId one : beside.held) g.drop({one});
  g.exit(layer);
  return scaled;
}

}  // namespace

TensorId own_words(GraphBuilder& g, const DecoderParts& p, ModuleId body, TensorId ids) {
  const Shape tokens = g.shape(ids);
  const auto layers = static_cast<std::int64_t>(p.kinds.size());
  const TensorId found = scaled_words(g, g.child(body, "embed_tokens_per_layer"), ids);
  const TensorId own = g.view(found, Shape{tokens.dims[0], tokens.dims[1], layers, p.sharing.own_width});
  g.drop({found});
  return own;
}

TensorId own_inputs(GraphBuilder& g, const SharingParts& p, ModuleId body, TensorId own, TensorId embedded) {
  const Shape apart = g.shape(own);
  const std::int64_t layers = apart.dims[2];
  const TensorId flat = linear_module(g, g.child(body, "per_layer_model_projection"), embedded, layers * p.own_width);
  const TensorId scaled = g.unary(Op::MulScalar, flat, 1 / std::sqrt(static_cast<double>(g.dims().hidden)));
  g.drop({flat});
  TensorId projected = g.view(scaled, apart);
  g.drop({scaled});
  rebind(g, projected, normed(g, body, "per_layer_projection_norm", projected));
  const TensorId sum = g.binary(Op::Add, projected, own);
  const TensorId out = g.unary(Op::MulScalar, sum, 1 / std::sqrt(2.0));
  g.drop({sum, projected, own});
  return out;
}

TensorId sharing_layers(GraphBuilder& g, const DecoderParts& p, ModuleId list, TensorId hidden, TensorId own,
                        const std::function<LayerInputs(std::size_t layer)>& given_to, std::vector<TensorId>& held) {
  const Shape part{g.options().micro_batch, g.options().seq, p.sharing.own_width};
  SharedKeys shared;
  std::size_t index = 0;
  TensorId last = kNone;
  for (const ModuleId module : modules_of(g.model(), list)) {
    const LayerInputs given = given_to(index);
    if (own != kNone) {
      const TensorId line = g.slice(own, 2, static_cast<std::int64_t>(index), 1);
      const TensorId next = g.view(line, part);
      g.drop({line});
      if (last != kNone) g.drop({last});
      last = next;
    }
    std::vector<TensorId> keywords{given.waves.cos, given.waves.sin, given.ids, given.mask};
    std::erase(keywords, kNone);
    hidden = led_in(g, module, hidden);
    const std::vector<TensorId> arguments = own == kNone ? std::vector{hidden} : std::vector{hidden, last};
    const std::int32_t region = g.begin_region({arguments, std::move(keywords), {}, {}});
    const TensorId out = sharing_layer(g, p, module, index++, hidden, last, given, shared);
    g.end_region(region);
    g.drop({hidden});
    hidden = out;
  }
  for (const TensorId one : {shared.full.q, shared.full.k, shared.sliding.q, shared.sliding.k, last}) {
    if (one != kNone) held.push_back(one);
  }
  return hidden;
}

}  // namespace dsplan
