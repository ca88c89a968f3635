#include "model/graphs/graphs.h"

#include <fmt/format.h>

#include "core/error.h"

namespace dsplan {
namespace {

// Models of transformers 4 are Python of their own. The Llama shape was compared with 4.53.3 and 4.57.6.
std::optional<std::string> version_obstacle(const ModelSpec& model, const Training& training) {
  if (training.transformers >= Version{5, 0, 0}) return std::nullopt;
  const bool llama = model.family == "llama" || model.family == "mistral" || model.family.starts_with("qwen");
  if (!llama) return fmt::format("the {} family under transformers 4", model.family);
  if (training.attention == Attention::Eager) return "eager attention under transformers 4";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> graph_obstacle(const ModelSpec& model, const Training& training, std::int64_t tp) {
  if (!model.has_graph) return fmt::format("the {} family has no operator graph yet", model.family);
  if (tp > 1) return "activations under tensor parallelism";
  if (const auto version = version_obstacle(model, training)) return version;
  if (training.attention == Attention::Math) return "math attention";
  const bool eager = training.attention == Attention::Eager;
  const std::int64_t window = model.dims.sliding_window;
  if (window > 0 && model.family.starts_with("qwen") && (eager || training.seq >= window)) {
    return "a sliding window over some layers only, as the qwen families have it";
  }
  if (eager) return std::nullopt;
  if (window > 0 && training.seq >= window) {
    return fmt::format("sliding-window attention beyond its window of {} tokens", window);
  }
  if (training.attention == Attention::MemoryEfficient && model.dims.kv_heads != model.dims.heads) {
    return "grouped-query attention outside the flash kernel, where the math kernel takes over";
  }
  if (training.compute_dtype() == DType::Float32 && training.attention == Attention::Flash) {
    return "the flash kernel takes no fp32";
  }
  if (model.dims.experts > 0 && training.autocast) return "a mixture's grouped product under autocast";
  return std::nullopt;
}

Graph build_graph(const ModelSpec& model, const GraphOptions& options) {
  DSPLAN_CHECK(model.has_graph, model.family);
  Graph graph = model.family == "gpt2" ? build_gpt2_graph(model, options) : build_decoder_graph(model, options);
  if (!options.checkpointed_modules.empty()) cut_module_regions(graph, model, options.checkpointed_modules);
  return graph;
}

}  // namespace dsplan
