// mistral3 (Mistral Small 3.1 and 3.2, Ministral 3): pixtral's tower, which takes pictures of all sizes, a projector
// that makes one token of several patches, and mistral or ministral3.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

DecoderParts pixtral_layers(std::int64_t layers) {
  DecoderParts parts;
  parts.full = parts.views_behind = true;
  parts.attention = "attention";
  parts.feed_forward = "feed_forward";
  parts.before_attention = "attention_norm";
  parts.before_mlp = "ffn_norm";
  parts.kinds.assign(static_cast<std::size_t>(layers), LayerKind::Full);
  return parts;
}

TowerParts read_pixtral(ConfigReader& config) {
  TowerParts tower;
  Dimensions& d = tower.dims;
  if (config.maybe_string("model_type").value_or("pixtral") != "pixtral") {
    config.fault("model_type", "\"vision_config\" of a model_type other than \"pixtral\" is not modelled yet");
  }
  (void)config.dtype();
  d.hidden = config.size("hidden_size", 1024);
  d.ffn = config.size("intermediate_size", 4096);
  d.layers = config.layer_count("num_hidden_layers", 24);
  d.heads = d.kv_heads = config.size("num_attention_heads", 16);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  d.activation = config.activation("hidden_act", "gelu");
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.norm_epsilon = 1e-5;
  (void)config.find("image_size");  // The largest that a processor makes.
  tower.patch = config.size("patch_size", 16);
  tower.channels = config.size("num_channels", 3);
  const std::optional<std::int64_t> said = config.maybe_size("head_dim", std::nullopt);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  if (said.value_or(d.head_dim) != d.head_dim) {
    config.fault("head_dim", formatted("\"head_dim\" is hidden_size / num_attention_heads here, {}", d.head_dim));
  }
  if (d.head_dim % 4 != 0) {
    config.fault("num_attention_heads",
                 formatted("rows and columns turn heads by quarters, and {} has none", d.head_dim));
  }
  config.throw_if_any();
  tower.projection = ProjectorKind::Unfolded;
  tower.read_layers = d.layers;
  tower.layers = pixtral_layers(d.layers);
  return tower;
}

void register_pixtral_layer(ModelBuilder& b, const Dimensions& d) {
  b.rms_norm("attention_norm", d.hidden, "PixtralRMSNorm");
  {
    const auto mlp = b.module("feed_forward", "PixtralMLP");
    register_gated_mlp(b, d.hidden, d.ffn, false, d.activation);
  }
  {
    const auto attention = b.module("attention", "PixtralAttention");
    for (const std::string_view name : {"k_proj", "v_proj", "q_proj", "o_proj"}) {
      b.linear(name, d.hidden, d.hidden, false, Cut::Unknown);
    }
  }
  b.rms_norm("ffn_norm", d.hidden, "PixtralRMSNorm");
}

ModelSpec build_pixtral(const ConfigReader& config, const TowerParts& tower) {
  const Dimensions& d = tower.dims;
  ModelBuilder b(config, "PixtralVisionModel");
  {
    const auto convolution = b.module("patch_conv", "Conv2d");
    b.parameter("weight", {d.hidden, tower.channels, tower.patch, tower.patch}, Split::Unknown);
  }
  b.rms_norm("ln_pre", d.hidden, "PixtralRMSNorm");
  {
    const auto transformer = b.module("transformer", "PixtralTransformer");
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "PixtralAttentionLayer",
                                 "attention_norm attention(q_proj k_proj v_proj o_proj) ffn_norm "
                                 "feed_forward(gate_proj act_fn up_proj down_proj)");
      register_pixtral_layer(b, d);
    }
  }
  b.rotary("patch_positional_embedding", "PixtralVisionRotaryEmbedding", d.head_dim);
  return b.finish("patch_conv ln_pre patch_positional_embedding transformer(layers*)");
}

