// The text part of gemma3n: several running tensors of which one goes through each layer; a product of low rank beside
// attention; the last layers read keys and values that earlier ones have made; a second embedding gives each layer a
// part.
#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

constexpr std::string_view kGemma3nNorm = "Gemma3nRMSNorm";

// One width, or a list of one for each layer, which are the same here.
std::int64_t read_one_width(ConfigReader& config, std::int64_t layers) {
  const Value* said = config.find("intermediate_size");
  if (said == nullptr || !said->is(Value::Kind::Array)) return config.size("intermediate_size", 16384);
  const bool whole = !said->items.empty() && said->items.size() == static_cast<std::size_t>(layers);
  if (!whole) {
    config.fault(
        *said, formatted("\"intermediate_size\" lists {} widths, and there are {} layers", said->items.size(), layers));
    return 1;
  }
  for (const Value& item : said->items) {
    if (!item.is(Value::Kind::Integer) || item.integer < 1) {
      config.fault(item, "\"intermediate_size\" must be an integer of at least 1");
    } else if (item.integer != said->items.front().integer) {
      config.fault(item, "\"intermediate_size\": layers of different widths are not modelled yet");
    } else {
      continue;
    }
    return 1;
  }
  return said->items.front().integer;
}

// activation_sparsity_pattern: the share of each layer's gate that goes; one number for all is none that its class
// takes.
std::vector<bool> read_sparse_layers(ConfigReader& config, std::int64_t layers) {
  std::vector<bool> sparse(static_cast<std::size_t>(layers), false);
  const Value* said = config.find("activation_sparsity_pattern");
  if (said == nullptr) {
    if (layers > 10) std::fill(sparse.begin(), sparse.begin() + 10, true);
    return sparse;
  }
  if (!said->is(Value::Kind::Array) || said->items.size() != sparse.size()) {
    config.fault(*said,
                 formatted("\"activation_sparsity_pattern\" must be an array of {} numbers, one per layer", layers));
    return sparse;
  }
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    const Value& item = said->items[i];
    const bool numeric = item.is(Value::Kind::Real) || item.is(Value::Kind::Integer);
    if (!numeric || item.real < 0 || item.real >= 1) {
      config.fault(item, "\"activation_sparsity_pattern\" lists shares, from 0 to below 1");
    }
    sparse[i] = item.real > 0;
  }
  return sparse;
}

void read_altup(ConfigReader& config, Decoder& decoder) {
  AltupParts& p = decoder.parts.altup;
  p.inputs = config.size("altup_num_inputs", 4);
  p.active = config.count("altup_active_idx", 0);
  p.rank = config.size("laurel_rank", 64);
  config.refuse_null("altup_coef_clip", "a number");
  (void)config.maybe_number("altup_coef_clip");
  p.scales = config.flag("altup_correct_scale", true);
  p.sparse = read_sparse_layers(config, decoder.dims.layers);
  if (p.inputs < 2) config.fault("altup_num_inputs", "\"altup_num_inputs\" of one is not modelled yet");
  if (p.active >= p.inputs) {
    config.fault("altup_active_idx",
                 formatted("\"altup_active_idx\" is {}, and there are {} tensors from 0 on", p.active, p.inputs));
  }
}

void read_gemma3n_sharing(ConfigReader& config, Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  SharingParts& p = decoder.parts.sharing;
  p.used = true;
  p.wide = d;
  p.readers = config.count("num_kv_shared_layers", 15);
  p.own_width = config.size("hidden_size_per_layer_input", 256);
  p.own_vocab = config.size("vocab_size_per_layer_input", 262144);
  // "first_kv_shared_layer_idx > 0": of a model of fewer layers each has its own.
  if (p.readers >= d.layers) p.readers = 0;
  const std::vector<LayerKind>& kinds = decoder.parts.kinds;
  const auto first = kinds.begin() + p.first_reader(d.layers);
  for (auto reader = first; reader != kinds.end(); ++reader) {
    if (std::find(kinds.begin(), first, *reader) != first) continue;
    const std::string_view kind = *reader == LayerKind::Full ? "full_attention" : "sliding_attention";
    return config.fault("num_kv_shared_layers", formatted("no layer of {} before them has keys to read", kind));
  }
}

