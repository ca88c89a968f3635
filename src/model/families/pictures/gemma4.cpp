// gemma4 with pictures: a tower that turns heads by column and row and averages patches, one product behind it, the
// language model of gemma4_text, and where there is an audio_config a tower of sounds, which no batch here has any of.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

constexpr std::string_view kGemma4Norm = "Gemma4RMSNorm";

DecoderParts gemma4_layers(std::int64_t layers) {
  DecoderParts parts;
  parts.norm = NormKind::RmsPower;
  parts.full = true;
  parts.attention_scale = 1;
  parts.after_attention = "post_attention_layernorm";
  parts.before_mlp = "pre_feedforward_layernorm";
  parts.after_mlp = "post_feedforward_layernorm";
  parts.kinds.assign(static_cast<std::size_t>(layers), LayerKind::Full);
  return parts;
}

struct Gemma4Seen {
  TowerParts tower;
  std::int64_t places = 0;  // Rows of each of two tables of learned positions.
};

void check_gemma4_heads(ConfigReader& config, const Dimensions& d) {
  if (d.kv_heads != d.heads) {
    config.fault("num_key_value_heads",
                 formatted("\"num_key_value_heads\" of a tower other than its {} heads is not modelled yet", d.heads));
  }
  if (d.head_dim % 4 != 0) {
    config.fault("head_dim", formatted("columns and rows turn heads by quarters, and {} has none", d.head_dim));
  }
}

Gemma4Seen read_gemma4_vision(ConfigReader& config) {
  Gemma4Seen seen;
  TowerParts& tower = seen.tower;
  Dimensions& d = tower.dims;
  if (config.maybe_string("model_type").value_or("gemma4_vision") != "gemma4_vision") {
    config.fault("model_type", "\"vision_config\" of a model_type other than \"gemma4_vision\" is not modelled yet");
  }
  (void)config.dtype();
  d.hidden = config.size("hidden_size", 768);
  d.ffn = config.size("intermediate_size", 3072);
  d.layers = config.layer_count("num_hidden_layers", 16);
  d.heads = config.size("num_attention_heads", 12);
  d.kv_heads = config.size("num_key_value_heads", 12);
  d.head_dim = config.size("head_dim", 64);
  d.activation = config.activation("hidden_activation", "gelu_pytorch_tanh");
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.norm_epsilon = config.maybe_number("rms_norm_eps").value_or(1e-6);
  tower.patch = config.size("patch_size", 16);
  tower.merge = config.size("pooling_kernel_size", 3);
  tower.clips = config.flag("use_clipped_linears", false);
  tower.standardises = config.flag("standardize", false);
  seen.places = config.size("position_embedding_size", 10240);
  config.throw_if_any();
  check_gemma4_heads(config, d);
  config.throw_if_any();
  tower.projector = "embed_vision";
  tower.projection = ProjectorKind::Embedded;
  tower.read_layers = d.layers;
  tower.hears_checkpoints = false;
  tower.layers = gemma4_layers(d.layers);
  return seen;
}

// Gemma4ClippableLinear: the buffers are the bounds, infinite in a model that no file has filled.
void register_clipped(ModelBuilder& b, std::string_view name, std::int64_t out, std::int64_t in, bool clips) {
  const auto outer = b.module(name, "Gemma4ClippableLinear");
  b.linear("linear", out, in, false, Cut::Unknown);
  if (!clips) return;
  for (const std::string_view bound : {"input_min", "input_max", "output_min", "output_max"}) {
    b.buffer(bound, Shape(), DType::Float32, true);
  }
}

constexpr std::string_view kGemma4LayerForward =
    "input_layernorm self_attn(q_proj(linear) q_norm k_proj(linear) k_norm v_proj(linear) v_norm o_proj(linear)) "
    "post_attention_layernorm pre_feedforward_layernorm mlp(gate_proj(linear) act_fn up_proj(linear) "
    "down_proj(linear)) post_feedforward_layernorm";

