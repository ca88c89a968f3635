#include "model/families/decoder.h"

#include <algorithm>

#include "core/format.h"
#include "model/config/config_keys.h"
#include "model/families/decoders/text_heads.h"

namespace dsplan {
namespace {

std::string prefixed(std::string_view prefix, std::string_view rest) { return formatted("{}{}", prefix, rest); }

// The class names of one family, written once instead of once per layer.
struct Names {
  Names(std::string_view prefix, std::string_view norm_class, std::string_view block_class)
      : layer(prefixed(prefix, "DecoderLayer")),
        attention(prefixed(prefix, "Attention")),
        mlp(prefixed(prefix, "MLP")),
        block(prefixed(prefix, block_class)),
        experts(prefixed(prefix, "Experts")),
        norm(prefixed(prefix, norm_class)) {}
  std::string layer, attention, mlp, block, experts, norm;
};

void register_norm(ModelBuilder& b, const Decoder& decoder, const Names& names, std::string_view name,
                   const Shape& shape) {
  const NormKind kind = decoder.parts.norm;
  const bool behind = name == decoder.parts.after_attention || name == decoder.parts.after_mlp;
  if (behind && decoder.idle_post_norms) return b.leaf(name, "Identity");
  const bool layer_norm = kind == NormKind::Layer;
  const auto scope = b.module(name, layer_norm ? std::string_view("LayerNorm") : std::string_view(names.norm));
  if (kind == NormKind::LayerBare || kind == NormKind::RmsBare) return;
  b.parameter("weight", shape, Split::Replicated);
  if ((layer_norm || kind == NormKind::LayerPlusOne) && decoder.norm_bias) {
    b.parameter("bias", shape, Split::Replicated);
  }
}

void register_head_norms(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const Dimensions& d = decoder.dims;
  const DecoderParts& parts = decoder.parts;
  const auto shape = [&](std::int64_t heads) {
    if (parts.head_norm == HeadNorm::Whole) return Shape{b.times(heads, d.head_dim)};
    return parts.norm == NormKind::Centred ? Shape{heads, d.head_dim} : Shape{d.head_dim};
  };
  register_norm(b, decoder, names, parts.query_norm, shape(d.heads));
  register_norm(b, decoder, names, parts.key_norm, shape(d.kv_heads));
}

void register_attention(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const Dimensions& d = decoder.dims;
  const auto scope = b.module("self_attn", names.attention);
  if (decoder.parts.sinks || decoder.parts.sinks_scale) b.parameter("sinks", {d.heads}, Split::Even);
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, decoder.qkv_bias, Cut::Column);
  b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::KeyValue);
  b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::KeyValue);
  b.linear(decoder.parts.output, d.hidden, query, decoder.output_bias, Cut::Row);
  if (decoder.parts.head_norm != HeadNorm::None) register_head_norms(b, decoder, names);
}

void register_biased_experts(ModelBuilder& b, std::string_view type, std::int64_t experts, std::int64_t ffn,
                             std::int64_t hidden) {
  const auto scope = b.module("experts", type);
  b.parameter("gate_up_proj", {experts, hidden, b.times(2, ffn)}, Split::Even, 2);
  b.parameter("gate_up_proj_bias", {experts, b.times(2, ffn)}, Split::Even, 1);
  b.parameter("down_proj", {experts, ffn, hidden}, Split::Even, 1);
  b.parameter("down_proj_bias", {experts, hidden}, Split::Replicated);
}

// The latest parameter, whatever the model's dtype.
void make_in_fp32(ModelBuilder& b) {
  Parameter& latest = b.so_far().parameters.back();
  latest.dtype = DType::Float32;
  latest.made_by_class = true;
}

