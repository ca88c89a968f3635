// whisper: two convolutions over the spectrum, an encoder, and a decoder that sees what it made in every layer.
// Positions are tables, the encoder's of sinusoids and frozen. Checkpointable layers count through, the encoder's
// first.
#include "core/format.h"
#include "model/families.h"
#include "model/families/builder.h"
#include "model/families/encoders/stacks.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

struct Whisper {
  Dimensions dims;
  std::int64_t mels = 0;
  BothStacks stacks;
  bool tied = true;
};

Whisper read_whisper(ConfigReader& config) {
  Whisper whisper;
  Dimensions& d = whisper.dims;
  d.vocab = config.size("vocab_size", 51865);
  d.hidden = config.size("d_model", 384, "hidden_size");
  whisper.stacks = read_both_stacks(config, {.ffn = 1536, .heads = 6, .layers = 4}, d);
  whisper.mels = config.size("num_mel_bins", 80);
  d.max_positions = config.size("max_source_positions", 1500);
  d.target_positions = config.size("max_target_positions", 448);
  d.activation = config.activation("activation_function", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("dropout", 0);
  d.attention_dropout = config.probability("attention_dropout", 0);
  whisper.tied = config.flag("tie_word_embeddings", true);
  config.require_divides("encoder_attention_heads", d.heads, "d_model", d.hidden);
  config.throw_if_any();
  conclude_both_stacks(config, whisper.stacks, d);
  return whisper;
}

void register_attention(ModelBuilder& b, const Dimensions& d, std::string_view name) {
  const auto attention = b.module(name, "WhisperAttention");
  b.linear("k_proj", d.hidden, d.hidden, false, Cut::KeyValue);
  b.linear("v_proj", d.hidden, d.hidden, true, Cut::KeyValue);
  b.linear("q_proj", d.hidden, d.hidden, true, Cut::Column);
  b.linear("out_proj", d.hidden, d.hidden, true, Cut::Row);
}

void register_feed_forward(ModelBuilder& b, const Dimensions& d, std::int64_t ffn) {
  b.linear("fc1", ffn, d.hidden, true, Cut::Column);
  b.linear("fc2", d.hidden, ffn, true, Cut::Row);
  b.layer_norm("final_layer_norm", d.hidden);
}

void register_convolution(ModelBuilder& b, std::string_view name, std::int64_t out, std::int64_t in) {
  const auto convolution = b.module(name, "Conv1d");
  b.parameter("weight", {out, in, 3}, Split::Replicated);
  b.parameter("bias", {out}, Split::Replicated);
}

// Returns the frozen table of positions.
ParameterId register_encoder(ModelBuilder& b, const Whisper& whisper) {
  const Dimensions& d = whisper.dims;
  const auto encoder = b.module("encoder", "WhisperEncoder");
  register_convolution(b, "conv1", d.hidden, whisper.mels);
  register_convolution(b, "conv2", d.hidden, d.hidden);
  const ParameterId positions = b.embedding("embed_positions", d.max_positions, d.hidden, Split::Replicated);
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < whisper.stacks.encoder_layers; ++i) {
      const auto layer = b.layer(i, "WhisperEncoderLayer",
                                 "self_attn_layer_norm self_attn(q_proj k_proj v_proj out_proj) final_layer_norm fc1 "
                                 "activation_fn fc2");
      register_attention(b, d, "self_attn");
      b.layer_norm("self_attn_layer_norm", d.hidden);
      b.activation("activation_fn", d.activation);
      register_feed_forward(b, d, d.ffn);
    }
  }
  b.layer_norm("layer_norm", d.hidden);
  return positions;
}

// Returns the table of words.
ParameterId register_decoder(ModelBuilder& b, const Whisper& whisper) {
  const Dimensions& d = whisper.dims;
  const auto decoder = b.module("decoder", "WhisperDecoder");
  const ParameterId words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
  b.embedding("embed_positions", d.target_positions, d.hidden, Split::Replicated, "WhisperPositionalEmbedding");
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.decoder_layers; ++i) {
      const auto layer =
          b.layer(i, "WhisperDecoderLayer",
                  "self_attn_layer_norm self_attn(q_proj k_proj v_proj out_proj) encoder_attn_layer_norm "
                  "encoder_attn(q_proj k_proj v_proj out_proj) final_layer_norm fc1 activation_fn fc2");
      register_attention(b, d, "self_attn");
      b.activation("activation_fn", d.activation);
      b.layer_norm("self_attn_layer_norm", d.hidden);
      register_attention(b, d, "encoder_attn");
      b.layer_norm("encoder_attn_layer_norm", d.hidden);
      register_feed_forward(b, d, whisper.stacks.decoder_ffn);
    }
  }
  b.layer_norm("layer_norm", d.hidden);
  return words;
}

}  // namespace

ModelSpec build_whisper(ConfigReader& config) {
  const Whisper whisper = read_whisper(config);
  const Dimensions& d = whisper.dims;
  ModelBuilder b(config, "WhisperForConditionalGeneration");
  ParameterId frozen = kNone;
  ParameterId words = kNone;
  {
    const auto body = b.module("model", "WhisperModel");
    frozen = register_encoder(b, whisper);
    words = register_decoder(b, whisper);
  }
  const ParameterId head = b.linear("proj_out", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (whisper.tied) b.tie(head, words);
  ModelSpec spec = b.finish(
      "model(encoder(conv1 conv2 embed_positions layers* layer_norm) "
      "decoder(embed_tokens embed_positions layers* layer_norm)) proj_out");
  spec.parameter_at(frozen).trainable = false;
  spec.dims = d;
  return spec;
}

}  // namespace dsplan
