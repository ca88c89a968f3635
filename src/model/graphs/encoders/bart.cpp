// bart, mbart, plbart, blenderbot, marian, m2m_100 and pegasus: transformers' classes that translate, module by module.
// What tells them apart stands in model/translators.h. The decoder sees in every layer what the encoder made.
#include "core/error.h"
#include "model/families/encoders/translators.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/encoders/sublayers.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// mbart's shift_tokens_right: labels behind each row's last token that is no padding.
TensorId wrapped_right(GraphBuilder& g, TensorId labels) {
  const Shape shape = g.shape(labels);
  const std::int64_t padding = std::max<std::int64_t>(g.model().dims.padding, 0);
  const TensorId out = g.copy(labels);
  const TensorId ignored = g.make(Op::Equal, shape, DType::Bool, {out}, false, kIgnoredLabel);
  const TensorId padded = g.in_place(Op::MaskedFillInPlace, out, ignored, 0, padding);
  g.drop({ignored, padded});
  const TensorId counts = g.make(Op::NotEqual, shape, DType::Bool, {out}, false, static_cast<double>(padding));
  const Shape column{shape.dims[0], 1};
  const TensorId sums = g.make(Op::SumDim, column, DType::Int64, {counts});
  g.drop({counts});
  const TensorId places = g.make(Op::SubScalar, column, DType::Int64, {sums}, false, 1);
  g.drop({sums});
  const TensorId first = g.make(Op::Gather, column, DType::Int64, {out, places});
  copy_behind(g, out, out);
  const TensorId begun = g.in_place(Op::CopyInto, out, first, 1, 0);
  g.drop({begun, first, places});
  return out;
}

class BartGraph final : Sublayers {
 public:
  BartGraph(const ModelSpec& model, const GraphOptions& options)
      : Sublayers(model, options, translator_of(model.family)->norms_first), of_(*translator_of(model.family)) {}

  Graph build() {
    const TensorId ids = g_.batch_input(Shape{options_.micro_batch, options_.seq}, DType::Int64);
    const TensorId labels = g_.batch_input(Shape{options_.micro_batch, options_.target_seq}, DType::Int64);
    g_.set_batch({ids, labels});
    g_.enter_model();
    const TensorId target_ids = of_.wraps_last ? wrapped_right(g_, labels) : shifted_right(g_, labels);
    g_.enter(body_);
    const TensorId encoded = encoder(ids);
    options_.seq = options_.target_seq;  // The decoder's rows are those of the target.
    const TensorId decoded = decoder(target_ids, encoded);
    g_.exit(body_);
    TensorId logits = linear_module(g_, g_.child(g_.causal(), "lm_head"), decoded, d_.vocab);
    if (of_.biases_logits) {
      logits = rebound(g_, logits, g_.binary(Op::Add, logits, g_.buffer("final_logits_bias")));
    }
    const TensorId loss = class_loss(g_, logits, labels);
    g_.drop({decoded, target_ids});
    const TensorId returned = end_model(g_, logits, loss, {encoded});
    return g_.finish(returned);
  }

 private:
  TensorId norm(ModuleId parent, std::string_view name, TensorId x) override {
    return norm_module(g_, NormKind::Layer, g_.child(parent, name), x);
  }

