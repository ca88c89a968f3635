#include "planner/lower/lower.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "planner/lower/autograd/graph_facts.h"
#include "planner/lower/loop.h"

namespace dsplan {
namespace {

// One of Shapes.
struct ShapeView {
  std::int64_t length;  // -1: the very first micro-batch.
  const GraphFacts* facts;
  [[nodiscard]] const Graph& graph() const { return facts->graph(); }
};

std::vector<ShapeView> views_of(const Shapes& shapes) {
  std::vector<ShapeView> views;
  for (std::size_t at = 0; at < shapes.facts.size(); ++at) {
    const std::int64_t length = at < shapes.lengths.size() ? shapes.lengths[at] : -1;
    views.push_back({length, &shapes.facts[at]});
  }
  return views;
}

// Without an argument that wants a gradient the node of a reentrant checkpoint is no part of autograd's graph
// (torch/utils/checkpoint.py: "None of the inputs have requires_grad=True").
void refuse_unreachable(const Graph& graph, const Checkpointing& checkpointing) {
  for (const CheckpointGroup& group : checkpointing.groups) {
    if (group.kind == CheckpointKind::NonReentrant) continue;
    const Region& region = graph.regions[static_cast<std::size_t>(group.first)];
    if (is_skipped(region)) continue;
    const auto wants = [&](TensorId id) { return graph.tensor(id).requires_grad; };
    if (std::any_of(region.arguments.begin(), region.arguments.end(), wants)) continue;
    throw Refusal("--checkpoint-impl",
                  "reentrant checkpointing, but no argument of the first checkpoint requires a gradient: everything "
                  "inside would get none",
                  "use non_reentrant, or train what comes before");
  }
}

// Enough for ZeRO-3 with its streams: a schedule that outgrows this is copied whole.
std::size_t events_of(const ModelSpec& model, const Graph& graph, bool recomputes, std::int64_t micro_batches) {
  const std::size_t of_node = recomputes ? 16 : 11;
  return graph.nodes.size() * of_node * static_cast<std::size_t>(micro_batches) + model.parameters.size() * 12 + 1024;
}

// `model`: one tensor-parallel rank's part. No steps: init alone.
Schedule lower_part(const ModelSpec& model, const Job& job, const std::vector<ShapeView>& shapes, std::int64_t rank,
                    std::int64_t steps, const Until& until, Recording* recording) {
  // Regions are the same at every length.
  const Checkpointing checkpointing = checkpointing_of(job.training, shapes.front().graph());
  refuse_unreachable(shapes.front().graph(), checkpointing);
  Emitter emitter(
      events_of(model, shapes.front().graph(), !checkpointing.groups.empty(), job.training.grad_accum * steps), until);
  emitter.attach(recording);
  if (job.training.runtime == Runtime::Fsdp2) tell_uses(emitter, kNoBuffer, false);
  const std::unique_ptr<TrainingRuntime> runtime = make_runtime(job, model, rank, emitter);
  Workspaces workspaces(library_workspaces(job), emitter);
  runtime->before_product = [&] { workspaces.before_product(); };
  Loop loop(model, job, rank, emitter, *runtime);
  std::vector<BufferId> buffers = loop.init();

  const bool asynchronous = job.training.deepspeed >= kAsynchronousOffload;
  DeepSpeedCheckpoints deepspeed(checkpointing.deepspeed, asynchronous, job.parallelism.tp, emitter);
  std::optional<OffloadActivations> hooks;
  if (const ActivationOffloading kind = job.training.activation_offloading; kind != ActivationOffloading::None) {
    PlacementOptions placed;
    placed.config = job.allocator;
    placed.config.memory_fraction.reset();
    placed.frees = job.stream_frees;
    loop.hooks = &hooks.emplace(emitter, kind == ActivationOffloading::Streams, placed);
  }
  const Tape::Hooks hooked{loop.hooks, model.child(model.causal, "lm_head")};
  std::vector<std::unique_ptr<Tape>> tapes;
  const auto make_tapes = [&] {
    for (const ShapeView& shape : shapes) {
      tapes.push_back(std::make_unique<Tape>(*shape.facts, checkpointing, emitter, *runtime, buffers, hooked));
      tapes.back()->attach(workspaces);
      tapes.back()->attach(deepspeed);
      if (!checkpointing.stops_early) tapes.back()->recompute_to_the_end();
    }
  };
  if (runtime->replace_buffers) {
    loop.before_first_forward = [&] {
      runtime->replace_buffers(buffers);
      for (const std::unique_ptr<Tape>& tape : tapes) tape->use_buffers(buffers);
    };
  }
  const auto tape_of = [&](std::int64_t batch) -> Tape& {
    if (tapes.empty()) make_tapes();
    const bool first = batch == 0 && shapes.back().length < 0;
    const std::int64_t length = first ? -1 : job.training.seq_of(batch);
    const auto shape =
        std::find_if(shapes.begin(), shapes.end(), [&](const ShapeView& view) { return view.length == length; });
    const auto at = static_cast<std::size_t>(shape - shapes.begin());
    if (recording != nullptr) recording->of_graph(static_cast<std::uint8_t>(at));
    return *tapes[at];
  };
  if (steps > 0) loop.run(steps, tape_of);
  Schedule schedule = emitter.finish();
  schedule.counts = runtime->counts();
  schedule.keeps_results = std::any_of(checkpointing.groups.begin(), checkpointing.groups.end(),
                                       [](const CheckpointGroup& group) { return !group.kept.empty(); });
  return schedule;
}

Schedule lower_views(const ModelSpec& model, const Job& job, const std::vector<ShapeView>& shapes, std::int64_t rank,
                     std::int64_t steps, const Until& until = {}, Recording* recording = nullptr) {
  DSPLAN_CHECK(rank >= 0 && rank < job.parallelism.dp, "rank " + std::to_string(rank));
  const bool cut = job.parallelism.tp > 1;
  const std::optional<ModelSpec> part =
      cut ? std::optional(tensor_parallel_part(model, job.parallelism.tp)) : std::nullopt;
  Schedule schedule = lower_part(cut ? *part : model, job, shapes, rank, steps, until, recording);
  schedule.rank = rank;
  schedule.world = job.parallelism.world;
  schedule.dp = job.parallelism.dp;
  schedule.tp = job.parallelism.tp;
  if (job.training.zero.stage == 3) schedule.dp_inside = job.training.zero.hpz_partition_size;
  if (is_fsdp(job.training.runtime)) {
    const Fsdp& fsdp = job.training.fsdp;
    schedule.dp_inside = fsdp.replicate > 1 ? job.parallelism.dp / fsdp.replicate
                                            : std::max<std::int64_t>(1, fsdp.reshard_after_forward);
  }
  return schedule;
}

}  // namespace

Schedule lower(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank) {
  return lower_views(model, job, views_of(shapes), rank, job.training.steps());
}

std::optional<Schedule> lower_within(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank,
                                     const Until& until) {
  try {
    return lower_views(model, job, views_of(shapes), rank, job.training.steps(), until);
  } catch (const Ended&) {
    return std::nullopt;
  }
}

Schedule lower_init(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank) {
  return lower_views(model, job, views_of(shapes), rank, 0);
}

Schedule lower(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
               std::int64_t rank) {
  DSPLAN_CHECK(job.training.seq_list.empty(), "a list of lengths has a graph for each of them");
  const GraphFacts facts(model, graph, recipes);
  return lower_views(model, job, {{job.training.seq, &facts}}, rank, job.training.steps());
}

Executable lower_to_execute(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank,
                            std::int64_t steps, std::int64_t tensor_rank) {
  DSPLAN_CHECK(steps >= job.training.steps(), "fewer steps than are predicted");
  Recording recording(tensor_rank);
  Executable result;
  result.schedule = lower_views(model, job, views_of(shapes), rank, steps, {}, &recording);
  result.program = recording.finish();
  result.program.device = catalogue_options(job).device;
  return result;
}

}  // namespace dsplan
