// gpt_neox (GPT-NeoX-20B, Pythia): query, key and value in one projection, part of each head rotated, attention and
// MLP side by side or one behind the other with the same modules in the same order.
#include "model/families/builder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

Dimensions read_gpt_neox_dimensions(ConfigReader& config) {
  Dimensions d;
  d.vocab = config.size("vocab_size", 50432);
  d.hidden = config.size("hidden_size", 6144);
  d.ffn = config.size("intermediate_size", 24576);
  d.layers = config.layer_count("num_hidden_layers", 44);
  d.heads = d.kv_heads = config.size("num_attention_heads", 64);
  d.max_positions = config.size("max_position_embeddings", 2048);
  d.activation = config.activation("hidden_act", "gelu");
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout", 0);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-5);
  d.rotary_base = config.rotary_base(10000);
  d.rotary_fraction = config.rotary_share("rotary_pct", 0.25);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  return d;
}

void register_layer(ModelBuilder& b, const Dimensions& d, bool attention_bias) {
  b.layer_norm("input_layernorm", d.hidden);
  b.layer_norm("post_attention_layernorm", d.hidden);
  b.leaf("post_attention_dropout", "Dropout");
  b.leaf("post_mlp_dropout", "Dropout");
  {
    const auto attention = b.module("attention", "GPTNeoXAttention");
    b.linear("query_key_value", b.times(3, d.hidden), d.hidden, attention_bias, Cut::QueryKeyValue);
    b.linear("dense", d.hidden, d.hidden, attention_bias, Cut::Row);
  }
  const auto mlp = b.module("mlp", "GPTNeoXMLP");
  b.linear("dense_h_to_4h", d.ffn, d.hidden, true, Cut::Column);
  b.linear("dense_4h_to_h", d.hidden, d.ffn, true, Cut::Row);
  b.activation("act", d.activation);
}

DecoderParts gpt_neox_parts(bool parallel) {
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.projections = Projections::FusedHeads;
  parts.rotary.part = RotaryPart::JoinedLast;
  parts.mlp = MlpKind::Plain;
  parts.residual = parallel ? Residual::ParallelTwoNorms : Residual::Serial;
  parts.rebinds_dropout = true;
  parts.body = "gpt_neox";
  parts.embedding = "embed_in";
  parts.embedding_dropout = "emb_dropout";
  parts.final_norm = "final_layer_norm";
  parts.attention = "attention";
  parts.fused_projection = "query_key_value";
  parts.output = "dense";
  parts.attention_dropout = "post_attention_dropout";
  parts.mlp_dropout = "post_mlp_dropout";
  parts.up = "dense_h_to_4h";
  parts.down = "dense_4h_to_h";
  parts.activation = "act";
  parts.token_classes = "classifier";
  return parts;
}

}  // namespace

ModelSpec build_gpt_neox(ConfigReader& config) {
  Dimensions d = read_gpt_neox_dimensions(config);
  const bool tied = config.flag("tie_word_embeddings", false);
  const bool attention_bias = config.flag("attention_bias", true);
  const bool parallel = config.flag("use_parallel_residual", true);
  DecoderParts parts = gpt_neox_parts(parallel);
  read_text_head(config, "GPTNeoX", {}, parts, d);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  ModelBuilder b(config, class_with_head("GPTNeoX", parts.head));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("gpt_neox", "GPTNeoXModel");
    embedding = b.embedding("embed_in", d.vocab, d.hidden, Split::Vocabulary);
    b.leaf("emb_dropout", "Dropout");
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto layer = b.layer(i, "GPTNeoXLayer",
                                   "input_layernorm attention(query_key_value dense) post_attention_dropout "
                                   "post_attention_layernorm mlp(dense_h_to_4h act dense_4h_to_h) post_mlp_dropout");
        register_layer(b, d, attention_bias);
      }
    }
    b.layer_norm("final_layer_norm", d.hidden);
    b.rotary("rotary_emb", "GPTNeoXRotaryEmbedding", rotated(d));
  }
  ModelSpec spec = finish_with_text_head(b, parts, d, {.table = tied ? embedding : ParameterId(kNone)},
                                         "gpt_neox(embed_in emb_dropout rotary_emb layers* final_layer_norm)");
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
