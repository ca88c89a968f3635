// The graph of each family, called by build_graph (model/graphs/graphs.h).
#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "model/graphs/builder.h"

namespace dsplan {

// Decoders are made of parts; the others are Python of their own.
using GraphOf = Graph (*)(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] GraphOf builder_of(const ModelSpec& model);

[[nodiscard]] Graph build_decoder_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_encoder_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_albert_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_deberta_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_mamba2_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_modernbert_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_bart_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_whisper_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_t5_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_vit_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_dinov2_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_picture_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_contrasted_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_opt_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_gpt2_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_gptj_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_torchtitan_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_bloom_graph(const ModelSpec& model, const GraphOptions& options);
[[nodiscard]] Graph build_falcon_graph(const ModelSpec& model, const GraphOptions& options);

// Cuts the graph's regions anew: one around each outermost call of a module of a layer whose path ends in one of
// `names`, and, for "core_attn", around each attention operator. Their arguments are what they read and do not make.
void cut_module_regions(Graph& graph, const ModelSpec& model, const std::vector<std::string>& names);

}  // namespace dsplan
