// mllama (Llama 3.2 Vision): a tower of two stacks over tiles of each picture, and a language model of which some
// layers look at what the tower gives, in the place of their own tokens.
#include "core/format.h"
#include "model/config/config_keys.h"
#include "model/families/composed.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct Tiled {
  TowerParts tower;
  std::int64_t ratios = 0;  // So many shapes of pictures there are.
  std::int64_t made = 0;    // Width of what the tower gives.
};

DecoderParts tiled_layers(std::int64_t layers) {
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.mlp = MlpKind::Plain;
  parts.full = parts.views_behind = true;
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  parts.kinds.assign(static_cast<std::size_t>(layers), LayerKind::Full);
  return parts;
}

// Whose outputs are joined with the tower's own.
std::vector<std::int64_t> read_joined_layers(ConfigReader& config, std::int64_t layers) {
  constexpr std::string_view kKey = "intermediate_layers_indices";
  if (config.find(kKey) != nullptr) return config.indices(kKey, layers);
  const std::vector<std::int64_t> usual{3, 7, 15, 23, 30};
  if (layers <= usual.back()) {
    config.fault(config.root(),
                 formatted("\"{}\" is missing: its default names layer {} of {}", kKey, usual.back(), layers));
  }
  return usual;
}

Tiled read_tiled(ConfigReader& config) {
  Tiled seen;
  TowerParts& tower = seen.tower;
  Dimensions& d = tower.dims;
  d.hidden = config.size("hidden_size", 1280);
  d.ffn = config.size("intermediate_size", 5120);
  d.layers = config.layer_count("num_hidden_layers", 32);
  d.heads = d.kv_heads = config.size("attention_heads", 16, "num_attention_heads");
  d.activation = config.activation("hidden_act", "gelu");
  d.norm_epsilon = config.maybe_number("norm_eps").value_or(1e-5);
  d.image = config.size("image_size", 448);
  tower.patch = config.size("patch_size", 14);
  tower.channels = config.size("num_channels", 3);
  tower.tiles = config.size("max_num_tiles", 4);
  tower.global_layers = config.size("num_global_layers", 8);
  const Value* ratios = config.find("supported_aspect_ratios");
  const bool listed = ratios != nullptr && ratios->is(Value::Kind::Array);
  seen.ratios = listed ? static_cast<std::int64_t>(ratios->items.size()) : 8;
  if (!listed && tower.tiles != 4) {
    config.fault("max_num_tiles", "\"supported_aspect_ratios\" is missing, and the usual ones are of four tiles");
  }
  config.require_divides("attention_heads", d.heads, "hidden_size", d.hidden);
  config.require_at_most("patch_size", tower.patch, "image_size", d.image);
  config.throw_if_any();
  tower.joined_layers = read_joined_layers(config, d.layers);
  const auto parts = static_cast<std::int64_t>(tower.joined_layers.size()) + 1;
  seen.made = config.size("vision_output_dim", 7680);
  if (seen.made != config.times(parts, d.hidden)) {
    config.fault("vision_output_dim",
                 formatted("the tower gives {} times {}: \"vision_output_dim\" is not {}", parts, d.hidden, seen.made));
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  const std::int64_t side = d.image / tower.patch;
  tower.class_token = true;
  tower.projection = ProjectorKind::Crossed;
  tower.module = "vision_model";
  tower.hears_checkpoints = true;
  tower.tokens = 1;  // Of the text's, which stands for all that is seen.
  if ((side * side + 1) % 8 == 0) {
    config.fault("image_size", formatted("{} by {} patches and a class token come out at whole eights, where the class "
                                         "masks every place",
                                         side, side));
  }
  tower.read_layers = d.layers;
  // Rows of each tile are filled up to whole eights.
  d.max_positions = config.times(tower.tiles, (side * side + 1 + 7) / 8 * 8);
  tower.layers = tiled_layers(d.layers);
  return seen;
}

void register_tiled_layers(ModelBuilder& b, const Dimensions& d, std::string_view name, std::int64_t layers,
                           bool gated) {
  const auto encoder = b.module(name, "MllamaVisionEncoder");
  const auto list = b.module("layers", "ModuleList");
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto layer = b.layer(i, "MllamaVisionEncoderLayer",
                               "input_layernorm self_attn(q_proj k_proj v_proj o_proj) post_attention_layernorm "
                               "mlp(fc1 activation_fn fc2)");
    if (gated) {
      b.parameter("gate_attn", {1}, Split::Unknown);
      b.parameter("gate_ffn", {1}, Split::Unknown);
    }
    {
      const auto attention = b.module("self_attn", "MllamaVisionAttention");
      for (const std::string_view projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
        b.linear(projection, d.hidden, d.hidden, false, Cut::Unknown);
      }
    }
    {
      const auto mlp = b.module("mlp", "MllamaVisionMLP");
      b.activation("activation_fn", d.activation);
      b.linear("fc1", d.ffn, d.hidden, true, Cut::Unknown);
      b.linear("fc2", d.hidden, d.ffn, true, Cut::Unknown);
    }
    b.layer_norm("input_layernorm", d.hidden);
    b.layer_norm("post_attention_layernorm", d.hidden);
  }
}