Decoder read_gemma3n(ConfigReader& config) {
  const std::int64_t layers = config.layer_count("num_hidden_layers", 35);
  const std::int64_t width = read_one_width(config, layers);
  Decoder decoder = read_decoder(config, "Gemma3n",
                                 {.vocab = 262400,
                                  .hidden = 2048,
                                  .ffn = width,
                                  .layers = 35,
                                  .heads = 8,
                                  .kv_heads = 2,
                                  .head_dim = 256,
                                  .positions = 32768,
                                  .activation = "gelu_pytorch_tanh",
                                  .activation_key = "hidden_activation",
                                  .tied = true,
                                  .ffn_by_layer = true});
  config.require_divides("num_attention_heads", decoder.dims.heads, "hidden_size", decoder.dims.hidden);
  DecoderParts& parts = decoder.parts;
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  parts.norm = NormKind::RmsPower;
  parts.scaled_embedding = parts.tables_by_kind = parts.both_masks = true;
  parts.attention_scale = 1;
  parts.after_attention = "post_attention_layernorm";
  parts.before_mlp = "pre_feedforward_layernorm";
  parts.after_mlp = "post_feedforward_layernorm";
  decoder.dims.sliding_window = config.size("sliding_window", 512);
  config.refuse_null("final_logit_softcapping", "a number");
  decoder.dims.final_softcap = config.maybe_number("final_logit_softcapping").value_or(30);
  parts.kinds = read_layer_kinds(config, decoder.dims.layers, [](std::int64_t layer) {
    return (layer + 1) % 5 == 0 ? LayerKind::Full : LayerKind::Sliding;
  });
  read_gemma3n_sharing(config, decoder);
  read_altup(config, decoder);
  return decoder;
}

bool reads_keys(const Decoder& decoder, std::int64_t layer) {
  return layer >= decoder.parts.sharing.first_reader(decoder.dims.layers);
}

void register_gemma3n_attention(ModelBuilder& b, const Decoder& decoder, bool reads) {
  const Dimensions& d = decoder.dims;
  const auto scope = b.module("self_attn", "Gemma3nTextAttention");
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.rms_norm("q_norm", d.head_dim, kGemma3nNorm);
  if (!reads) {
    b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
    b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
    b.rms_norm("k_norm", d.head_dim, kGemma3nNorm);
    b.leaf("v_norm", kGemma3nNorm);
  }
  b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Unknown);
}

void add_factor(ModelBuilder& b, std::string_view name, double number) {
  b.buffer(name, Shape(), DType::Float32, true);
  b.so_far().buffers.back().filled = number;
}

void register_altup(ModelBuilder& b, const Decoder& decoder) {
  const std::int64_t width = decoder.dims.hidden;
  const std::int64_t count = decoder.parts.altup.inputs;
  {
    const auto altup = b.module("altup", "Gemma3nTextAltUp");
    b.parameter("correct_output_scale", {width}, Split::Unknown);
    b.linear("correction_coefs", count, count, false, Cut::Unknown);
    b.linear("prediction_coefs", b.times(count, count), count, false, Cut::Unknown);
    b.linear("modality_router", count, width, false, Cut::Unknown);
    b.rms_norm("router_norm", width, kGemma3nNorm);
    add_factor(b, "router_input_scale", 1 / static_cast<double>(width));
  }
  const auto laurel = b.module("laurel", "Gemma3nTextLaurelBlock");
  b.linear("linear_left", decoder.parts.altup.rank, width, false, Cut::Unknown);
  b.linear("linear_right", width, decoder.parts.altup.rank, false, Cut::Unknown);
  b.rms_norm("post_laurel_norm", width, kGemma3nNorm);
}

void register_gemma3n_layer(ModelBuilder& b, const Decoder& decoder, bool reads) {
  const Dimensions& d = decoder.dims;
  register_gemma3n_attention(b, decoder, reads);
  {
    const auto mlp = b.module("mlp", "Gemma3nTextMLP");
    register_gated_mlp(b, d.hidden, d.ffn, false, d.activation);
  }
  for (const std::string_view norm :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    b.rms_norm(norm, d.hidden, kGemma3nNorm);
  }
  b.activation("act_fn", d.activation);
  register_altup(b, decoder);
  const std::int64_t own = decoder.parts.sharing.own_width;
  b.linear("per_layer_input_gate", own, d.hidden, false, Cut::Unknown);
  b.linear("per_layer_projection", d.hidden, own, false, Cut::Unknown);
  b.rms_norm("post_per_layer_input_norm", d.hidden, kGemma3nNorm);
}