// Its weight, or a Linear; what is made in fp32 whatever the model's dtype stays so.
void register_router(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const Experts& experts = decoder.experts;
  const ExpertParts& parts = decoder.parts.experts;
  const auto gate = b.module(parts.gate, experts.router_class);
  if (parts.router == Router::Module) {
    b.linear("wg", experts.count, d.hidden, false, Cut::Whole);
    return make_in_fp32(b);
  }
  b.parameter("weight", {experts.count, d.hidden}, Split::Replicated);
  if (parts.biased) b.parameter("bias", {experts.count}, Split::Replicated);
  if (parts.router == Router::Fp32Biased) {
    make_in_fp32(b);
    const auto statics = b.module("moe_statics", prefixed(decoder.prefix, "Statics"));
    b.parameter("e_score_correction_bias", {1, experts.count}, Split::Replicated);
    make_in_fp32(b);
    b.so_far().parameters.back().trainable = false;
  }
  if (parts.router != Router::Fp32Sigmoid) return;
  b.buffer("e_score_correction_bias", {experts.count}, DType::Float32, !experts.wide_correction);
  b.so_far().buffers.back().counted = true;
}

void register_expert_block(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const Dimensions& d = decoder.dims;
  const Experts& experts = decoder.experts;
  const ExpertParts& parts = decoder.parts.experts;
  const auto scope = b.module(parts.block, names.block);
  if (parts.router == Router::Sigmoid || parts.router == Router::WideSigmoid) {
    b.buffer("e_score_correction_bias", {experts.count}, DType::Float32, !experts.wide_correction);
    b.so_far().buffers.back().counted = true;
  }
  if (experts.router_first) register_router(b, decoder);
  if (parts.biased) {
    register_biased_experts(b, names.experts, experts.count, parts.ffn, d.hidden);
  } else {
    register_experts(b, names.experts, experts.count, parts.ffn, d.hidden, d.activation);
  }
  if (!experts.router_first) register_router(b, decoder);
  const std::int64_t shared_ffn = parts.shared_ffn;
  if (shared_ffn == 0 || decoder.parts.own_shared) return;
  if (parts.shared != SharedPlace::Gated) {
    const auto shared = b.module(parts.shared_module, names.mlp);
    return register_gated_mlp(b, d.hidden, shared_ffn, decoder.mlp_bias, d.activation);
  }
  {
    const auto shared = b.module("shared_expert", names.mlp);
    register_gated_mlp(b, d.hidden, shared_ffn, false, d.activation);
  }
  b.linear("shared_expert_gate", 1, d.hidden, false, Cut::Whole);
}

void register_mlp(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const Dimensions& d = decoder.dims;
  const DecoderParts& parts = decoder.parts;
  const auto mlp = b.module("mlp", decoder.mlp_class.empty() ? std::string_view(names.mlp) : decoder.mlp_class);
  if (parts.mlp == MlpKind::Gated) return register_gated_mlp(b, d.hidden, d.ffn, decoder.mlp_bias, d.activation);
  const std::int64_t wide = parts.mlp == MlpKind::FusedGate ? b.times(2, d.ffn) : d.ffn;
  if (decoder.activation_first) b.activation(parts.activation, d.activation);
  b.linear(parts.up, wide, d.hidden, decoder.mlp_bias, Cut::Column);
  b.linear(parts.down, d.hidden, d.ffn, decoder.mlp_bias, Cut::Row);
  if (!decoder.activation_first) b.activation(parts.activation, d.activation);
}

// The layer's own, beside its experts.
void register_own_shared(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const DecoderParts& parts = decoder.parts;
  const std::int64_t hidden = decoder.dims.hidden;
  const auto mlp = b.module(parts.feed_forward, names.mlp);
  b.activation(parts.activation, decoder.dims.activation);
  b.linear(parts.up, b.times(2, parts.experts.shared_ffn), hidden, false, Cut::Column);
  b.linear(parts.down, hidden, parts.experts.shared_ffn, false, Cut::Row);
}