// A table of `width` numbers for each shape of a picture, and one for none.
void register_tile_table(ModelBuilder& b, std::string_view name, std::int64_t ratios, std::int64_t width) {
  const auto module = b.module(name, "MllamaPrecomputedAspectRatioEmbedding");
  b.parameter("gate", {1}, Split::Unknown);
  b.embedding("embedding", b.plus(ratios, 1), width, Split::Unknown);
}

void register_tiled_tower(ModelBuilder& b, const Tiled& seen) {
  const TowerParts& tower = seen.tower;
  const Dimensions& d = tower.dims;
  const std::int64_t side = d.image / tower.patch;
  const std::int64_t places = side * side + 1;
  const auto module = b.module("vision_model", "MllamaVisionModel");
  b.parameter("class_embedding", {d.hidden}, Split::Unknown);
  {
    const auto patches = b.module("patch_embedding", "Conv2d");
    b.parameter("weight", {d.hidden, tower.channels, tower.patch, tower.patch}, Split::Unknown);
  }
  {
    const auto positions = b.module("gated_positional_embedding", "MllamaPrecomputedPositionEmbedding");
    b.parameter("gate", {1}, Split::Unknown);
    b.parameter("embedding", {places, d.hidden}, Split::Unknown);
    b.embedding("tile_embedding", b.plus(seen.ratios, 1), b.times(tower.tiles, b.times(places, d.hidden)),
                Split::Unknown);
  }
  for (const std::string_view name : {"pre_tile_positional_embedding", "post_tile_positional_embedding"}) {
    register_tile_table(b, name, seen.ratios, b.times(tower.tiles, d.hidden));
  }
  b.layer_norm("layernorm_pre", d.hidden);
  b.layer_norm("layernorm_post", d.hidden);
  register_tiled_layers(b, d, "transformer", d.layers, false);
  register_tiled_layers(b, d, "global_transformer", tower.global_layers, true);
}

Decoder read_seeing_text(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Mllama", {.vocab = 128256, .ffn = 14336, .layers = 40, .kv_heads = 8, .positions = 131072});
  const Dimensions& d = decoder.dims;
  decoder.dims.head_dim = d.hidden / d.heads;
  decoder.parts.views_behind = true;
  decoder.dims.attention_dropout = config.probability("dropout", 0);
  std::vector<bool>& crossing = decoder.parts.crossing;
  crossing.assign(static_cast<std::size_t>(d.layers), false);
  const std::vector<std::int64_t> usual{3, 8, 13, 18, 23, 28, 33, 38};
  const bool said = config.find("cross_attention_layers") != nullptr;
  for (const std::int64_t i : said ? config.indices("cross_attention_layers", d.layers) : usual) {
    if (i < d.layers) crossing[static_cast<std::size_t>(i)] = true;
  }
  return decoder;
}

void register_text_projections(ModelBuilder& b, const Dimensions& d) {
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", d.hidden, d.hidden, false, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("o_proj", d.hidden, d.hidden, false, Cut::Unknown);
}

void register_text_mlp(ModelBuilder& b, const Dimensions& d) {
  const auto mlp = b.module("mlp", "MllamaTextMLP");
  register_gated_mlp(b, d.hidden, d.ffn, false, d.activation);
}

