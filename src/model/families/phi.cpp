// phi (1, 1.5, 2): attention and MLP side by side behind one LayerNorm, part of each head rotated, a head with a bias.
// phi3 (and 4): Llama's shape with query-key-value and gate-up projections fused, and dropouts behind each half.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

void register_phi_layer(ModelBuilder& b, const Dimensions& d, bool qk_layernorm) {
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  {
    const auto attention = b.module("self_attn", "PhiAttention");
    b.linear("q_proj", query, d.hidden, true, Cut::Column);
    b.linear("k_proj", key, d.hidden, true, Cut::KeyValue);
    b.linear("v_proj", key, d.hidden, true, Cut::KeyValue);
    b.linear("dense", d.hidden, query, true, Cut::Row);
    if (qk_layernorm) {
      b.layer_norm("q_layernorm", d.hidden / d.heads);
      b.layer_norm("k_layernorm", d.hidden / d.heads);
    }
  }
  {
    const auto mlp = b.module("mlp", "PhiMLP");
    b.activation("activation_fn", d.activation);
    b.linear("fc1", d.ffn, d.hidden, true, Cut::Column);
    b.linear("fc2", d.hidden, d.ffn, true, Cut::Row);
  }
  b.layer_norm("input_layernorm", d.hidden);
  b.leaf("resid_dropout", "Dropout");
}

void register_phi3_layer(ModelBuilder& b, const Dimensions& d) {
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t fused = b.plus(query, b.times(2, b.times(d.kv_heads, d.head_dim)));
  {
    const auto attention = b.module("self_attn", "Phi3Attention");
    b.linear("o_proj", d.hidden, query, false, Cut::Row);
    b.linear("qkv_proj", fused, d.hidden, false, Cut::QueryKeyValue);
  }
  {
    const auto mlp = b.module("mlp", "Phi3MLP");
    b.linear("gate_up_proj", b.times(2, d.ffn), d.hidden, false, Cut::Column);
    b.linear("down_proj", d.hidden, d.ffn, false, Cut::Row);
    b.activation("activation_fn", d.activation);
  }
  b.rms_norm("input_layernorm", d.hidden, "Phi3RMSNorm");
  b.rms_norm("post_attention_layernorm", d.hidden, "Phi3RMSNorm");
  b.leaf("resid_attn_dropout", "Dropout");
  b.leaf("resid_mlp_dropout", "Dropout");
}

// Both: dropouts under the same keys, and the rotated share.
void read_phi(ConfigReader& config, Dimensions& d, double share) {
  d.embedding_dropout = config.probability("embd_pdrop", 0);
  d.residual_dropout = config.probability("resid_pdrop", 0);
  d.rotary_fraction = config.rotary_share("partial_rotary_factor", share);
}

}  // namespace

ModelSpec build_phi(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Phi",
                                 {.vocab = 51200,
                                  .hidden = 2048,
                                  .ffn = 8192,
                                  .layers = 24,
                                  .activation = "gelu_new",
                                  .kv_heads_may_be_null = true});
  const bool qk_layernorm = config.flag("qk_layernorm", false);
  read_phi(config, decoder.dims, 0.5);
  read_head(config, decoder);
  decoder.head_bias = true;
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  const std::string_view forward =
      qk_layernorm ? "input_layernorm self_attn(q_proj k_proj v_proj q_layernorm k_layernorm dense) resid_dropout "
                     "mlp(fc1 activation_fn fc2) resid_dropout"
                   : "input_layernorm self_attn(q_proj k_proj v_proj dense) resid_dropout "
                     "mlp(fc1 activation_fn fc2) resid_dropout";
  ModelBuilder b(config, class_of(decoder));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("model", "PhiModel");
    embedding = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto layer = b.layer(i, "PhiDecoderLayer", forward);
        register_phi_layer(b, d, qk_layernorm);
      }
    }
    b.rotary("rotary_emb", "PhiRotaryEmbedding", rotated(d));
    b.leaf("embed_dropout", "Dropout");
    b.layer_norm("final_layernorm", d.hidden);
  }
  const std::string head = register_head(b, decoder, embedding);
  ModelSpec spec = b.finish(formatted("model(embed_tokens embed_dropout rotary_emb layers* final_layernorm) {}", head));
  spec.dims = d;
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::Layer;
  parts.rotary.part = RotaryPart::Held;
  parts.mlp = MlpKind::Plain;
  parts.residual = Residual::Parallel;
  parts.head_norm = qk_layernorm ? HeadNorm::ByHead : HeadNorm::None;
  parts.query_norm = "q_layernorm";
  parts.key_norm = "k_layernorm";
  parts.embedding_dropout = "embed_dropout";
  parts.rebinds_embedding = true;
  parts.final_norm = "final_layernorm";
  parts.output = "dense";
  parts.attention_dropout = parts.mlp_dropout = "resid_dropout";
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

ModelSpec build_phi3(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "Phi3", {.vocab = 32064, .hidden = 3072, .ffn = 8192, .positions = 4096, .kv_heads_may_be_null = true});
  read_phi(config, decoder.dims, 1.0);
  decoder.dims.sliding_window = config.maybe_size("sliding_window").value_or(0);
  read_head(config, decoder, 32000);
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  ModelBuilder b(config, class_of(decoder));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("model", "Phi3Model");
    embedding = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto layer = b.layer(i, "Phi3DecoderLayer",
                                   "input_layernorm self_attn(qkv_proj o_proj) resid_attn_dropout "
                                   "post_attention_layernorm mlp(gate_up_proj activation_fn down_proj) "
                                   "resid_mlp_dropout");
        register_phi3_layer(b, d);
      }
    }
    b.rms_norm("norm", d.hidden, "Phi3RMSNorm");
    b.rotary("rotary_emb", "Phi3RotaryEmbedding", rotated(d));
  }
  const std::string head = register_head(b, decoder, embedding);
  ModelSpec spec = b.finish(formatted("model(embed_tokens rotary_emb layers* norm) {}", head));
  spec.dims = d;
  DecoderParts& parts = decoder.parts;
  parts.projections = Projections::Fused;
  parts.rotary.part = RotaryPart::Joined;
  parts.mlp = MlpKind::FusedGate;
  parts.attention_dropout = "resid_attn_dropout";
  parts.mlp_dropout = "resid_mlp_dropout";
  parts.up = "gate_up_proj";
  parts.activation = "activation_fn";
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
