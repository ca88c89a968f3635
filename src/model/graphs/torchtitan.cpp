// torchtitan's Llama and Qwen3 (models/llama3/model/model.py, models/qwen3/model/model.py, models/attention.py; 0.2.2,
// compared with 0.1.0, 0.2.0 and 0.2.1), and what its train.py makes of their logits (components/loss.py). A `drop`
// stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class TorchtitanGraph {
 public:
  TorchtitanGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), qwen_(model.family == "qwen3") {}

  Graph build() {
    const Shape tokens{g_.options().micro_batch, g_.options().seq};
    const TensorId ids = g_.batch_input(tokens, DType::Int64);
    const TensorId labels = g_.batch_input(tokens, DType::Int64);
    const TensorId count = g_.options().counts_on_device ? g_.batch_input(Shape{}, DType::Float32) : kNone;
    std::vector<TensorId> batch{ids, labels, count};
    std::erase(batch, kNone);
    g_.set_batch(batch);
    g_.enter_model();
    const TensorId logits = forward(ids);
    g_.exit_model();
    const bool counts = g_.options().torchtitan >= kWitnessTorchtitan;
    const TensorId whole = class_loss(g_, logits, labels, true, counts ? Reduction::Sum : Reduction::Mean);
    const TensorId loss = count == kNone ? g_.unary(Op::DivScalar, whole, 1) : g_.binary(Op::Div, whole, count);
    if (!counts) g_.drop({whole});  // RescaleAccumulatedLoss has returned.
    g_.leave_autocast();
    g_.drop({logits});
    if (counts) g_.give_to_loop(whole);
    return g_.finish(loss);
  }

 private:
  TensorId forward(TensorId ids) {
    TensorId hidden = words_module(g_, g_.child(0, "tok_embeddings"), ids);
    const TensorId turns = g_.buffer(qwen_ ? "rope_cache" : "freqs_cis");
    // fully_shard casts what floats of what a layer is given, before its checkpoint takes it (_fsdp_state.py,
    // _pre_forward). Complex numbers do not.
    const bool casts = qwen_ && g_.options().casts_inputs;
    TensorId own = kNone;
    hidden = run_layers(
        g_, g_.child(0, "layers"), hidden,
        [&](std::size_t) {
          own = casts ? g_.cast(turns, g_.options().dtype) : g_.keep(turns);
          return std::vector<TensorId>{own};
        },
        [&](ModuleId module, std::size_t, TensorId x) { return layer(module, x, own); },
        [&](std::size_t, TensorId x) {
          g_.drop({own});
          return x;
        });
    const TensorId normed = norm(g_.child(0, "norm"), hidden);
    g_.drop({hidden});
    const TensorId logits = linear_module(g_, g_.child(0, "output"), normed, d_.vocab);
    g_.drop({normed});
    return logits;
  }

  TensorId norm(ModuleId module, TensorId x) {
    g_.enter(module);
    const TensorId out = g_.make(Op::RmsNorm, g_.shape(x), g_.dtype(x), {x, g_.parameter("weight")}, true);
    g_.exit(module);
    return out;
  }

  TensorId layer(ModuleId module, TensorId x, TensorId turns) {
    g_.enter(module);
    const TensorId first = norm(g_.child(module, "attention_norm"), x);
    const TensorId attended = attention(g_.child(module, "attention"), first, turns);
    g_.drop({first});
    const TensorId middle = g_.binary(Op::Add, x, attended);
    g_.drop({attended});
    const TensorId second = norm(g_.child(module, "ffn_norm"), middle);
    const TensorId fed = feed_forward(g_.child(module, "feed_forward"), second);
    g_.drop({second});
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({fed, middle});
    g_.exit(module);
    return out;
  }

  // w2(silu(w1(x)) * w3(x)).
  TensorId feed_forward(ModuleId module, TensorId x) {
    g_.enter(module);
    const TensorId gate = linear_module(g_, g_.child(module, "w1"), x, d_.ffn);
    const TensorId active = g_.unary(Op::Silu, gate);
    g_.drop({gate});
    const TensorId up = linear_module(g_, g_.child(module, "w3"), x, d_.ffn);
    const TensorId product = g_.binary(Op::Mul, active, up);
    g_.drop({active, up});
    const TensorId out = linear_module(g_, g_.child(module, "w2"), product, d_.hidden);
    g_.drop({product});
    g_.exit(module);
    return out;
  }

  // A projection viewed by heads, [B, S, heads, D], in place of its variable. What comes back head by head is copied to
  // become the projection's gradient; a rotation makes it contiguous.
  TensorId heads_of(ModuleId attention, std::string_view name, std::int64_t heads, bool by_head = false) {
    const TensorId flat = linear_module(g_, g_.child(attention, name), x_, heads * d_.head_dim);
    const Shape shape{g_.options().micro_batch, g_.options().seq, heads, d_.head_dim};
    const bool copied = by_head && shape.dims[1] > 1 && shape.dims[2] > 1;
    const TensorId split = copied ? g_.view_copied_back(flat, shape) : g_.view(flat, shape);
    g_.drop({flat});
    return split;
  }

  // Before 0.2.2 sdpa is given one head for each of the query's.
  [[nodiscard]] bool repeats_heads() const {
    return g_.options().torchtitan < kWitnessTorchtitan && d_.kv_heads != d_.heads;
  }

  // repeat_kv: each head as often in a row as queries ask it. Its gradient is a sum.
  TensorId repeated(TensorId x) {
    const Shape& own = g_.shape(x);
    const Shape apart{own.dims[0], own.dims[1], own.dims[2], 1, own.dims[3]};
    const Shape shape{own.dims[0], own.dims[1], d_.heads, own.dims[3]};
    const TensorId spread = g_.view_copied_back(
        x, shape, {step_reshape(apart), step_repeat(3, d_.heads / d_.kv_heads), step_reshape(shape)});
    if (d_.kv_heads == 1) return spread;
    const TensorId copied = g_.copy(spread);
    g_.drop({spread});
    return copied;
  }

  // view_as_real(pairs * turns).flatten(3).
  TensorId turned_pairs(TensorId pairs, TensorId turns, bool by_head) {
    const Shape own = g_.shape(pairs);
    const Shape flat{own.dims[0], own.dims[1], own.dims[2], own.dims[3] * 2};
    const TensorId product = g_.make(Op::ComplexMul, own, DType::Float32, {pairs, turns}, true);
    const bool copied = by_head && own.dims[1] > 1 && own.dims[2] > 1;
    const TensorId out = copied ? g_.view_copied_back(product, flat) : g_.view(product, flat);
    g_.drop({product});
    return out;
  }

  // apply_rotary_emb of llama3; the caller's variables take the results' names.
  QueryKey complex_turned(QueryKey x, TensorId table, bool queries, bool keys) {
    const QueryKey pairs{complex_pairs(g_, x.q), complex_pairs(g_, x.k)};
    const TensorId turns = g_.view(table, Shape{1, g_.options().seq, 1, d_.head_dim / 2, 2});
    const QueryKey wide{turned_pairs(pairs.q, turns, queries), turned_pairs(pairs.k, turns, keys)};
    const QueryKey out{g_.cast(wide.q, g_.dtype(x.q)), g_.cast(wide.k, g_.dtype(x.k))};
    g_.drop({pairs.q, pairs.k, turns, wide.q, wide.k, x.q, x.k});
    return out;
  }

  // apply_rotary_emb of qwen3: both tables lie in one, and are brought to the queries' dtype by each layer.
  QueryKey wave_turned(QueryKey x, TensorId table) {
    const TensorId both = g_.view(table, Shape{1, g_.options().seq, 1, 2 * d_.head_dim});
    const auto wave = [&](std::int64_t from) {
      const TensorId part = g_.slice(both, 3, from, d_.head_dim);
      const TensorId narrow = g_.cast(part, g_.dtype(x.q));
      g_.drop({part});
      return narrow;
    };
    const Waves waves{wave(0), wave(d_.head_dim)};
    const QueryKey out{turned_by(g_, x.q, waves), turned_by(g_, x.k, waves)};
    g_.drop({waves.cos, waves.sin, both, x.q, x.k});
    return out;
  }

  TensorId attention(ModuleId module, TensorId x, TensorId table) {
    g_.enter(module);
    x_ = x;
    const bool queries = queries_come_back_by_head(g_.options(), d_, false);
    const bool keys = keys_come_back_by_head(g_.options(), d_, false);
    QueryKey turned{heads_of(module, "wq", d_.heads), heads_of(module, "wk", d_.kv_heads)};
    const bool repeats = repeats_heads();
    const bool values = !repeats && values_come_back_by_head(g_.options(), d_, false);
    const TensorId value = heads_of(module, "wv", d_.kv_heads, values);
    if (qwen_) {
      const auto normed = [&](std::string_view name, TensorId own) {
        const TensorId out = norm(g_.child(module, name), own);
        g_.drop({own});
        return out;
      };
      turned.q = normed("q_norm", turned.q);
      turned.k = normed("k_norm", turned.k);
      turned = wave_turned(turned, table);
    } else {
      turned = complex_turned(turned, table, queries, keys);
    }
    const TensorId key = repeats ? repeated(turned.k) : g_.keep(turned.k);
    const TensorId all = repeats ? repeated(value) : g_.keep(value);
    AttentionCall call;
    call.q = heads_before_tokens(g_, turned.q);
    g_.drop({turned.k});
    call.k = heads_before_tokens(g_, g_.keep(key));
    g_.drop({value});
    call.v = heads_before_tokens(g_, g_.keep(all));
    const ModuleId inner = g_.child(module, "inner_attention");
    g_.enter(inner);
    const Attended attended = attend(g_, call);
    g_.exit(inner);
    const TensorId out = linear_module(g_, g_.child(module, "wo"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v, key, all});
    g_.exit(module);
    return out;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  bool qwen_;
  TensorId x_ = kNone;  // What the attention under way is given.
};

}  // namespace

Graph build_torchtitan_graph(const ModelSpec& model, const GraphOptions& options) {
  return TorchtitanGraph(model, options).build();
}

}  // namespace dsplan