void register_gemma4_layer(ModelBuilder& b, const TowerParts& tower) {
  const Dimensions& d = tower.dims;
  const std::int64_t wide = b.times(d.heads, d.head_dim);
  {
    const auto attention = b.module("self_attn", "Gemma4VisionAttention");
    for (const std::string_view name : {"q_proj", "k_proj", "v_proj"}) {
      register_clipped(b, name, wide, d.hidden, tower.clips);
    }
    register_clipped(b, "o_proj", d.hidden, wide, tower.clips);
    b.rms_norm("q_norm", d.head_dim, kGemma4Norm);
    b.rms_norm("k_norm", d.head_dim, kGemma4Norm);
    b.leaf("v_norm", kGemma4Norm);
  }
  {
    const auto mlp = b.module("mlp", "Gemma4VisionMLP");
    register_clipped(b, "gate_proj", d.ffn, d.hidden, tower.clips);
    register_clipped(b, "up_proj", d.ffn, d.hidden, tower.clips);
    register_clipped(b, "down_proj", d.hidden, d.ffn, tower.clips);
    b.activation("act_fn", d.activation);
  }
  for (const std::string_view norm :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    b.rms_norm(norm, d.hidden, kGemma4Norm);
  }
}

ModelSpec build_gemma4_vision(const ConfigReader& config, const Gemma4Seen& seen) {
  const TowerParts& tower = seen.tower;
  const Dimensions& d = tower.dims;
  ModelBuilder b(config, "Gemma4VisionModel");
  if (tower.standardises) {
    b.buffer("std_bias", {d.hidden}, DType::Float32, true);
    b.buffer("std_scale", {d.hidden}, DType::Float32, true);
  }
  {
    const auto patches = b.module("patch_embedder", "Gemma4VisionPatchEmbedder");
    b.parameter("position_embedding_table", {2, seen.places, d.hidden}, Split::Unknown);
    b.linear("input_proj", d.hidden, b.times(tower.channels, b.times(tower.patch, tower.patch)), false, Cut::Unknown);
  }
  {
    const auto encoder = b.module("encoder", "Gemma4VisionEncoder");
    b.rotary("rotary_emb", "Gemma4VisionRotaryEmbedding", d.head_dim / 2);
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "Gemma4VisionEncoderLayer", kGemma4LayerForward);
      register_gemma4_layer(b, tower);
    }
  }
  b.leaf("pooler", "Gemma4VisionPooler");
  return b.finish("patch_embedder(input_proj) encoder(rotary_emb layers*) pooler");
}

// The tower of sounds: parameters and buffers that nothing in a batch without sound calls.
struct Gemma4Heard {
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kernel = 0;
  std::int64_t out = 0;
  std::vector<std::int64_t> channels;
  bool clips = false;
  std::string activation;
};

std::vector<std::int64_t> read_channels(ConfigReader& config) {
  const Value* said = config.find("subsampling_conv_channels");
  if (said == nullptr) return {128, 32};
  std::vector<std::int64_t> channels;
  if (said->is(Value::Kind::Array)) {
    for (const Value& one : said->items) {
      if (one.is(Value::Kind::Integer) && one.integer > 0) channels.push_back(one.integer);
    }
  }
  if (channels.size() == 2 && said->items.size() == 2 && channels[0] % 4 == 0) return channels;
  config.fault(*said, "\"subsampling_conv_channels\" must be two positive numbers, of which 4 divides the first");
  return {128, 32};
}

Gemma4Heard read_gemma4_audio(ConfigReader& config) {
  Gemma4Heard heard;
  (void)config.find("model_type");
  (void)config.dtype();
  heard.hidden = config.size("hidden_size", 1024);
  heard.layers = config.layer_count("num_hidden_layers", 12);
  heard.heads = config.size("num_attention_heads", 8);
  config.require_divides("num_attention_heads", heard.heads, "hidden_size", heard.hidden);
  heard.activation = config.activation("hidden_act", "silu");
  heard.channels = read_channels(config);
  heard.kernel = config.size("conv_kernel_size", 5);
  heard.clips = config.flag("use_clipped_linears", true);
  heard.out = config.size("output_proj_dims", 1536);
  for (const std::string_view key :
       {"residual_weight", "rms_norm_eps", "attention_chunk_size", "attention_context_left", "attention_context_right",
        "attention_logit_cap", "attention_invalid_logits_value", "gradient_clipping"}) {
    (void)config.find(key);
  }
  config.throw_if_any();
  return heard;
}