void register_layer(ModelBuilder& b, const Decoder& decoder, const Names& names, bool with_experts) {
  register_attention(b, decoder, names);
  const bool norms_first = decoder.norms_before_mlp;
  const auto norms = [&] {
    for (std::string_view norm : decoder.norms) register_norm(b, decoder, names, norm, {decoder.dims.hidden});
  };
  if (norms_first) norms();
  if (with_experts) {
    register_expert_block(b, decoder, names);
  } else {
    register_mlp(b, decoder, names);
  }
  if (decoder.parts.own_shared) register_own_shared(b, decoder, names);
  if (!norms_first) norms();
  if (!decoder.parts.attention_dropout.empty()) b.leaf(decoder.parts.attention_dropout, "Dropout");
  if (!decoder.parts.mlp_dropout.empty() && decoder.parts.mlp_dropout != decoder.parts.attention_dropout) {
    b.leaf(decoder.parts.mlp_dropout, "Dropout");
  }
}

std::string attention_forward(const DecoderParts& parts) {
  const auto text = [&](std::string_view order) {
    return formatted("{}({} {})", parts.attention, order, parts.output);
  };
  switch (parts.head_norm) {
    case HeadNorm::None: break;
    case HeadNorm::ByToken:
    case HeadNorm::Whole: return text(formatted("q_proj {} k_proj {} v_proj", parts.query_norm, parts.key_norm));
    default: return text(formatted("q_proj k_proj v_proj {} {}", parts.query_norm, parts.key_norm));
  }
  return text("q_proj k_proj v_proj");
}

std::string mlp_forward(const DecoderParts& parts, bool with_experts) {
  if (with_experts) {
    const ExpertParts& experts = parts.experts;
    const std::string_view inner = experts.biased ? "" : "(act_fn)";
    const std::string_view within = experts.router == Router::Module       ? "(wg)"
                                    : experts.router == Router::Fp32Biased ? "(moe_statics)"
                                                                           : "";
    const std::string routed = formatted("{}{} experts{}", experts.gate, within, inner);
    if (parts.own_shared) {
      return formatted("{}({}) {}({} {} {})", experts.block, routed, parts.feed_forward, parts.up, parts.activation,
                       parts.down);
    }
    if (experts.shared_ffn == 0) return formatted("{}({})", experts.block, routed);
    const std::string shared = formatted("{}(gate_proj act_fn up_proj down_proj)", experts.shared_module);
    switch (experts.shared) {
      case SharedPlace::Gated: return formatted("mlp({} {} shared_expert_gate)", shared, routed);
      case SharedPlace::RowsBehind:
      case SharedPlace::RowsNamed:
      case SharedPlace::Behind: return formatted("mlp({} {})", routed, shared);
      default: return formatted("mlp({} {})", shared, routed);
    }
  }
  if (parts.mlp == MlpKind::Gated) return std::string(kGatedMlpForward);
  return formatted("mlp({} {} {})", parts.up, parts.activation, parts.down);
}

std::string layer_forward(const Decoder& decoder, bool with_experts) {
  const DecoderParts& parts = decoder.parts;
  std::string text;
  const auto add = [&](std::string_view name) {
    if (name.empty()) return;
    if (!text.empty()) text += ' ';
    text += name;
  };
  const bool own_norm = parts.residual != Residual::Parallel && parts.residual != Residual::ParallelResidual;
  add(parts.before_attention);
  add(attention_forward(parts));
  add(parts.after_attention);
  add(parts.attention_dropout);
  if (own_norm) add(parts.before_mlp);
  add(mlp_forward(parts, with_experts));
  add(parts.after_mlp);
  add(parts.mlp_dropout);
  return text;
}

ParameterId register_embedding(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  if (!decoder.parts.scaled_embedding) return b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
  const auto scope = b.module("embed_tokens", prefixed(decoder.prefix, "TextScaledWordEmbedding"));
  const ParameterId weight = b.parameter("weight", {d.vocab, d.hidden}, Split::Vocabulary);
  b.buffer("embed_scale", Shape(), DType::Float32, true);
  return weight;
}

