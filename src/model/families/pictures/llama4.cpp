// llama4 with pictures: a tower whose places are turned by a table of its own, two by two places side by side through
// two products at its end, one product more, and the whole language model, head and all, beside both.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

DecoderParts seen_layers(std::int64_t layers) {
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.projections = Projections::ByToken;
  parts.mlp = MlpKind::Plain;
  parts.full = parts.bare_softmax = parts.rotary.complex = true;
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  parts.kinds.assign(static_cast<std::size_t>(layers), LayerKind::Full);
  return parts;
}

struct Seen {
  TowerParts tower;
  std::int64_t joined = 0;   // Of four places side by side.
  std::int64_t adapted = 0;  // Behind the tower's end.
};

void read_widths(ConfigReader& config, Seen& seen) {
  const Dimensions& d = seen.tower.dims;
  const Value* ratio = config.find("pixel_shuffle_ratio");
  if (ratio != nullptr && ratio->real != 0.5) {
    config.fault(*ratio, "\"pixel_shuffle_ratio\" is 0.5: four places become one");
  }
  seen.joined = config.times(4, d.hidden);
  if (d.ffn != seen.joined) {
    config.fault("intermediate_size",
                 formatted("four places of {} are {} wide, and transformers reads intermediate_size "
                           "for that as well, which is {}",
                           d.hidden, seen.joined, d.ffn));
  }
  seen.adapted = config.size("projector_output_dim", 4096);
  const std::int64_t first = config.size("projector_input_dim", 4096);
  const std::int64_t out = config.size("vision_output_dim", 7680);
  if (first != seen.adapted || out != seen.adapted) {
    config.fault("projector_output_dim",
                 formatted("projector_input_dim {}, projector_output_dim {} and vision_output_dim {} are one width",
                           first, seen.adapted, out));
  }
}

Seen read_seen(ConfigReader& config) {
  Seen seen;
  Dimensions& d = seen.tower.dims;
  d.hidden = config.size("hidden_size", 768);
  d.ffn = config.size("intermediate_size", 5632);
  d.layers = config.layer_count("num_hidden_layers", 34);
  d.heads = d.kv_heads = config.size("num_attention_heads", 16);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  d.activation = "gelu";
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.residual_dropout = config.probability("projector_dropout", 0);  // Between the two products at its end.
  d.image = config.size("image_size", 448);
  seen.tower.patch = config.size("patch_size", 14);
  seen.tower.channels = config.size("num_channels", 3);
  read_widths(config, seen);
  const std::int64_t side = d.image / seen.tower.patch;
  if (side < 2 || side % 2 != 0) {
    config.fault("image_size", formatted("{} by {} patches cannot be joined two by two", side, side));
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  d.max_positions = config.plus(config.times(side, side), 1);
  TowerParts& tower = seen.tower;
  tower.class_token = true;
  tower.projection = ProjectorKind::Adapted;
  tower.module = "vision_model";
  tower.tokens = side * side / 4;
  tower.read_layers = d.layers;
  tower.layers = seen_layers(d.layers);
  return seen;
}

void register_seen_layers(ModelBuilder& b, const Dimensions& d) {
  const auto encoder = b.module("model", "Llama4VisionEncoder");
  const auto list = b.module("layers", "ModuleList");
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const auto layer = b.layer(i, "Llama4VisionEncoderLayer",
                               "input_layernorm self_attn(q_proj k_proj v_proj o_proj) post_attention_layernorm "
                               "mlp(fc1 activation_fn fc2)");
    {
      const auto attention = b.module("self_attn", "Llama4VisionAttention");
      for (const std::string_view name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
        b.linear(name, d.hidden, d.hidden, true, Cut::Unknown);
      }
    }
    {
      const auto mlp = b.module("mlp", "Llama4VisionMLP");
      b.leaf("activation_fn", "GELU");
      b.linear("fc1", d.ffn, d.hidden, true, Cut::Unknown);
      b.linear("fc2", d.hidden, d.ffn, true, Cut::Unknown);
    }
    b.layer_norm("input_layernorm", d.hidden);
    b.layer_norm("post_attention_layernorm", d.hidden);
  }
}

ModelSpec build_tower(const ConfigReader& config, const Seen& seen) {
  const TowerParts& tower = seen.tower;
  const Dimensions& d = tower.dims;
  ModelBuilder b(config, "Llama4VisionModel");
  b.parameter("class_embedding", {d.hidden}, Split::Unknown);
  b.parameter("positional_embedding_vlm", {d.max_positions, d.hidden}, Split::Unknown);
  {
    const auto patches = b.module("patch_embedding", "Llama4UnfoldConvolution");
    b.leaf("unfold", "Unfold");
    b.linear("linear", d.hidden, b.times(tower.channels, tower.patch * tower.patch), false, Cut::Unknown);
  }
  {
    const auto rotary = b.module("rotary_embedding", "Llama4VisionRotaryEmbedding");
    b.buffer("freqs_ci", {d.max_positions, 1, d.head_dim / 2, 2}, DType::Float32, false);  // Pairs: complex numbers.
  }
  b.layer_norm("layernorm_pre", d.hidden);
  b.layer_norm("layernorm_post", d.hidden);
  register_seen_layers(b, d);
  {
    const auto adapter = b.module("vision_adapter", "Llama4VisionPixelShuffleMLP");
    const auto mlp = b.module("mlp", "Llama4VisionMLP2");
    b.linear("fc1", seen.adapted, seen.joined, false, Cut::Unknown);
    b.linear("fc2", seen.adapted, seen.adapted, false, Cut::Unknown);
    b.leaf("activation_fn", "GELU");
  }
  return b.finish(
      "patch_embedding(unfold linear) layernorm_pre rotary_embedding model(layers*) layernorm_post "
      "vision_adapter(mlp(fc1 activation_fn fc2 activation_fn))");
}

}  // namespace

ModelSpec build_llama4(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower",
                  "the text part alone is model_type \"llama4_text\"");
  }
  ConfigReader vision(part_of(config, "vision_config"));
  (void)vision.find("model_type");
  (void)vision.dtype();
  Seen seen = read_seen(vision);
  take_remarks(config, vision, "llama4");
  vision.throw_if_any();
  const ModelSpec text = build_part(config, "text_config", "llama4_text", {"llama4_text"});
  seen.tower.image_token = config.size("image_token_index", 200092, "image_token_id");
  config.throw_if_any();
  const ModelSpec tower = build_tower(vision, seen);

  Composition whole("Llama4ForConditionalGeneration");
  const std::size_t pictures = whole.take(tower, 0, 0, "vision_model");
  const ModuleId projector = whole.module(0, "multi_modal_projector", "Llama4MultiModalProjector");
  const ModuleId linear = whole.linear(projector, "linear_1", text.dims.hidden, seen.adapted, false);
  const std::size_t language = whole.take(text, 0, 0, "language_model");
  const ModuleId embedding = text.child(text.child(0, "model"), "embed_tokens");
  whole.enter(0);
  whole.call(language, {embedding}, Composition::Calls::Only);
  whole.call(pictures);
  for (const ModuleId one : {projector, linear}) whole.enter(one);
  for (const ModuleId one : {linear, projector}) whole.leave(one);
  whole.call(language, {embedding}, Composition::Calls::AllBut);
  whole.leave(0);
  ModelSpec spec = std::move(whole.spec());
  describe_shown(spec, text, std::move(seen.tower));
  return spec;
}

}  // namespace dsplan
