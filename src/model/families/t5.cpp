// t5, mt5 and umt5: an encoder and a decoder stack around one embedding; the first block of each holds the table of
// relative positions, of umt5 every block. Checkpointable layers count through: encoder blocks, then decoder blocks.
#include "core/format.h"
#include "model/families.h"
#include "model/families/builder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

struct T5 {
  std::string_view prefix;
  Dimensions dims;
  std::int64_t decoder_layers = 0;
  std::int64_t buckets = 0;
  bool gated = false;
  bool own_tables = false;  // Of each block.
};

// "relu", "gelu", ... or "gated-" and an activation; gated-gelu means the tanh form, as T5 1.1 was trained.
void read_feed_forward(ConfigReader& config, T5& t5, std::string_view usual) {
  const std::string kind = config.maybe_string("feed_forward_proj").value_or(std::string(usual));
  t5.gated = kind.starts_with("gated-");
  t5.dims.activation = t5.gated ? kind.substr(6) : kind;
  if (kind == "gated-gelu") t5.dims.activation = "gelu_new";
  if (activation_class(t5.dims.activation).empty()) {
    config.fault("feed_forward_proj",
                 formatted("\"feed_forward_proj\" must be an activation or \"gated-\" and one, not \"{}\"", kind));
  }
  // Saved files repeat what follows from it, and transformers takes theirs.
  const std::string said = config.maybe_string("dense_act_fn").value_or(t5.dims.activation);
  if (said != t5.dims.activation) {
    config.fault("dense_act_fn", formatted("\"dense_act_fn\" is \"{}\", where \"feed_forward_proj\" says \"{}\"", said,
                                           t5.dims.activation));
  }
  if (config.flag("is_gated_act", t5.gated) != t5.gated) {
    config.fault("is_gated_act",
                 formatted("\"is_gated_act\" contradicts \"feed_forward_proj\", which is \"{}\"", kind));
  }
}

struct T5Defaults {
  std::string_view prefix = "T5";
  std::int64_t vocab = 32128, ffn = 2048, layers = 6, heads = 8;
  std::string_view feed_forward = "relu";
  bool scales = true;
};

T5 read_t5(ConfigReader& config, const T5Defaults& usual) {
  T5 t5;
  t5.prefix = usual.prefix;
  Dimensions& d = t5.dims;
  d.vocab = config.size("vocab_size", usual.vocab);
  d.hidden = config.size("d_model", 512, "hidden_size");
  d.head_dim = config.size("d_kv", 64, "head_dim");
  d.ffn = config.size("d_ff", usual.ffn);
  const bool given = config.find("num_decoder_layers") != nullptr;
  if (given) t5.decoder_layers = config.layer_count("num_decoder_layers", 1);
  d.layers = config.layer_count("num_layers", usual.layers, "num_hidden_layers");
  if (!given) t5.decoder_layers = d.layers;
  d.heads = d.kv_heads = config.size("num_heads", usual.heads, "num_attention_heads");
  t5.buckets = config.size("relative_attention_num_buckets", 32);
  d.farthest = config.maybe_size("relative_attention_max_distance").value_or(128);
  d.norm_epsilon = config.maybe_number("layer_norm_epsilon").value_or(1e-6);
  d.residual_dropout = d.attention_dropout = d.embedding_dropout = config.probability("dropout_rate", 0.1);
  read_feed_forward(config, t5, usual.feed_forward);
  const bool tied = config.find("tie_word_embeddings") == nullptr || config.flag("tie_word_embeddings", true);
  d.scaled_output = usual.scales && tied;
  // T5Config of transformers 5 reads it off tie_word_embeddings, ties in any case, and writes down what it has read.
  if (usual.scales) d.scaled_output = config.flag("scale_decoder_outputs", d.scaled_output);
  config.throw_if_any();
  return t5;
}

std::string named(const T5& t5, std::string_view rest) { return formatted("{}{}", t5.prefix, rest); }

void register_attention(ModelBuilder& b, const T5& t5, std::string_view name, bool with_table) {
  const Dimensions& d = t5.dims;
  const std::int64_t inner = b.times(d.heads, d.head_dim);
  const auto attention = b.module(name, named(t5, "Attention"));
  b.linear("q", inner, d.hidden, false, Cut::Column);
  b.linear("k", inner, d.hidden, false, Cut::KeyValue);
  b.linear("v", inner, d.hidden, false, Cut::KeyValue);
  b.linear("o", d.hidden, inner, false, Cut::Row);
  if (with_table) b.embedding("relative_attention_bias", t5.buckets, d.heads, Split::Replicated);
}

void register_attention_layer(ModelBuilder& b, const T5& t5, bool cross, bool with_table) {
  const auto layer = b.module(cross ? "1" : "0", named(t5, cross ? "LayerCrossAttention" : "LayerSelfAttention"));
  register_attention(b, t5, cross ? "EncDecAttention" : "SelfAttention", with_table);
  b.rms_norm("layer_norm", t5.dims.hidden, named(t5, "LayerNorm"));
  b.leaf("dropout", "Dropout");
}

