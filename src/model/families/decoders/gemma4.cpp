// The text part of gemma4: layers of a window and layers that see all, with heads of their own width; the last layers
// read keys and values that earlier ones have made; a second embedding gives each layer a part; experts beside the MLP.
#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "core/text/whole_numbers.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

// One layer of per_layer_config: what of its heads is its own.
struct OwnHeads {
  std::int64_t width = 0;
  std::int64_t kv_heads = 0;
  friend bool operator==(const OwnHeads&, const OwnHeads&) = default;
};

OwnHeads own_heads(ConfigReader& config, const Value& layer, const Dimensions& usual) {
  OwnHeads own{usual.head_dim, usual.kv_heads};
  for (const Member& member : layer.members) {
    const bool width = member.key == "head_dim";
    if (!width && member.key != "num_key_value_heads") {
      config.fault(member.value, formatted("\"{}\" of one layer alone is not modelled yet", member.key));
    } else if (!member.value.is(Value::Kind::Integer) || member.value.integer < 1) {
      config.fault(member.value, formatted("\"{}\" must be an integer of at least 1", member.key));
    } else {
      (width ? own.width : own.kv_heads) = member.value.integer;
    }
  }
  return own;
}

// transformers pads the numbers of layers with zeros to one length.
const Value* of_layer(const Value& layers, std::size_t number) {
  const auto here = [&](const Member& one) { return whole_number(one.key) == static_cast<std::int64_t>(number); };
  const auto at = std::find_if(layers.members.begin(), layers.members.end(), here);
  return at == layers.members.end() ? nullptr : &at->value;
}

// What transformers 5.17 writes in the place of global_head_dim and num_global_key_value_heads: here all layers of
// full_attention have the same.
void read_own_heads(ConfigReader& config, Decoder& decoder) {
  const Value* layers = config.find("per_layer_config");
  if (layers == nullptr) return;
  if (!layers->is(Value::Kind::Object)) return config.fault(*layers, "\"per_layer_config\" must be an object");
  std::size_t named = 0;
  std::optional<OwnHeads> all;
  for (std::size_t i = 0; i < decoder.parts.kinds.size(); ++i) {
    const Value* layer = of_layer(*layers, i);
    const bool wide = decoder.parts.kinds[i] == LayerKind::Full;
    if (layer == nullptr && !wide) continue;
    if (layer == nullptr) return config.fault(*layers, formatted("layer {}, of full_attention, is not among them", i));
    ++named;
    if (!wide || !layer->is(Value::Kind::Object)) {
      config.fault(*layer, "heads of a layer's own are modelled for full_attention alone");
      continue;
    }
    const OwnHeads own = own_heads(config, *layer, decoder.dims);
    if (all && *all != own) config.fault(*layer, "layers of full_attention with different heads are not modelled yet");
    all = own;
  }
  if (named != layers->members.size()) config.fault(*layers, "\"per_layer_config\" names a layer that is not there");
  if (!all) return;
  decoder.parts.sharing.wide.head_dim = all->width;
  decoder.parts.sharing.wide.kv_heads = all->kv_heads;
}

void read_wide_heads(ConfigReader& config, Decoder& decoder) {
  SharingParts& p = decoder.parts.sharing;
  p.used = true;
  p.wide = decoder.dims;
  p.keys_are_values = config.flag("attention_k_eq_v", false);
  config.refuse_null("global_head_dim", "an integer");
  p.wide.head_dim = config.size("global_head_dim", 512);
  const std::optional<std::int64_t> heads = config.maybe_size("num_global_key_value_heads");
  if (heads && p.keys_are_values) p.wide.kv_heads = *heads;
  if (heads && config.sound("num_attention_heads")) {
    config.require_divides("num_global_key_value_heads", *heads, "num_attention_heads", decoder.dims.heads);
  }
  read_own_heads(config, decoder);
}