void register_heard_sublayers(ModelBuilder& b, const Gemma4Heard& heard) {
  const std::int64_t width = heard.hidden;
  for (const std::string_view name : {"feed_forward1", "feed_forward2"}) {
    const auto feed = b.module(name, "Gemma4AudioFeedForward");
    register_clipped(b, "ffw_layer_1", b.times(4, width), width, heard.clips);
    register_clipped(b, "ffw_layer_2", width, b.times(4, width), heard.clips);
    b.rms_norm("pre_layer_norm", width, kGemma4Norm);
    b.rms_norm("post_layer_norm", width, kGemma4Norm);
    b.activation("act_fn", heard.activation);
  }
  {
    const auto attention = b.module("self_attn", "Gemma4AudioAttention");
    b.parameter("per_dim_scale", {width / heard.heads}, Split::Unknown);
    b.buffer("softcap", Shape(), DType::Float32, true);
    for (const std::string_view name : {"q_proj", "k_proj", "v_proj", "post"}) {
      register_clipped(b, name, width, width, heard.clips);
    }
    b.linear("relative_k_proj", width, width, false, Cut::Unknown);
  }
  const auto convolution = b.module("lconv1d", "Gemma4AudioLightConv1d");
  register_clipped(b, "linear_start", b.times(2, width), width, heard.clips);
  register_clipped(b, "linear_end", width, width, heard.clips);
  {
    const auto depthwise = b.module("depthwise_conv1d", "Gemma4AudioCausalConv1d");
    b.parameter("weight", {width, 1, heard.kernel}, Split::Unknown);
  }
  b.rms_norm("pre_layer_norm", width, kGemma4Norm);
  b.rms_norm("conv_norm", width, kGemma4Norm);
  b.activation("act_fn", heard.activation);
}

void register_halving(ModelBuilder& b, std::string_view name, std::int64_t out, std::int64_t in) {
  const auto layer = b.module(name, "Gemma4AudioSubSampleConvProjectionLayer");
  {
    const auto convolution = b.module("conv", "Conv2d");
    b.parameter("weight", {out, in, 3, 3}, Split::Unknown);
  }
  {
    const auto norm = b.module("norm", "LayerNorm");
    b.parameter("weight", {out}, Split::Unknown);
  }
  b.leaf("act", "ReLU");
}

// Its layers are no regions of checkpoints: nobody calls them.
ModelSpec build_gemma4_audio(const ConfigReader& config, const Gemma4Heard& heard) {
  ModelBuilder b(config, "Gemma4AudioModel");
  {
    const auto projection = b.module("subsample_conv_projection", "Gemma4AudioSubSampleConvProjection");
    register_halving(b, "layer0", heard.channels[0], 1);
    register_halving(b, "layer1", heard.channels[1], heard.channels[0]);
    b.linear("input_proj_linear", heard.hidden, b.times(heard.channels[0] / 4, heard.channels[1]), false, Cut::Unknown);
  }
  {
    const auto positions = b.module("rel_pos_enc", "Gemma4AudioRelPositionalEncoding");
    b.buffer("inv_timescales", {1, 1, heard.hidden / 2}, DType::Float32, true);
  }
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < heard.layers; ++i) {
      const auto layer = b.module(std::to_string(i), "Gemma4AudioLayer");
      register_heard_sublayers(b, heard);
      for (const std::string_view norm : {"norm_pre_attn", "norm_post_attn", "norm_out"}) {
        b.rms_norm(norm, heard.hidden, kGemma4Norm);
      }
    }
  }
  b.linear("output_proj", heard.out, heard.hidden, true, Cut::Unknown);
  return b.finish("");
}

struct Gemma4Embedder {
  ModuleId outer = kNone;
  ModuleId norm = kNone;
  ModuleId projection = kNone;
};

Gemma4Embedder register_embedder(Composition& whole, ModuleId model, std::string_view name, std::int64_t out,
                                 std::int64_t in) {
  Gemma4Embedder made;
  made.outer = whole.module(model, name, "Gemma4MultimodalEmbedder");
  made.projection = whole.linear(made.outer, "embedding_projection", out, in, false);
  made.norm = whole.module(made.outer, "embedding_pre_projection_norm", kGemma4Norm);
  return made;
}

