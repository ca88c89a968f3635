// Attention between the projections, as transformers runs it; for src/model/graphs/*.cpp only.
// Source: integrations/sdpa_attention.py and eager_attention_forward of models/<family>/modeling_<family>.py, in
// transformers 4.53.3, 4.57.6 and 5.17.0; aten/src/ATen/native/transformers/attention.cpp for the math kernel and for
// what comes before the memory-efficient one.
#pragma once

#include "model/graphs/builder.h"

namespace dsplan {

enum class SoftmaxKind : std::uint8_t {
  Wide,    // In fp32, then back.
  Values,  // Then in the values' dtype.
  Bare,
};

struct AttentionCall {
  // Heads before tokens, [B, H, S, D], in the memory layout of [B, S, H, D] or, with `by_head`, of their own. k and v
  // may have fewer heads.
  TensorId q = kNone;
  TensorId k = kNone;
  TensorId v = kNone;
  TensorId mask = kNone;  // Eager: added to the scores; otherwise flags. kNone: causal by flag.
  // What is learned of each pair of tokens, added to the scores before the mask: [1, H, Sq, Sk].
  TensorId bias = kNone;
  bool strided_bias = false;                // Heads are its innermost dimension.
  bool by_head = false;                     // q and k, not v.
  bool keys_by_head = false;                // k, where q is not.
  bool values_by_head = false;              // v.
  double softcap = 0;                       // Eager only, 0: none.
  double scale = 0;                         // Of the scores. 0: one by the root of a head's width.
  double dropout = 0;                       // Of the weights.
  SoftmaxKind softmax = SoftmaxKind::Wide;  // Eager only.
  TensorId sinks = kNone;                   // Eager only: of each head, a score beside those of the keys.
  bool sinks_scale = false;                 // They scale what is given instead, by how far scores outweigh them.
  bool full = false;                        // Each token sees every other.
  bool wide = false;                        // Eager only: q and k are brought to fp32 first (gptj, gpt_neo).
  double divisor = 0;                       // Of the scores, in the place of a factor (gptj).
  TensorId seen = kNone;                    // Flags of who sees whom, in the place of either (gpt_neo).
  ModuleId dropped_by = kNone;              // The module that drops weights out, where one is asked.
  bool shared = false;                      // Other layers read k and v as well.
  bool fused = false;                       // By `attention`'s kernel, though others take math.
};

struct Attended {
  TensorId flat = kNone;     // [B, S, H * D]
  TensorId weights = kNone;  // Eager only: the caller holds them until the layer returns.
};

// The caller keeps its references to q, k and v.
[[nodiscard]] Attended attend(GraphBuilder& g, const AttentionCall& call);

// flat.view(B, S, heads, width).transpose(1, 2); uses up `flat`. `copied_back`: its gradient comes head by head.
[[nodiscard]] TensorId by_heads(GraphBuilder& g, TensorId flat, std::int64_t heads, std::int64_t width,
                                bool copied_back);
// x.transpose(1, 2) of four dimensions; uses up `x`.
[[nodiscard]] TensorId heads_before_tokens(GraphBuilder& g, TensorId x);

// Rows of heads, [B * H, S, D], as [B, S, H * D], where products ran over those; uses up `x`.
[[nodiscard]] TensorId merged_heads(GraphBuilder& g, TensorId x);

// Whether the kernel takes padded copies of queries, keys and values: flash, where heads are not aligned to 8 elements.
[[nodiscard]] bool pads_heads(const GraphOptions& options, std::int64_t head_dim, bool masked);
// Likewise of queries that are not turned.
[[nodiscard]] bool queries_come_back_by_head(const GraphOptions& options, const Dimensions& dims, bool masked);
// Likewise of keys that are not turned.
[[nodiscard]] bool keys_come_back_by_head(const GraphOptions& options, const Dimensions& dims, bool masked);
// Whether the gradient of the values comes head by head, so that it has to be copied to become the projection's.
[[nodiscard]] bool values_come_back_by_head(const GraphOptions& options, const Dimensions& dims, bool masked);

}  // namespace dsplan