// The last layer sees all, whatever the file says.
void read_kinds(ConfigReader& config, Decoder& decoder) {
  const std::int64_t layers = decoder.dims.layers;
  decoder.parts.kinds = read_layer_kinds(
      config, layers, [](std::int64_t layer) { return (layer + 1) % 6 == 0 ? LayerKind::Full : LayerKind::Sliding; });
  decoder.parts.kinds.back() = LayerKind::Full;
}

void read_sharing(ConfigReader& config, Decoder& decoder) {
  const std::int64_t layers = decoder.dims.layers;
  SharingParts& p = decoder.parts.sharing;
  p.readers = config.count("num_kv_shared_layers", 0);
  p.wide_readers = config.flag("use_double_wide_mlp", false) && p.readers > 0;
  p.own_width =
      config.find("hidden_size_per_layer_input") == nullptr && is_present(config, "hidden_size_per_layer_input")
          ? 0
          : config.count("hidden_size_per_layer_input", 256);
  p.own_vocab = config.size("vocab_size_per_layer_input", 262144);
  if (p.readers >= layers) {
    return config.fault("num_kv_shared_layers", "all layers cannot read the keys of earlier ones: one must have them");
  }
  const std::vector<LayerKind>& kinds = decoder.parts.kinds;
  const auto first = kinds.begin() + p.first_reader(layers);
  for (auto reader = first; reader != kinds.end(); ++reader) {
    if (std::find(kinds.begin(), first, *reader) != first) continue;
    const std::string_view kind = *reader == LayerKind::Full ? "full_attention" : "sliding_attention";
    return config.fault("num_kv_shared_layers", formatted("no layer of {} before them has keys to read", kind));
  }
}

void read_mixture(ConfigReader& config, Decoder& decoder) {
  Dimensions& d = decoder.dims;
  ExpertParts& experts = decoder.parts.experts;
  const std::optional<std::int64_t> count = config.maybe_size("num_experts");
  const std::optional<std::int64_t> each = config.maybe_size("top_k_experts");
  const std::optional<std::int64_t> ffn = config.maybe_size("moe_intermediate_size");
  if (!config.flag("enable_moe_block", false)) return;
  const auto asked = [&](std::string_view key, const std::optional<std::int64_t>& value) {
    if (!value && config.sound(key)) config.fault(key, formatted("\"enable_moe_block\" asks for \"{}\"", key));
    return value.value_or(1);
  };
  d.experts = asked("num_experts", count);
  d.experts_per_token = asked("top_k_experts", each);
  experts.ffn = asked("moe_intermediate_size", ffn);
  experts.router = Router::Normed;
  config.require_at_most("top_k_experts", d.experts_per_token, "num_experts", d.experts);
}

// Frequencies of a part of each head, and zeros behind them: as many as of a whole one.
void take_proportional(ConfigReader& config) {
  std::erase_if(config.gaps, [](const ConfigGap& gap) { return gap.what == "proportional RoPE"; });
}

Decoder read_gemma4(ConfigReader& config) {
  take_proportional(config);
  Decoder decoder = read_decoder(config, "Gemma4", gemma2_defaults(262144, 30, 131072));
  DecoderParts& parts = decoder.parts;
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  parts.norm = NormKind::RmsPower;
  parts.scaled_embedding = parts.tables_by_kind = parts.both_masks = true;
  parts.attention_scale = 1;
  parts.after_attention = "post_attention_layernorm";
  parts.before_mlp = "pre_feedforward_layernorm";
  parts.after_mlp = "post_feedforward_layernorm";
  decoder.dims.sliding_window = config.size("sliding_window", 512);
  decoder.dims.final_softcap = config.maybe_number("final_logit_softcapping").value_or(0);
  read_kinds(config, decoder);
  read_mixture(config, decoder);
  read_wide_heads(config, decoder);
  read_sharing(config, decoder);
  return decoder;
}

// Of one layer: what it is made of, and what its forward calls.
struct LayerMake {
  bool wide = false;   // It sees all.
  bool reads = false;  // Keys and values of another.
  std::int64_t ffn = 0;
};

