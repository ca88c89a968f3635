// bart, mbart, plbart, blenderbot, marian, m2m_100 and pegasus: an encoder and a decoder around one table of words,
// with positions that are added. Checkpointable layers count through, the encoder's first.
#include <cmath>

#include "core/format.h"
#include "model/families.h"
#include "model/families/builder.h"
#include "model/families/encoders/stacks.h"
#include "model/families/encoders/translators.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct Bart {
  const Translator& of;
  Dimensions dims{};
  DecoderParts parts{};
  BothStacks stacks{};
  std::int64_t source_words = 0;  // marian may have two tables.
  bool shared = true;
  bool tied = true;

  [[nodiscard]] std::string named(std::string_view rest) const { return formatted("{}{}", of.prefix, rest); }
};

// The classes' own values where a key is absent.
struct BartDefaults {
  std::int64_t vocab = 50265;
  std::string_view activation = "gelu";
  double attention_dropout = 0;
  bool scaled = false;
  double left_out = 0;  // Of the layers.
  std::int64_t hidden = 1024;
  std::int64_t positions = 1024;
  UsualStacks stacks = {};
};

// Layers that are left out at random. A class that leaves some out does so where the key is absent, too.
void read_left_out(ConfigReader& config, double usual) {
  for (const std::string_view key : {"encoder_layerdrop", "decoder_layerdrop"}) {
    if (config.probability(key, usual) == 0) continue;
    const Value* given = config.find(key);
    config.gaps.push_back(
        {given == nullptr ? &config.root() : given, std::string(key), "leaves layers out at random", true});
  }
}

// marian alone: tables of their own, the decoder's of another size.
void read_tables(ConfigReader& config, Bart& bart) {
  bart.source_words = bart.dims.vocab;
  if (bart.of.family != "marian") return;
  bart.shared = config.flag("share_encoder_decoder_embeddings", true);
  bart.dims.vocab = config.maybe_size("decoder_vocab_size").value_or(bart.source_words);
  if (bart.shared && bart.dims.vocab != bart.source_words) {
    config.fault("decoder_vocab_size", "\"decoder_vocab_size\" is not \"vocab_size\", though the tables are shared",
                 "\"share_encoder_decoder_embeddings\": false has two tables");
  }
}

Bart read_bart(ConfigReader& config, std::string_view family, const BartDefaults& usual) {
  Bart bart{.of = *translator_of(family)};
  Dimensions& d = bart.dims;
  d.vocab = config.size("vocab_size", usual.vocab);
  d.hidden = config.size("d_model", usual.hidden, "hidden_size");
  bart.stacks = read_both_stacks(config, usual.stacks, d);
  read_tables(config, bart);
  read_left_out(config, usual.left_out);
  d.max_positions = d.target_positions = config.size("max_position_embeddings", usual.positions);
  d.activation = config.activation("activation_function", usual.activation);
  d.residual_dropout = d.embedding_dropout = config.probability("dropout", 0.1);
  d.attention_dropout = config.probability("attention_dropout", usual.attention_dropout);
  bart.parts.activation_dropout = config.probability("activation_dropout", 0);
  const bool scaled = config.flag("scale_embedding", usual.scaled);
  bart.tied = config.flag("tie_word_embeddings", true);
  config.require_divides("encoder_attention_heads", d.heads, "d_model", d.hidden);
  config.throw_if_any();
  bart.parts.embedding_multiplier = scaled ? std::sqrt(static_cast<double>(d.hidden)) : 1;
  conclude_both_stacks(config, bart.stacks, d);
  return bart;
}

void register_attention(ModelBuilder& b, const Bart& bart, std::string_view name) {
  const std::int64_t hidden = bart.dims.hidden;
  const auto attention = b.module(name, bart.named("Attention"));
  b.linear("k_proj", hidden, hidden, true, Cut::KeyValue);
  b.linear("v_proj", hidden, hidden, true, Cut::KeyValue);
  b.linear("q_proj", hidden, hidden, true, Cut::Column);
  b.linear("out_proj", hidden, hidden, true, Cut::Row);
}

ParameterId register_words(ModelBuilder& b, const Bart& bart, std::string_view name, std::int64_t words) {
  const std::string type = bart.of.scales_inside ? bart.named("ScaledWordEmbedding") : "Embedding";
  return b.embedding(name, words, bart.dims.hidden, Split::Vocabulary, type);
}

void register_positions(ModelBuilder& b, const Bart& bart) {
  const Dimensions& d = bart.dims;
  const bool frozen = bart.of.places == Places::Frozen;
  const bool learned = bart.of.places == Places::Learned || bart.of.places == Places::Plain;
  const std::int64_t rows = frozen || bart.of.places == Places::Plain ? d.max_positions : b.plus(d.max_positions, 2);
  const std::string type = bart.named(learned ? "LearnedPositionalEmbedding" : "SinusoidalPositionalEmbedding");
  if (bart.of.places == Places::Counted) {
    const auto table = b.module("embed_positions", type);
    return b.buffer("weights", {rows, d.hidden}, DType::Float32, true);
  }
  const ParameterId table = b.embedding("embed_positions", rows, d.hidden, Split::Replicated, type);
  if (frozen) b.so_far().parameters[static_cast<std::size_t>(table)].trainable = false;
}

