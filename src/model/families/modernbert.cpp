// modernbert: an encoder of pre-norm layers with one projection for queries, keys and values, a gated feed-forward, and
// attention to all tokens in some layers, to near ones in the others. `architectures` says which head is trained.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/decoder.h"
#include "model/families/encoders/heads.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

enum class Trained : std::uint8_t { Body, Words, Text, Token };

struct ModernBert {
  double global_base = 0;  // Of rotary frequencies, where rope_parameters do not say them.
  double local_base = 0;
  Dimensions dims;
  DecoderParts parts;
  Trained trained = Trained::Body;
  bool tied = true;
  bool attention_bias = false, mlp_bias = false, norm_bias = false, head_bias = false, decoder_bias = true;
};

Trained read_class(ConfigReader& config) {
  const Value* classes = config.find("architectures");
  if (classes == nullptr || !classes->is(Value::Kind::Array) || classes->items.empty()) return Trained::Body;
  const std::string& name = classes->items.front().string;
  if (name == "ModernBertForMaskedLM") return Trained::Words;
  if (name == "ModernBertForSequenceClassification") return Trained::Text;
  return name == "ModernBertForTokenClassification" ? Trained::Token : Trained::Body;
}

void read_labels(ConfigReader& config, ModernBert& bert) {
  if (bert.trained != Trained::Text && bert.trained != Trained::Token) return;
  bert.dims.labels = read_label_count(config);
  bert.dims.classifier_dropout = config.probability("classifier_dropout", 0);
  const std::string pooling = config.maybe_string("classifier_pooling").value_or("cls");
  if (pooling != "cls" && pooling != "mean") {
    config.fault("classifier_pooling", formatted("\"classifier_pooling\" must be cls or mean, not \"{}\"", pooling));
  }
  bert.parts.mean_pooled = bert.trained == Trained::Text && pooling == "mean";
  if (bert.trained == Trained::Text) (void)read_problem_type(config, bert.dims.labels);
}

DecoderParts modernbert_parts() {
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.projections = Projections::FusedThirds;
  parts.rotary.wide_halves = true;
  parts.full = true;
  parts.tables_by_kind = true;
  parts.fused_projection = "Wqkv";
  parts.output = "Wo";
  parts.output_dropout = "out_drop";
  parts.before_attention = "attn_norm";
  parts.before_mlp = "mlp_norm";
  return parts;
}

ModernBert read_modernbert(ConfigReader& config) {
  ModernBert bert;
  bert.parts = modernbert_parts();
  bert.trained = read_class(config);
  Dimensions& d = bert.dims;
  d.vocab = config.size("vocab_size", 50368);
  d.hidden = config.size("hidden_size", 768);
  d.ffn = config.size("intermediate_size", 1152);
  d.layers = config.layer_count("num_hidden_layers", 22);
  d.heads = d.kv_heads = config.size("num_attention_heads", 12);
  d.max_positions = config.size("max_position_embeddings", 8192);
  d.activation = config.activation("hidden_activation", "gelu");
  bert.parts.head_activation = config.activation("classifier_activation", "gelu");
  d.embedding_dropout = config.probability("embedding_dropout", 0);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.residual_dropout = config.probability("mlp_dropout", 0);
  d.norm_epsilon = config.maybe_number("norm_eps").value_or(1e-5);
  bert.global_base = config.maybe_number("global_rope_theta").value_or(160000);
  bert.local_base = config.maybe_number("local_rope_theta").value_or(10000);
  d.sliding_window = config.size("local_attention", 128) / 2;
  const std::int64_t every = config.size("global_attn_every_n_layers", 3);
  bert.parts.kinds = read_layer_kinds(
      config, d.layers, [every](std::int64_t i) { return i % every == 0 ? LayerKind::Full : LayerKind::Sliding; });
  bert.tied = config.flag("tie_word_embeddings", true);
  bert.attention_bias = config.flag("attention_bias", false);
  bert.mlp_bias = config.flag("mlp_bias", false);
  bert.norm_bias = config.flag("norm_bias", false);
  bert.head_bias = config.flag("classifier_bias", false);
  bert.decoder_bias = config.flag("decoder_bias", true);
  read_labels(config, bert);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return bert;
}

void register_norm(ModelBuilder& b, const ModernBert& bert, std::string_view name) {
  const auto norm = b.module(name, "LayerNorm");
  b.parameter("weight", {bert.dims.hidden}, Split::Replicated);
  if (bert.norm_bias) b.parameter("bias", {bert.dims.hidden}, Split::Replicated);
}