LayerMake make_of(const Decoder& decoder, std::int64_t layer) {
  const SharingParts& p = decoder.parts.sharing;
  const bool reads = layer >= p.first_reader(decoder.dims.layers);
  return {decoder.parts.kinds[static_cast<std::size_t>(layer)] == LayerKind::Full, reads,
          decoder.dims.ffn * (reads && p.wide_readers ? 2 : 1)};
}

constexpr std::string_view kNorm = "Gemma4RMSNorm";

void register_attention(ModelBuilder& b, const Decoder& decoder, const LayerMake& make) {
  const SharingParts& p = decoder.parts.sharing;
  const Dimensions& d = make.wide ? p.wide : decoder.dims;
  const auto scope = b.module("self_attn", "Gemma4TextAttention");
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.rms_norm("q_norm", d.head_dim, kNorm);
  if (!make.reads) {
    b.rms_norm("k_norm", d.head_dim, kNorm);
    b.leaf("v_norm", kNorm);
    b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
    if (!make.wide || !p.keys_are_values) b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  }
  b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Unknown);
}

void register_mixture(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  {
    const auto router = b.module("router", "Gemma4TextRouter");
    b.parameter("scale", {d.hidden}, Split::Replicated);
    b.parameter("per_expert_scale", {d.experts}, Split::Replicated);
    b.leaf("norm", kNorm);
    b.linear("proj", d.experts, d.hidden, false, Cut::Whole);
  }
  register_experts(b, "Gemma4TextExperts", d.experts, decoder.parts.experts.ffn, d.hidden, d.activation);
  b.rms_norm("post_feedforward_layernorm_1", d.hidden, kNorm);
  b.rms_norm("post_feedforward_layernorm_2", d.hidden, kNorm);
  b.rms_norm("pre_feedforward_layernorm_2", d.hidden, kNorm);
}

void register_layer(ModelBuilder& b, const Decoder& decoder, const LayerMake& make) {
  const Dimensions& d = decoder.dims;
  b.buffer("layer_scalar", {1}, DType::Float32, true);
  b.so_far().buffers.back().filled = 1;
  register_attention(b, decoder, make);
  {
    const auto mlp = b.module("mlp", "Gemma4TextMLP");
    register_gated_mlp(b, d.hidden, make.ffn, false, d.activation);
  }
  for (const std::string_view norm :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    b.rms_norm(norm, d.hidden, kNorm);
  }
  if (const std::int64_t own = decoder.parts.sharing.own_width; own > 0) {
    b.activation("act_fn", d.activation);
    b.linear("per_layer_input_gate", own, d.hidden, false, Cut::Unknown);
    b.linear("per_layer_projection", d.hidden, own, false, Cut::Unknown);
    b.rms_norm("post_per_layer_input_norm", d.hidden, kNorm);
  }
  if (d.experts > 0) register_mixture(b, decoder);
}

std::string layer_forward(const Decoder& decoder, const LayerMake& make) {
  const SharingParts& p = decoder.parts.sharing;
  const bool values = !make.wide || !p.keys_are_values;
  return formatted(
      "input_layernorm self_attn(q_proj q_norm{} o_proj) post_attention_layernorm pre_feedforward_layernorm {}{} "
      "post_feedforward_layernorm{}",
      make.reads ? ""
      : values   ? " k_proj v_proj k_norm v_norm"
                 : " k_proj k_norm v_norm",
      kGatedMlpForward,
      decoder.dims.experts == 0 ? ""
                                : " post_feedforward_layernorm_1 router(norm proj) pre_feedforward_layernorm_2 "
                                  "experts(act_fn) post_feedforward_layernorm_2",
      p.own_width == 0 ? "" : " per_layer_input_gate act_fn per_layer_projection post_per_layer_input_norm");
}

ParameterId register_words(ModelBuilder& b, std::string_view name, std::int64_t rows, std::int64_t width,
                           std::int64_t layers = 1) {
  const auto scope = b.module(name, "Gemma4TextScaledWordEmbedding");
  const ParameterId weight = b.parameter("weight", {rows, width}, Split::Vocabulary);
  b.buffer("embed_scale", Shape(), DType::Float32, true);
  b.so_far().buffers.back().filled = std::sqrt(static_cast<double>(width / layers));
  return weight;
}