void register_layer(ModelBuilder& b, const Bart& bart, bool decodes) {
  const Dimensions& d = bart.dims;
  const std::int64_t ffn = decodes ? bart.stacks.decoder_ffn : d.ffn;
  register_attention(b, bart, "self_attn");
  if (decodes) b.activation("activation_fn", d.activation);
  b.layer_norm("self_attn_layer_norm", d.hidden);
  if (decodes) {
    register_attention(b, bart, "encoder_attn");
    b.layer_norm("encoder_attn_layer_norm", d.hidden);
  } else {
    b.activation("activation_fn", d.activation);
  }
  b.linear("fc1", ffn, d.hidden, true, Cut::Column);
  b.linear("fc2", d.hidden, ffn, true, Cut::Row);
  b.layer_norm("final_layer_norm", d.hidden);
}

// What a layer's forward calls, each norm before or behind its sublayer.
std::string layer_forward(const Bart& bart, bool decodes) {
  const auto sublayer = [&](std::string_view name, std::string_view norm) {
    return bart.of.norms_first ? formatted("{} {} ", norm, name) : formatted("{} {} ", name, norm);
  };
  const auto attention = [&](std::string_view name) {
    return sublayer(formatted("{}(q_proj k_proj v_proj out_proj)", name), formatted("{}_layer_norm", name));
  };
  return attention("self_attn") + (decodes ? attention("encoder_attn") : std::string()) +
         sublayer("fc1 activation_fn fc2", "final_layer_norm");
}

ParameterId register_stack(ModelBuilder& b, const Bart& bart, bool decodes, std::string_view forward) {
  const Dimensions& d = bart.dims;
  const auto stack = b.module(decodes ? "decoder" : "encoder", bart.named(decodes ? "Decoder" : "Encoder"));
  const ParameterId words = register_words(b, bart, "embed_tokens", decodes ? d.vocab : bart.source_words);
  register_positions(b, bart);
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < (decodes ? d.decoder_layers : bart.stacks.encoder_layers); ++i) {
      const auto layer = b.layer(i, bart.named(decodes ? "DecoderLayer" : "EncoderLayer"), forward);
      register_layer(b, bart, decodes);
    }
  }
  if (bart.of.norms_words) b.layer_norm("layernorm_embedding", d.hidden);
  if (bart.of.norms_last) b.layer_norm("layer_norm", d.hidden);
  return words;
}

ModelSpec build_stacks(ConfigReader& config, const Bart& bart) {
  const Dimensions& d = bart.dims;
  const std::string encodes = layer_forward(bart, false);
  const std::string decodes = layer_forward(bart, true);
  ModelBuilder b(config, bart.of.whole);
  ParameterId words = kNone;
  {
    const auto body = b.module("model", bart.named("Model"));
    if (bart.shared) words = register_words(b, bart, "shared", d.vocab);
    const ParameterId source = register_stack(b, bart, false, encodes);
    const ParameterId target = register_stack(b, bart, true, decodes);
    if (!bart.shared) words = target;
    if (bart.shared && bart.tied) {
      b.tie(source, words);
      b.tie(target, words);
    }
  }
  if (bart.of.biases_logits) b.buffer("final_logits_bias", {1, d.vocab}, DType::Float32, true);
  const ParameterId head = b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (bart.tied) b.tie(head, words);
  const std::string stack =
      formatted("(embed_tokens embed_positions{} layers*{})", bart.of.norms_words ? " layernorm_embedding" : "",
                bart.of.norms_last ? " layer_norm" : "");
  ModelSpec spec = b.finish(formatted("model(encoder{} decoder{}) lm_head", stack, stack));
  spec.dims = d;
  spec.parts = std::make_shared<DecoderParts>(bart.parts);
  return spec;
}

}  // namespace

ModelSpec build_bart(ConfigReader& config) { return build_stacks(config, read_bart(config, "bart", {})); }
ModelSpec build_mbart(ConfigReader& config) { return build_stacks(config, read_bart(config, "mbart", {})); }
ModelSpec build_plbart(ConfigReader& config) {
  return build_stacks(config, read_bart(config, "plbart",
                                        {.vocab = 50005,
                                         .attention_dropout = 0.1,
                                         .scaled = true,
                                         .hidden = 768,
                                         .stacks = {.ffn = 3072, .heads = 12, .layers = 6}}));
}
ModelSpec build_blenderbot(ConfigReader& config) {
  return build_stacks(config, read_bart(config, "blenderbot",
                                        {.vocab = 8008,
                                         .hidden = 2560,
                                         .positions = 128,
                                         .stacks = {.ffn = 10240, .heads = 32, .layers = 24, .encoder_layers = 2}}));
}
ModelSpec build_marian(ConfigReader& config) {
  return build_stacks(config, read_bart(config, "marian", {.vocab = 58101}));
}
ModelSpec build_m2m_100(ConfigReader& config) {
  return build_stacks(
      config,
      read_bart(config, "m2m_100",
                {.vocab = 128112, .activation = "relu", .attention_dropout = 0.1, .scaled = true, .left_out = 0.05}));
}
ModelSpec build_pegasus(ConfigReader& config) { return build_stacks(config, read_bart(config, "pegasus", {})); }

}  // namespace dsplan
