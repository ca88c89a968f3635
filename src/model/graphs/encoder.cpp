// Encoders with norms behind their sublayers: bert, ernie, roberta and its kin, distilbert and electra under each of
// their heads, module by module.
#include <array>

#include "model/graphs/activations.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/encoders/embedded.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"
#include "model/traits.h"

namespace dsplan {
namespace {

struct SelfNames {
  std::string_view query, key, value;
};

class EncoderGraph {
 public:
  EncoderGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options),
        d_(model.dims),
        distil_(model.family == "distilbert"),
        electra_(model.family == "electra"),
        roberta_(is_roberta(model)),
        body_(g_.child(g_.causal(), roberta_ ? body_of_roberta(model) : std::string_view(model.family))) {}

  Graph build() {
    const TextBatch batch = begin_text(g_);
    const TensorId hidden = body(batch.ids);
    if (batch.ends != kNone) return answers(batch, hidden);
    const TensorId logits = batch.words     ? word_logits(hidden)
                            : batch.of_text ? text_logits(hidden)
                                            : token_logits(hidden);
    const ModuleId own = g_.model().child(g_.causal(), "mlm_loss_fct");
    if (own != kNone) g_.enter(own);
    const TensorId loss = loss_of_text(g_, batch, logits);
    if (own != kNone) g_.exit(own);
    g_.drop({hidden});
    if (pooled_ != kNone) g_.drop({pooled_});
    return g_.finish(end_model(g_, logits, loss));
  }

 private:
  // Each call's result takes the name of its argument.
  class Chain {
   public:
    Chain(EncoderGraph& of, TensorId x) : of_(of), x_(x) {}
    Chain& linear(ModuleId module, std::int64_t features) { return next(linear_module(of_.g_, module, x_, features)); }
    Chain& norm(ModuleId module) { return next(norm_module(of_.g_, NormKind::Layer, module, x_)); }
    Chain& dropout(ModuleId module, double p) { return next(dropout_module(of_.g_, module, x_, p)); }
    Chain& activation(ModuleId module) { return next(activation_module(of_.g_, module, x_)); }
    // Whatever the layers' is.
    Chain& gelu(ModuleId module) {
      of_.g_.enter(module);
      const TensorId made = activated(of_.g_, "gelu", x_);
      of_.g_.exit(module);
      return next(made);
    }
    Chain& unary(Op op) { return next(of_.g_.unary(op, x_)); }
    Chain& next(TensorId made) {
      of_.g_.drop({x_});
      x_ = made;
      return *this;
    }
    [[nodiscard]] TensorId end() const { return x_; }

   private:
    EncoderGraph& of_;
    TensorId x_;
  };

  [[nodiscard]] ModuleId root(std::string_view name) const { return g_.child(g_.causal(), name); }

  // proj(x).view(B, S, heads, D).transpose(1, 2).
  TensorId heads_of(ModuleId module, std::string_view name, TensorId x, bool by_head) {
    const TensorId flat = linear_module(g_, g_.child(module, name), x, d_.hidden);
    return by_heads(g_, flat, d_.heads, d_.head_dim, by_head);
  }

  Attended attention(ModuleId module, TensorId hidden, const SelfNames& names) {
    const GraphOptions& options = g_.options();
    AttentionCall call;
    call.q = heads_of(module, names.query, hidden, queries_come_back_by_head(options, d_, false));
    call.k = heads_of(module, names.key, hidden, keys_come_back_by_head(options, d_, false));
    call.v = heads_of(module, names.value, hidden, values_come_back_by_head(options, d_, false));
    call.dropout = d_.attention_dropout;
    call.softmax = SoftmaxKind::Bare;
    call.full = true;
    Attended attended = attend(g_, call);
    if (distil_) attended.flat = Chain(*this, attended.flat).linear(g_.child(module, "out_lin"), d_.hidden).end();
    g_.drop({call.q, call.k, call.v});
    return attended;
  }

  // LayerNorm(branch + residual), rebinding the branch.
  TensorId joined(ModuleId norm, TensorId branch, TensorId residual) {
    const TensorId sum = g_.binary(Op::Add, branch, residual);
    const TensorId out = norm_module(g_, NormKind::Layer, norm, sum);
    g_.drop({sum, branch});
    return out;
  }

