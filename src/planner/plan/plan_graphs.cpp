#include "planner/plan/plan_graphs.h"

#include <algorithm>
#include <utility>

#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "model/graphs/graphs.h"
#include "planner/lower/lower.h"

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
  if (options.casts_inputs) key += " cast";
  if (options.casts_given) key += " given";
  if (job.training.model_code == ModelCode::Torchtitan && options.counts_on_device) key += " counts";
  if (stage3 && job.parallelism.dp == 1) key += " alone";  // Nothing is gathered.
  for (const std::string& module : options.checkpointed_modules) key += " " + module;
  return key;
}

}  // namespace

PlanGraph& PlanGraphs::of(const Job& job) {
  const GraphOptions options = graph_options(model_, job);
  const std::string key = formatted("{} {}", options.micro_batch, graph_key(options, job));
  {
    const std::lock_guard<std::mutex> lock(making_);
    const auto known = made_.find(key);
    if (known != made_.end()) return known->second;
  }
  // Modules and arguments on the host are looked up in the graph itself.
  const Checkpointing& checkpoint = job.training.checkpoint;
  const bool looked_up = !checkpoint.modules.empty() || (checkpoint.by_deepspeed() && checkpoint.deepspeed.cpu);
  PlanGraph made;
  made.of_few = few_.has_value() && !looked_up;
  if (made.of_few) {
    made.graph = build_graph(few_->five, graph_options(few_->five, job));
    const auto layers = static_cast<std::size_t>(model_.dims.layers);
    std::optional<GraphTimes> times = repeated(graph_times(made.graph, job.training, Rates::of(job)), layers);
    made.of_few = times.has_value();
    if (times) made.times = std::move(*times);
  }
  if (!made.of_few) {
    made.graph = build_graph(model_, options);
    made.times = graph_times(made.graph, job.training, Rates::of(job));
  }
  const std::lock_guard<std::mutex> lock(making_);
  return made_.emplace(key, std::move(made)).first->second;
}

namespace {

ActivationBytes activations_in(const ModelSpec& model, const Job& job, const Graph& graph) {
  const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
  return activation_bytes(model, job, graph, recipes);
}

}  // namespace

const ActivationBytes& PlanGraphs::activations(PlanGraph& graph, const Job& job) const {
  if (graph.activations) return *graph.activations;
  if (graph.of_few) {
    Job like = job;
    like.training.checkpoint.groups.resize(std::min<std::size_t>(1, job.training.checkpoint.groups.size()));
    const auto layers = static_cast<std::size_t>(model_.dims.layers);
    graph.activations = repeated(activations_in(few_->five, like, graph.graph), layers, *few_, job);
    graph.repeats = graph.activations.has_value();
    if (graph.repeats) return *graph.activations;
    graph.activations = activations_in(model_, job, build_graph(model_, graph_options(model_, job)));
  } else {
    graph.activations = activations_in(model_, job, graph.graph);
  }
  return *graph.activations;
}

namespace {

// At most `most` recompute plans that no other beats.
std::vector<Checkpointing> plans_of(const Chain& chain, const Checkpointing& like, std::size_t most) {
  std::vector<Checkpointing> plans;
  for (SegmentationChoice& choice : front_of(chain, like, most, kQuickLabels)) {
    plans.push_back(std::move(choice.checkpoint));
  }
  return plans;
}

}  // namespace

PlanGraphs::Front PlanGraphs::front_named(const Job& smallest, std::size_t most) const {
  const GraphOptions options = graph_options(model_, smallest);
  return {smallest, most, formatted("{} {} {}", most, options.micro_batch, graph_key(options, smallest))};
}

std::vector<Checkpointing> PlanGraphs::solved(const Front& front) {
  PlanGraph& made = of(front.job);
  const ActivationBytes& sizes = activations(made, front.job);
  const bool few = made.of_few && !made.repeats;  // Its regions are not those of the model.
  const Chain chain = chain_of(
      model_, front.job, few ? build_graph(model_, graph_options(model_, front.job)) : made.graph, sizes, made.times);
  std::vector<Checkpointing> plans = plans_of(chain, front.job.training.checkpoint, front.most);
  for (Checkpointing& plan : plans) cut_at_lists(plan, model_);
  return plans;
}

const std::vector<Checkpointing>& PlanGraphs::front(const Front& asked, std::span<const Front> others) {
  const auto known = fronts_.find(asked.name);
  if (known != fronts_.end()) return known->second;
  std::map<std::string, const Front*> unknown{{asked.name, &asked}};
  for (const Front& one : others) {
    if (unknown.size() < processors() && !fronts_.contains(one.name)) unknown.emplace(one.name, &one);
  }
  std::vector<const Front*> each;
  for (const auto& [name, front] : unknown) each.push_back(front);
  std::vector<std::optional<std::vector<Checkpointing>>> plans(each.size());
  in_parallel(each.size(), [&](std::size_t at) {
    try {
      plans[at] = solved(*each[at]);
    } catch (const std::exception&) {
      if (each[at] == &asked) throw;  // That of others is thrown to whoever asks for it.
    }
  });
  for (std::size_t at = 0; at < each.size(); ++at) {
    if (plans[at]) fronts_.emplace(each[at]->name, std::move(*plans[at]));
  }
  return fronts_.at(asked.name);
}

}  // namespace dsplan::detail
