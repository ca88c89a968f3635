// albert: a post-norm encoder whose layers share their weights. There are num_hidden_groups groups of inner_group_num
// layers, each group is called in the place of several layers, and what is embedded is narrower than the model.
// `architectures` says which class is trained, as in bert.cpp.
#include "core/format.h"
#include "model/families.h"
#include "model/families/encoders/heads.h"
#include "model/families/encoders/shared_layers.h"
#include "model/families/family.h"

namespace dsplan {

std::int64_t group_of_layer(std::int64_t layer, std::int64_t layers, std::int64_t groups) {
  return static_cast<std::int64_t>(static_cast<double>(layer) /
                                   (static_cast<double>(layers) / static_cast<double>(groups)));
}

namespace {

constexpr std::string_view kAlbert = "Albert";

struct Albert {
  EncoderHead head = EncoderHead::None;
  Dimensions dims;
  std::int64_t token_types = 0;
  std::int64_t width = 0;   // Of what is embedded.
  std::int64_t groups = 1;  // Of layers with weights of their own,
  std::int64_t inner = 1;   // and so many of those in each.
  bool tied = true;
  [[nodiscard]] bool pools() const { return head == EncoderHead::None || head == EncoderHead::Text; }
};

Albert read_albert(ConfigReader& config) {
  Albert albert;
  albert.head = read_encoder_head(config, kAlbert);
  Dimensions& d = albert.dims;
  d.vocab = config.size("vocab_size", 30000);
  albert.width = config.size("embedding_size", 128);
  d.hidden = config.size("hidden_size", 4096);
  d.ffn = config.size("intermediate_size", 16384);
  d.layers = config.layer_count("num_hidden_layers", 12);
  albert.groups = config.size("num_hidden_groups", 1);
  albert.inner = config.size("inner_group_num", 1);
  d.heads = d.kv_heads = config.size("num_attention_heads", 64);
  d.max_positions = config.size("max_position_embeddings", 512);
  d.activation = config.activation("hidden_act", "gelu_new");
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout_prob", 0);
  d.attention_dropout = config.probability("attention_probs_dropout_prob", 0);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-12);
  albert.token_types = config.size("type_vocab_size", 2);
  albert.tied = config.flag("tie_word_embeddings", true);
  const double dropout = config.probability("classifier_dropout_prob", 0.1);
  if (albert.head == EncoderHead::Text || albert.head == EncoderHead::Token) {
    d.labels = read_label_count(config);
    d.classifier_dropout = dropout;
    if (albert.head == EncoderHead::Text) read_problem_type(config, d.labels);
  }
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.require_at_most("num_hidden_groups", albert.groups, "num_hidden_layers", d.layers);
  if (albert.inner > kMostLayers / d.layers) {
    config.fault("inner_group_num", formatted("more than {} layers are called", kMostLayers));
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return albert;
}

// Returns the table of words.
ParameterId register_albert_embeddings(ModelBuilder& b, const Albert& albert) {
  const Dimensions& d = albert.dims;
  const auto embeddings = b.module("embeddings", "AlbertEmbeddings");
  b.buffer("position_ids", {1, d.max_positions}, DType::Int64, false);
  b.buffer("token_type_ids", {1, d.max_positions}, DType::Int64, false);
  const ParameterId words = b.embedding("word_embeddings", d.vocab, albert.width, Split::Vocabulary);
  b.embedding("position_embeddings", d.max_positions, albert.width, Split::Replicated);
  b.embedding("token_type_embeddings", albert.token_types, albert.width, Split::Replicated);
  b.layer_norm("LayerNorm", albert.width);
  b.leaf("dropout", "Dropout");
  return words;
}

void register_albert_layer(ModelBuilder& b, const Dimensions& d, std::int64_t index) {
  const auto layer = b.module(std::to_string(index), "AlbertLayer");
  b.layer_norm("full_layer_layer_norm", d.hidden);
  {
    const auto attention = b.module("attention", "AlbertAttention");
    b.leaf("attention_dropout", "Dropout");
    b.leaf("output_dropout", "Dropout");
    for (const std::string_view name : {"query", "key", "value", "dense"}) {
      b.linear(name, d.hidden, d.hidden, true, Cut::Unknown);
    }
    b.layer_norm("LayerNorm", d.hidden);
  }
  b.linear("ffn", d.ffn, d.hidden, true, Cut::Unknown);
  b.linear("ffn_output", d.hidden, d.ffn, true, Cut::Unknown);
  b.activation("activation", d.activation);
  b.leaf("dropout", "Dropout");
}

ParameterId register_albert_body(ModelBuilder& b, const Albert& albert) {
  const Dimensions& d = albert.dims;
  const ParameterId words = register_albert_embeddings(b, albert);
  {
    const auto encoder = b.module("encoder", "AlbertTransformer");
    b.linear("embedding_hidden_mapping_in", d.hidden, albert.width, true, Cut::Unknown);
    const auto groups = b.module("albert_layer_groups", "ModuleList");
    for (std::int64_t group = 0; group < albert.groups; ++group) {
      const auto module = b.module(std::to_string(group), "AlbertLayerGroup");
      const auto list = b.module("albert_layers", "ModuleList");
      for (std::int64_t inner = 0; inner < albert.inner; ++inner) register_albert_layer(b, d, inner);
    }
  }
  if (albert.pools()) {
    b.linear("pooler", d.hidden, d.hidden, true, Cut::Unknown);
    b.leaf("pooler_activation", "Tanh");
  }
  return words;
}

std::string albert_forward(const Albert& albert) {
  std::string group;
  for (std::int64_t inner = 0; inner < albert.inner; ++inner) {
    group += formatted(
        "albert_layers.{}(attention(query key value dense output_dropout LayerNorm) ffn activation ffn_output "
        "full_layer_layer_norm) ",
        inner);
  }
  std::string layers;
  for (std::int64_t layer = 0; layer < albert.dims.layers; ++layer) {
    layers += formatted(" albert_layer_groups.{}({})", group_of_layer(layer, albert.dims.layers, albert.groups), group);
  }
  return formatted(
      "embeddings(word_embeddings token_type_embeddings position_embeddings LayerNorm dropout) "
      "encoder(embedding_hidden_mapping_in{}){}",
      layers, albert.pools() ? " pooler pooler_activation" : "");
}

// Its bias is a parameter beside the projection, with which it shares storage where the words are tied.
std::string register_albert_head(ModelBuilder& b, const Albert& albert, ParameterId words) {
  const Dimensions& d = albert.dims;
  if (albert.head != EncoderHead::MaskedLm) {
    b.leaf("dropout", "Dropout");
    b.linear("classifier", d.labels, d.hidden, true, Cut::Unknown);
    return "dropout classifier";
  }
  const auto head = b.module("predictions", "AlbertMLMHead");
  const ParameterId own = b.parameter("bias", {d.vocab}, Split::Vocabulary);
  b.layer_norm("LayerNorm", albert.width);
  b.linear("dense", albert.width, d.hidden, true, Cut::Unknown);
  const ParameterId weight = b.linear("decoder", d.vocab, albert.width, true, Cut::Vocabulary);
  b.activation("activation", d.activation);
  if (albert.tied) {
    b.tie(weight, words);
    b.tie(weight + 1, own);
  }
  return "predictions(dense activation LayerNorm decoder)";
}

}  // namespace

ModelSpec build_albert(ConfigReader& config) {
  const Albert albert = read_albert(config);
  ModelBuilder b(config, encoder_class(kAlbert, albert.head));
  std::string forward = albert_forward(albert);
  if (albert.head == EncoderHead::None) {
    register_albert_body(b, albert);
  } else {
    ParameterId words = kNone;
    {
      const auto body = b.module("albert", "AlbertModel");
      words = register_albert_body(b, albert);
    }
    const std::string head = register_albert_head(b, albert, words);
    forward = formatted("albert({}) {}", forward, head);
  }
  ModelSpec spec = b.finish(forward);
  spec.dims = albert.dims;
  return spec;
}

}  // namespace dsplan