void register_layer(ModelBuilder& b, const ModernBert& bert, bool first) {
  const Dimensions& d = bert.dims;
  if (first) {
    b.leaf("attn_norm", "Identity");
  } else {
    register_norm(b, bert, "attn_norm");
  }
  {
    const auto attention = b.module("attn", "ModernBertAttention");
    b.linear("Wqkv", b.times(3, d.hidden), d.hidden, bert.attention_bias, Cut::Unknown);
    b.linear("Wo", d.hidden, d.hidden, bert.attention_bias, Cut::Unknown);
    b.leaf("out_drop", d.attention_dropout > 0 ? "Dropout" : "Identity");
  }
  register_norm(b, bert, "mlp_norm");
  const auto mlp = b.module("mlp", "ModernBertMLP");
  b.linear("Wi", b.times(2, d.ffn), d.hidden, bert.mlp_bias, Cut::Unknown);
  b.activation("act", d.activation);
  b.leaf("drop", "Dropout");
  b.linear("Wo", d.hidden, d.ffn, bert.mlp_bias, Cut::Unknown);
}

ParameterId register_body(ModelBuilder& b, const ModernBert& bert) {
  const Dimensions& d = bert.dims;
  ParameterId words = kNone;
  {
    const auto embeddings = b.module("embeddings", "ModernBertEmbeddings");
    words = b.embedding("tok_embeddings", d.vocab, d.hidden, Split::Vocabulary);
    register_norm(b, bert, "norm");
    b.leaf("drop", "Dropout");
  }
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer =
          b.layer(i, "ModernBertEncoderLayer", "attn_norm attn(Wqkv Wo out_drop) mlp_norm mlp(Wi act drop Wo)");
      register_layer(b, bert, i == 0);
    }
  }
  register_norm(b, bert, "final_norm");
  std::vector<std::string> kinds;
  if (bert.parts.some_see_all()) kinds.emplace_back("full_attention");
  if (bert.parts.some_slide()) kinds.emplace_back("sliding_attention");
  b.rotary("rotary_emb", "ModernBertRotaryEmbedding", d.head_dim, kinds);
  return words;
}

std::string_view class_of(Trained trained) {
  switch (trained) {
    case Trained::Body: return "ModernBertModel";
    case Trained::Words: return "ModernBertForMaskedLM";
    case Trained::Text: return "ModernBertForSequenceClassification";
    case Trained::Token: return "ModernBertForTokenClassification";
  }
  return {};
}

// Returns its part of the forward.
std::string_view register_head(ModelBuilder& b, const ModernBert& bert, ParameterId words) {
  const Dimensions& d = bert.dims;
  {
    const auto head = b.module("head", "ModernBertPredictionHead");
    b.linear("dense", d.hidden, d.hidden, bert.head_bias, Cut::Whole);
    b.activation("act", bert.parts.head_activation);
    register_norm(b, bert, "norm");
  }
  if (bert.trained == Trained::Words) {
    const ParameterId decoder = b.linear("decoder", d.vocab, d.hidden, bert.decoder_bias, Cut::Vocabulary);
    if (bert.tied) b.tie(decoder, words);
    return "head(dense act norm) decoder";
  }
  b.leaf("drop", "Dropout");
  b.linear("classifier", d.labels, d.hidden, true, Cut::Whole);
  return "head(dense act norm) drop classifier";
}

}  // namespace

ModelSpec build_modernbert(ConfigReader& config) {
  const ModernBert bert = read_modernbert(config);
  ModelBuilder b(config, class_of(bert.trained));
  const bool both = bert.parts.some_slide() && bert.parts.some_see_all();
  std::string forward =
      formatted("embeddings(tok_embeddings norm drop) rotary_emb {}layers* final_norm", both ? "rotary_emb " : "");
  if (bert.trained == Trained::Body) {
    register_body(b, bert);
  } else {
    ParameterId words = kNone;
    {
      const auto body = b.module("model", "ModernBertModel");
      words = register_body(b, bert);
    }
    const std::string_view head = register_head(b, bert, words);
    forward = formatted("model({}) {}", forward, head);
  }
  ModelSpec spec = b.finish(forward);
  spec.dims = bert.dims;
  for (ModelBuffer& buffer : spec.buffers) {
    if (buffer.rotary_base > 0) continue;
    buffer.rotary_base = buffer.name.find("sliding") == std::string::npos ? bert.global_base : bert.local_base;
  }
  spec.parts = std::make_shared<const DecoderParts>(bert.parts);
  return spec;
}

}  // namespace dsplan
