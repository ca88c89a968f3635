// bert and roberta: post-norm encoders; the model is the encoder with its pooler, as the published counts have it.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

struct Bert {
  std::string_view prefix;
  Dimensions dims;
  std::int64_t token_types = 0;
  bool roberta = false;
};

Bert read_bert(ConfigReader& config, std::string_view prefix, std::int64_t vocab) {
  Bert bert;
  bert.prefix = prefix;
  Dimensions& d = bert.dims;
  d.vocab = config.size("vocab_size", vocab);
  d.hidden = config.size("hidden_size", 768);
  d.ffn = config.size("intermediate_size", 3072);
  d.layers = config.layer_count("num_hidden_layers", 12);
  d.heads = d.kv_heads = config.size("num_attention_heads", 12);
  d.max_positions = config.size("max_position_embeddings", 512);
  d.activation = config.activation("hidden_act", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout_prob", 0.1);
  d.attention_dropout = config.probability("attention_probs_dropout_prob", 0.1);
  bert.token_types = config.size("type_vocab_size", 2);
  if (config.flag("add_cross_attention", false)) {
    config.fault("add_cross_attention", formatted("cross attention in {} is not modelled yet", prefix));
  }
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return bert;
}

void register_embeddings(ModelBuilder& b, const Bert& bert) {
  const Dimensions& d = bert.dims;
  const auto embeddings = b.module("embeddings", formatted("{}Embeddings", bert.prefix));
  const auto positions = [&] { b.embedding("position_embeddings", d.max_positions, d.hidden, Split::Replicated); };
  b.buffer("position_ids", {1, d.max_positions}, DType::Int64, false);
  b.buffer("token_type_ids", {1, d.max_positions}, DType::Int64, false);
  b.embedding("word_embeddings", d.vocab, d.hidden, Split::Vocabulary);
  if (!bert.roberta) positions();
  b.embedding("token_type_embeddings", bert.token_types, d.hidden, Split::Replicated);
  b.layer_norm("LayerNorm", d.hidden);
  b.leaf("dropout", "Dropout");
  if (bert.roberta) positions();
}

// Projection, norm and dropout behind attention and MLP alike.
void register_output(ModelBuilder& b, const std::string& type, std::int64_t out, std::int64_t in) {
  const auto output = b.module("output", type);
  b.linear("dense", out, in, true, Cut::Row);
  b.layer_norm("LayerNorm", out);
  b.leaf("dropout", "Dropout");
}

void register_layer(ModelBuilder& b, const Bert& bert) {
  const Dimensions& d = bert.dims;
  const auto named = [&](std::string_view rest) { return formatted("{}{}", bert.prefix, rest); };
  {
    const auto attention = b.module("attention", named("Attention"));
    {
      const auto self = b.module("self", named("SelfAttention"));
      b.linear("query", d.hidden, d.hidden, true, Cut::Column);
      b.linear("key", d.hidden, d.hidden, true, Cut::KeyValue);
      b.linear("value", d.hidden, d.hidden, true, Cut::KeyValue);
      b.leaf("dropout", "Dropout");
    }
    register_output(b, named("SelfOutput"), d.hidden, d.hidden);
  }
  {
    const auto intermediate = b.module("intermediate", named("Intermediate"));
    b.linear("dense", d.ffn, d.hidden, true, Cut::Column);
    b.activation("intermediate_act_fn", d.activation);
  }
  register_output(b, named("Output"), d.hidden, d.ffn);
}

ModelSpec build(const ConfigReader& config, const Bert& bert) {
  const Dimensions& d = bert.dims;
  ModelBuilder b(config, formatted("{}Model", bert.prefix));
  register_embeddings(b, bert);
  {
    const auto encoder = b.module("encoder", formatted("{}Encoder", bert.prefix));
    const auto list = b.module("layer", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, formatted("{}Layer", bert.prefix),
                                 "attention(self(query key value) output(dense dropout LayerNorm)) "
                                 "intermediate(dense intermediate_act_fn) output(dense dropout LayerNorm)");
      register_layer(b, bert);
    }
  }
  {
    const auto pooler = b.module("pooler", formatted("{}Pooler", bert.prefix));
    b.linear("dense", d.hidden, d.hidden, true, Cut::Whole);
    b.leaf("activation", "Tanh");
  }
  ModelSpec spec = b.finish(
      "embeddings(word_embeddings token_type_embeddings position_embeddings LayerNorm dropout) "
      "encoder(layer*) pooler(dense activation)");
  spec.dims = d;
  return spec;
}

}  // namespace

ModelSpec build_bert(ConfigReader& config) { return build(config, read_bert(config, "Bert", 30522)); }

ModelSpec build_roberta(ConfigReader& config) {
  Bert bert = read_bert(config, "Roberta", 50265);
  bert.roberta = true;
  return build(config, bert);
}

}  // namespace dsplan
