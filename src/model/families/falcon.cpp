// falcon: query, key and value in one projection (one key-value head, some, or as many as heads), attention and MLP
// side by side or not, one norm or two, biases or not.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/decoder.h"
#include "model/families/decoders/text_heads.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

enum class Norms : std::uint8_t { Sequential, Shared, Two };

struct Falcon {
  Dimensions dims;
  bool tied = true;
  bool bias = false;
  DecoderParts parts;
  Norms norms = Norms::Shared;
};

// Which norms a layer has. transformers builds a few combinations more, whose forward then asks for a norm that is
// not there.
Norms read_norms(ConfigReader& config, bool new_architecture) {
  const bool parallel = config.flag("parallel_attn", true);
  const std::int64_t norms = config.maybe_size("num_ln_in_parallel_attn").value_or(new_architecture ? 2 : 1);
  if (new_architecture && !parallel) {
    config.fault("parallel_attn", "\"new_decoder_architecture\" needs \"parallel_attn\"");
  }
  if (norms > 2 || (norms == 2 && !new_architecture)) {
    config.fault("num_ln_in_parallel_attn",
                 formatted("\"num_ln_in_parallel_attn\" must be {}, not {}",
                           new_architecture ? "1 or 2" : "1 without \"new_decoder_architecture\"", norms));
  }
  if (!parallel) return Norms::Sequential;
  return norms == 2 ? Norms::Two : Norms::Shared;
}

Falcon read_falcon(ConfigReader& config) {
  Falcon falcon;
  Dimensions& d = falcon.dims;
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-5);
  d.vocab = config.size("vocab_size", 65024);
  d.hidden = config.size("hidden_size", 4544, "n_embed");
  d.layers = config.layer_count("num_hidden_layers", 32);
  d.heads = config.size("num_attention_heads", 71);
  d.max_positions = config.size("max_position_embeddings", 2048);
  d.activation = config.activation("activation", "gelu");
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.residual_dropout = config.probability("hidden_dropout", 0);
  const std::optional<std::int64_t> ffn = config.maybe_size("ffn_hidden_size");
  const std::optional<std::int64_t> kv = config.maybe_size("num_kv_heads");
  const bool new_architecture = config.flag("new_decoder_architecture", false);
  const bool multi_query = config.flag("multi_query", true);
  falcon.parts.alibi = config.flag("alibi", false);
  falcon.parts.projections = new_architecture ? Projections::FusedGroups
                             : multi_query    ? Projections::Fused
                                              : Projections::FusedHeads;
  d.kv_heads = new_architecture ? kv.value_or(d.heads) : multi_query ? 1 : d.heads;
  falcon.bias = config.flag("bias", false);
  falcon.tied = config.flag("tie_word_embeddings", true);
  falcon.norms = read_norms(config, new_architecture);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.require_divides("num_kv_heads", d.kv_heads, "num_attention_heads", d.heads);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  d.ffn = ffn ? *ffn : config.times(4, d.hidden);
  return falcon;
}

void register_layer(ModelBuilder& b, const Falcon& falcon) {
  const Dimensions& d = falcon.dims;
  const std::int64_t fused = b.times(b.plus(d.heads, b.times(2, d.kv_heads)), d.head_dim);
  {
    const auto attention = b.module("self_attention", "FalconAttention");
    b.linear("query_key_value", fused, d.hidden, falcon.bias, Cut::QueryKeyValue, "FalconLinear");
    b.linear("dense", d.hidden, d.hidden, falcon.bias, Cut::Row, "FalconLinear");
    b.leaf("attention_dropout", "Dropout");
  }
  {
    const auto mlp = b.module("mlp", "FalconMLP");
    b.linear("dense_h_to_4h", d.ffn, d.hidden, falcon.bias, Cut::Column, "FalconLinear");
    b.activation("act", d.activation);
    b.linear("dense_4h_to_h", d.hidden, d.ffn, falcon.bias, Cut::Row, "FalconLinear");
  }
  if (falcon.norms == Norms::Two) {
    b.layer_norm("ln_attn", d.hidden);
    b.layer_norm("ln_mlp", d.hidden);
    return;
  }
  if (falcon.norms == Norms::Sequential) b.layer_norm("post_attention_layernorm", d.hidden);
  b.layer_norm("input_layernorm", d.hidden);
}

// SDPA takes the attention dropout as an argument, so attention_dropout is never called.
std::string layer_forward(const Falcon& falcon) {
  return formatted("{} self_attention(query_key_value dense){} mlp(dense_h_to_4h act dense_4h_to_h)",
                   falcon.norms == Norms::Two ? "ln_attn ln_mlp" : "input_layernorm",
                   falcon.norms == Norms::Sequential ? " post_attention_layernorm" : "");
}

}  // namespace

ModelSpec build_falcon(ConfigReader& config) {
  Falcon falcon = read_falcon(config);
  falcon.parts.token_classes = "classifier";
  read_text_head(config, "Falcon", {.dropout = falcon.dims.residual_dropout}, falcon.parts, falcon.dims);
  config.throw_if_any();
  const Dimensions& d = falcon.dims;
  const std::string forward = layer_forward(falcon);
  ModelBuilder b(config, class_with_head("Falcon", falcon.parts.head));
  ParameterId embedding = kNone;
  {
    const auto model = b.module("transformer", "FalconModel");
    embedding = b.embedding("word_embeddings", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("h", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const auto layer = b.layer(i, "FalconDecoderLayer", forward);
        register_layer(b, falcon);
      }
    }
    b.layer_norm("ln_f", d.hidden);
    b.rotary("rotary_emb", "FalconRotaryEmbedding", d.head_dim);  // There, and called, even with ALiBi.
  }
  return finish_with_head(b, d, falcon.tied, embedding, "transformer(word_embeddings rotary_emb h* ln_f)",
                          falcon.parts);
}

}  // namespace dsplan