  TensorId output(ModuleId module, TensorId x, TensorId residual) {
    g_.enter(module);
    const TensorId projected = linear_module(g_, g_.child(module, "dense"), x, d_.hidden);
    const TensorId dropped = Chain(*this, projected).dropout(g_.child(module, "dropout"), d_.residual_dropout).end();
    const TensorId out = joined(g_.child(module, "LayerNorm"), dropped, residual);
    g_.exit(module);
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden) {
    const ModuleId attention_module = g_.child(module, "attention");
    const ModuleId self = g_.child(attention_module, "self");
    const ModuleId intermediate = g_.child(module, "intermediate");
    g_.enter(attention_module);
    g_.enter(self);
    const Attended attended = attention(self, hidden, {"query", "key", "value"});
    g_.exit(self);
    const TensorId middle = output(g_.child(attention_module, "output"), attended.flat, hidden);
    g_.drop({attended.flat});
    g_.exit(attention_module);
    g_.enter(intermediate);
    const TensorId wide = linear_module(g_, g_.child(intermediate, "dense"), middle, d_.ffn);
    const TensorId active = Chain(*this, wide).activation(g_.child(intermediate, "intermediate_act_fn")).end();
    g_.exit(intermediate);
    const TensorId out = output(g_.child(module, "output"), active, middle);
    g_.drop({active, middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    return out;
  }

  TensorId distil_layer(ModuleId module, TensorId hidden) {
    const ModuleId attention_module = g_.child(module, "attention");
    g_.enter(attention_module);
    const Attended attended = attention(attention_module, hidden, {"q_lin", "k_lin", "v_lin"});
    g_.exit(attention_module);
    const TensorId middle = joined(g_.child(module, "sa_layer_norm"), attended.flat, hidden);
    const ModuleId ffn = g_.child(module, "ffn");
    g_.enter(ffn);
    const TensorId wide = linear_module(g_, g_.child(ffn, "lin1"), middle, d_.ffn);
    const TensorId fed = Chain(*this, wide)
                             .activation(g_.child(ffn, "activation"))
                             .linear(g_.child(ffn, "lin2"), d_.hidden)
                             .dropout(g_.child(ffn, "dropout"), d_.residual_dropout)
                             .end();
    g_.exit(ffn);
    const TensorId out = joined(g_.child(module, "output_layer_norm"), fed, middle);
    g_.drop({middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    return out;
  }

  TensorId body(TensorId ids) {
    g_.enter(body_);
    const auto kind = distil_ ? TextTables::WithoutTypes : roberta_ ? TextTables::Counted : TextTables::Whole;
    TensorId embedded = embedded_text(g_, g_.child(body_, "embeddings"), ids, kind);
    if (const ModuleId wider = g_.model().child(body_, "embeddings_project"); wider != kNone) {
      embedded = Chain(*this, embedded).linear(wider, d_.hidden).end();
    }
    const ModuleId encoder = g_.child(body_, distil_ ? "transformer" : "encoder");
    g_.enter(encoder);
    const auto call = [&](ModuleId module, std::size_t, TensorId x) {
      g_.enter(module);
      const TensorId out = distil_ ? distil_layer(module, x) : layer(module, x);
      g_.exit(module);
      return out;
    };
    const TensorId hidden = run_layers(
        g_, g_.child(encoder, "layer"), g_.keep(embedded), [](std::size_t) { return std::vector<TensorId>{}; }, call);
    g_.exit(encoder);
    const ModuleId pooler = g_.model().child(body_, "pooler");
    if (pooler != kNone) pooled_ = pool(pooler, hidden);
    g_.drop({embedded});
    g_.exit(body_);
    return hidden;
  }

  TensorId pool(ModuleId pooler, TensorId hidden) {
    g_.enter(pooler);
    const TensorId first = first_place(g_, hidden);
    const TensorId dense = linear_module(g_, g_.child(pooler, "dense"), first, d_.hidden);
    const ModuleId activation = g_.child(pooler, "activation");
    g_.enter(activation);
    const TensorId out = g_.unary(Op::Tanh, dense);
    g_.exit(activation);
    g_.drop({dense, first});
    g_.exit(pooler);
    return out;
  }

  TensorId word_logits(TensorId hidden) {
    if (distil_) {
      return Chain(*this, linear_module(g_, root("vocab_transform"), hidden, d_.hidden))
          .activation(root("activation"))
          .norm(root("vocab_layer_norm"))
          .linear(root("vocab_projector"), d_.vocab)
          .end();
    }
    if (electra_) return narrow_word_logits(hidden);
    const ModuleId outer = root(roberta_ ? "lm_head" : "cls");
    g_.enter(outer);
    const ModuleId head = roberta_ ? outer : g_.child(outer, "predictions");
    if (head != outer) g_.enter(head);
    const ModuleId transform = roberta_ ? head : g_.child(head, "transform");
    if (transform != head) g_.enter(transform);
    const TensorId dense = linear_module(g_, g_.child(transform, "dense"), hidden, d_.hidden);
    Chain chain(*this, dense);
    if (roberta_) {
      chain.next(activated(g_, "gelu", dense)).norm(g_.child(transform, "layer_norm"));
    } else {
      chain.activation(g_.child(transform, "transform_act_fn")).norm(g_.child(transform, "LayerNorm"));
    }
    if (transform != head) g_.exit(transform);
    chain.linear(g_.child(head, "decoder"), d_.vocab);
    if (head != outer) g_.exit(head);
    g_.exit(outer);
    return chain.end();
  }

  // electra's generator: the table of words is narrower than the model.
  TensorId narrow_word_logits(TensorId hidden) {
    const ModuleId head = root("generator_predictions");
    const ModuleId dense = g_.child(head, "dense");
    g_.enter(head);
    Chain chain(*this, linear_module(g_, dense, hidden, biased_features(g_, dense)));
    chain.gelu(g_.child(head, "activation")).norm(g_.child(head, "LayerNorm"));
    g_.exit(head);
    return chain.linear(root("generator_lm_head"), d_.vocab).end();
  }

  // Of every token how likely the answer begins there, and ends: two losses, of which it is the mean.
  Graph answers(const TextBatch& batch, TensorId hidden) {
    const Shape places{g_.shape(hidden).dims[0], g_.shape(hidden).dims[1]};
    const ModuleId dropout = g_.model().child(g_.causal(), "dropout");
    const TensorId given = dropout_module(g_, dropout, hidden, d_.classifier_dropout);
    const TensorId logits = linear_module(g_, root("qa_outputs"), given, d_.labels);
    const std::vector<TensorId> halves = split_last(g_, logits, {1, 1});
    std::array<TensorId, 2> scores{};
    for (std::size_t at = 0; at < 2; ++at) {
      const TensorId row = g_.view(halves[at], places);
      scores[at] = rebound(g_, halves[at], g_.copy(row));
      g_.drop({row});
    }
    const std::array<TensorId, 2> targets{g_.unary(Op::Clamp, batch.labels), g_.unary(Op::Clamp, batch.ends)};
    const std::array<TensorId, 2> losses{class_loss(g_, scores[0], targets[0]), class_loss(g_, scores[1], targets[1])};
    const TensorId sum = g_.binary(Op::Add, losses[0], losses[1]);
    const TensorId loss = rebound(g_, sum, g_.unary(Op::DivScalar, sum, 2));
    g_.drop({losses[0], losses[1], targets[0], targets[1], logits, given, hidden});
    return g_.finish(end_model(g_, scores[0], loss, {scores[1]}));
  }

  TensorId token_logits(TensorId hidden) {
    return Chain(*this, dropout_module(g_, root("dropout"), hidden, d_.classifier_dropout))
        .linear(root("classifier"), d_.labels)
        .end();
  }

  TensorId text_logits(TensorId hidden) {
    if (pooled_ != kNone) {
      const TensorId dropped = dropout_module(g_, root("dropout"), pooled_, d_.classifier_dropout);
      return Chain(*this, dropped).linear(root("classifier"), d_.labels).end();
    }
    if (distil_) {
      return Chain(*this, first_place(g_, hidden))
          .linear(root("pre_classifier"), d_.hidden)
          .unary(Op::Relu)
          .dropout(root("dropout"), d_.classifier_dropout)
          .linear(root("classifier"), d_.labels)
          .end();
    }
    const ModuleId head = root("classifier");
    g_.enter(head);
    Chain chain(*this, first_place(g_, hidden));
    chain.dropout(g_.child(head, "dropout"), d_.classifier_dropout).linear(g_.child(head, "dense"), d_.hidden);
    const TensorId logits = (electra_ ? chain.gelu(g_.child(head, "activation")) : chain.unary(Op::Tanh))
                                .dropout(g_.child(head, "dropout"), d_.classifier_dropout)
                                .linear(g_.child(head, "out_proj"), d_.labels)
                                .end();
    g_.exit(head);
    return logits;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  bool distil_;
  bool electra_;
  bool roberta_;
  ModuleId body_;
  TensorId pooled_ = kNone;
};

}  // namespace

Graph build_encoder_graph(const ModelSpec& model, const GraphOptions& options) {
  return EncoderGraph(model, options).build();
}

}  // namespace dsplan
