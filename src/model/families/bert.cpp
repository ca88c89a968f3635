// bert, ernie, roberta (xlm-roberta, camembert, data2vec-text), distilbert and electra: post-norm encoders.
// `architectures` says which class is trained: a head over the words (MaskedLM), over the text or over each token, or
// the body with its pooler alone.
#include <algorithm>

#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/encoders/heads.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

enum class BertKind : std::uint8_t { Bert, Roberta, DistilBert, Electra };

struct Bert {
  std::string_view prefix;
  BertKind kind = BertKind::Bert;
  EncoderHead head = EncoderHead::None;
  Dimensions dims;
  std::int64_t token_types = 0;
  std::int64_t task_types = 0;  // 0: there is no such table (ernie).
  std::int64_t width = 0;       // Of what is embedded: electra's own, which a product widens.
  bool tied = true;
  bool head_first = false;  // Registered before the body.
};

void read_bert_labels(ConfigReader& config, Bert& bert, double dropout) {
  if (bert.head == EncoderHead::Answer) {
    bert.dims.labels = read_label_count(config);
    bert.dims.classifier_dropout = dropout;
    if (bert.dims.labels != 2) {
      config.fault(
          is_present(config, "id2label") ? "id2label" : "num_labels",
          formatted("{} places of an answer, which has two: where it begins and where it ends", bert.dims.labels));
    }
    return;
  }
  if (bert.head != EncoderHead::Text && bert.head != EncoderHead::Token) return;
  bert.dims.labels = read_label_count(config);
  bert.dims.classifier_dropout = dropout;
  if (bert.head == EncoderHead::Text) read_problem_type(config, bert.dims.labels);
}

// The classes' own values where a key is absent.
struct BertSizes {
  std::int64_t vocab = 30522, hidden = 768, ffn = 3072, heads = 12;
};

Bert read_bert(ConfigReader& config, std::string_view prefix, BertKind kind, const BertSizes& usual) {
  Bert bert;
  bert.prefix = prefix;
  bert.kind = kind;
  bert.head = read_encoder_head(config, prefix, true);
  Dimensions& d = bert.dims;
  d.vocab = config.size("vocab_size", usual.vocab);
  d.hidden = config.size("hidden_size", usual.hidden);
  bert.width = kind == BertKind::Electra ? config.size("embedding_size", 128) : d.hidden;
  d.ffn = config.size("intermediate_size", usual.ffn);
  d.layers = config.layer_count("num_hidden_layers", 12);
  d.heads = d.kv_heads = config.size("num_attention_heads", usual.heads);
  d.max_positions = config.size("max_position_embeddings", 512);
  d.activation = config.activation("hidden_act", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout_prob", 0.1);
  d.attention_dropout = config.probability("attention_probs_dropout_prob", 0.1);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-12);
  bert.token_types = config.size("type_vocab_size", 2);
  bert.tied = config.flag("tie_word_embeddings", true);
  const std::optional<double> dropout = config.maybe_number("classifier_dropout");
  read_bert_labels(config, bert, dropout.value_or(d.residual_dropout));
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return bert;
}