// Of layers that see all: "proportional", unless the file says otherwise.
void describe_tables(ConfigReader& config, ModelSpec& spec, std::int64_t width) {
  const Value* rope = config.find("rope_parameters");
  const Value* own = rope != nullptr && rope->is(Value::Kind::Object) ? rope->find("full_attention") : nullptr;
  const Value* type = own != nullptr && own->is(Value::Kind::Object) ? own->find("rope_type") : nullptr;
  const Value* share = own != nullptr && own->is(Value::Kind::Object) ? own->find("partial_rotary_factor") : nullptr;
  const bool numeric = share != nullptr && (share->is(Value::Kind::Real) || share->is(Value::Kind::Integer));
  const double part = rope == nullptr ? 0.25 : numeric ? share->real : 1;
  const bool proportional = rope == nullptr || (type != nullptr && type->string == "proportional");
  for (ModelBuffer& one : spec.buffers) {
    if (!proportional || one.name.find("rotary_emb.full_attention") == std::string::npos) continue;
    one.converted = true;
    one.turned = static_cast<std::int64_t>(part * static_cast<double>(width)) / 2;
    if (rope == nullptr) one.rotary_base = 1000000;
  }
}

ParameterId register_body(ConfigReader& config, ModelBuilder& b, const Decoder& decoder,
                          const std::vector<std::string>& forwards) {
  const Dimensions& d = decoder.dims;
  const SharingParts& p = decoder.parts.sharing;
  const ParameterId words = register_words(b, "embed_tokens", d.vocab, d.hidden);
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "Gemma4TextDecoderLayer", forwards[static_cast<std::size_t>(i)]);
      register_layer(b, decoder, make_of(decoder, i));
    }
  }
  b.rms_norm("norm", d.hidden, kNorm);
  std::vector<std::string> kinds{"full_attention"};
  if (decoder.parts.some_slide()) kinds.emplace_back("sliding_attention");
  b.rotary("rotary_emb", "Gemma4TextRotaryEmbedding", d.head_dim, kinds, p.wide.head_dim);
  describe_tables(config, b.so_far(), p.wide.head_dim);
  if (p.own_width == 0) return words;
  register_words(b, "embed_tokens_per_layer", p.own_vocab, b.times(d.layers, p.own_width), d.layers);
  b.linear("per_layer_model_projection", b.times(d.layers, p.own_width), d.hidden, false, Cut::Unknown);
  b.rms_norm("per_layer_projection_norm", p.own_width, kNorm);
  return words;
}

}  // namespace

ModelSpec build_gemma4_text(ConfigReader& config) {
  const Decoder decoder = read_gemma4(config);
  config.throw_if_any();
  std::vector<std::string> forwards;
  for (std::int64_t i = 0; i < decoder.dims.layers; ++i) {
    forwards.push_back(layer_forward(decoder, make_of(decoder, i)));
  }
  ModelBuilder b(config, "Gemma4ForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "Gemma4TextModel");
    words = register_body(config, b, decoder, forwards);
  }
  const ParameterId head = b.linear("lm_head", decoder.dims.vocab, decoder.dims.hidden, false, Cut::Unknown);
  if (decoder.tied) b.tie(head, words);
  const bool own = decoder.parts.sharing.own_width > 0;
  ModelSpec spec =
      b.finish(formatted("model(embed_tokens {}{} layers* norm) lm_head",
                         own ? "embed_tokens_per_layer per_layer_model_projection per_layer_projection_norm " : "",
                         decoder.parts.some_slide() ? "rotary_emb rotary_emb" : "rotary_emb"));
  spec.dims = decoder.dims;
  spec.parts = std::make_shared<const DecoderParts>(decoder.parts);
  return spec;
}

}  // namespace dsplan
