// What layers are made of, as operators: norms, positions, MLPs and projections by the kinds of model/parts.h; for
// src/model/graphs/*.cpp only.
#pragma once

#include <functional>

#include "model/graphs/attention.h"
#include "model/graphs/builder.h"
#include "model/parts.h"

namespace dsplan {

// A norm module's call. `strided`: x does not lie row by row (of NormKind::Layer alone).
[[nodiscard]] TensorId norm_module(GraphBuilder& g, NormKind kind, ModuleId module, TensorId x, bool strided = false);
// x[:, 0].
[[nodiscard]] TensorId first_place(GraphBuilder& g, TensorId x);
// A module of patches, whose convolution `projection` makes side * side places of each picture: [B, side * side,
// hidden].
[[nodiscard]] TensorId patches_module(GraphBuilder& g, ModuleId module, std::int64_t side, TensorId pixels);
// Places of pictures behind a token of their class, with learned positions and dropout: what is left of the embeddings'
// module, which is the current one. Lets go of `places`. `positions` makes them where they are not the parameter
// itself.
using Positions = std::function<TensorId()>;
[[nodiscard]] TensorId behind_class_token(GraphBuilder& g, const Dimensions& d, ModuleId module, TensorId places,
                                          const Positions& positions = {});
// An Embedding module's call; `padding` and `turned` as of embedding.
[[nodiscard]] TensorId table_module(GraphBuilder& g, ModuleId module, TensorId ids, std::int64_t padding = -1,
                                    bool turned = false);
// The same of words, whose table tensor-parallel ranks cut along the vocabulary.
[[nodiscard]] TensorId words_module(GraphBuilder& g, ModuleId module, TensorId ids);
// A table of words, times a buffer of its own (gemma).
[[nodiscard]] TensorId scaled_words(GraphBuilder& g, ModuleId module, TensorId ids);
// A Dropout module's call; `module` kNone: nothing, the same tensor with one more reference.
[[nodiscard]] TensorId dropout_module(GraphBuilder& g, ModuleId module, TensorId x, double p);
// An activation module's call.
[[nodiscard]] TensorId activation_module(GraphBuilder& g, ModuleId module, TensorId x);

// In the order in which they were registered.
[[nodiscard]] std::vector<ModuleId> modules_of(const ModelSpec& model, ModuleId parent);

// Where layers do so (GraphOptions::layers_require_grad) and something in the layer is trained: `hidden` as a leaf,
// which no module below has handed out as one. Uses up `hidden`.
[[nodiscard]] TensorId led_in(GraphBuilder& g, ModuleId layer, TensorId hidden);
// Every layer of a module list, each a region that is called with the running tensor and what `keywords` gives it
// (kNone is left out). Uses up `hidden`; regions are numbered on.
using Keywords = std::function<std::vector<TensorId>(std::size_t layer)>;
using LayerCall = std::function<TensorId(ModuleId module, std::size_t layer, TensorId hidden)>;
[[nodiscard]] TensorId run_layers(GraphBuilder& g, ModuleId list, TensorId hidden, const Keywords& keywords,
                                  const LayerCall& call);
// `behind` stands between layers, outside of checkpoints: what it is given and returns are as `call`'s, but that it
// uses up `hidden` itself.
using BehindLayer = std::function<TensorId(std::size_t layer, TensorId hidden)>;
[[nodiscard]] TensorId run_layers(GraphBuilder& g, ModuleId list, TensorId hidden, const Keywords& keywords,
                                  const LayerCall& call, const BehindLayer& behind);

// Cosines and sines of the positions, [1, S, turned].
struct Waves {
  TensorId cos = kNone;
  TensorId sin = kNone;
};
// `prefix` names the buffer where there is one for each kind of layer ("full_attention_").
[[nodiscard]] Waves rotary_tables(GraphBuilder& g, const RotaryParts& parts, ModuleId module, TensorId positions,
                                  std::string_view prefix = {});
// Queries and keys, turned; the caller's references to them are used up. `held` takes what the attention's own
// variables hold until it returns. The results lie head by head where a rest has been joined on.
struct QueryKey {
  TensorId q = kNone;
  TensorId k = kNone;
};
[[nodiscard]] QueryKey apply_rotary(GraphBuilder& g, const RotaryParts& parts, QueryKey x, const Waves& waves,
                                    std::vector<TensorId>& held);

// One of the two alone, with the parts' own way to turn.
[[nodiscard]] TensorId turned_by(GraphBuilder& g, TensorId x, const Waves& waves, const RotaryParts& parts = {});
// view_as_complex(x.float()), as pairs.
[[nodiscard]] TensorId complex_pairs(GraphBuilder& g, TensorId x);

// What one layer is given.
struct LayerInputs {
  bool crosses = false;  // It looks at pictures.
  bool recurs = false;   // It has a mixer in the place of attention.
  TensorId ids = kNone;
  Waves waves;
  TensorId mask = kNone;
  MixerKind mixer = MixerKind::Attention;  // Of Residual::OneModule.
  bool turns = true;
  bool slides = false;                     // It has a window, whether that is reached or not.
  std::vector<TensorId>* cache = nullptr;  // Takes keys and values of each layer, where the model keeps them.
};
// projection(x).view(B, S, heads, D). `copied_back`: its gradient lies otherwise.
[[nodiscard]] TensorId heads_of_tokens(GraphBuilder& g, ModuleId projection, TensorId x, std::int64_t heads,
                                       bool copied_back);
// A layer of transformers' cache (cache_utils.py, DynamicLayer.update and DynamicSlidingWindowLayer): keys and values
// are made anew, head by head, joined with an empty tensor of the keys' dtype, and `cache` holds them; a layer with a
// window has its width as a tensor.
void keep_in_cache(GraphBuilder& g, TensorId& key, TensorId& value, std::vector<TensorId>& cache, bool slides);
// The attention module's output, and the weights of eager attention, which the layer holds.
[[nodiscard]] Attended attention_module(GraphBuilder& g, const DecoderParts& parts, ModuleId module, TensorId hidden,
                                        const LayerInputs& given);
[[nodiscard]] TensorId mlp_module(GraphBuilder& g, const DecoderParts& parts, ModuleId module, TensorId hidden,
                                  std::int64_t ffn);

// latent.cpp: what Projections::Latent makes; the query and key are head by head, the value token by token.
struct Latents {
  QueryKey turned;
  TensorId v = kNone;
  std::vector<TensorId> held;  // By the attention's own variables.
};
[[nodiscard]] Latents latent_projections(GraphBuilder& g, const DecoderParts& parts, ModuleId attention,
                                         TensorId hidden, const LayerInputs& given);

// x * rsqrt(mean(x^2) + eps); `x` is fp32. Llama's code names the mean, so that it lives as long as the frame; in
// gemma's expression it is a temporary.
[[nodiscard]] TensorId normalised(GraphBuilder& g, TensorId x, TensorId* variance);
// mamba.cpp: a mixer of model/parts.h, MambaParts.
// decoders/short_convolution.cpp: a mixer of model/parts.h, ConvolutionParts.
[[nodiscard]] TensorId short_convolution(GraphBuilder& g, const ConvolutionParts& parts, ModuleId module,
                                         TensorId hidden);
// causal_conv1d_fn of `x` [B, C, S] without an activation; `x` stays the caller's.
[[nodiscard]] TensorId bare_convolution(GraphBuilder& g, ModuleId convolution, TensorId x, std::int64_t kernel);
// causal_conv1d_fn of rows of tokens, with its activation; uses up `x`.
[[nodiscard]] TensorId causal_convolution(GraphBuilder& g, ModuleId convolution, TensorId x, std::int64_t kernel,
                                          std::string_view activation);
// delta.cpp.
[[nodiscard]] TensorId delta_mixer(GraphBuilder& g, const DeltaParts& parts, ModuleId module, TensorId hidden);
[[nodiscard]] TensorId mamba_mixer(GraphBuilder& g, const MambaParts& parts, ModuleId module, TensorId hidden);

// llama4.cpp: get_llama_4_attn_scale of ministral3, times the queries; uses them up.
[[nodiscard]] TensorId tempered_behind(GraphBuilder& g, const DecoderParts& p, TensorId q, TensorId ids);
// llama4.cpp: what Projections::ByToken and Router::Scattered make.
[[nodiscard]] QueryKey token_projections(GraphBuilder& g, const DecoderParts& parts, ModuleId module, TensorId hidden,
                                         const LayerInputs& given, TensorId& value, std::vector<TensorId>& held);

// moe.cpp: the experts of a mixture layer through one grouped product: every shape depends on tokens *
// experts_per_token only. `shared` calls the expert that sees every token.
using SharedExpert = std::function<TensorId(ModuleId module, TensorId x)>;
// What the block returns besides, which the layer holds; or kNone.
struct Mixed {
  TensorId out = kNone;
  TensorId weights = kNone;
  TensorId routed = kNone;  // What experts gave, by a name of the layer's.
};
[[nodiscard]] Mixed moe_block(GraphBuilder& g, const ExpertParts& parts, ModuleId block, TensorId hidden,
                              const SharedExpert& shared);
[[nodiscard]] Mixed every_expert(GraphBuilder& g, ModuleId block, TensorId hidden, const SharedExpert& shared);

}  // namespace dsplan