Bert read_distilbert(ConfigReader& config) {
  Bert bert;
  bert.prefix = "DistilBert";
  bert.kind = BertKind::DistilBert;
  bert.head = read_encoder_head(config, bert.prefix, true);
  Dimensions& d = bert.dims;
  d.vocab = config.size("vocab_size", 30522);
  d.hidden = bert.width = config.size("dim", 768, "hidden_size");
  d.ffn = config.size("hidden_dim", 3072);
  d.layers = config.layer_count("n_layers", 6, "num_hidden_layers");
  d.heads = d.kv_heads = config.size("n_heads", 12, "num_attention_heads");
  d.max_positions = config.size("max_position_embeddings", 512);
  d.activation = config.activation("activation", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("dropout", 0.1);
  d.attention_dropout = config.probability("attention_dropout", 0.1);
  d.norm_epsilon = 1e-12;
  bert.tied = config.flag("tie_word_embeddings", true);
  const double dropout = config.probability("seq_classif_dropout", 0.2);
  const double of_answers = config.probability("qa_dropout", 0.1);
  read_bert_labels(config, bert,
                   bert.head == EncoderHead::Text     ? dropout
                   : bert.head == EncoderHead::Answer ? of_answers
                                                      : d.residual_dropout);
  config.require_divides("n_heads", d.heads, "dim", d.hidden);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  return bert;
}

// Returns the table of words.
ParameterId register_embeddings(ModelBuilder& b, const Bert& bert) {
  const Dimensions& d = bert.dims;
  const bool distil = bert.kind == BertKind::DistilBert;
  const auto embeddings = b.module("embeddings", distil ? "Embeddings" : formatted("{}Embeddings", bert.prefix));
  const auto positions = [&] { b.embedding("position_embeddings", d.max_positions, bert.width, Split::Replicated); };
  b.buffer("position_ids", {1, d.max_positions}, DType::Int64, false);
  if (!distil) b.buffer("token_type_ids", {1, d.max_positions}, DType::Int64, false);
  const ParameterId words = b.embedding("word_embeddings", d.vocab, bert.width, Split::Vocabulary);
  if (bert.kind != BertKind::Roberta) positions();
  if (!distil) b.embedding("token_type_embeddings", bert.token_types, bert.width, Split::Replicated);
  b.layer_norm("LayerNorm", bert.width);
  b.leaf("dropout", "Dropout");
  if (bert.kind == BertKind::Roberta) positions();
  if (bert.task_types > 0) b.embedding("task_type_embeddings", bert.task_types, bert.width, Split::Replicated);
  return words;
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
    register_output(b, named("SelfOutput"), d.hidden, d.hidden, Cut::Row);
  }
  {
    const auto intermediate = b.module("intermediate", named("Intermediate"));
    b.linear("dense", d.ffn, d.hidden, true, Cut::Column);
    b.activation("intermediate_act_fn", d.activation);
  }
  register_output(b, named("Output"), d.hidden, d.ffn, Cut::Row);
}

void register_distil_layer(ModelBuilder& b, const Dimensions& d) {
  {
    const auto attention = b.module("attention", "DistilBertSelfAttention");
    b.linear("q_lin", d.hidden, d.hidden, true, Cut::Column);
    b.linear("k_lin", d.hidden, d.hidden, true, Cut::KeyValue);
    b.linear("v_lin", d.hidden, d.hidden, true, Cut::KeyValue);
    b.linear("out_lin", d.hidden, d.hidden, true, Cut::Row);
    b.leaf("dropout", "Dropout");
  }
  b.layer_norm("sa_layer_norm", d.hidden);
  {
    const auto ffn = b.module("ffn", "FFN");
    b.leaf("dropout", "Dropout");
    b.linear("lin1", d.ffn, d.hidden, true, Cut::Column);
    b.linear("lin2", d.hidden, d.ffn, true, Cut::Row);
    b.activation("activation", d.activation);
  }
  b.layer_norm("output_layer_norm", d.hidden);
}

constexpr std::string_view kLayerForward =
    "attention(self(query key value) output(dense dropout LayerNorm)) intermediate(dense intermediate_act_fn) "
    "output(dense dropout LayerNorm)";
constexpr std::string_view kDistilForward =
    "attention(q_lin k_lin v_lin out_lin) sa_layer_norm ffn(lin1 activation lin2 dropout) output_layer_norm";

ParameterId register_body(ModelBuilder& b, const Bert& bert, bool pooler) {
  const Dimensions& d = bert.dims;
  const bool distil = bert.kind == BertKind::DistilBert;
  const ParameterId words = register_embeddings(b, bert);
  if (bert.width != d.hidden) b.linear("embeddings_project", d.hidden, bert.width, true, Cut::Whole);
  {
    const auto encoder =
        b.module(distil ? "transformer" : "encoder", distil ? "Transformer" : formatted("{}Encoder", bert.prefix));
    const auto list = b.module("layer", "ModuleList");
    const std::string type = distil ? "TransformerBlock" : formatted("{}Layer", bert.prefix);
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, type, distil ? kDistilForward : kLayerForward);
      if (distil) {
        register_distil_layer(b, d);
      } else {
        register_layer(b, bert);
      }
    }
  }
  if (pooler) {
    const auto module = b.module("pooler", formatted("{}Pooler", bert.prefix));
    b.linear("dense", d.hidden, d.hidden, true, Cut::Whole);
    b.leaf("activation", "Tanh");
  }
  return words;
}

