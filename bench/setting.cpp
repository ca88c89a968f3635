#include "setting.h"

#include "io/deepspeed.h"
#include "io/file.h"
#include "io/locate.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "planner/lowering/lower.h"
#include "planner/lowering/recipes.h"
#include "planner/resolve.h"

namespace dsplan {

Setting stage3_setting(const std::string& model, std::int64_t ranks) {
  const ModelFiles files = locate_model(model);
  Setting setting;
  setting.model = build_model(files.document, files.name);
  const std::string path = data_dir() + "/configs/deepspeed/zero3.json";
  const DeepSpeedInput deepspeed = read_deepspeed(parse_hjson(path, read_file(path)));
  const Cluster cluster = load_cluster("8xh100");
  Request request;
  const Place place{"bench", 0, 0, {}};
  request.gpus = {ranks, place};
  request.seq = {2048, place};
  request.checkpoint = {"full", place};
  setting.job = resolve(setting.model, request, &deepspeed, nullptr, &cluster);
  return setting;
}

Schedule make_schedule(const Setting& setting, std::int64_t rank) {
  const Graph graph = build_graph(setting.model, graph_options(setting.model, setting.job));
  const RecipeBook recipes(graph);
  return lower(setting.model, setting.job, graph, recipes, rank);
}

}  // namespace dsplan
