// deberta-v2 (DeBERTa v2 and v3): a post-norm encoder whose attention adds to each score what a query says of the
// distance and what the distance says of a key. One table of distances is for all layers. `architectures` says which
// class is trained, as in bert.cpp.
#include <algorithm>

#include "core/format.h"
#include "model/families/encoders/heads.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

constexpr std::string_view kPrefix = "DebertaV2";

struct Deberta {
  EncoderHead head = EncoderHead::None;
  Dimensions dims;
  DisentangledParts attention;
  std::int64_t token_types = 0;
  std::int64_t distances = 0;  // Rows of their table.
  bool shares_keys = false;    // Distances go through the queries' and keys' own projections.
  bool norms_distances = false;
  bool positions = true;    // Learned positions are added to the words.
  std::int64_t kernel = 0;  // Of the convolution beside the first layer; 0: there is none.
  std::int64_t groups = 1;  // Of its channels.
  bool tied = true;
};

void read_labels(ConfigReader& config, Deberta& deberta) {
  Dimensions& d = deberta.dims;
  if (deberta.head != EncoderHead::Text && deberta.head != EncoderHead::Token) return;
  d.labels = read_label_count(config);
  d.classifier_dropout = d.residual_dropout;
  if (deberta.head == EncoderHead::Token) return;
  d.classifier_dropout = config.maybe_number("cls_dropout").value_or(d.residual_dropout);
  deberta.attention.names_problem = read_problem_type(config, d.labels).has_value();
}

// "p2c|c2p", or a list of both.
void read_kinds(ConfigReader& config, DisentangledParts& attention) {
  const Value* value = config.find("pos_att_type");
  if (value == nullptr) return;
  const auto take = [&](std::string_view kind) {
    attention.of_queries = attention.of_queries || kind == "c2p";
    attention.of_keys = attention.of_keys || kind == "p2c";
    if (kind != "c2p" && kind != "p2c")
      config.fault(*value, formatted("pos_att_type has c2p and p2c, not \"{}\"", kind));
  };
  if (value->is(Value::Kind::Array)) {
    for (const Value& one : value->items) take(one.string);
    return;
  }
  std::string_view rest = value->string;
  while (true) {
    const std::size_t end = std::min(rest.find('|'), rest.size());
    take(rest.substr(0, end));
    if (end == rest.size()) return;
    rest.remove_prefix(end + 1);
  }
}

void read_distances(ConfigReader& config, Deberta& deberta) {
  DisentangledParts& attention = deberta.attention;
  attention.relative = config.flag("relative_attention", false);
  const double farthest = config.maybe_number("max_relative_positions").value_or(-1);
  const double buckets = config.maybe_number("position_buckets").value_or(-1);
  deberta.shares_keys = config.flag("share_att_key", false);
  read_kinds(config, attention);
  const std::string norm = config.maybe_string("norm_rel_ebd").value_or("none");
  if (norm != "layer_norm" && norm != "none") {
    config.fault("norm_rel_ebd", formatted("norm_rel_ebd is layer_norm or none, not \"{}\"", norm));
  }
  deberta.norms_distances = norm == "layer_norm";
  if (!attention.relative) {
    if (deberta.norms_distances) {
      config.gaps.push_back({config.find("norm_rel_ebd"), "norm_rel_ebd", "a norm of distances that nobody reads"});
    }
    return;
  }
  if (!attention.of_queries && !attention.of_keys) {
    config.fault("pos_att_type", "relative_attention without c2p or p2c, which transformers fails to add");
  }
  attention.span = farthest < 1 ? deberta.dims.max_positions : static_cast<std::int64_t>(farthest);
  attention.bucketed = buckets > 0;
  if (buckets > 0) attention.span = static_cast<std::int64_t>(buckets);
  deberta.distances = config.times(2, attention.span);
}

// A padding of (kernel - 1) // 2 keeps the tokens' count only where the kernel is odd.
void read_convolution(ConfigReader& config, Deberta& deberta) {
  deberta.kernel = config.count("conv_kernel_size", 0);
  deberta.groups = config.size("conv_groups", 1);
  const std::string activation = config.activation("conv_act", "tanh");
  if (deberta.kernel == 0) return;
  if (deberta.kernel % 2 == 0) {
    config.fault("conv_kernel_size", formatted("conv_kernel_size must be odd, not {}: its output has one token less "
                                               "than the layer's, and transformers fails to add them",
                                               deberta.kernel));
  }
  config.require_divides("conv_groups", deberta.groups, "hidden_size", deberta.dims.hidden);
  deberta.attention.convolution = activation;
}

