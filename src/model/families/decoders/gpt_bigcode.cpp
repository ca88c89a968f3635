// gpt_bigcode (starcoder): gpt2 with Linear layers, whose heads share one key and one value.
#include "model/families/builder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

void register_bigcode_block(ModelBuilder& b, const Dimensions& d) {
  b.layer_norm("ln_1", d.hidden);
  {
    const auto attention = b.module("attn", "GPTBigCodeAttention");
    const std::int64_t keys = b.times(2, b.times(d.kv_heads, d.head_dim));
    b.linear("c_attn", b.plus(d.hidden, keys), d.hidden, true, Cut::Unknown);
    b.linear("c_proj", d.hidden, d.hidden, true, Cut::Unknown);
    b.leaf("resid_dropout", "Dropout");
  }
  b.layer_norm("ln_2", d.hidden);
  const auto mlp = b.module("mlp", "GPTBigCodeMLP");
  b.linear("c_fc", d.ffn, d.hidden, true, Cut::Unknown);
  b.linear("c_proj", d.hidden, d.ffn, true, Cut::Unknown);
  b.activation("act", d.activation);
  b.leaf("dropout", "Dropout");
}

Dimensions read_bigcode_dimensions(ConfigReader& config) {
  Dimensions d;
  d.vocab = config.size("vocab_size", 50257);
  d.hidden = config.size("n_embd", 768, "hidden_size");
  d.layers = config.layer_count("n_layer", 12, "num_hidden_layers");
  d.heads = config.size("n_head", 12, "num_attention_heads");
  d.kv_heads = config.flag("multi_query", true) ? 1 : d.heads;
  d.max_positions = config.size("n_positions", 1024, "max_position_embeddings");
  const std::optional<std::int64_t> inner = config.maybe_size("n_inner");
  d.activation = config.activation("activation_function", "gelu_pytorch_tanh");
  d.attention_dropout = config.probability("attn_pdrop", 0.1);
  d.residual_dropout = config.probability("resid_pdrop", 0.1);
  d.embedding_dropout = config.probability("embd_pdrop", 0.1);
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  config.require_divides("n_head", d.heads, "n_embd", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  d.ffn = inner ? *inner : config.times(4, d.hidden);
  return d;
}

}  // namespace

ModelSpec build_gpt_bigcode(ConfigReader& config) {
  const bool tied = config.flag("tie_word_embeddings", true);
  const Dimensions d = read_bigcode_dimensions(config);
  ModelBuilder b(config, "GPTBigCodeForCausalLM");
  ParameterId embedding = kNone;
  {
    const auto model = b.module("transformer", "GPTBigCodeModel");
    embedding = b.embedding("wte", d.vocab, d.hidden, Split::Vocabulary);
    b.embedding("wpe", d.max_positions, d.hidden, Split::Replicated);
    b.leaf("drop", "Dropout");
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto block =
            b.layer(i, "GPTBigCodeBlock", "ln_1 attn(c_attn c_proj resid_dropout) ln_2 mlp(c_fc act c_proj dropout)");
        register_bigcode_block(b, d);
      }
    }
    b.layer_norm("ln_f", d.hidden);
    b.buffer("bias", {d.max_positions, d.max_positions}, DType::Bool, false);
  }
  const ParameterId head = b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (tied) b.tie(head, embedding);
  ModelSpec spec = b.finish("transformer(wte wpe drop h* ln_f) lm_head");
  spec.dims = d;
  return spec;
}

}  // namespace dsplan
