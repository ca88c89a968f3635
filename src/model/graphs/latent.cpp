// Attention from latents, as deepseek_v2 and deepseek_v3 have it: queries through a rank of their own or directly, keys
// and values from one latent, and a rotated part of the key that all heads share.
#include "model/graphs/linear.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

TensorId queries(GraphBuilder& g, const DecoderParts& p, ModuleId attention, TensorId hidden) {
  const std::int64_t heads = g.dims().heads;
  const std::int64_t width = p.latent.nope + p.latent.rope;
  if (p.latent.query_rank == 0) {
    return by_heads(g, linear_module(g, g.child(attention, "q_proj"), hidden, heads * width), heads, width, true);
  }
  const TensorId thin = linear_module(g, g.child(attention, "q_a_proj"), hidden, p.latent.query_rank);
  const TensorId normed = norm_module(g, p.norm, g.child(attention, "q_a_layernorm"), thin);
  g.drop({thin});
  const TensorId flat = linear_module(g, g.child(attention, "q_b_proj"), normed, heads * width);
  g.drop({normed});
  return by_heads(g, flat, heads, width, true);
}

// new_empty, then copy_ into each of its parts.
TensorId joined_keys(GraphBuilder& g, TensorId still, TensorId turned) {
  Shape shape = g.shape(still);
  const std::int64_t nope = shape.dims[3];
  shape.dims[3] += g.shape(turned).dims[3];
  const TensorId empty = g.filled(shape, g.dtype(still), 0);
  const TensorId half = g.in_place(Op::CopyInto, empty, still, 3, 0);
  const TensorId keys = g.in_place(Op::CopyInto, half, turned, 3, nope);
  g.drop({empty, half});
  return keys;
}

}  // namespace

Latents latent_projections(GraphBuilder& g, const DecoderParts& p, ModuleId attention, TensorId hidden,
                           const LayerInputs& given) {
  const LatentParts& l = p.latent;
  const std::int64_t heads = g.dims().heads;
  const Shape rows{g.options().micro_batch, 1, g.options().seq, l.key_rank};
  Latents made;
  const TensorId q = queries(g, p, attention, hidden);
  const std::vector<TensorId> q_parts = split_last(g, q, {l.nope, l.rope});
  const TensorId compressed = linear_module(g, g.child(attention, "kv_a_proj_with_mqa"), hidden, l.key_rank + l.rope);
  const std::vector<TensorId> latents = split_last(g, compressed, {l.key_rank, l.rope});
  const TensorId normed = norm_module(g, p.norm, g.child(attention, "kv_a_layernorm"), latents[0]);
  const TensorId latent = g.view(normed, rows);
  const TensorId shared = g.view(latents[1], Shape{rows.dims[0], 1, rows.dims[2], l.rope});
  g.drop({latents[0], latents[1], normed});
  const QueryKey turned = apply_rotary(g, p.rotary, {q_parts[1], shared}, given.waves, made.held);
  made.turned.q = g.cat(q_parts[0], turned.q);
  if (p.tempered_behind) made.turned.q = tempered_behind(g, p, made.turned.q, given.ids);
  const TensorId both =
      by_heads(g, linear_module(g, g.child(attention, "kv_b_proj"), latent, heads * (l.nope + l.value)), heads,
               l.nope + l.value, true);
  const std::vector<TensorId> parts = split_last(g, both, {l.nope, l.value});
  const TensorId repeated = g.view(turned.k, Shape{rows.dims[0], heads, rows.dims[2], l.rope}, Op::Expand);
  made.turned.k = joined_keys(g, parts[0], repeated);
  made.v = parts[1];
  g.drop({parts[0], repeated, both});
  made.held.insert(made.held.end(), {q, q_parts[0], turned.q, compressed, latent, turned.k});
  return made;
}

}  // namespace dsplan
