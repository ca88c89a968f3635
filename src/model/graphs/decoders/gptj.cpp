// GPT-J and GPT-Neo: transformers' GPTJForCausalLM and GPTNeoForCausalLM, module by module. Attention is composed of
// products in fp32 alone; GPT-J turns a part of each head by a table that it repeats and gathers from in every layer.
#include <cmath>

#include "model/graphs/attention.h"
#include "model/graphs/builder.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class Eleuther {
 public:
  Eleuther(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options),
        d_(model.dims),
        turns_(model.family == "gptj"),
        model_(g_.child(g_.causal(), "transformer")) {}

  Graph build() {
    return language_model(
        g_, [&](TensorId ids) { return body(ids); }, cache_);
  }

 private:
  // embed_positions.repeat(1, 1, 1), a copy, of which each token's row is gathered: sines, then cosines.
  Waves waves(TensorId position_ids, DType as, std::vector<TensorId>& held) {
    const TensorId table = g_.buffer("embed_positions");
    const std::int64_t width = g_.shape(table).dims[1];
    const std::int64_t seq = g_.options().seq;
    const Shape rows{1, g_.shape(table).dims[0], width};
    const Shape each{1, seq, width};
    const TensorId seen = g_.view(table, rows);
    const TensorId repeated = g_.copy(seen);
    const TensorId column = g_.view(position_ids, Shape{1, seq, 1});
    const TensorId places = g_.make(Op::RepeatInterleave, each, DType::Int64, {column});
    g_.drop({seen, column});
    const TensorId gathered = g_.make(Op::Gather, each, g_.dtype(table), {repeated, places});
    const TensorId both = g_.cast(gathered, as);
    g_.drop({gathered});
    const std::vector<TensorId> halves = split_last(g_, both, equal_widths(g_, both, 2));
    held.insert(held.end(), {repeated, places, both, halves[0], halves[1]});
    return {halves[1], halves[0]};
  }

  // Each frequency twice in a row, beside all heads.
  TensorId twice(TensorId wave) {
    const Shape own = g_.shape(wave);
    const TensorId beside = g_.view(wave, Shape{1, own.dims[1], 1, own.dims[2]});
    const Shape wide{1, own.dims[1], 1, 2 * own.dims[2]};
    const TensorId out = g_.make(Op::RepeatInterleave, wide, g_.dtype(wave), {beside});
    g_.drop({beside});
    return out;
  }

  // apply_rotary_pos_emb, which makes tables anew each time; rebinds the variable.
  TensorId turned(TensorId part, const Waves& at) {
    const TensorId sin = twice(at.sin);
    const TensorId cos = twice(at.cos);
    RotaryParts pairs;
    pairs.pairs = true;
    const TensorId out = turned_by(g_, part, {cos, sin}, pairs);
    g_.drop({sin, cos, part});
    return out;
  }

  // Heads of queries and keys behind the turning, which lie token by token.
  void turn(AttentionCall& call, TensorId position_ids, std::vector<TensorId>& held) {
    const Waves at = waves(position_ids, g_.dtype(call.k), held);
    const std::int64_t width = 2 * g_.shape(at.sin).dims[2];
    const auto part = [&](TensorId of, std::int64_t from, std::int64_t length) {
      return g_.slice(of, 3, from, length);
    };
    const std::int64_t rest = d_.head_dim - width;
    const TensorId key = part(call.k, 0, width);
    const TensorId key_rest = part(call.k, width, rest);
    const TensorId query = part(call.q, 0, width);
    const TensorId query_rest = part(call.q, width, rest);
    const TensorId key_turned = turned(key, at);
    const TensorId query_turned = turned(query, at);
    call.k = heads_before_tokens(g_, rebound(g_, call.k, g_.cat(key_turned, key_rest)));
    call.q = heads_before_tokens(g_, rebound(g_, call.q, g_.cat(query_turned, query_rest)));
    held.insert(held.end(), {key_turned, key_rest, query_turned, query_rest});
  }

  // All three products first, then heads apart.
  void project(ModuleId module, TensorId hidden, AttentionCall& call) {
    const auto product = [&](const char* name) { return linear_module(g_, g_.child(module, name), hidden, d_.hidden); };
    const TensorId q = product("q_proj");
    TensorId k = product("k_proj");
    if (!turns_ && keys_come_back_by_head(g_.options(), d_, true)) {
      k = rebound(g_, k, g_.view_copied_back(k, g_.shape(k)));
    }
    const TensorId v = product("v_proj");
    const Shape by_token{g_.options().micro_batch, g_.options().seq, d_.heads, d_.head_dim};
    const auto apart = [&](TensorId flat) {
      return turns_ ? rebound(g_, flat, g_.view(flat, by_token)) : by_heads(g_, flat, d_.heads, d_.head_dim, flat == q);
    };
    call.q = apart(q);
    call.k = apart(k);
    call.v = by_heads(g_, v, d_.heads, d_.head_dim, true);
  }

  Attended attention(ModuleId module, TensorId hidden, TensorId position_ids, TensorId mask) {
    g_.enter(module);
    AttentionCall call;
    std::vector<TensorId> held;
    project(module, hidden, call);
    if (turns_) turn(call, position_ids, held);
    if (g_.options().use_cache) {
      keep_in_cache(g_, call.k, call.v, cache_, false);
      call.keys_by_head = call.values_by_head = true;
    }
    call.mask = mask;
    call.wide = true;
    call.softmax = SoftmaxKind::Values;
    call.dropout = d_.attention_dropout;
    call.dropped_by = g_.child(module, "attn_dropout");
    if (turns_) {
      call.divisor = std::sqrt(static_cast<double>(d_.head_dim));
    } else {
      const std::int64_t seq = g_.options().seq;
      call.seen = g_.view(g_.buffer("bias"), Shape{1, 1, seq, seq}, {step_narrow(2, 0, seq), step_narrow(3, 0, seq)});
    }
    const Attended attended = attend(g_, call);
    const TensorId projected = linear_module(g_, g_.child(module, "out_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat});
    const TensorId out = dropout_module(g_, g_.child(module, "resid_dropout"), projected, d_.residual_dropout);
    g_.drop({projected, call.q, call.k, call.v});
    if (call.seen != kNone) g_.drop({call.seen});
    for (const TensorId one : held) g_.drop({one});
    g_.exit(module);
    return {out, attended.weights};
  }

  TensorId mlp(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId wide = linear_module(g_, g_.child(module, turns_ ? "fc_in" : "c_fc"), hidden, d_.ffn);
    const TensorId active = activation_module(g_, g_.child(module, "act"), wide);
    g_.drop({wide});
    const TensorId narrow = linear_module(g_, g_.child(module, turns_ ? "fc_out" : "c_proj"), active, d_.hidden);
    g_.drop({active});
    const TensorId out = dropout_module(g_, g_.child(module, "dropout"), narrow, d_.residual_dropout);
    g_.drop({narrow});
    g_.exit(module);
    return out;
  }

  TensorId norm(ModuleId parent, const char* name, TensorId x) {
    return norm_module(g_, NormKind::Layer, g_.child(parent, name), x);
  }

  // attention + MLP + residual, both of one norm (gptj).
  Attended beside(ModuleId module, TensorId hidden, TensorId position_ids, TensorId mask) {
    const TensorId normed = norm(module, "ln_1", hidden);
    const Attended attended = attention(g_.child(module, "attn"), normed, position_ids, mask);
    const TensorId fed = mlp(g_.child(module, "mlp"), normed);
    const TensorId sum = g_.binary(Op::Add, attended.flat, fed);
    const TensorId out = g_.binary(Op::Add, sum, hidden);
    g_.drop({sum, normed, attended.flat, fed});
    return {out, attended.weights};
  }

  // One behind the other; what attention gives lives as long as the block (gpt_neo).
  Attended behind(ModuleId module, TensorId hidden, TensorId mask) {
    const TensorId normed = norm(module, "ln_1", hidden);
    const ModuleId outer = g_.child(module, "attn");
    g_.enter(outer);
    const Attended attended = attention(g_.child(outer, "attention"), normed, kNone, mask);
    g_.exit(outer);
    const TensorId middle = g_.binary(Op::Add, attended.flat, hidden);
    g_.drop({normed});
    const TensorId second = norm(module, "ln_2", middle);
    const TensorId fed = mlp(g_.child(module, "mlp"), second);
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({second, middle, attended.flat, fed});
    return {out, attended.weights};
  }

  // What a block returns besides lives until the next has returned.
  TensorId block(ModuleId module, TensorId hidden, TensorId position_ids, TensorId mask) {
    g_.enter(module);
    const Attended made = turns_ ? beside(module, hidden, position_ids, mask) : behind(module, hidden, mask);
    g_.exit(module);
    rebind(g_, returned_, made.weights);
    return made.flat;
  }

  TensorId embed(const char* table, TensorId ids) {
    const ModuleId module = g_.child(model_, table);
    const bool words = std::string_view(table) == "wte";
    return words ? words_module(g_, module, ids) : table_module(g_, module, ids);
  }

  TensorId body(TensorId ids) {
    g_.enter(model_);
    const TensorId words = embed("wte", ids);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const TensorId shifted = shifted_numbers(g_, g_.options().seq);
    const TensorId position_ids = g_.view(shifted, Shape{1, g_.options().seq});
    g_.drop({shifted});
    const TensorId mask = attention_mask(g_, position_ids, kNone);
    const TensorId places = turns_ ? kNone : embed("wpe", position_ids);
    const TensorId sum = turns_ ? g_.keep(words) : g_.binary(Op::Add, words, places);
    TensorId hidden = dropout_module(g_, g_.child(model_, "drop"), sum, d_.embedding_dropout);
    g_.drop({sum});
    hidden = run_layers(
        g_, g_.child(model_, "h"), hidden,
        [&](std::size_t) {
          return std::vector<TensorId>{mask, turns_ ? position_ids : kNone};
        },
        [&](ModuleId module, std::size_t, TensorId x) { return block(module, x, position_ids, mask); });
    const TensorId normed = norm(model_, "ln_f", hidden);
    const TensorId out = g_.view(normed, g_.shape(normed));
    g_.drop({hidden, returned_, normed, words, position_ids, mask});
    if (places != kNone) g_.drop({places});
    g_.exit(model_);
    return out;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  bool turns_;  // Rotary positions, and a parallel block: gptj.
  ModuleId model_;
  std::vector<TensorId> cache_;  // Keys and values, layer by layer.
  TensorId returned_ = kNone;
};

}  // namespace

Graph build_gptj_graph(const ModelSpec& model, const GraphOptions& options) { return Eleuther(model, options).build(); }

}  // namespace dsplan