// What mistral3 and llava make of a file of pixtral's.
struct Pixtral {
  TowerParts tower;
  ModelSpec spec;
};
Pixtral read_pixtral_part(ConfigReader& config, std::string_view family) {
  ConfigReader vision(part_of(config, "vision_config"));
  Pixtral made;
  made.tower = read_pixtral(vision);
  take_remarks(config, vision, family);
  vision.throw_if_any();
  made.spec = build_pixtral(vision, made.tower);
  return made;
}

}  // namespace

ModelSpec build_llava_of_pixtral(ConfigReader& config) {
  Pixtral seen = read_pixtral_part(config, "mistral3");
  TowerParts& tower = seen.tower;
  const ModelSpec text = build_part(config, "text_config", "mistral", {"mistral", "llama"});
  tower.merge = 1;
  tower.projector_activation = config.activation("projector_hidden_act", "gelu");
  tower.image_token = config.size("image_token_index", 32000, "image_token_id");
  const Value* const layer = config.find("vision_feature_layer");
  if (layer == nullptr || layer->integer != -1) {
    config.fault("vision_feature_layer", "\"vision_feature_layer\" of a \"pixtral\" is -1: what its last layer gives");
  }
  if (config.maybe_string("vision_feature_select_strategy").value_or("default") != "full") {
    config.fault("vision_feature_select_strategy",
                 "\"vision_feature_select_strategy\" of a \"pixtral\" is \"full\": there is no class token");
  }
  const bool bias = config.flag("multimodal_projector_bias", true);
  const bool tied = config.flag("tie_word_embeddings", false);
  config.throw_if_any();
  const std::int64_t width = text.dims.hidden;
  const auto projector = [&](Composition& whole, ModuleId outer) {
    const ModuleId first = whole.linear(outer, "linear_1", width, tower.dims.hidden, bias);
    const ModuleId act = whole.module(outer, "act", activation_class(tower.projector_activation));
    const ModuleId second = whole.linear(outer, "linear_2", width, width, bias);
    return std::vector<ModuleId>{first, act, second};
  };
  return compose({"LlavaForConditionalGeneration", "LlavaModel", "LlavaMultiModalProjector", tied}, seen.spec, text,
                 tower, projector);
}

ModelSpec build_mistral3(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower");
  }
  Pixtral seen = read_pixtral_part(config, "mistral3");
  TowerParts& tower = seen.tower;
  const ModelSpec text = build_part(config, "text_config", "mistral", {"mistral", "ministral3"});
  tower.merge = config.size("spatial_merge_size", 2);
  tower.projector_activation = config.activation("projector_hidden_act", "gelu");
  tower.image_token = config.size("image_token_index", 10, "image_token_id");
  const bool bias = config.flag("multimodal_projector_bias", false);
  const bool tied = config.flag("tie_word_embeddings", true);
  config.throw_if_any();
  const std::int64_t width = text.dims.hidden;
  const std::int64_t patch = tower.dims.hidden;
  const std::int64_t wide = config.times(patch, config.times(tower.merge, tower.merge));
  const auto projector = [&](Composition& whole, ModuleId outer) {
    const ModuleId norm = whole.module(outer, "norm", "Mistral3RMSNorm");
    whole.parameter(norm, "weight", {patch});
    const ModuleId merger = whole.module(outer, "patch_merger", "Mistral3PatchMerger");
    const ModuleId merging = whole.linear(merger, "merging_layer", patch, wide, false);
    const ModuleId first = whole.linear(outer, "linear_1", width, patch, bias);
    const ModuleId act = whole.module(outer, "act", activation_class(tower.projector_activation));
    const ModuleId second = whole.linear(outer, "linear_2", width, width, bias);
    return std::vector<ModuleId>{norm, merger, merging, first, act, second};
  };
  return compose({"Mistral3ForConditionalGeneration", "Mistral3Model", "Mistral3MultiModalProjector", tied}, seen.spec,
                 text, tower, projector);
}

}  // namespace dsplan