  // Keys and values are projected before either is viewed. What a product makes of the keys' gradient comes back to
  // the projection as a view, which is copied there.
  Attended attention(ModuleId module, TensorId hidden, TensorId source, TensorId mask, bool full) override {
    g_.enter(module);
    const bool masked = mask != kNone;
    const bool composed = options_.eager_attention || options_.math_attention;
    const bool keys = keys_come_back_by_head(options_, d_, masked);
    AttentionCall call;
    const TensorId query = linear_module(g_, g_.child(module, "q_proj"), hidden, d_.hidden);
    call.q = by_heads(g_, query, d_.heads, d_.head_dim, queries_come_back_by_head(options_, d_, masked));
    TensorId key = linear_module(g_, g_.child(module, "k_proj"), source, d_.hidden);
    if (keys && composed && d_.heads > 1 && g_.shape(key).dims[1] > 1) {
      key = rebound(g_, key, g_.view_copied_back(key, g_.shape(key)));
    }
    const TensorId value = linear_module(g_, g_.child(module, "v_proj"), source, d_.hidden);
    call.k = by_heads(g_, key, d_.heads, d_.head_dim, keys && !composed);
    call.v = by_heads(g_, value, d_.heads, d_.head_dim, values_come_back_by_head(options_, d_, masked));
    call.mask = mask;
    call.dropout = d_.attention_dropout;
    call.softmax = SoftmaxKind::Bare;
    call.full = full;
    const Attended attended = attend(g_, call);
    const TensorId out = linear_module(g_, g_.child(module, "out_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v});
    g_.exit(module);
    return {out, attended.weights};
  }

  TensorId layers(ModuleId stack, TensorId hidden, TensorId encoded, TensorId mask) {
    for (const ModuleId one : modules_of(g_.model(), g_.child(stack, "layers"))) {
      std::vector<TensorId> arguments{hidden, mask, encoded};
      std::erase(arguments, kNone);
      const std::int32_t region = g_.begin_region({std::move(arguments), {}, {}, {}});
      const TensorId out = layer(one, hidden, encoded, mask);
      g_.end_region(region);
      hidden = rebound(g_, hidden, out);
    }
    if (of_.keeps_last && !encodes_) last_ = g_.keep(hidden);
    return of_.norms_last ? rebound(g_, hidden, norm(stack, "layer_norm", hidden)) : hidden;
  }

  TensorId words(ModuleId stack, TensorId ids) {
    const ModuleId module = g_.child(stack, "embed_tokens");
    g_.enter(module);
    TensorId x = embedding(g_, g_.parameter("weight"), ids, false, d_.padding);
    if (of_.scales_inside) x = rebound(g_, x, g_.unary(Op::MulScalar, x, g_.model().parts->embedding_multiplier));
    g_.exit(module);
    if (options_.inputs_require_grad) g_.require_grad(x);
    return of_.scales_inside ? x : rebound(g_, x, g_.unary(Op::MulScalar, x, g_.model().parts->embedding_multiplier));
  }

  // Of every row, or of one for all; `given` are the decoder's numbers.
  TensorId places(ModuleId stack, TensorId ids, TensorId given) {
    const ModuleId module = g_.child(stack, "embed_positions");
    g_.enter(module);
    TensorId out = kNone;
    if (of_.places == Places::Counted) {
      const TensorId rows = counted_positions(g_, ids);
      out = embedding(g_, g_.buffer("weights"), rows);
      g_.drop({rows});
    } else {
      const TensorId own = given == kNone ? arange(g_, options_.seq) : g_.keep(given);
      TensorId rows = own;
      if (of_.places == Places::Learned) {
        const Shape shape{given == kNone ? options_.micro_batch : 1, options_.seq};
        rows = g_.make(Op::AddScalar, shape, DType::Int64, {own}, false, 2);
      }
      out = embedding(g_, g_.parameter("weight"), rows);
      if (rows != own) g_.drop({rows});
      g_.drop({own});
    }
    g_.exit(module);
    return out;
  }

  // dropout(norm(words + places)).
  TensorId placed(ModuleId stack, TensorId words, TensorId places) {
    TensorId hidden = g_.binary(Op::Add, words, places);
    if (of_.norms_words) hidden = rebound(g_, hidden, norm(stack, "layernorm_embedding", hidden));
    return rebound(g_, hidden, g_.dropout(hidden, d_.embedding_dropout));
  }

  TensorId encoder(TensorId ids) {
    const ModuleId module = g_.child(body_, "encoder");
    g_.enter(module);
    encodes_ = true;
    const TensorId embedded = words(module, ids);
    const TensorId at = places(module, ids, kNone);
    const TensorId out = layers(module, placed(module, embedded, at), kNone, kNone);
    g_.drop({at, embedded});
    g_.exit(module);
    return out;
  }

  TensorId decoder(TensorId ids, TensorId encoded) {
    const ModuleId module = g_.child(body_, "decoder");
    g_.enter(module);
    encodes_ = false;
    const TensorId embedded = words(module, ids);
    const TensorId position_ids = of_.places == Places::Counted ? kNone : shifted_numbers(g_, options_.seq);
    const TensorId ones = g_.filled(g_.shape(ids), DType::Float32, 1);
    const TensorId mask = attention_mask(g_, kNone, ones);
    if (!of_.keeps_ones) g_.drop({ones});
    const TensorId at = places(module, ids, position_ids);
    if (position_ids != kNone && !of_.keeps_numbers) g_.drop({position_ids});
    const TensorId out = layers(module, placed(module, embedded, at), encoded, mask);
    if (mask != kNone) g_.drop({mask});
    if (of_.keeps_ones) g_.drop({ones});
    if (position_ids != kNone && of_.keeps_numbers) g_.drop({position_ids});
    g_.drop({at, embedded});
    if (last_ != kNone) g_.drop({last_});
    g_.exit(module);
    return out;
  }

  const Translator& of_;
  TensorId last_ = kNone;
};

}  // namespace

Graph build_bart_graph(const ModelSpec& model, const GraphOptions& options) {
  return BartGraph(model, options).build();
}

}  // namespace dsplan
