// The graphs of a job: what of it they depend on, one for each sequence length, and where its checkpoints lie in them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "model/graphs/builder.h"
#include "planner/lower/autograd/graph_facts.h"
#include "planner/lower/autograd/recipes.h"

namespace dsplan {

// What the graph of this job depends on.
[[nodiscard]] GraphOptions graph_options(const ModelSpec& model, const Job& job);

// What the operators' recipes depend on beside the graph.
[[nodiscard]] CatalogueOptions catalogue_options(const Job& job);

// Training::checkpoint with its groups: those around modules are known once the graph is.
[[nodiscard]] Checkpointing checkpointing_of(const Training& training, const Graph& graph);

// The graphs of a job, one for each length of Training::seq_list (without a list: one), with their recipes. Behind them
// that of the very first micro-batch, where it is another: under DistributedDataParallel with a static graph, and
// with adapters that FSDP1 has wrapped.
struct Shapes {
  Shapes() = default;
  Shapes(Shapes&&) = default;
  Shapes& operator=(Shapes&&) = default;

  std::vector<std::int64_t> lengths;
  std::vector<Graph> graphs;
  std::vector<RecipeBook> recipes;
  std::vector<GraphFacts> facts;  // Which refer to those.
};
// `tensor_rank`: of those that share each layer; numbers of operators depend on it, no byte does.
[[nodiscard]] Shapes build_shapes(const ModelSpec& model, const Job& job, std::int64_t tensor_rank = 0);

// Those of several jobs of one model, made once where they are the same. Several threads may ask.
class SharedShapes {
 public:
  explicit SharedShapes(const ModelSpec& model);  // It must outlive this.
  ~SharedShapes();
  SharedShapes(const SharedShapes&) = delete;
  SharedShapes& operator=(const SharedShapes&) = delete;
  [[nodiscard]] std::shared_ptr<const Shapes> of(const Job& job);

 private:
  struct Made;
  [[nodiscard]] Made& made(const Job& job);

  const ModelSpec& model_;
  std::mutex looking_;
  std::vector<std::unique_ptr<Made>> made_;
};

}  // namespace dsplan
