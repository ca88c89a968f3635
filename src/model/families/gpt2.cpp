// gpt2: learned positions, LayerNorms, Conv1D layers whose weights are stored [in, out].
#include "model/families/builder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

void register_gpt2_block(ModelBuilder& b, const Dimensions& d) {
  b.layer_norm("ln_1", d.hidden);
  {
    const auto attention = b.module("attn", "GPT2Attention");
    b.conv1d("c_attn", b.times(3, d.hidden), d.hidden, Cut::QueryKeyValue);
    b.conv1d("c_proj", d.hidden, d.hidden, Cut::Row);
    b.leaf("attn_dropout", "Dropout");
    b.leaf("resid_dropout", "Dropout");
  }
  b.layer_norm("ln_2", d.hidden);
  const auto mlp = b.module("mlp", "GPT2MLP");
  b.conv1d("c_fc", d.ffn, d.hidden, Cut::Column);
  b.conv1d("c_proj", d.hidden, d.ffn, Cut::Row);
  b.activation("act", d.activation);
  b.leaf("dropout", "Dropout");
}

Dimensions read_gpt2_dimensions(ConfigReader& config) {
  Dimensions d;
  d.vocab = config.size("vocab_size", 50257);
  d.hidden = config.size("n_embd", 768, "hidden_size");
  d.layers = config.layer_count("n_layer", 12, "num_hidden_layers");
  d.heads = d.kv_heads = config.size("n_head", 12, "num_attention_heads");
  d.max_positions = config.size("n_positions", 1024, "max_position_embeddings");
  const std::optional<std::int64_t> inner = config.maybe_size("n_inner");
  d.activation = config.activation("activation_function", "gelu_new");
  d.attention_dropout = config.probability("attn_pdrop", 0.1);
  d.residual_dropout = config.probability("resid_pdrop", 0.1);
  d.embedding_dropout = config.probability("embd_pdrop", 0.1);
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  config.require_divides("n_head", d.heads, "n_embd", d.hidden);
  if (config.flag("add_cross_attention", false)) {
    config.fault("add_cross_attention", "cross attention in gpt2 is not modelled yet");
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  d.ffn = inner ? *inner : config.times(4, d.hidden);
  return d;
}

}  // namespace

ModelSpec build_gpt2(ConfigReader& config) {
  const bool tied = config.flag("tie_word_embeddings", true);
  const Dimensions d = read_gpt2_dimensions(config);
  ModelBuilder b(config, "GPT2LMHeadModel");
  ParameterId embedding = kNone;
  {
    const auto model = b.module("transformer", "GPT2Model");
    embedding = b.embedding("wte", d.vocab, d.hidden, Split::Vocabulary);
    b.embedding("wpe", d.max_positions, d.hidden, Split::Replicated);
    b.leaf("drop", "Dropout");
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        // Inside SDPA attention the attention dropout is an argument, so attn_dropout is never called.
        const auto block =
            b.layer(i, "GPT2Block", "ln_1 attn(c_attn c_proj resid_dropout) ln_2 mlp(c_fc act c_proj dropout)");
        register_gpt2_block(b, d);
      }
    }
    b.layer_norm("ln_f", d.hidden);
  }
  const ParameterId head = b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (tied) b.tie(head, embedding);
  ModelSpec spec = b.finish("transformer(wte wpe drop h* ln_f) lm_head");
  spec.dims = d;
  return spec;
}

}  // namespace dsplan
