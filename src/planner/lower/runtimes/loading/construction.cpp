#include "planner/lower/runtimes/loading/construction.h"

#include <string>

namespace dsplan {
namespace {

struct Late {
  std::string_view type;       // The framework's class, or how its name ends.
  std::string_view parameter;  // Or how its name begins.
  std::string_view child;      // Made before it; "": behind all of them.
};

// transformers 5.17, constructors of the classes: all whose own parameters come behind a child that has some.
constexpr Late kLate[] = {
    {"LMPredictionHead", "bias", ""},
    {"AlbertMLMHead", "bias", "dense"},
    {"LMHead", "bias", ""},
    {"GptOssAttention", "sinks", ""},
    {"GraniteSWAAttention", "sinks", ""},
    {"GraniteMoeSWAAttention", "sinks", ""},
    {"MambaLayer", "D", "out_proj"},
    {"MambaLayer", "", "norm"},
    {"Mamba2Mixer", "D", "out_proj"},
    {"Mamba2Mixer", "", "norm"},
    {"GatedDeltaNet", "", "norm"},
    {"ViTEmbeddings", "position_embeddings", "dropout"},
    {"Dinov2Embeddings", "position_embeddings", "dropout"},
    {"InternVLVisionEmbeddings", "position_embeddings", "dropout"},
    {"InternVLVisionLayer", "lambda_", "dropout"},
    {"Llama4VisionModel", "", "rotary_embedding"},
    {"CLIPModel", "", ""},
    {"SiglipModel", "", ""},
    {"MllamaVisionModel", "class_embedding", "gated_positional_embedding"},
    {"MllamaPrecomputedAspectRatioEmbedding", "gate", ""},
    {"MllamaVisionEncoderLayer", "gate_", ""},
    {"MllamaCrossAttentionDecoderLayer", "cross_attn_attn_gate", "mlp"},
    {"MllamaCrossAttentionDecoderLayer", "cross_attn_mlp_gate", ""},
    {"Gemma4TextRouter", "", ""},
    {"Gemma4VisionPatchEmbedder", "", ""},
};

// The child that comes behind `before` others, or the module itself.
ModuleId child_behind(const ModelSpec& model, ModuleId module, std::int32_t before) {
  for (std::size_t at = static_cast<std::size_t>(module) + 1; at < model.modules.size(); ++at) {
    if (model.modules[at].parent == module && before-- == 0) return static_cast<ModuleId>(at);
  }
  return module;
}

}  // namespace

std::vector<ModuleId> made_before(const ModelSpec& model) {
  std::vector<ModuleId> before(model.parameters.size(), kNone);
  for (std::size_t at = 0; at < before.size(); ++at) {
    const Parameter& parameter = model.parameters[at];
    if (parameter.behind > 0 && (parameter.maker == kNone || parameter.maker == parameter.module)) {
      before[at] = child_behind(model, parameter.module, parameter.behind);
      continue;
    }
    const std::string_view type = model.module_at(parameter.module).type;
    const std::string_view leaf = std::string_view(parameter.name).substr(parameter.name.rfind('.') + 1);
    for (const Late& late : kLate) {
      if (!type.ends_with(late.type) || !leaf.starts_with(late.parameter)) continue;
      const ModuleId child = late.child.empty() ? ModuleId(kNone) : model.child(parameter.module, late.child);
      before[at] = child == kNone ? parameter.module : child;
      break;
    }
  }
  return before;
}

}  // namespace dsplan