Deberta read_deberta(ConfigReader& config) {
  Deberta deberta;
  deberta.head = read_encoder_head(config, kPrefix);
  Dimensions& d = deberta.dims;
  d.vocab = config.size("vocab_size", 128100);
  d.hidden = config.size("hidden_size", 1536);
  d.ffn = config.size("intermediate_size", 6144);
  d.layers = config.layer_count("num_hidden_layers", 24);
  d.heads = d.kv_heads = config.size("num_attention_heads", 24);
  d.max_positions = config.size("max_position_embeddings", 512);
  d.activation = config.activation("hidden_act", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout_prob", 0.1);
  d.attention_dropout = config.probability("attention_probs_dropout_prob", 0.1);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-7);
  deberta.token_types = config.count("type_vocab_size", 0);
  deberta.positions = config.flag("position_biased_input", true);
  deberta.tied = config.flag("tie_word_embeddings", true);
  deberta.attention.pooler_dropout = config.probability("pooler_dropout", 0);
  deberta.attention.pooler_activation = config.activation("pooler_hidden_act", "gelu");
  read_distances(config, deberta);
  read_convolution(config, deberta);
  read_labels(config, deberta);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  for (const std::string_view width : {"attention_head_size", "embedding_size", "pooler_hidden_size"}) {
    const std::int64_t usual = width == "attention_head_size" ? d.hidden / d.heads : d.hidden;
    if (config.size(width, usual) != usual)
      config.fault(width, formatted("{} of another width is not modelled", width));
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return deberta;
}

ParameterId register_embeddings(ModelBuilder& b, const Deberta& deberta) {
  const Dimensions& d = deberta.dims;
  const auto embeddings = b.module("embeddings", "DebertaV2Embeddings");
  b.buffer("position_ids", {1, d.max_positions}, DType::Int64, false);
  const ParameterId words = b.embedding("word_embeddings", d.vocab, d.hidden, Split::Vocabulary);
  if (deberta.positions) b.embedding("position_embeddings", d.max_positions, d.hidden, Split::Replicated);
  if (deberta.token_types > 0) {
    b.embedding("token_type_embeddings", deberta.token_types, d.hidden, Split::Replicated);
  }
  b.layer_norm("LayerNorm", d.hidden);
  b.leaf("dropout", "Dropout");
  return words;
}

void register_layer(ModelBuilder& b, const Deberta& deberta) {
  const Dimensions& d = deberta.dims;
  const DisentangledParts& kinds = deberta.attention;
  {
    const auto attention = b.module("attention", "DebertaV2Attention");
    {
      const auto self = b.module("self", "DisentangledSelfAttention");
      for (const std::string_view name : {"query_proj", "key_proj", "value_proj"}) {
        b.linear(name, d.hidden, d.hidden, true, Cut::Unknown);
      }
      if (kinds.relative) b.leaf("pos_dropout", "Dropout");
      const bool own = kinds.relative && !deberta.shares_keys;
      if (own && kinds.of_queries) b.linear("pos_key_proj", d.hidden, d.hidden, true, Cut::Unknown);
      if (own && kinds.of_keys) b.linear("pos_query_proj", d.hidden, d.hidden, true, Cut::Unknown);
      b.leaf("dropout", "Dropout");
    }
    register_output(b, "DebertaV2SelfOutput", d.hidden, d.hidden, Cut::Unknown);
  }
  {
    const auto intermediate = b.module("intermediate", "DebertaV2Intermediate");
    b.linear("dense", d.ffn, d.hidden, true, Cut::Unknown);
    b.activation("intermediate_act_fn", d.activation);
  }
  register_output(b, "DebertaV2Output", d.hidden, d.ffn, Cut::Unknown);
}

void register_convolution(ModelBuilder& b, const Deberta& deberta) {
  const Dimensions& d = deberta.dims;
  const auto around = b.module("conv", "ConvLayer");
  {
    const auto convolution = b.module("conv", "Conv1d");
    b.parameter("weight", {d.hidden, d.hidden / deberta.groups, deberta.kernel}, Split::Replicated);
    b.parameter("bias", {d.hidden}, Split::Replicated);
  }
  b.layer_norm("LayerNorm", d.hidden);
  b.leaf("dropout", "Dropout");
}

// What a layer's forward calls, in text.
std::string layer_forward(const Deberta& deberta) {
  const DisentangledParts& kinds = deberta.attention;
  std::string self = "query_proj key_proj value_proj";
  if (kinds.relative) {
    self += " pos_dropout";
    if (deberta.shares_keys) {
      self += " query_proj key_proj";
    } else {
      if (kinds.of_queries) self += " pos_key_proj";
      if (kinds.of_keys) self += " pos_query_proj";
    }
  }
  return formatted(
      "attention(self({} dropout) output(dense dropout LayerNorm)) intermediate(dense intermediate_act_fn) "
      "output(dense dropout LayerNorm)",
      self);
}

ParameterId register_body(ModelBuilder& b, const Deberta& deberta, const std::string& forward) {
  const Dimensions& d = deberta.dims;
  const ParameterId words = register_embeddings(b, deberta);
  const auto encoder = b.module("encoder", "DebertaV2Encoder");
  {
    const auto list = b.module("layer", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "DebertaV2Layer", forward);
      register_layer(b, deberta);
    }
  }
  if (deberta.attention.relative) b.embedding("rel_embeddings", deberta.distances, d.hidden, Split::Replicated);
  if (deberta.norms_distances) b.layer_norm("LayerNorm", d.hidden);
  if (deberta.kernel > 0) register_convolution(b, deberta);
  return words;
}