void register_rotary(ModelBuilder& b, const Decoder& decoder) {
  const std::string type = prefixed(decoder.prefix, "RotaryEmbedding");
  if (!decoder.parts.tables_by_kind) {
    b.rotary("rotary_emb", type, rotated(decoder.dims));
    return;
  }
  std::vector<std::string> kinds;
  if (decoder.parts.some_see_all()) kinds.emplace_back("full_attention");
  if (decoder.parts.some_slide()) kinds.emplace_back("sliding_attention");
  b.rotary("rotary_emb", type, decoder.dims.head_dim, kinds);
}

// One for each base, beside the one that nobody asks (granite_swa).
void register_tables(ModelBuilder& b, const Decoder& decoder) {
  const std::vector<std::int64_t>& tables = decoder.parts.tables;
  if (tables.empty()) return;
  const auto list = b.module("rotary_embs", "ModuleList");
  const std::int64_t count = *std::max_element(tables.begin(), tables.end()) + 1;
  for (std::int64_t at = 0; at < count; ++at) {
    b.rotary(formatted("{}", at), prefixed(decoder.prefix, "RotaryEmbedding"), rotated(decoder.dims));
  }
}

// The calls of the rotary modules: once per kind of layer, or once each.
std::string tables_forward(const DecoderParts& parts) {
  if (parts.tables_by_kind && parts.some_slide() && parts.some_see_all()) return "rotary_emb rotary_emb";
  if (parts.tables.empty()) return "rotary_emb";
  std::string text;
  const std::int64_t count = *std::max_element(parts.tables.begin(), parts.tables.end()) + 1;
  for (std::int64_t at = 0; at < count; ++at) text += formatted("{}rotary_embs.{}", at > 0 ? " " : "", at);
  return text;
}

}  // namespace

std::string class_of(const Decoder& decoder) {
  const bool own = decoder.parts.head != TextHead::LanguageModel && !decoder.headed_prefix.empty();
  return class_with_head(own ? decoder.headed_prefix : decoder.prefix, decoder.parts.head);
}

std::string register_head(ModelBuilder& b, const Decoder& decoder, ParameterId embedding) {
  return register_text_head(b, decoder.parts, decoder.dims,
                            {.table = decoder.tied ? embedding : ParameterId(kNone), .bias = decoder.head_bias});
}

void register_gated_mlp(ModelBuilder& b, std::int64_t hidden, std::int64_t ffn, bool bias,
                        std::string_view activation) {
  b.linear("gate_proj", ffn, hidden, bias, Cut::Column);
  b.linear("up_proj", ffn, hidden, bias, Cut::Column);
  b.linear("down_proj", hidden, ffn, bias, Cut::Row);
  b.activation("act_fn", activation);
}

void register_experts(ModelBuilder& b, std::string_view type, std::int64_t experts, std::int64_t ffn,
                      std::int64_t hidden, std::string_view activation) {
  const auto scope = b.module("experts", type);
  b.parameter("gate_up_proj", {experts, b.times(2, ffn), hidden}, Split::Even, 1);
  b.parameter("down_proj", {experts, hidden, ffn}, Split::Even, 2);
  b.activation("act_fn", activation);
}

