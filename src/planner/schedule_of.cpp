#include "planner/schedule_of.h"

#include "core/error.h"
#include "model/graphs/graphs.h"
#include "planner/lowering/lower.h"

namespace dsplan {

Schedule schedule_of(const ModelSpec& model, const Job& job, std::int64_t rank, const std::string& what) {
  if (const auto obstacle = schedule_obstacle(model, job)) {
    throw Refusal(what, "needs a schedule, and none can be made for this job yet: " + *obstacle);
  }
  const Graph graph = build_graph(model, graph_options(model, job));
  const RecipeBook recipes(graph, job.training.level, CatalogueOptions{job.training.torch});
  return lower(model, job, graph, recipes, rank % job.parallelism.dp);
}

std::optional<Bytes> allocator_limit(const Prediction& prediction) {
  if (!prediction.capacity) return std::nullopt;
  const Bytes beside =
      prediction.context.value_or(Bytes(0)) + prediction.communicators.value_or(Bytes(0)) + prediction.reserve;
  return beside < *prediction.capacity ? *prediction.capacity - beside : Bytes(0);
}

}  // namespace dsplan