// The convolution is called behind the first layer.
std::string stack_forward(const Deberta& deberta) {
  if (deberta.kernel == 0) return "layer*";
  const std::string layer = layer_forward(deberta);
  std::string calls;
  for (std::int64_t i = 0; i < deberta.dims.layers; ++i) {
    calls += formatted("{}layer.{}({})", i > 0 ? " " : "", i, layer);
    if (i == 0) calls += " conv(conv dropout LayerNorm)";
  }
  return calls;
}

std::string body_forward(const Deberta& deberta) {
  return formatted("embeddings(word_embeddings{}{} LayerNorm dropout) encoder({}{})",
                   deberta.positions ? " position_embeddings" : "",
                   deberta.token_types > 0 ? " token_type_embeddings" : "",
                   deberta.attention.relative && deberta.norms_distances ? "LayerNorm " : "", stack_forward(deberta));
}

std::string register_class_head(ModelBuilder& b, const Deberta& deberta) {
  const Dimensions& d = deberta.dims;
  if (deberta.head == EncoderHead::Token) {
    b.leaf("dropout", "Dropout");
    b.linear("classifier", d.labels, d.hidden, true, Cut::Whole);
    return "dropout classifier";
  }
  {
    const auto pooler = b.module("pooler", "ContextPooler");
    b.linear("dense", d.hidden, d.hidden, true, Cut::Whole);
    b.leaf("dropout", "Dropout");
  }
  b.linear("classifier", d.labels, d.hidden, true, Cut::Whole);
  b.leaf("dropout", "Dropout");
  return "pooler(dropout dense) dropout classifier";
}

}  // namespace

ModelSpec build_deberta_v2(ConfigReader& config) {
  const Deberta deberta = read_deberta(config);
  const std::string of_layer = layer_forward(deberta);
  ModelBuilder b(config, encoder_class(kPrefix, deberta.head));
  std::string forward = body_forward(deberta);
  if (deberta.head == EncoderHead::None) {
    register_body(b, deberta, of_layer);
  } else {
    ParameterId words = kNone;
    {
      const auto body = b.module("deberta", "DebertaV2Model");
      words = register_body(b, deberta, of_layer);
    }
    const std::string head =
        deberta.head == EncoderHead::MaskedLm
            ? register_word_predictions(b, deberta.dims, "LegacyDebertaV2", deberta.tied ? words : kNone)
            : register_class_head(b, deberta);
    forward = formatted("deberta({}) {}", forward, head);
  }
  ModelSpec spec = b.finish(forward);
  spec.dims = deberta.dims;
  DecoderParts parts;
  parts.full = true;
  parts.disentangled = deberta.attention;
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