namespace {

// One number for each frequency, which transformers asks for (validate_rope).
void check_factors(ConfigReader& config, const Value& rope) {
  std::size_t listed = 0;
  for (const std::string_view key : {"short_factor", "long_factor"}) {
    const Value* factors = rope.find(key);
    if (factors == nullptr || !factors->is(Value::Kind::Array)) {
      config.fault(factors != nullptr ? *factors : rope,
                   formatted("\"{}\" of LongRoPE must be a list of numbers", key));
      continue;
    }
    for (const Value& factor : factors->items) {
      if (factor.is(Value::Kind::Integer) || factor.is(Value::Kind::Real)) continue;
      config.fault(factor, formatted("\"{}\" must be a list of numbers, not of {}", key, describe(factor.kind)));
    }
    if (listed > 0 && listed != factors->items.size()) {
      config.fault(*factors, formatted("\"long_factor\" lists {} numbers and \"short_factor\" {}",
                                       factors->items.size(), listed));
    }
    listed = factors->items.size();
  }
}

// The class's own attribute goes before what the table says (standardize_rope_params); phi3's has a default.
std::int64_t read_short_rows(ConfigReader& config, const Value& rope, std::string_view family) {
  constexpr std::string_view kTrained = "original_max_position_embeddings";
  const Value* of_table = rope.find(kTrained);
  if (of_table != nullptr && !(of_table->is(Value::Kind::Integer) && of_table->integer > 0)) {
    config.fault(*of_table, formatted("\"{}\" must be an integer of at least 1", kTrained));
    return 1;
  }
  if (is_present(config, kTrained)) return config.size(kTrained, 0);
  if (family == "phi3") return 4096;
  return of_table != nullptr ? of_table->integer : config.size("max_position_embeddings", 0);
}

RotaryScaling scaling_of(ConfigReader& config) {
  const auto named = [](const Value& rope) -> std::string_view {
    for (const std::string_view key : {"rope_type", "type"}) {
      const Value* type = rope.find(key);
      if (type != nullptr && type->is(Value::Kind::String)) return type->string;
    }
    return {};
  };
  const auto scaling = [](std::string_view name) {
    if (name == "linear") return RotaryScaling::Linear;
    if (name == "llama3") return RotaryScaling::Llama3;
    return name == "yarn" ? RotaryScaling::Yarn : RotaryScaling::Other;
  };
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = config.find(holder);
    if (rope == nullptr || !rope->is(Value::Kind::Object)) continue;
    if (rotary_of_lengths(*rope)) return RotaryScaling::Lengths;
    if (scaling(named(*rope)) != RotaryScaling::Other) return scaling(named(*rope));
    for (const Member& member : rope->members) {  // Of kinds of layers.
      if (!member.value.is(Value::Kind::Object)) continue;
      if (scaling(named(member.value)) != RotaryScaling::Other) return scaling(named(member.value));
    }
  }
  return RotaryScaling::Other;
}

}  // namespace

void read_rotary_scaling(ConfigReader& config, RotaryParts& rotary) {
  const Value* const model_type = config.root().find("model_type");
  const std::string_view family = model_type != nullptr ? std::string_view(model_type->string) : std::string_view();
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = config.find(holder);
    if (rope == nullptr || !rope->is(Value::Kind::Object) || !rotary_of_two_tables(family, *rope)) continue;
    check_factors(config, *rope);
    rotary.short_rows = read_short_rows(config, *rope, family);
    rotary.scaling = RotaryScaling::LongRope;
    return;
  }
  rotary.scaling = scaling_of(config);
}

