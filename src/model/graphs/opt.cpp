// OPT: transformers' OPTForCausalLM, module by module. Positions are counted from a mask of ones in fp32; the
// feed-forward works on rows of tokens.
#include <cmath>

#include "core/error.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class Opt {
 public:
  Opt(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), decoder_(g_.child(g_.child(g_.causal(), "model"), "decoder")) {}

  Graph build() {
    return language_model(
        g_, [&](TensorId ids) { return called(ids); }, cache_);
  }

 private:
  TensorId norm(ModuleId parent, const char* name, TensorId x) {
    return norm_module(g_, NormKind::Layer, g_.child(parent, name), x);
  }

  Attended attention(ModuleId module, TensorId hidden, TensorId mask) {
    g_.enter(module);
    const auto project = [&](const char* name) { return linear_module(g_, g_.child(module, name), hidden, d_.hidden); };
    const bool queries = queries_come_back_by_head(g_.options(), d_, mask != kNone);
    const TensorId unscaled = project("q_proj");
    const TensorId query = g_.unary(Op::MulScalar, unscaled, 1 / std::sqrt(static_cast<double>(d_.head_dim)));
    g_.drop({unscaled});
    AttentionCall call;
    call.q = by_heads(g_, query, d_.heads, d_.head_dim, queries);
    TensorId key = project("k_proj");
    const GraphOptions& options = g_.options();
    const bool cached = options.use_cache && !options.eager_attention && !options.math_attention;
    if (!cached && keys_come_back_by_head(options, d_, mask != kNone) && d_.heads > 1 && g_.options().seq > 1) {
      const TensorId own = g_.view_copied_back(key, g_.shape(key));
      g_.drop({key});
      key = own;
    }
    const TensorId value = project("v_proj");
    call.k = by_heads(g_, key, d_.heads, d_.head_dim, cached);
    call.v = by_heads(g_, value, d_.heads, d_.head_dim, values_come_back_by_head(g_.options(), d_, mask != kNone));
    if (g_.options().use_cache) {
      keep_in_cache(g_, call.k, call.v, cache_, false);
      call.keys_by_head = call.values_by_head = true;
    }
    call.mask = mask;
    call.dropout = d_.attention_dropout;
    call.scale = 1;
    const Attended attended = attend(g_, call);
    const TensorId out = linear_module(g_, g_.child(module, "out_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v});
    g_.exit(module);
    return {out, attended.weights};
  }

  // dropout, which rebinds the variable, then the sum.
  TensorId join(TensorId residual, TensorId branch) {
    const TensorId dropped = g_.dropout(branch, d_.residual_dropout);
    g_.drop({branch});
    const TensorId out = g_.binary(Op::Add, residual, dropped);
    g_.drop({dropped});
    return out;
  }

  TensorId fed(ModuleId layer, TensorId rows, bool before) {
    const TensorId normed = before ? norm(layer, "final_layer_norm", rows) : g_.keep(rows);
    const TensorId wide = linear_module(g_, g_.child(layer, "fc1"), normed, d_.ffn);
    g_.drop({normed});
    const TensorId active = activation_module(g_, g_.child(layer, "activation_fn"), wide);
    g_.drop({wide});
    const TensorId narrow = linear_module(g_, g_.child(layer, "fc2"), active, d_.hidden);
    g_.drop({active});
    return join(rows, narrow);
  }

  TensorId layer(ModuleId module, TensorId hidden, TensorId mask, bool before) {
    const Shape shape = g_.shape(hidden);
    g_.enter(module);
    const TensorId normed = before ? norm(module, "self_attn_layer_norm", hidden) : g_.keep(hidden);
    const Attended attended = attention(g_.child(module, "self_attn"), normed, mask);
    g_.drop({normed});
    TensorId middle = join(hidden, attended.flat);
    if (!before) {
      const TensorId after = norm(module, "self_attn_layer_norm", middle);
      g_.drop({middle});
      middle = after;
    }
    const TensorId rows = g_.view(middle, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
    g_.drop({middle});
    const TensorId sum = fed(module, rows, before);
    TensorId out = g_.view(sum, shape);
    g_.drop({sum});
    if (!before) {
      const TensorId after = norm(module, "final_layer_norm", out);
      g_.drop({out});
      out = after;
    }
    g_.drop({rows});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  TensorId embed(const char* table, TensorId ids, bool words) {
    const ModuleId module = g_.child(decoder_, table);
    return words ? words_module(g_, module, ids) : table_module(g_, module, ids);
  }

  // (cumsum(ones) * ones - 1).long(), then [:, 0:].
  TensorId positions(TensorId ones) {
    const Shape shape = g_.shape(ones);
    const TensorId counted = g_.make(Op::CumSum, shape, DType::Float32, {ones});
    const TensorId masked = g_.binary(Op::Mul, counted, ones);
    const TensorId shifted = g_.unary(Op::SubScalar, masked, 1);
    g_.drop({masked});
    const TensorId numbers = g_.make(Op::Cast, shape, DType::Int64, {shifted});
    g_.drop({shifted, counted});
    return numbers;
  }

  TensorId places(TensorId position_ids) {
    const ModuleId module = g_.child(decoder_, "embed_positions");
    g_.enter(module);
    const TensorId shifted = g_.make(Op::AddScalar, g_.shape(position_ids), DType::Int64, {position_ids}, false, 2);
    const TensorId out = embedding(g_, g_.parameter("weight"), shifted);
    g_.drop({shifted});
    g_.exit(module);
    return out;
  }

  // Between the word table's width and the model's, rebinding the variable.
  TensorId projected(const char* name, TensorId x, std::int64_t features) {
    const ModuleId module = g_.model().child(decoder_, name);
    if (module == kNone) return x;
    const TensorId out = linear_module(g_, module, x, features);
    g_.drop({x});
    return out;
  }

  [[nodiscard]] std::int64_t word_width() {
    return g_.shape(g_.parameter_of(g_.child(decoder_, "embed_tokens"), "weight")).dims[1];
  }

  // OPTForCausalLM calls the decoder inside of the model, OPTForSequenceClassification the model.
  TensorId called(TensorId ids) {
    if (!g_.model().graph_class.ends_with("ForSequenceClassification")) return body(ids);
    const ModuleId model = g_.child(g_.causal(), "model");
    g_.enter(model);
    const TensorId hidden = body(ids);
    g_.exit(model);
    return hidden;
  }

  TensorId body(TensorId ids) {
    g_.enter(decoder_);
    const TensorId rows = g_.view(ids, g_.shape(ids));
    TensorId words = embed("embed_tokens", rows, true);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const TensorId ones = g_.filled(g_.shape(ids), DType::Float32, 1);
    const TensorId position_ids = positions(ones);
    const TensorId mask = attention_mask(g_, position_ids, ones);
    const TensorId at = places(position_ids);
    words = projected("project_in", words, d_.hidden);
    TensorId hidden = g_.binary(Op::Add, words, at);
    const bool last_norm = g_.model().child(decoder_, "final_layer_norm") != kNone;
    hidden = run_layers(
        g_, g_.child(decoder_, "layers"), hidden,
        [&](std::size_t) {
          return std::vector<TensorId>{position_ids, mask};
        },
        [&](ModuleId module, std::size_t, TensorId x) {
          return layer(module, x, mask, g_.model().parts->norms_first);
        });
    if (last_norm) {
      const TensorId normed = norm(decoder_, "final_layer_norm", hidden);
      g_.drop({hidden});
      hidden = normed;
    }
    if (g_.model().child(decoder_, "project_out") != kNone) {
      const TensorId narrow = linear_module(g_, g_.child(decoder_, "project_out"), hidden, word_width());
      g_.drop({hidden});
      hidden = narrow;
    }
    g_.drop({rows, words, ones, position_ids, at});
    if (mask != kNone) g_.drop({mask});
    g_.exit(decoder_);
    return hidden;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  ModuleId decoder_;
  std::vector<TensorId> cache_;  // Keys and values, layer by layer.
};

}  // namespace

Graph build_opt_graph(const ModelSpec& model, const GraphOptions& options) { return Opt(model, options).build(); }

}  // namespace dsplan
