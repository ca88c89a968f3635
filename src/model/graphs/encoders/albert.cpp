// albert under each of its heads, module by module: one group of layers is called in the place of several.
#include "model/families/encoders/shared_layers.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/encoders/embedded.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class AlbertGraph {
 public:
  AlbertGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), body_(g_.child(g_.causal(), "albert")) {}

  Graph build() {
    const TextBatch batch = begin_text(g_);
    const TensorId hidden = body(batch.ids);
    const TensorId read = batch.of_text ? pooled_ : hidden;
    const TensorId given = batch.words ? kNone : dropout_module(g_, root("dropout"), read, d_.classifier_dropout);
    const TensorId logits = batch.words ? word_logits(hidden) : linear_module(g_, root("classifier"), given, d_.labels);
    const TensorId loss = loss_of_text(g_, batch, logits);
    if (given != kNone) g_.drop({given});
    if (pooled_ != kNone) g_.drop({pooled_});
    g_.drop({hidden});
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  [[nodiscard]] ModuleId root(std::string_view name) const { return g_.child(g_.causal(), name); }

  TensorId body(TensorId ids) {
    g_.enter(body_);
    const TensorId embedded = embedded_text(g_, g_.child(body_, "embeddings"), ids, TextTables::Whole);
    const ModuleId encoder = g_.child(body_, "encoder");
    g_.enter(encoder);
    TensorId hidden = linear_module(g_, g_.child(encoder, "embedding_hidden_mapping_in"), embedded, d_.hidden);
    const std::vector<ModuleId> groups = modules_of(g_.model(), g_.child(encoder, "albert_layer_groups"));
    for (std::int64_t layer = 0; layer < d_.layers; ++layer) {
      const std::int64_t own = group_of_layer(layer, d_.layers, static_cast<std::int64_t>(groups.size()));
      hidden = rebound(g_, hidden, group(groups[static_cast<std::size_t>(own)], hidden));
    }
    g_.exit(encoder);
    if (const ModuleId pooler = g_.model().child(body_, "pooler"); pooler != kNone) pooled_ = pool(pooler, hidden);
    g_.drop({embedded});
    g_.exit(body_);
    return hidden;
  }

  TensorId group(ModuleId module, TensorId hidden) {
    g_.enter(module);
    TensorId x = g_.keep(hidden);
    for (const ModuleId own : modules_of(g_.model(), g_.child(module, "albert_layers"))) {
      x = rebound(g_, x, layer(own, x));
    }
    g_.exit(module);
    return x;
  }

  TensorId layer(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const Attended attended = attention(g_.child(module, "attention"), hidden);
    TensorId x = linear_module(g_, g_.child(module, "ffn"), attended.flat, d_.ffn);
    x = rebound(g_, x, activation_module(g_, g_.child(module, "activation"), x));
    x = rebound(g_, x, linear_module(g_, g_.child(module, "ffn_output"), x, d_.hidden));
    const TensorId sum = g_.binary(Op::Add, x, attended.flat);
    const TensorId out = norm_module(g_, NormKind::Layer, g_.child(module, "full_layer_layer_norm"), sum);
    g_.drop({sum, x, attended.flat});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  TensorId heads_of(ModuleId projection, TensorId x, bool copied_back) {
    return by_heads(g_, linear_module(g_, projection, x, d_.hidden), d_.heads, d_.head_dim, copied_back);
  }

  // Its output projection and norm are its own; queries, keys and values live until it returns.
  Attended attention(ModuleId module, TensorId hidden) {
    const GraphOptions& options = g_.options();
    g_.enter(module);
    AttentionCall call;
    call.q = heads_of(g_.child(module, "query"), hidden, queries_come_back_by_head(options, d_, false));
    call.k = heads_of(g_.child(module, "key"), hidden, keys_come_back_by_head(options, d_, false));
    call.v = heads_of(g_.child(module, "value"), hidden, values_come_back_by_head(options, d_, false));
    call.dropout = d_.attention_dropout;
    call.softmax = SoftmaxKind::Bare;
    call.full = true;
    Attended attended = attend(g_, call);
    TensorId x = rebound(g_, attended.flat, linear_module(g_, g_.child(module, "dense"), attended.flat, d_.hidden));
    x = rebound(g_, x, dropout_module(g_, g_.child(module, "output_dropout"), x, d_.residual_dropout));
    const TensorId sum = g_.binary(Op::Add, hidden, x);
    attended.flat = norm_module(g_, NormKind::Layer, g_.child(module, "LayerNorm"), sum);
    g_.drop({sum, x, call.q, call.k, call.v});
    g_.exit(module);
    return attended;
  }

  TensorId pool(ModuleId pooler, TensorId hidden) {
    const TensorId first = first_place(g_, hidden);
    const TensorId dense = rebound(g_, first, linear_module(g_, pooler, first, d_.hidden));
    const ModuleId activation = g_.child(body_, "pooler_activation");
    g_.enter(activation);
    const TensorId out = rebound(g_, dense, g_.unary(Op::Tanh, dense));
    g_.exit(activation);
    return out;
  }

  TensorId word_logits(TensorId hidden) {
    const ModuleId head = root("predictions");
    const TensorId norm = g_.parameter_of(g_.child(head, "LayerNorm"), "weight");
    g_.enter(head);
    TensorId x = linear_module(g_, g_.child(head, "dense"), hidden, g_.shape(norm).dims[0]);
    x = rebound(g_, x, activation_module(g_, g_.child(head, "activation"), x));
    x = rebound(g_, x, norm_module(g_, NormKind::Layer, g_.child(head, "LayerNorm"), x));
    x = rebound(g_, x, linear_module(g_, g_.child(head, "decoder"), x, d_.vocab));
    g_.exit(head);
    return x;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  ModuleId body_;
  TensorId pooled_ = kNone;
};

}  // namespace

Graph build_albert_graph(const ModelSpec& model, const GraphOptions& options) {
  return AlbertGraph(model, options).build();
}

}  // namespace dsplan