void register_crossing_layer(ModelBuilder& b, const Dimensions& d) {
  constexpr std::string_view kNorm = "MllamaTextRMSNorm";
  b.parameter("cross_attn_attn_gate", {1}, Split::Unknown);
  b.parameter("cross_attn_mlp_gate", {1}, Split::Unknown);
  {
    const auto attention = b.module("cross_attn", "MllamaTextCrossAttention");
    register_text_projections(b, d);
    b.rms_norm("q_norm", d.head_dim, kNorm);
    b.rms_norm("k_norm", d.head_dim, kNorm);
  }
  b.rms_norm("input_layernorm", d.hidden, kNorm);
  register_text_mlp(b, d);
  b.rms_norm("post_attention_layernorm", d.hidden, kNorm);
}

void register_text_layer(ModelBuilder& b, const Dimensions& d) {
  {
    const auto attention = b.module("self_attn", "MllamaTextSelfAttention");
    register_text_projections(b, d);
  }
  register_text_mlp(b, d);
  b.rms_norm("input_layernorm", d.hidden, "MllamaTextRMSNorm");
  b.rms_norm("post_attention_layernorm", d.hidden, "MllamaTextRMSNorm");
}

void register_seeing_text(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const auto module = b.module("language_model", "MllamaTextModel");
  b.embedding("embed_tokens", b.plus(d.vocab, 8), d.hidden, Split::Unknown);
  {
    const auto list = b.module("layers", "ModuleList");
    constexpr std::string_view kForwards[2] = {
        "input_layernorm self_attn(q_proj k_proj v_proj o_proj) post_attention_layernorm mlp(gate_proj act_fn up_proj "
        "down_proj)",
        "input_layernorm cross_attn(q_proj q_norm k_proj v_proj k_norm o_proj) post_attention_layernorm mlp(gate_proj "
        "act_fn up_proj down_proj)"};
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const bool crosses = decoder.parts.crosses(static_cast<std::size_t>(i));
      const auto layer = b.layer(i, crosses ? "MllamaCrossAttentionDecoderLayer" : "MllamaSelfAttentionDecoderLayer",
                                 kForwards[crosses]);
      if (crosses) {
        register_crossing_layer(b, d);
      } else {
        register_text_layer(b, d);
      }
    }
  }
  b.rms_norm("norm", d.hidden, "MllamaTextRMSNorm");
  b.rotary("rotary_emb", "MllamaRotaryEmbedding", d.head_dim);
}

// Its layers are no checkpointable ones: those of the text count from zero.
void count_text_layers(ModelSpec& spec, std::int64_t of_tower) {
  for (Module& module : spec.modules) {
    if (module.layer == kNone) continue;
    module.layer = module.layer < of_tower ? kNone : module.layer - static_cast<std::int32_t>(of_tower);
  }
}

}  // namespace

ModelSpec build_mllama(ConfigReader& config) {
  ConfigReader vision(part_of(config, "vision_config"));
  ConfigReader text(part_of(config, "text_config"));
  for (ConfigReader* part : {&vision, &text}) {
    (void)part->find("model_type");
    (void)part->dtype();
  }
  check_rotary(text);
  Tiled seen = read_tiled(vision);
  const Decoder decoder = read_seeing_text(text);
  take_remarks(config, vision, "mllama");
  take_remarks(config, text, "mllama");
  seen.tower.image_token = config.size("image_token_index", 128256, "image_token_id");
  vision.throw_if_any();
  text.throw_if_any();
  config.throw_if_any();

  ModelBuilder b(text, "MllamaForConditionalGeneration");
  {
    const auto model = b.module("model", "MllamaModel");
    register_tiled_tower(b, seen);
    register_seeing_text(b, decoder);
    b.linear("multi_modal_projector", decoder.dims.hidden, seen.made, true, Cut::Unknown);
  }
  b.linear("lm_head", decoder.dims.vocab, decoder.dims.hidden, false, Cut::Unknown);
  ModelSpec spec = b.finish(
      "model(vision_model(patch_embedding pre_tile_positional_embedding(embedding) "
      "gated_positional_embedding(tile_embedding) layernorm_pre transformer(layers*) layernorm_post "
      "post_tile_positional_embedding(embedding) global_transformer(layers*)) multi_modal_projector "
      "language_model(embed_tokens rotary_emb layers* norm)) lm_head");
  count_text_layers(spec, seen.tower.dims.layers + seen.tower.global_layers);
  spec.dims = decoder.dims;
  DecoderParts parts = decoder.parts;
  parts.tower = std::make_shared<const TowerParts>(std::move(seen.tower));
  spec.parts = std::make_shared<const DecoderParts>(std::move(parts));
  return spec;
}

}  // namespace dsplan