std::string gemma3n_layer_forward(bool reads) {
  return formatted(
      "altup.router_norm altup.modality_router altup.prediction_coefs input_layernorm laurel(linear_left linear_right "
      "post_laurel_norm) self_attn(q_proj q_norm{} o_proj) post_attention_layernorm pre_feedforward_layernorm {} "
      "post_feedforward_layernorm altup.router_norm altup.modality_router per_layer_input_gate act_fn "
      "per_layer_projection post_per_layer_input_norm",
      reads ? "" : " k_proj k_norm v_proj v_norm", kGatedMlpForward);
}

ParameterId register_gemma3n_words(ModelBuilder& b, std::string_view name, std::int64_t rows, std::int64_t width,
                                   std::int64_t layers = 1) {
  const auto scope = b.module(name, "Gemma3nTextScaledWordEmbedding");
  const ParameterId weight = b.parameter("weight", {rows, b.times(width, layers)}, Split::Vocabulary);
  add_factor(b, "embed_scale", std::sqrt(static_cast<double>(width)));
  return weight;
}

void register_altup_projections(ModelBuilder& b, std::string_view name, const Decoder& decoder) {
  const auto list = b.module(name, "ModuleList");
  for (std::int64_t i = 1; i < decoder.parts.altup.inputs; ++i) {
    b.linear(std::to_string(i - 1), decoder.dims.hidden, decoder.dims.hidden, false, Cut::Unknown);
  }
}

ParameterId register_gemma3n_body(ModelBuilder& b, const Decoder& decoder, const std::vector<std::string>& forwards) {
  const Dimensions& d = decoder.dims;
  const SharingParts& p = decoder.parts.sharing;
  add_factor(b, "per_layer_projection_scale", 1 / std::sqrt(static_cast<double>(d.hidden)));
  add_factor(b, "per_layer_input_scale", 1 / std::sqrt(2.0));
  const ParameterId words = register_gemma3n_words(b, "embed_tokens", d.vocab, d.hidden);
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "Gemma3nTextDecoderLayer", forwards[static_cast<std::size_t>(i)]);
      register_gemma3n_layer(b, decoder, reads_keys(decoder, i));
    }
  }
  b.rms_norm("norm", d.hidden, kGemma3nNorm);
  std::vector<std::string> kinds;
  if (decoder.parts.some_see_all()) kinds.emplace_back("full_attention");
  if (decoder.parts.some_slide()) kinds.emplace_back("sliding_attention");
  b.rotary("rotary_emb", "Gemma3nRotaryEmbedding", d.head_dim, kinds);
  register_gemma3n_words(b, "embed_tokens_per_layer", p.own_vocab, p.own_width, d.layers);
  b.linear("per_layer_model_projection", b.times(d.layers, p.own_width), d.hidden, false, Cut::Unknown);
  b.rms_norm("per_layer_projection_norm", p.own_width, kGemma3nNorm);
  register_altup_projections(b, "altup_projections", decoder);
  register_altup_projections(b, "altup_unembed_projections", decoder);
  return words;
}

// Of each list the projections in turn.
std::string called_in_turn(std::string_view list, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += formatted(" {}.{}", list, i);
  return text;
}

}  // namespace

ModelSpec build_gemma3n_text(ConfigReader& config) {
  const Decoder decoder = read_gemma3n(config);
  config.throw_if_any();
  std::vector<std::string> forwards;
  for (std::int64_t i = 0; i < decoder.dims.layers; ++i) {
    forwards.push_back(gemma3n_layer_forward(reads_keys(decoder, i)));
  }
  ModelBuilder b(config, "Gemma3nForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "Gemma3nTextModel");
    words = register_gemma3n_body(b, decoder, forwards);
  }
  const ParameterId head = b.linear("lm_head", decoder.dims.vocab, decoder.dims.hidden, false, Cut::Unknown);
  if (decoder.tied) b.tie(head, words);
  const std::int64_t others = decoder.parts.altup.inputs - 1;
  const bool two = decoder.parts.some_slide() && decoder.parts.some_see_all();
  ModelSpec spec = b.finish(formatted(
      "model(embed_tokens embed_tokens_per_layer per_layer_model_projection per_layer_projection_norm{} {} layers*{} "
      "norm) lm_head",
      called_in_turn("altup_projections", others), two ? "rotary_emb rotary_emb" : "rotary_emb",
      called_in_turn("altup_unembed_projections", others)));
  spec.dims = decoder.dims;
  spec.parts = std::make_shared<const DecoderParts>(decoder.parts);
  return spec;
}

}  // namespace dsplan