std::string body_forward(const Bert& bert, bool pooler) {
  if (bert.kind == BertKind::DistilBert) {
    return "embeddings(word_embeddings position_embeddings LayerNorm dropout) transformer(layer*)";
  }
  return formatted(
      "embeddings(word_embeddings token_type_embeddings position_embeddings{} LayerNorm dropout){} encoder(layer*){}",
      bert.task_types > 0 ? " task_type_embeddings" : "", bert.width != bert.dims.hidden ? " embeddings_project" : "",
      pooler ? " pooler(dense activation)" : "");
}

// The head's own forward, in text. Its bias is a parameter beside the projection, with which it shares storage.
std::string register_word_head(ModelBuilder& b, const Bert& bert, ParameterId words) {
  const Dimensions& d = bert.dims;
  const auto project = [&](std::string_view name) {
    const ParameterId weight = b.linear(name, d.vocab, d.hidden, true, Cut::Vocabulary);
    if (bert.tied && words != kNone) b.tie(weight, words);
    return weight + 1;  // The bias.
  };
  if (bert.kind == BertKind::DistilBert) {
    b.linear("vocab_transform", d.hidden, d.hidden, true, Cut::Whole);
    b.layer_norm("vocab_layer_norm", d.hidden);
    project("vocab_projector");
    b.leaf("mlm_loss_fct", "CrossEntropyLoss");
    return "vocab_transform activation vocab_layer_norm vocab_projector mlm_loss_fct";
  }
  if (bert.kind == BertKind::Roberta) {
    const auto head = b.module("lm_head", formatted("{}LMHead", bert.prefix));
    const ParameterId own = b.parameter("bias", {d.vocab}, Split::Vocabulary);
    b.linear("dense", d.hidden, d.hidden, true, Cut::Whole);
    b.layer_norm("layer_norm", d.hidden);
    const ParameterId bias = project("decoder");
    if (bert.tied) b.tie(bias, own);
    return "lm_head(dense layer_norm decoder)";
  }
  if (bert.kind == BertKind::Electra) {
    {
      const auto head = b.module("generator_predictions", "ElectraGeneratorPredictions");
      b.activation("activation", "gelu");
      b.layer_norm("LayerNorm", bert.width);
      b.linear("dense", bert.width, d.hidden, true, Cut::Whole);
    }
    const ParameterId weight = b.linear("generator_lm_head", d.vocab, bert.width, true, Cut::Vocabulary);
    if (bert.tied) b.tie(weight, words);
    return "generator_predictions(dense activation LayerNorm) generator_lm_head";
  }
  return register_word_predictions(b, d, bert.prefix, bert.tied ? words : kNone);
}

std::string register_class_head(ModelBuilder& b, const Bert& bert) {
  const Dimensions& d = bert.dims;
  if (bert.head == EncoderHead::Answer) {
    b.linear("qa_outputs", d.labels, d.hidden, true, Cut::Whole);
    if (bert.kind != BertKind::DistilBert) return "qa_outputs";
    b.leaf("dropout", "Dropout");
    return "dropout qa_outputs";
  }
  if (bert.head == EncoderHead::Token || bert.kind == BertKind::Bert) {
    b.leaf("dropout", "Dropout");
    b.linear("classifier", d.labels, d.hidden, true, Cut::Whole);
    return "dropout classifier";
  }
  if (bert.kind != BertKind::DistilBert) {
    const bool electra = bert.kind == BertKind::Electra;
    const auto head = b.module("classifier", formatted("{}ClassificationHead", bert.prefix));
    b.linear("dense", d.hidden, d.hidden, true, Cut::Whole);
    if (electra) b.activation("activation", "gelu");
    b.leaf("dropout", "Dropout");
    b.linear("out_proj", d.labels, d.hidden, true, Cut::Whole);
    return formatted("classifier(dropout dense{} dropout out_proj)", electra ? " activation" : "");
  }
  b.linear("pre_classifier", d.hidden, d.hidden, true, Cut::Whole);
  b.linear("classifier", d.labels, d.hidden, true, Cut::Whole);
  b.leaf("dropout", "Dropout");
  return "pre_classifier dropout classifier";
}

