// Decoders as a choice of parts (model/parts.h). The functions follow transformers' modules one by one; a `drop` stands
// where a Python variable or frame lets go of a tensor.
#include "model/graphs/graphs.h"

#include "core/error.h"
#include "model/graphs/attention.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class DecoderGraph {
 public:
  DecoderGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), p_(*model.parts), model_(g_.child(g_.causal(), p_.body)) {}

  Graph build() {
    const TensorId ids = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const TensorId labels = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const bool masked = batch_has_mask(g_.options().transformers);
    const TensorId ones = masked ? g_.batch_input(g_.shape(ids), DType::Int64) : kNone;
    g_.set_batch(masked ? std::vector<TensorId>{ids, labels, ones} : std::vector<TensorId>{ids, labels});
    g_.enter_model();
    const TensorId hidden = body(ids, ones);
    return g_.finish(causal_loss(g_, hidden, labels, [&](TensorId x) { return logits_of(x); }));
  }

 private:
  // What every layer is told of the tokens' places: numbers, and waves by kind of layer, or one pair for all.
  struct Positions {
    TensorId ids = kNone;
    Waves waves;
    Waves sliding;
  };

  // Each statement rebinds the variable.
  TensorId logits_of(TensorId hidden) {
    TensorId logits = vocabulary_head(g_, g_.child(g_.causal(), "lm_head"), hidden);
    const auto becomes = [&](TensorId next) {
      g_.drop({logits});
      logits = next;
    };
    if (p_.logits_divisor > 0) becomes(g_.unary(Op::DivScalar, logits, p_.logits_divisor));
    if (p_.logits_multiplier > 0) becomes(g_.unary(Op::MulScalar, logits, p_.logits_multiplier));
    if (d_.final_softcap > 0) {
      becomes(g_.unary(Op::DivScalar, logits, d_.final_softcap));
      becomes(g_.unary(Op::Tanh, logits));
      becomes(g_.unary(Op::MulScalar, logits, d_.final_softcap));
    }
    return logits;
  }

  [[nodiscard]] ModuleId child(ModuleId parent, std::string_view name) const {
    return name.empty() ? kNone : g_.model().child(parent, name);
  }

  TensorId norm(ModuleId parent, std::string_view name, TensorId x) {
    return norm_module(g_, p_.norm, g_.child(parent, name), x);
  }

  TensorId feed(ModuleId module, TensorId hidden) {
    if (g_.model().child(module, "experts") == kNone) return mlp_module(g_, p_, module, hidden, d_.ffn);
    return moe_block(g_, p_.experts, module, hidden,
                     [&](ModuleId shared, TensorId x) { return mlp_module(g_, p_, shared, x, p_.experts.shared_ffn); });
  }

  // Adds a sublayer's output to the residual stream: normed first, then dropped out or scaled within the sum.
  TensorId join(ModuleId layer, std::string_view post_norm, std::string_view dropout, TensorId residual,
                TensorId branch) {
    if (!post_norm.empty()) {
      const TensorId normed = norm(layer, post_norm, branch);
      g_.drop({branch});
      branch = normed;
    }
    TensorId added = dropout_module(g_, child(layer, dropout), branch, d_.residual_dropout);
    if (p_.rebinds_dropout) {
      g_.drop({branch});
      branch = g_.keep(added);
    }
    if (p_.residual_multiplier > 0) {
      const TensorId scaled = g_.unary(Op::MulScalar, added, p_.residual_multiplier);
      g_.drop({added});
      added = scaled;
    }
    const TensorId out = g_.binary(Op::Add, residual, added);
    g_.drop({added, branch});
    return out;
  }

  TensorId serial_layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    const bool first = !p_.before_attention.empty();
    const TensorId normed = first ? norm(module, p_.before_attention, hidden) : g_.keep(hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, p_.attention), normed, given);
    const bool held = p_.residual == Residual::SerialHeld;
    if (held) {
      g_.keep(attended.flat);
    } else {
      g_.drop({normed});
    }
    const TensorId middle = join(module, p_.after_attention, p_.attention_dropout, hidden, attended.flat);
    const TensorId second = p_.before_mlp.empty() ? g_.keep(middle) : norm(module, p_.before_mlp, middle);
    const TensorId fed = feed(g_.child(module, "mlp"), second);
    g_.drop({second});
    const TensorId out = join(module, p_.after_mlp, p_.mlp_dropout, middle, fed);
    g_.drop({middle});
    if (held) g_.drop({normed, attended.flat});
    if (attended.weights != kNone) g_.drop({attended.weights});
    return out;
  }

  // Both branches start from the layer's input; each rebinds its variable when it is dropped out.
  TensorId parallel_layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    const TensorId normed = norm(module, p_.before_attention, hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, p_.attention), normed, given);
    const bool two = p_.residual == Residual::ParallelTwoNorms;
    if (two) g_.drop({normed});
    const TensorId from_attention =
        dropout_module(g_, child(module, p_.attention_dropout), attended.flat, d_.residual_dropout);
    g_.drop({attended.flat});
    const TensorId second = two ? norm(module, p_.before_mlp, hidden) : normed;
    const TensorId fed = feed(g_.child(module, "mlp"), second);
    if (two) g_.drop({second});
    const TensorId from_mlp = dropout_module(g_, child(module, p_.mlp_dropout), fed, d_.residual_dropout);
    g_.drop({fed});
    const bool residual_first = p_.residual == Residual::ParallelResidual;
    const TensorId left = residual_first ? hidden : two ? from_mlp : from_attention;
    const TensorId right = two || residual_first ? from_attention : from_mlp;
    const TensorId sum = g_.binary(Op::Add, left, right);
    const TensorId out = g_.binary(Op::Add, sum, residual_first ? from_mlp : hidden);
    g_.drop({sum, from_attention, from_mlp});
    if (!two) g_.drop({normed});
    if (attended.weights != kNone) g_.drop({attended.weights});
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    g_.enter(module);
    const bool serial = p_.residual == Residual::Serial || p_.residual == Residual::SerialHeld;
    const TensorId out = serial ? serial_layer(module, hidden, given) : parallel_layer(module, hidden, given);
    g_.exit(module);
    return out;
  }

  TensorId embed(TensorId ids) {
    const ModuleId module = g_.child(model_, p_.embedding);
    g_.enter(module);
    TensorId out = vocabulary_embedding(g_, g_.parameter("weight"), ids);
    if (p_.scaled_embedding) {
      const TensorId factor = g_.cast(g_.buffer("embed_scale"), g_.options().dtype);
      const TensorId scaled = g_.binary(Op::Mul, out, factor);
      g_.drop({out, factor});
      out = scaled;
    }
    g_.exit(module);
    if (g_.options().inputs_require_grad) g_.require_grad(out);
    if (p_.embedding_multiplier > 0) {
      const TensorId scaled = g_.unary(Op::MulScalar, out, p_.embedding_multiplier);
      g_.drop({out});
      out = scaled;
    }
    return out;
  }

  // arange(seq), since 5.0 plus the length of a cache, unsqueezed.
  TensorId positions() {
    TensorId range = g_.make(Op::Arange, Shape{g_.options().seq}, DType::Int64, {});
    if (g_.options().transformers >= Version{5, 0, 0}) {
      const TensorId shifted = g_.make(Op::AddScalar, Shape{g_.options().seq}, DType::Int64, {range});
      g_.drop({range});
      range = shifted;
    }
    const TensorId row = g_.view(range, Shape{1, g_.options().seq});
    g_.drop({range});
    return row;
  }

  // By kind of layer: one mask for full attention, one for a sliding window. kNone where there is none of the kind.
  struct Masks {
    TensorId full = kNone;
    TensorId sliding = kNone;
  };
  Masks masks(TensorId position_ids, TensorId ones) {
    Masks made;
    const bool by_kind = !p_.kinds.empty();
    const bool slides = by_kind ? p_.some_slide() || p_.both_masks : d_.sliding_window > 0;
    if (by_kind || !slides) made.full = attention_mask(g_, position_ids, ones);
    if (!slides) return made;
    const bool has_window = d_.sliding_window > 0 || p_.empty_window;
    made.sliding = attention_mask(g_, position_ids, ones, has_window ? std::optional(d_.sliding_window) : std::nullopt);
    return made;
  }

  Positions turned(TensorId position_ids) {
    const ModuleId module = g_.child(model_, "rotary_emb");
    Positions at;
    at.ids = position_ids;
    if (!p_.tables_by_kind) {
      at.waves = rotary_tables(g_, p_.rotary, module, at.ids);
      return at;
    }
    if (p_.some_see_all()) at.waves = rotary_tables(g_, p_.rotary, module, at.ids, "full_attention_");
    if (p_.some_slide()) at.sliding = rotary_tables(g_, p_.rotary, module, at.ids, "sliding_attention_");
    return at;
  }

  LayerInputs given_to(std::size_t index, const Positions& at, const Masks& masked) const {
    const bool slides = d_.sliding_window > 0 && p_.kind(index) == LayerKind::Sliding;
    LayerInputs given;
    given.ids = at.ids;
    given.waves = slides && p_.tables_by_kind ? at.sliding : at.waves;
    given.mask = slides ? masked.sliding : masked.full;
    given.turns = p_.turns(index);
    return given;
  }

  TensorId layers(TensorId hidden, const Positions& at, const Masks& masked) {
    const ModuleId list = g_.child(model_, "layers");
    ModuleId next = list + 1;
    for (std::int32_t index = 0; index < d_.layers; ++index) {
      while (g_.model().modules[static_cast<std::size_t>(next)].parent != list) ++next;
      const LayerInputs given = given_to(static_cast<std::size_t>(index), at, masked);
      std::vector<TensorId> keywords{given.waves.cos, given.waves.sin, given.ids};
      if (given.mask != kNone) keywords.push_back(given.mask);
      g_.begin_region(index, {hidden}, std::move(keywords));
      const TensorId out = layer(next, hidden, given);
      g_.end_region(index);
      g_.drop({hidden});
      hidden = out;
      ++next;
    }
    return hidden;
  }

  TensorId body(TensorId ids, TensorId ones) {
    g_.enter(model_);
    TensorId embedded = embed(ids);
    const TensorId position_ids = positions();
    const Masks masked = masks(position_ids, ones);
    TensorId hidden = p_.inner_dropout
                          ? g_.dropout(embedded, d_.embedding_dropout)
                          : dropout_module(g_, child(model_, p_.embedding_dropout), embedded, d_.embedding_dropout);
    if (p_.rebinds_embedding) {
      g_.drop({embedded});
      embedded = g_.keep(hidden);
    }
    const Positions at = turned(position_ids);
    hidden = layers(hidden, at, masked);
    const TensorId normed = norm(model_, p_.final_norm, hidden);
    g_.drop({hidden, embedded, at.ids});
    for (TensorId one : {masked.full, masked.sliding, at.waves.cos, at.waves.sin, at.sliding.cos, at.sliding.sin}) {
      if (one != kNone) g_.drop({one});
    }
    g_.exit(model_);
    return normed;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId model_;
};

}  // namespace

Graph build_decoder_graph(const ModelSpec& model, const GraphOptions& options) {
  return DecoderGraph(model, options).build();
}

}  // namespace dsplan