void register_feed_forward(ModelBuilder& b, const T5& t5, bool decoder) {
  const Dimensions& d = t5.dims;
  const auto layer = b.module(decoder ? "2" : "1", named(t5, "LayerFF"));
  {
    const auto dense = b.module("DenseReluDense", named(t5, t5.gated ? "DenseGatedActDense" : "DenseActDense"));
    if (t5.gated) {
      b.linear("wi_0", d.ffn, d.hidden, false, Cut::Column);
      b.linear("wi_1", d.ffn, d.hidden, false, Cut::Column);
    } else {
      b.linear("wi", d.ffn, d.hidden, false, Cut::Column);
    }
    b.linear("wo", d.hidden, d.ffn, false, Cut::Row);
    b.leaf("dropout", "Dropout");
    b.activation("act", d.activation);
  }
  b.rms_norm("layer_norm", d.hidden, named(t5, "LayerNorm"));
  b.leaf("dropout", "Dropout");
}

std::string block_forward(const T5& t5, bool decoder, bool first) {
  return formatted(
      "layer.0(layer_norm SelfAttention(q k v{} o) dropout){} layer.{}(layer_norm DenseReluDense({} dropout wo) "
      "dropout)",
      first ? " relative_attention_bias" : "", decoder ? " layer.1(layer_norm EncDecAttention(q k v o) dropout)" : "",
      decoder ? 2 : 1, t5.gated ? "wi_0 act wi_1" : "wi act");
}

// The forwards of a stack's first and later blocks.
struct Forwards {
  std::string first, later;
};

ParameterId register_stack(ModelBuilder& b, const T5& t5, bool decoder, std::int64_t layers, const Forwards& forwards) {
  const auto stack = b.module(decoder ? "decoder" : "encoder", named(t5, "Stack"));
  const ParameterId embedding = b.embedding("embed_tokens", t5.dims.vocab, t5.dims.hidden, Split::Vocabulary);
  {
    const auto list = b.module("block", "ModuleList");
    for (std::int64_t i = 0; i < layers; ++i) {
      const auto block = b.layer(i, named(t5, "Block"), i == 0 ? forwards.first : forwards.later);
      const auto parts = b.module("layer", "ModuleList");
      register_attention_layer(b, t5, false, i == 0 || t5.own_tables);
      if (decoder) register_attention_layer(b, t5, true, false);
      register_feed_forward(b, t5, decoder);
    }
  }
  b.rms_norm("final_layer_norm", t5.dims.hidden, named(t5, "LayerNorm"));
  b.leaf("dropout", "Dropout");
  return embedding;
}

ModelSpec build_stacks(ConfigReader& config, const T5& t5) {
  const Dimensions& d = t5.dims;
  if (d.layers + t5.decoder_layers > kMostLayers) {
    config.refuse("num_decoder_layers",
                  formatted("encoder and decoder together have more than {} layers", grouped(kMostLayers)));
  }
  const Forwards encoder{block_forward(t5, false, true), block_forward(t5, false, t5.own_tables)};
  const Forwards decoder{block_forward(t5, true, true), block_forward(t5, true, t5.own_tables)};
  ModelBuilder b(config, named(t5, "ForConditionalGeneration"));
  const ParameterId shared = b.embedding("shared", d.vocab, d.hidden, Split::Vocabulary);
  b.tie(register_stack(b, t5, false, d.layers, encoder), shared);
  b.tie(register_stack(b, t5, true, t5.decoder_layers, decoder), shared);
  // transformers 5 ties the head whatever the config says; tie_word_embeddings = false only turns off the scaling of
  // what the decoder gives it.
  b.tie(b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary), shared);
  ModelSpec spec = b.finish(
      "encoder(embed_tokens dropout block* final_layer_norm dropout) "
      "decoder(embed_tokens dropout block* final_layer_norm dropout) lm_head");
  spec.dims = d;
  spec.dims.layers = d.layers + t5.decoder_layers;
  spec.dims.decoder_layers = t5.decoder_layers;
  return spec;
}

}  // namespace

ModelSpec build_t5(ConfigReader& config) { return build_stacks(config, read_t5(config, {})); }

// What its decoder gives is never scaled.
ModelSpec build_mt5(ConfigReader& config) {
  return build_stacks(config, read_t5(config, {"MT5", 250112, 1024, 8, 6, "gated-gelu", false}));
}

// Tied and scaled whatever the config says.
ModelSpec build_umt5(ConfigReader& config) {
  T5 t5 = read_t5(config, {"UMT5", 250112, 1024, 8, 6, "gated-gelu"});
  t5.own_tables = t5.dims.scaled_output = true;
  return build_stacks(config, t5);
}

}  // namespace dsplan