Decoder read_decoder(ConfigReader& config, std::string_view prefix, const DecoderDefaults& defaults) {
  Decoder decoder;
  decoder.prefix = prefix;
  decoder.tied = config.flag("tie_word_embeddings", defaults.tied);
  Dimensions& d = decoder.dims;
  d.vocab = config.size("vocab_size", defaults.vocab);
  d.hidden = config.size("hidden_size", defaults.hidden);
  d.ffn = defaults.ffn_by_layer ? defaults.ffn : config.size("intermediate_size", defaults.ffn);
  d.layers = config.layer_count("num_hidden_layers", defaults.layers);
  d.heads = config.size("num_attention_heads", defaults.heads);
  const auto maybe = [](std::int64_t fallback) {
    return fallback == 0 ? std::optional<std::int64_t>() : std::optional<std::int64_t>(fallback);
  };
  if (!defaults.kv_heads_may_be_null) config.refuse_null("num_key_value_heads", "an integer");
  d.kv_heads = config.maybe_size("num_key_value_heads", maybe(defaults.kv_heads)).value_or(d.heads);
  if (!defaults.head_dim_may_be_null) config.refuse_null("head_dim", "an integer");
  const std::optional<std::int64_t> head_dim = config.maybe_size("head_dim", maybe(defaults.head_dim));
  if (!head_dim && defaults.heads_divide)
    config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  if (config.sound("num_attention_heads")) {
    config.require_divides("num_key_value_heads", d.kv_heads, "num_attention_heads", d.heads);
  }
  d.head_dim = head_dim.value_or(d.hidden / d.heads);
  if (d.head_dim == 0) config.fault("num_attention_heads", "more heads than \"hidden_size\" has elements");
  d.max_positions = config.size("max_position_embeddings", defaults.positions);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.activation = config.activation(defaults.activation_key, defaults.activation);
  d.norm_epsilon = config.maybe_number(defaults.epsilon_key).value_or(1e-6);
  d.rotary_base = config.rotary_base(10000);
  read_rotary_scaling(config, decoder.parts.rotary);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  return decoder;
}

void read_head(ConfigReader& config, Decoder& decoder, std::optional<std::int64_t> padding, bool tokens) {
  const std::string_view prefix = decoder.headed_prefix.empty() ? decoder.prefix : decoder.headed_prefix;
  read_text_head(config, prefix, {.padding = padding, .tokens = tokens}, decoder.parts, decoder.dims);
}

std::vector<bool> read_dense_layers(ConfigReader& config, std::int64_t layers, std::int64_t experts) {
  const std::int64_t step = config.size("decoder_sparse_step", 1);
  std::vector<bool> dense(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) dense[static_cast<std::size_t>(i)] = experts == 0 || (i + 1) % step != 0;
  for (const std::int64_t i : config.indices("mlp_only_layers", layers)) dense[static_cast<std::size_t>(i)] = true;
  return dense;
}

std::vector<bool> read_first_dense(ConfigReader& config, std::int64_t layers, std::int64_t fallback,
                                   std::string_view key) {
  const std::int64_t first = key.empty() ? fallback : config.count(key, fallback);
  std::vector<bool> dense;
  for (std::int64_t i = 0; i < layers; ++i) dense.push_back(i < first);
  return dense;
}

std::vector<bool> read_mlp_types(ConfigReader& config, std::int64_t layers, std::int64_t fallback,
                                 std::string_view key) {
  constexpr std::string_view kKey = "mlp_layer_types";
  std::vector<bool> dense = read_first_dense(config, layers, fallback, key);
  const Value* const said = config.find(kKey);
  if (said == nullptr || said->is(Value::Kind::Null)) return dense;
  if (said->items.size() != dense.size()) {
    config.fault(*said, formatted("\"{}\" must be an array of {} strings", kKey, layers));
    return dense;
  }
  for (std::size_t i = 0; i < dense.size(); ++i) {
    const std::string& word = said->items[i].string;
    dense[i] = word == "dense";
    if (word == "dense" || word == "sparse") continue;
    config.fault(said->items[i], formatted("\"{}\" lists \"dense\" and \"sparse\"", kKey));
  }
  return dense;
}

std::vector<LayerKind> read_layer_kinds(ConfigReader& config, std::int64_t layers,
                                        const std::function<LayerKind(std::int64_t)>& fallback,
                                        std::string_view sliding) {
  std::vector<LayerKind> kinds;
  const Value* given = config.find("layer_types");
  if (given == nullptr) {
    for (std::int64_t i = 0; i < layers; ++i) kinds.push_back(fallback(i));
    return kinds;
  }
  if (!given->is(Value::Kind::Array) || given->items.size() != static_cast<std::size_t>(layers)) {
    config.fault(*given, formatted("\"layer_types\" must be an array of {} strings, one per layer", layers));
    return std::vector<LayerKind>(static_cast<std::size_t>(layers), LayerKind::Full);
  }
  for (const Value& item : given->items) {
    if (item.string != "full_attention" && item.string != sliding) {
      config.fault(item, formatted("\"layer_types\" may hold full_attention and {}", sliding));
    }
    kinds.push_back(item.string == sliding ? LayerKind::Sliding : LayerKind::Full);
  }
  return kinds;
}

