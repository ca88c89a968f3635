// modernbert under each of its heads: pre-norm layers of decoders' parts, in which each token sees all others or, in
// the layers of a window, those near it on both sides.
#include "model/graphs/activations.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/encoders/embedded.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class ModernBertGraph {
 public:
  ModernBertGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), p_(*model.parts), body_(g_.child(g_.causal(), "model")) {}

  Graph build() {
    const TextBatch batch = begin_text(g_);
    const TensorId hidden = body(batch.ids);
    const TensorId logits = batch.words ? word_logits(hidden) : class_logits(hidden, batch.of_text);
    const TensorId loss = loss_of_text(g_, batch, logits, batch.words);
    g_.drop({hidden});
    for (TensorId one : held_) g_.drop({one});
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  struct Given {
    LayerInputs full;
    LayerInputs sliding;
  };

  TensorId embeddings(TensorId ids) {
    const ModuleId module = g_.child(body_, "embeddings");
    g_.enter(module);
    const TensorId words = table_module(g_, g_.child(module, "tok_embeddings"), ids, g_.dims().padding);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const TensorId normed = norm_module(g_, p_.norm, g_.child(module, "norm"), words);
    g_.drop({words});
    const TensorId out = dropout_module(g_, g_.child(module, "drop"), normed, d_.embedding_dropout);
    g_.drop({normed});
    g_.exit(module);
    return out;
  }

  TensorId positions() {
    const TensorId range = arange(g_, g_.options().seq);
    const TensorId row = g_.view(range, Shape{1, g_.options().seq});
    g_.drop({range});
    return row;
  }

  // Its two projections' halves are variables until it returns.
  TensorId feed_forward(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId both = linear_module(g_, g_.child(module, "Wi"), hidden, 2 * d_.ffn);
    const std::vector<TensorId> halves = split_last(g_, both, equal_widths(g_, both, 2));
    g_.drop({both});
    const TensorId active = activation_module(g_, g_.child(module, "act"), halves[0]);
    const TensorId product = g_.binary(Op::Mul, active, halves[1]);
    g_.drop({active});
    const TensorId dropped = dropout_module(g_, g_.child(module, "drop"), product, d_.residual_dropout);
    g_.drop({product});
    const TensorId out = linear_module(g_, g_.child(module, "Wo"), dropped, d_.hidden);
    g_.drop({dropped, halves[0], halves[1]});
    g_.exit(module);
    return out;
  }

  // The attention's result is a variable until the layer returns.
  TensorId layer(ModuleId module, TensorId hidden, const LayerInputs& given) {
    g_.enter(module);
    const ModuleId first = g_.child(module, p_.before_attention);
    const bool normed = g_.model().parameter(first, "weight") != kNone;  // The first layer's is an Identity.
    const TensorId seen = normed ? norm_module(g_, p_.norm, first, hidden) : through(first, hidden);
    const Attended attended = attention_module(g_, p_, g_.child(module, "attn"), seen, given);
    g_.drop({seen});
    const TensorId middle = g_.binary(Op::Add, hidden, attended.flat);
    const TensorId second = norm_module(g_, p_.norm, g_.child(module, p_.before_mlp), middle);
    const TensorId fed = feed_forward(g_.child(module, "mlp"), second);
    g_.drop({second});
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({fed, middle, attended.flat});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  TensorId through(ModuleId module, TensorId x) {
    g_.enter(module);
    g_.exit(module);
    return g_.keep(x);
  }

  Given given_layers(TensorId position_ids) {
    const ModuleId tables = g_.child(body_, "rotary_emb");
    Given given;
    given.sliding.mask = near_mask(g_, d_.sliding_window);
    if (p_.some_see_all()) given.full.waves = rotary_tables(g_, p_.rotary, tables, position_ids, "full_attention_");
    if (p_.some_slide()) given.sliding.waves = rotary_tables(g_, p_.rotary, tables, position_ids, "sliding_attention_");
    return given;
  }

  TensorId body(TensorId ids) {
    g_.enter(body_);
    const TensorId position_ids = positions();
    const TensorId embedded = embeddings(ids);
    const Given given = given_layers(position_ids);
    const auto of = [&](std::size_t index) -> const LayerInputs& {
      return p_.kind(index) == LayerKind::Sliding ? given.sliding : given.full;
    };
    const auto keywords = [&](std::size_t index) {
      return std::vector<TensorId>{of(index).mask, of(index).waves.cos, of(index).waves.sin};
    };
    const TensorId hidden =
        run_layers(g_, g_.child(body_, "layers"), g_.keep(embedded), keywords,
                   [&](ModuleId module, std::size_t index, TensorId x) { return layer(module, x, of(index)); });
    const TensorId out = norm_module(g_, p_.norm, g_.child(body_, "final_norm"), hidden);
    g_.drop({hidden, position_ids, embedded});
    for (const LayerInputs& inputs : {given.full, given.sliding}) {
      for (TensorId one : {inputs.waves.cos, inputs.waves.sin, inputs.mask}) {
        if (one != kNone) g_.drop({one});
      }
    }
    g_.exit(body_);
    return out;
  }

  TensorId head(TensorId hidden) {
    const ModuleId module = g_.child(g_.causal(), "head");
    g_.enter(module);
    const TensorId dense = linear_module(g_, g_.child(module, "dense"), hidden, d_.hidden);
    const ModuleId act = g_.child(module, "act");
    g_.enter(act);
    const TensorId active = activated(g_, p_.head_activation, dense);
    g_.exit(act);
    g_.drop({dense});
    const TensorId out = norm_module(g_, p_.norm, g_.child(module, "norm"), active);
    g_.drop({active});
    g_.exit(module);
    return out;
  }

  TensorId word_logits(TensorId hidden) {
    const TensorId seen = head(hidden);
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "decoder"), seen, d_.vocab);
    g_.drop({seen});
    return logits;
  }

  // (hidden * mask).sum(1) / mask.sum(1) with a mask of ones, or the first token's.
  TensorId pooled(TensorId hidden) {
    if (!p_.mean_pooled) return first_place(g_, hidden);
    const Shape shape = g_.shape(hidden);
    const Shape row{shape.dims[0], shape.dims[2]};
    const TensorId mask = g_.filled(Shape{shape.dims[0], shape.dims[1]}, DType::Bool, 1);
    const TensorId column = g_.view(mask, Shape{shape.dims[0], shape.dims[1], 1});
    const TensorId masked = g_.binary(Op::Mul, hidden, column);
    g_.drop({column});
    const TensorId total = g_.make(Op::SumDim, row, g_.dtype(masked), {masked}, true);
    g_.drop({masked});
    const TensorId count = g_.make(Op::SumDim, Shape{shape.dims[0], 1}, DType::Int64, {mask});
    const TensorId mean = g_.make(Op::Div, row, g_.dtype(total), {total, count}, true);
    g_.drop({total, count});
    held_.push_back(mask);
    return mean;
  }

  TensorId class_logits(TensorId hidden, bool of_text) {
    const TensorId whole = of_text ? pooled(hidden) : g_.keep(hidden);
    const TensorId seen = head(whole);
    const TensorId dropped = dropout_module(g_, g_.child(g_.causal(), "drop"), seen, d_.classifier_dropout);
    g_.drop({seen});
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "classifier"), dropped, d_.labels);
    held_.push_back(dropped);
    if (of_text) {
      held_.push_back(whole);
    } else {
      g_.drop({whole});
    }
    return logits;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId body_;
  std::vector<TensorId> held_;  // By the variables of the root's forward.
};

}  // namespace

Graph build_modernbert_graph(const ModelSpec& model, const GraphOptions& options) {
  return ModernBertGraph(model, options).build();
}

}  // namespace dsplan
