// What candidates of a search share: graphs with their times and sizes, and fronts of segmentations.
#include <algorithm>
#include <utility>

#include "core/format.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"
#include "planner/plan/evaluator.h"

namespace dsplan::detail {
namespace {

// What a graph and what is kept of it depend on beside its micro-batch, as far as candidates differ. Where everything
// is trained, the embeddings' output has a gradient whether something is checkpointed or not. ZeRO-3 leaves gradients
// that are larger than its bucket where they are.
std::string graph_key(const GraphOptions& options, const Job& job) {
  const bool all = std::find(options.trainable.begin(), options.trainable.end(), false) == options.trainable.end();
  const bool stage3 = job.training.runtime == Runtime::DeepSpeed && job.training.zero.stage == 3;
  std::string key = formatted("{} {} {} {} {} {} {} {} {} {}", job.parallelism.gpus_per_node, options.seq, options.tp,
                              name(options.loss), options.loss_chunks, options.stage3_linear, options.narrow_tables,
                              options.inputs_require_grad && !all, options.one_dtype,
                              stage3 ? job.training.zero.reduce_bucket_size.value() : 0);
  if (stage3 && job.parallelism.dp == 1) key += " alone";  // Nothing is gathered.
  for (const std::string& module : options.checkpointed_modules) key += " " + module;
  return key;
}

}  // namespace

PlanGraph& Evaluator::graph_of(const Job& job) {
  const GraphOptions options = graph_options(inputs_.model, job);
  const std::string key = formatted("{} {}", options.micro_batch, graph_key(options, job));
  const auto known = graphs_.made.find(key);
  if (known != graphs_.made.end()) return known->second;
  // Modules and arguments on the host are looked up in the graph itself.
  const Checkpointing& checkpoint = job.training.checkpoint;
  const bool looked_up = !checkpoint.modules.empty() || (checkpoint.by_deepspeed() && checkpoint.deepspeed.cpu);
  PlanGraph made;
  made.of_few = graphs_.few.has_value() && !looked_up;
  if (made.of_few) {
    made.graph = build_graph(graphs_.few->five, graph_options(graphs_.few->five, job));
    const auto layers = static_cast<std::size_t>(inputs_.model.dims.layers);
    std::optional<GraphTimes> times = repeated(graph_times(made.graph, job.training, Rates::of(job)), layers);
    made.of_few = times.has_value();
    if (times) made.times = std::move(*times);
  }
  if (!made.of_few) {
    made.graph = build_graph(inputs_.model, options);
    made.times = graph_times(made.graph, job.training, Rates::of(job));
  }
  return graphs_.made.emplace(key, std::move(made)).first->second;
}

namespace {

ActivationBytes activations_in(const ModelSpec& model, const Job& job, const Graph& graph) {
  const RecipeBook recipes(graph, job.training.level, CatalogueOptions{job.training.torch});
  return activation_bytes(model, job, graph, recipes);
}

}  // namespace

const ActivationBytes& Evaluator::activations_of(PlanGraph& graph, const Job& job) const {
  if (graph.activations) return *graph.activations;
  if (graph.of_few) {
    Job like = job;
    like.training.checkpoint.groups.resize(std::min<std::size_t>(1, job.training.checkpoint.groups.size()));
    const auto layers = static_cast<std::size_t>(inputs_.model.dims.layers);
    graph.activations = repeated(activations_in(graphs_.few->five, like, graph.graph), layers, *graphs_.few, job);
    if (graph.activations) return *graph.activations;
    graph.activations =
        activations_in(inputs_.model, job, build_graph(inputs_.model, graph_options(inputs_.model, job)));
  } else {
    graph.activations = activations_in(inputs_.model, job, graph.graph);
  }
  return *graph.activations;
}

// Those of the front whose groups no listed segmentation has.
const Evaluator::Front& Evaluator::front_of(const PlanFamily& family) {
  Job job = family.job;
  job.training.micro_batch = smallest_batch_;
  const GraphOptions options = graph_options(inputs_.model, job);
  const std::string key = graph_key(options, job);
  const auto known = fronts_.find(key);
  if (known != fronts_.end()) return known->second;
  const Graph graph = build_graph(inputs_.model, options);
  const RecipeBook recipes(graph, job.training.level, CatalogueOptions{job.training.torch});
  const GraphTimes times = graph_times(graph, job.training, Rates::of(job));
  std::vector<std::shared_ptr<const Checkpointing>> listed;
  std::string ignored;
  for (const std::string& text : space_[Axis::Checkpoint].values) {
    if (text != "auto") listed.push_back(segmentation(family, text, ignored));
  }
  Front front;
  for (SegmentationChoice& choice : segmentation_front(inputs_.model, job, graph, recipes, times, thinned_)) {
    const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](const auto& one) {
      return one != nullptr && one->modules.empty() && one->groups == choice.checkpoint.groups;
    });
    if (!is_listed) front.push_back(std::make_shared<Checkpointing>(std::move(choice.checkpoint)));
  }
  return fronts_.emplace(key, std::move(front)).first->second;
}

std::vector<Candidate> Evaluator::expanded(const Candidate& candidate) {
  PlanFamily& family = families_[candidate.family];
  Training before = family.job.training;
  family.job.training.micro_batch = candidate.micro_batch;
  family.job.training.grad_accum = candidate.grad_accum;
  std::vector<Candidate> made;
  for (const std::shared_ptr<const Checkpointing>& choice : front_of(family)) {
    Candidate one = candidate;
    one.segmented = choice;
    one.from_front = true;
    one.time.reset();
    family.job.training.checkpoint = *choice;
    judge_by_formula(family, one, false);
    made.push_back(std::move(one));
  }
  family.job.training = std::move(before);
  return made;
}

}  // namespace dsplan::detail
