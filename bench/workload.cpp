#include "workload.h"

#include "io/deepspeed.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/lower/autograd/recipes.h"
#include "planner/lower/lower.h"
#include "planner/resolve/resolve.h"

namespace dsplan {

Workload stage3_workload(const std::string& model, std::int64_t ranks) {
  const ModelFiles files = locate_model(model);
  Workload workload;
  workload.model = build_model(files.document, files.name);
  const std::string path = data_dir() + "/configs/deepspeed/zero3.json";
  const DeepSpeedInput deepspeed = read_deepspeed(parse_hjson(path, read_file(path)));
  const Cluster cluster = load_cluster("8xh100");
  Request request;
  const Place place{"bench", 0, 0, {}};
  request.gpus = {ranks, place};
  request.seq = {2048, place};
  request.checkpoint = {"full", place};
  workload.job = resolve(workload.model, request, &deepspeed, nullptr, &cluster);
  return workload;
}

Schedule make_schedule(const Workload& workload, std::int64_t rank) {
  const Graph graph = build_graph(workload.model, graph_options(workload.model, workload.job));
  const RecipeBook recipes(graph);
  return lower(workload.model, workload.job, graph, recipes, rank);
}

}  // namespace dsplan