// What Gemma4Model calls of the language model before its tower: both tables of words.
std::vector<ModuleId> word_tables(const ModelSpec& text, ModuleId body) {
  std::vector<ModuleId> tables{text.child(body, "embed_tokens")};
  if (const ModuleId own = text.child(body, "embed_tokens_per_layer"); own != kNone) tables.push_back(own);
  return tables;
}

struct Gemma4Model {
  ModelSpec seen;
  ModelSpec text;
  std::optional<ModelSpec> heard;
  std::int64_t sound = 0;  // Width of what the tower of sounds gives.
};

ModelSpec composed_gemma4(const Gemma4Model& parts, TowerParts tower, bool tied) {
  const ModelSpec& text = parts.text;
  Composition whole("Gemma4ForConditionalGeneration");
  const ModuleId model = whole.module(0, "model", "Gemma4Model");
  const ModuleId body = text.child(0, "model");
  const ModuleId output = text.child(0, "lm_head");
  const std::size_t seen = whole.take(parts.seen, 0, model, tower.module);
  const std::size_t language = whole.take(text, body, model, "language_model");
  if (parts.heard) (void)whole.take(*parts.heard, 0, model, "audio_tower");
  const std::int64_t width = text.dims.hidden;
  const Gemma4Embedder pictures = register_embedder(whole, model, tower.projector, width, tower.dims.hidden);
  if (parts.heard) (void)register_embedder(whole, model, "embed_audio", width, parts.sound);
  const std::size_t head = whole.take(text, output, 0, "lm_head");
  const std::vector<ModuleId> tables = word_tables(text, body);
  if (tied) whole.tie(whole.moved(head, output), whole.moved(language, tables.front()));

  whole.enter(0);
  whole.enter(model);
  whole.call(language, tables, Composition::Calls::Only);
  whole.call(seen);
  whole.enter(pictures.outer);
  for (const ModuleId one : {pictures.norm, pictures.projection}) {
    whole.enter(one);
    whole.leave(one);
  }
  whole.leave(pictures.outer);
  whole.call(language, tables, Composition::Calls::AllBut);
  whole.leave(model);
  whole.call(head);
  whole.leave(0);
  ModelSpec spec = std::move(whole.spec());
  describe_shown(spec, text, std::move(tower));
  return spec;
}

}  // namespace

ModelSpec build_gemma4(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower",
                  "the text part alone is model_type \"gemma4_text\"");
  }
  ConfigReader vision(part_of(config, "vision_config"));
  Gemma4Seen seen = read_gemma4_vision(vision);
  take_remarks(config, vision, "gemma4");
  Gemma4Model parts;
  const Document& words = part_of(config, "text_config");
  const Value* sees = words.root.find("use_bidirectional_attention");
  parts.text = build_part(config, "text_config", "gemma4_text", {"gemma4_text"});
  DecoderParts own = *parts.text.parts;
  own.both_masks = false;  // Gemma4Model makes those of the kinds that there are.
  parts.text.parts = std::make_shared<const DecoderParts>(std::move(own));
  TowerParts& tower = seen.tower;
  tower.image_token = config.size("image_token_id", 258880);
  tower.sees_itself = sees != nullptr && sees->is(Value::Kind::String) && sees->string == "vision";
  const std::int64_t most = config.size("vision_soft_tokens_per_image", 280);
  tower.padded = config.times(most, config.times(tower.merge, tower.merge));
  const bool tied = config.flag("tie_word_embeddings", true);
  if (config.find("audio_config") != nullptr) {
    ConfigReader audio(part_of(config, "audio_config"));
    const Gemma4Heard heard = read_gemma4_audio(audio);
    take_remarks(config, audio, "gemma4");
    parts.heard = build_gemma4_audio(audio, heard);
    parts.sound = heard.out;
    tower.unreached = {"model.audio_tower.", "model.embed_audio."};
  }
  config.throw_if_any();
  parts.seen = build_gemma4_vision(vision, seen);
  return composed_gemma4(parts, std::move(tower), tied);
}

}  // namespace dsplan