std::vector<bool> read_layer_flags(ConfigReader& config, std::string_view key, std::int64_t layers,
                                   const std::function<bool(std::int64_t)>& fallback) {
  std::vector<bool> flags;
  const Value* given = config.find(key);
  if (given != nullptr && (!given->is(Value::Kind::Array) || given->items.size() != static_cast<std::size_t>(layers))) {
    config.fault(*given, formatted("\"{}\" must be an array of {} numbers, one per layer", key, layers));
    given = nullptr;
  }
  for (std::int64_t i = 0; i < layers; ++i) {
    if (given == nullptr) {
      flags.push_back(fallback(i));
      continue;
    }
    const Value& item = given->items[static_cast<std::size_t>(i)];
    const bool number = item.is(Value::Kind::Integer);
    if (!number && !item.is(Value::Kind::Bool)) config.fault(item, formatted("\"{}\" may hold 0 and 1", key));
    flags.push_back(number ? item.integer != 0 : item.boolean);
  }
  return flags;
}

ModelSpec build_decoder(const ConfigReader& config, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  Names names(decoder.prefix, decoder.norm_class, decoder.experts.block_class);
  if (!decoder.whole_norm_class.empty()) names.norm = decoder.whole_norm_class;
  ModelBuilder b(config, class_of(decoder));
  const std::string dense_forward = layer_forward(decoder, false);
  const std::string expert_forward = layer_forward(decoder, true);
  ParameterId embedding = kNone;
  {
    const auto model = b.module("model", prefixed(decoder.prefix, decoder.body_class));
    embedding = register_embedding(b, decoder);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const std::vector<bool>& dense = decoder.experts.dense;
        const bool with_experts = decoder.experts.count > 0 && (dense.empty() || !dense[static_cast<std::size_t>(i)]);
        const auto layer = b.layer(i, names.layer, with_experts ? expert_forward : dense_forward);
        register_layer(b, decoder, names, with_experts);
      }
    }
    register_norm(b, decoder, names, decoder.parts.final_norm, {d.hidden});
    register_rotary(b, decoder);
    register_tables(b, decoder);
  }
  const DecoderParts& parts = decoder.parts;
  const std::string head_forward = register_head(b, decoder, embedding);
  std::string tables = tables_forward(parts);
  if (parts.norms_embedding) tables += " norm";
  ModelSpec spec = b.finish(formatted("model(embed_tokens {} layers* norm) {}", tables, head_forward));
  spec.dims = d;
  spec.dims.experts = decoder.experts.count;
  spec.dims.experts_per_token = decoder.experts.per_token;
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

ModelSpec finish_decoder(const ConfigReader& config, const Decoder& decoder) {
  config.throw_if_any();
  return build_decoder(config, decoder);
}

void give_shared_mlp(DecoderParts& parts) {
  parts.own_shared = true;
  parts.mlp = MlpKind::FusedGate;
  parts.gates_first = true;
  parts.feed_forward = "shared_mlp";
  parts.up = "input_linear";
  parts.down = "output_linear";
  parts.activation = "activation";
}

ModelSpec finish_with_head(ModelBuilder& b, const Dimensions& dims, bool tied, ParameterId words, std::string_view body,
                           const DecoderParts& parts) {
  ModelSpec spec = finish_with_text_head(b, parts, dims, {.table = tied ? words : ParameterId(kNone)}, body);
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
