// bloom: ALiBi, so there is no position table; a norm behind the embedding; query, key and value in one projection.
#include "model/families/builder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Dimensions read_bloom_dimensions(ConfigReader& config) {
  Dimensions d;
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.vocab = config.size("vocab_size", 250880);
  d.hidden = config.size("hidden_size", 64, "n_embed");
  d.layers = config.layer_count("n_layer", 2, "num_hidden_layers");
  d.heads = d.kv_heads = config.size("n_head", 8, "num_attention_heads");
  d.residual_dropout = config.probability("hidden_dropout", 0);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.activation = "gelu_pytorch_tanh";  // BloomGelu is written out; it is the tanh form.
  config.require_divides("n_head", d.heads, "hidden_size", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  d.ffn = config.times(4, d.hidden);
  return d;
}

void register_bloom_block(ModelBuilder& b, const Dimensions& d) {
  b.layer_norm("input_layernorm", d.hidden);
  {
    const auto attention = b.module("self_attention", "BloomAttention");
    b.linear("query_key_value", b.times(3, d.hidden), d.hidden, true, Cut::QueryKeyValue);
    b.linear("dense", d.hidden, d.hidden, true, Cut::Row);
    b.leaf("attention_dropout", "Dropout");
  }
  b.layer_norm("post_attention_layernorm", d.hidden);
  const auto mlp = b.module("mlp", "BloomMLP");
  b.linear("dense_h_to_4h", d.ffn, d.hidden, true, Cut::Column);
  b.leaf("gelu_impl", "BloomGelu");
  b.linear("dense_4h_to_h", d.hidden, d.ffn, true, Cut::Row);
}

}  // namespace

ModelSpec build_bloom(ConfigReader& config) {
  const bool tied = config.flag("tie_word_embeddings", true);
  Dimensions d = read_bloom_dimensions(config);
  DecoderParts parts;
  parts.token_classes = "classifier";
  read_text_head(config, "Bloom", {.dropout = d.residual_dropout}, parts, d);
  config.throw_if_any();
  ModelBuilder b(config, class_with_head("Bloom", parts.head));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("transformer", "BloomModel");
    embedding = b.embedding("word_embeddings", d.vocab, d.hidden, Split::Vocabulary);
    b.layer_norm("word_embeddings_layernorm", d.hidden);
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto block = b.layer(i, "BloomBlock",
                                   "input_layernorm self_attention(query_key_value attention_dropout dense) "
                                   "post_attention_layernorm mlp(dense_h_to_4h gelu_impl dense_4h_to_h)");
        register_bloom_block(b, d);
      }
    }
    b.layer_norm("ln_f", d.hidden);
  }
  return finish_with_text_head(b, parts, d, {.table = tied ? embedding : ParameterId(kNone)},
                               "transformer(word_embeddings word_embeddings_layernorm h* ln_f)");
}

}  // namespace dsplan