std::string_view body_name(const Bert& bert) {
  switch (bert.kind) {
    case BertKind::Bert: return bert.prefix == "Ernie" ? "ernie" : "bert";
    case BertKind::Roberta: return bert.prefix == "Data2VecText" ? "data2vec_text" : "roberta";
    case BertKind::DistilBert: return "distilbert";
    case BertKind::Electra: return "electra";
  }
  return {};
}

// The table of words is the head's projection, which was registered before it.
void tie_words(ModelBuilder& b, ParameterId words) {
  const std::vector<Parameter>& all = b.so_far().parameters;
  const auto at =
      std::find_if(all.begin(), all.end(), [](const Parameter& p) { return p.name == "lm_head.decoder.weight"; });
  b.tie(words, static_cast<ParameterId>(at - all.begin()));
}

ModelSpec build_encoder(const ConfigReader& config, const Bert& bert) {
  const bool own_pooler = bert.kind == BertKind::Bert || bert.kind == BertKind::Roberta;
  const bool pooler =
      own_pooler && (bert.head == EncoderHead::None || (bert.head == EncoderHead::Text && bert.kind == BertKind::Bert));
  ModelBuilder b(config, encoder_class(bert.prefix, bert.head));
  std::string forward = body_forward(bert, pooler);
  if (bert.head == EncoderHead::None) {
    register_body(b, bert, pooler);
  } else {
    ParameterId words = kNone;
    if (bert.kind == BertKind::DistilBert && bert.head == EncoderHead::MaskedLm)
      b.activation("activation", bert.dims.activation);
    const auto body = [&] {
      const auto scope = b.module(body_name(bert), formatted("{}Model", bert.prefix));
      words = register_body(b, bert, pooler);
    };
    if (!bert.head_first) body();
    const std::string head =
        bert.head == EncoderHead::MaskedLm ? register_word_head(b, bert, words) : register_class_head(b, bert);
    if (bert.head_first) body();
    if (bert.head_first && bert.tied && bert.head == EncoderHead::MaskedLm) tie_words(b, words);
    forward = formatted("{}({}) {}", body_name(bert), forward, head);
  }
  ModelSpec spec = b.finish(forward);
  spec.dims = bert.dims;
  return spec;
}

}  // namespace

ModelSpec build_bert(ConfigReader& config) {
  return build_encoder(config, read_bert(config, "Bert", BertKind::Bert, {}));
}

ModelSpec build_roberta(ConfigReader& config) {
  return build_encoder(config, read_bert(config, "Roberta", BertKind::Roberta, {.vocab = 50265}));
}

ModelSpec build_ernie(ConfigReader& config) {
  const std::int64_t tasks = config.size("task_type_vocab_size", 3);
  const bool told = config.flag("use_task_id", false);
  Bert bert = read_bert(config, "Ernie", BertKind::Bert, {});
  bert.task_types = told ? tasks : 0;
  return build_encoder(config, bert);
}

ModelSpec build_data2vec_text(ConfigReader& config) {
  return build_encoder(config, read_bert(config, "Data2VecText", BertKind::Roberta, {}));
}

// Roberta whose head is made before its body.
ModelSpec build_xlm_roberta(ConfigReader& config) {
  Bert bert = read_bert(config, "XLMRoberta", BertKind::Roberta, {});
  bert.head_first = true;
  return build_encoder(config, bert);
}

ModelSpec build_camembert(ConfigReader& config) {
  Bert bert = read_bert(config, "Camembert", BertKind::Roberta, {});
  bert.head_first = true;
  return build_encoder(config, bert);
}

ModelSpec build_electra(ConfigReader& config) {
  return build_encoder(config, read_bert(config, "Electra", BertKind::Electra, {30522, 256, 1024, 4}));
}

ModelSpec build_distilbert(ConfigReader& config) { return build_encoder(config, read_distilbert(config)); }

}  // namespace dsplan
