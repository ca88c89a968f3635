// GPT-2: transformers' GPT2LMHeadModel, module by module.
#include "core/error.h"
#include "model/graphs/graphs.h"

namespace dsplan {
namespace {

class Gpt2 {
 public:
  Gpt2(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), model_(g_.child(0, "transformer")) {}

  Graph build() {
    const TensorId ids = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const TensorId labels = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    g_.set_batch({ids, labels});
    g_.enter(0);
    const TensorId hidden = body(ids);
    const ModuleId head = g_.child(0, "lm_head");
    g_.enter(head);
    const TensorId logits = g_.linear(hidden, g_.parameter("weight"), kNone, d_.vocab);
    g_.exit(head);
    const TensorId loss = causal_loss(g_, logits, labels);
    g_.drop({hidden});
    g_.exit(0);
    return finish_model(g_, loss, logits);
  }

 private:
  TensorId conv1d(ModuleId module, TensorId x, std::int64_t features) {
    g_.enter(module);
    const TensorId weight = g_.parameter("weight");
    const TensorId out = g_.conv1d(x, weight, g_.parameter("bias"), features);
    g_.exit(module);
    return out;
  }

  TensorId layer_norm(ModuleId module, TensorId x) {
    g_.enter(module);
    const TensorId weight = g_.parameter("weight");
    const TensorId out = g_.layer_norm(x, weight, g_.parameter("bias"));
    g_.exit(module);
    return out;
  }

  TensorId dropout(ModuleId module, TensorId x, double p) {
    g_.enter(module);
    const TensorId out = g_.dropout(x, p);
    g_.exit(module);
    return out;
  }

  // 0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3))), composite.
  TensorId gelu_new(TensorId x) {
    const TensorId halved = g_.unary(Op::MulScalar, x);
    const TensorId cubed = g_.unary(Op::PowScalar, x, 3);
    const TensorId small = g_.unary(Op::MulScalar, cubed);
    g_.drop({cubed});
    const TensorId sum = g_.binary(Op::Add, x, small);
    g_.drop({small});
    const TensorId scaled = g_.unary(Op::MulScalar, sum);
    g_.drop({sum});
    const TensorId squashed = g_.unary(Op::Tanh, scaled);
    g_.drop({scaled});
    const TensorId shifted = g_.unary(Op::AddScalar, squashed);
    g_.drop({squashed});
    const TensorId out = g_.binary(Op::Mul, halved, shifted);
    g_.drop({halved, shifted});
    return out;
  }

  TensorId activation(ModuleId module, TensorId x) {
    g_.enter(module);
    const bool composite = d_.activation == "gelu_new";
    const TensorId out = composite ? gelu_new(x) : g_.unary(d_.activation == "silu" ? Op::Silu : Op::Gelu, x);
    g_.exit(module);
    return out;
  }

  TensorId heads_of(TensorId part) {
    return g_.view(part, Shape{g_.options().micro_batch, d_.heads, g_.options().seq, d_.head_dim});
  }

  TensorId attention(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId fused = conv1d(g_.child(module, "c_attn"), hidden, 3 * d_.hidden);
    const std::vector<TensorId> parts = g_.split_last(fused, 3);
    g_.drop({fused});
    const TensorId k = heads_of(parts[1]);
    g_.drop({parts[1]});
    const TensorId v = heads_of(parts[2]);
    g_.drop({parts[2]});
    const TensorId q = heads_of(parts[0]);
    g_.drop({parts[0]});
    const TensorId attended = g_.attention(q, k, v);
    const TensorId flat = g_.view(attended, Shape{g_.options().micro_batch, g_.options().seq, d_.hidden});
    g_.drop({attended});
    const TensorId projected = conv1d(g_.child(module, "c_proj"), flat, d_.hidden);
    g_.drop({flat});
    const TensorId out = dropout(g_.child(module, "resid_dropout"), projected, d_.residual_dropout);
    g_.drop({projected, q, k, v});
    g_.exit(module);
    return out;
  }

  TensorId mlp(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId wide = conv1d(g_.child(module, "c_fc"), hidden, d_.ffn);
    const TensorId active = activation(g_.child(module, "act"), wide);
    g_.drop({wide});
    const TensorId narrow = conv1d(g_.child(module, "c_proj"), active, d_.hidden);
    g_.drop({active});
    const TensorId out = dropout(g_.child(module, "dropout"), narrow, d_.residual_dropout);
    g_.drop({narrow});
    g_.exit(module);
    return out;
  }

  // `attn_output` and `feed_forward_hidden_states` are locals of the block and live until it returns.
  TensorId block(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId normed = layer_norm(g_.child(module, "ln_1"), hidden);
    const TensorId attended = attention(g_.child(module, "attn"), normed);
    const TensorId middle = g_.binary(Op::Add, attended, hidden);
    g_.drop({normed});
    const TensorId second = layer_norm(g_.child(module, "ln_2"), middle);
    const TensorId fed = mlp(g_.child(module, "mlp"), second);
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({second, middle, attended, fed});
    g_.exit(module);
    return out;
  }

  TensorId embed(const char* table, TensorId ids) {
    const ModuleId module = g_.child(model_, table);
    g_.enter(module);
    const TensorId out = g_.embedding(g_.parameter("weight"), ids);
    g_.exit(module);
    return out;
  }

  TensorId body(TensorId ids) {
    g_.enter(model_);
    const TensorId words = embed("wte", ids);
    const TensorId range = g_.make(Op::Arange, Shape{g_.options().seq}, DType::Int64, {});
    const TensorId shifted = g_.make(Op::AddScalar, Shape{g_.options().seq}, DType::Int64, {range});
    g_.drop({range});
    const TensorId position_ids = g_.view(shifted, Shape{1, g_.options().seq});
    g_.drop({shifted});
    const TensorId places = embed("wpe", position_ids);
    const TensorId sum = g_.binary(Op::Add, words, places);
    look_for_packed_sequences(g_, position_ids);
    TensorId hidden = dropout(g_.child(model_, "drop"), sum, d_.embedding_dropout);
    g_.drop({sum});
    const ModuleId blocks = g_.child(model_, "h");
    ModuleId next = blocks + 1;
    for (std::int32_t at = 0; at < d_.layers; ++at) {
      while (g_.model().modules[static_cast<std::size_t>(next)].parent != blocks) ++next;
      g_.begin_region(at, {hidden}, {position_ids});
      const TensorId out = block(next, hidden);
      g_.end_region(at);
      g_.drop({hidden});
      hidden = out;
      ++next;
    }
    const TensorId normed = layer_norm(g_.child(model_, "ln_f"), hidden);
    g_.drop({hidden});
    const TensorId out = g_.view(normed, g_.shape(normed));
    g_.drop({normed, words, position_ids, places});
    g_.exit(model_);
    return out;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  ModuleId model_;
};

}  // namespace

Graph build_gpt2_graph(const ModelSpec& model, const GraphOptions& options) { return Gpt2(model, options).build(); }

}  // namespace dsplan
