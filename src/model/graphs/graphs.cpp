#include "model/graphs/graphs.h"

#include <array>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "model/graphs/by_family.h"
#include "model/parts.h"
#include "model/recorded.h"
#include "model/tensor_plan.h"
#include "model/traits.h"

namespace dsplan {

GraphOf builder_of(const ModelSpec& model) {
  if (model.code == ModelCode::Torchtitan) return build_torchtitan_graph;
  if (contrasts(model)) return build_contrasted_graph;
  constexpr std::array<std::pair<std::string_view, GraphOf>, 34> kOwn{{{"gpt2", build_gpt2_graph},
                                                                       {"gpt_bigcode", build_gpt2_graph},
                                                                       {"gptj", build_gptj_graph},
                                                                       {"gpt_neo", build_gptj_graph},
                                                                       {"bloom", build_bloom_graph},
                                                                       {"falcon", build_falcon_graph},
                                                                       {"opt", build_opt_graph},
                                                                       {"t5", build_t5_graph},
                                                                       {"mt5", build_t5_graph},
                                                                       {"umt5", build_t5_graph},
                                                                       {"mamba2", build_mamba2_graph},
                                                                       {"whisper", build_whisper_graph},
                                                                       {"bart", build_bart_graph},
                                                                       {"mbart", build_bart_graph},
                                                                       {"plbart", build_bart_graph},
                                                                       {"blenderbot", build_bart_graph},
                                                                       {"marian", build_bart_graph},
                                                                       {"m2m_100", build_bart_graph},
                                                                       {"pegasus", build_bart_graph},
                                                                       {"vit", build_vit_graph},
                                                                       {"dinov2", build_dinov2_graph},
                                                                       {"clip", build_picture_graph},
                                                                       {"siglip", build_picture_graph},
                                                                       {"bert", build_encoder_graph},
                                                                       {"ernie", build_encoder_graph},
                                                                       {"data2vec-text", build_encoder_graph},
                                                                       {"roberta", build_encoder_graph},
                                                                       {"xlm-roberta", build_encoder_graph},
                                                                       {"camembert", build_encoder_graph},
                                                                       {"distilbert", build_encoder_graph},
                                                                       {"electra", build_encoder_graph},
                                                                       {"albert", build_albert_graph},
                                                                       {"deberta-v2", build_deberta_graph},
                                                                       {"modernbert", build_modernbert_graph}}};
  for (const auto& [name, build] : kOwn) {
    if (name == model.family) return build;
  }
  return build_decoder_graph;
}

// bart and its relatives.
Graph build_graph(const ModelSpec& model, const GraphOptions& options) {
  DSPLAN_CHECK(model.has_graph, model.family);
  if (model.recording) return build_recorded_graph(model, options);
  const bool cut = options.tp > 1;
  const std::optional<ModelSpec> part = cut ? std::optional(tensor_parallel_part(model, options.tp)) : std::nullopt;
  const ModelSpec& own = cut ? *part : model;
  Graph graph = builder_of(model)(own, options);
  if (!options.checkpointed_modules.empty()) cut_module_regions(graph, model, options.checkpointed_modules);
  return graph;
}

}  // namespace dsplan
