#include "planner/lower/lower.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "core/error.h"
#include "model/graphs/graphs.h"
#include "planner/lower/runtime_base.h"
#include "planner/lower/tape.h"
#include "planner/lower/zero3.h"

namespace dsplan {
namespace {

// zero.Init wraps the constructors of tensors, so that tables come in the model's dtype; elsewhere DeepSpeed leaves
// them as they are (partition_parameters.py, zero_wrapper_for_fp_tensor_constructor).
DType made_in(const ModelBuffer& buffer, const Training& training) {
  const bool wrapped = training.under_zero_init() && buffer.dtype == DType::Float32;
  return buffer.follows_model_dtype || wrapped ? training.dtype : buffer.dtype;
}

// The model's own buffers, whole on every rank; kNoBuffer where this transformers has none.
std::vector<BufferId> make_buffers(const ModelSpec& model, const Training& training, Space space, Emitter& emitter) {
  std::vector<BufferId> made;
  for (const ModelBuffer& buffer : model.buffers) {
    if (!buffer_exists(buffer, training.transformers)) {
      made.push_back(kNoBuffer);
      continue;
    }
    const DType dtype = made_in(buffer, training);
    made.push_back(emitter.allocate(storage(buffer.shape.elements(), dtype), dtype, Role::ModuleBuffers, "buffer",
                                    kNone, false, space));
    emitter.begin();
    emitter.write(made.back());
    emitter.compute("load buffer");
  }
  return made;
}

// The whole model in the host's memory, if it is made there; its buffers are moved, the parameters will be.
std::vector<BufferId> load_model(const ModelSpec& model, const Training& training, TrainingRuntime& runtime,
                                 Emitter& emitter) {
  const bool on_host = training.model_init == ModelInit::Host;
  const std::vector<BufferId> there = make_buffers(model, training, on_host ? Space::Pageable : Space::Device, emitter);
  if (Recording* recording = emitter.recording()) recording->module_buffers(there);
  if (!on_host) return there;
  runtime.build_on_host();
  std::vector<BufferId> here;
  for (const BufferId source : there) {
    here.push_back(source == kNoBuffer ? kNoBuffer : move_to_device(emitter, source, Role::ModuleBuffers, "buffer"));
  }
  return here;
}

class Loop {
 public:
  // `tape_of`: the tape of a micro-batch, counted from the first step's first.
  using TapeOf = std::function<Tape&(std::int64_t)>;
  Loop(const Job& job, Emitter& emitter, TrainingRuntime& runtime, TapeOf tape_of)
      : job_(job), emitter_(emitter), runtime_(runtime), tape_of_(std::move(tape_of)) {}

  void optimizer_step(Stretch stretch) {
    emitter_.mark(Moment::StretchBegins, stretch);
    for (std::int64_t k = 0; k < job_.training.grad_accum; ++k) micro_batch(stretch, static_cast<std::int32_t>(k));
    emitter_.at(Pass::Step);
    emitter_.mark(Moment::StepBegins, stretch);
    runtime_.step(stretch == Stretch::FirstStep);
    print("Engine after step");
    emitter_.mark(Moment::StepEnds, stretch);
    emitter_.mark(Moment::StretchEnds, stretch);
  }

 private:
  void micro_batch(Stretch stretch, std::int32_t k) {
    const bool boundary = k + 1 == job_.training.grad_accum;
    Tape& tape = tape_of_(next_++);
    emitter_.at(Pass::Forward);
    emitter_.mark(Moment::MicroBatchBegins, stretch, k);
    tape.make_batch();
    if (before_ != nullptr && before_ != &tape) before_->drop_batch();
    before_ = &tape;
    print("Engine before forward");
    runtime_.forward_begins();
    emitter_.mark(Moment::ForwardBegins, stretch, k);
    tape.forward();
    emitter_.mark(Moment::ForwardEnds, stretch, k);
    emitter_.at(Pass::Backward);
    emitter_.mark(Moment::BackwardBegins, stretch, k);
    const std::vector<BufferId> scaled = scale_loss(tape.loss());
    print("Engine before backward");
    runtime_.backward_begins(boundary);
    tape.backward();
    emitter_.at(Pass::Backward);
    runtime_.backward_ends(boundary);
    print("Engine after backward");
    for (const BufferId buffer : scaled) emitter_.release(buffer, Reason::PythonFrame);
    tape.drop_loss();  // A framework's backward() reduces before it returns to the loop.
    emitter_.mark(Moment::BackwardEnds, stretch, k);
    print("Engine before step");
    if (!boundary) print("Engine after step");
  }

  // engine.backward: the loss by the number of micro-batches, and under ZeRO times the loss scale, whatever the two
  // are; BF16_Optimizer has no loss scale. Both stay until it returns.
  std::vector<BufferId> scale_loss(BufferId loss) {
    std::vector<BufferId> made;
    if (job_.training.runtime != Runtime::DeepSpeed) return made;
    const bool scales = job_.training.zero.stage > 0 && !uses_bf16_optimizer(job_.training);
    for (const char* label : {"loss by micro-batches", "scaled loss"}) {
      if (made.size() == 1 && !scales) break;
      const BufferId from = made.empty() ? loss : made.back();
      made.push_back(emitter_.allocate(emitter_.size(loss), emitter_.dtype(loss), Role::Temporaries, label));
      emitter_.begin();
      emitter_.read(from);
      emitter_.write(made.back());
      emitter_.compute(label);
    }
    emitter_.mark_scratch(made.back());
    return made;
  }

  // engine.step() is called for every micro-batch.
  void print(const char* text) {
    if (job_.training.runtime == Runtime::DeepSpeed) emitter_.print(text);
  }

  const Job& job_;
  Emitter& emitter_;
  TrainingRuntime& runtime_;
  TapeOf tape_of_;
  std::int64_t next_ = 0;
  Tape* before_ = nullptr;  // Whose batch is held.
};

}  // namespace

namespace {

// Sums of gradients in another dtype than the model's, below ZeRO-3.
std::optional<std::string> accumulation_obstacle(const Training& training) {
  const Zero& zero = training.zero;
  if (zero.stage == 0 || zero.stage == 3 || training.grad_accum_dtype == training.dtype) return std::nullopt;
  if (uses_bf16_optimizer(training)) return std::nullopt;
  if (training.grad_accum_dtype != DType::Float32) return "gradient accumulation in less than fp32";
  if (training.deepspeed < Version{0, 19, 8}) {
    // ZeRO-2 kept 16 bits whatever was asked for. ZeRO-1 summed each rank's own gradients in fp32, and reduced casts
    // that it then let go of.
    if (zero.stage == 2) return std::nullopt;
    return "gradient accumulation in fp32 with ZeRO-1 before DeepSpeed 0.19.8";
  }
  if (!zero.contiguous_gradients) return "gradient accumulation in fp32 without contiguous_gradients";
  return std::nullopt;
}

std::optional<std::string> offload_obstacle(const Training& training) {
  if (training.zero.stage == 3) {
    // Since 0.19.4 Init(module=...) replaces nn.functional.linear too (#8189). PyTorch's own keeps a view of the weight
    // for backward, and with it what was gathered.
    if (!training.under_zero_init() && training.deepspeed < Version{0, 19, 4}) {
      return "a model built outside zero.Init before DeepSpeed 0.19.4";
    }
    return stage3_offload_obstacle(training);
  }
  if (training.zero.offload_optimizer.device == OffloadDevice::None) return std::nullopt;
  if (training.deepspeed < Version{0, 14, 4}) return "optimizer offload below ZeRO-3 before DeepSpeed 0.14.4";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> schedule_obstacle(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (const auto graph = graph_obstacle(model, training, job.parallelism.tp)) return graph;
  if (model.causal != 0 && !training.checkpoint.groups.empty() && training.transformers < Version{5, 0, 0}) {
    return "checkpointed adapters under transformers 4";
  }
  if (job.parallelism.tp > 1 && training.zero.hpz_partition_size > 1) {
    return "zero_hpz_partition_size under tensor parallelism";
  }
  if (job.parallelism.sp > 1) return "sequence parallelism";
  if (job.parallelism.ep > 1) return "expert parallelism";
  if (training.runtime == Runtime::DeepSpeed) {
    if (const auto offload = offload_obstacle(training)) return offload;
    if (training.zero.stage == 0 && training.grad_accum_dtype != training.dtype) {
      return "bf16 without ZeRO before DeepSpeed 0.17.6 (BF16_Optimizer)";
    }
    // Before, the 16-bit gradients that had been added to the sums stayed until the step.
    if (training.immediate_grad_update && uses_bf16_optimizer(training) && training.deepspeed < Version{0, 19, 8}) {
      return "immediate gradient updates before DeepSpeed 0.19.8";
    }
    if (const auto other = accumulation_obstacle(training)) return other;
    const bool gathers_after_step = training.zero.stage == 1 || training.zero.stage == 2;
    if (gathers_after_step && job.parallelism.dp > 1 && training.deepspeed < Version{0, 12, 4}) {
      return "weights gathered in shards before DeepSpeed 0.12.4";
    }
  }
  return std::nullopt;
}

GraphOptions graph_options(const ModelSpec& model, const Job& job) {
  GraphOptions options;
  options.micro_batch = job.training.micro_batch;
  options.seq = job.training.seq;
  options.dtype = job.training.dtype;
  options.one_dtype = job.training.runtime == Runtime::DeepSpeed;
  options.autocast = job.training.autocast;
  options.outputs_to_fp32 = job.training.outputs_to_fp32;
  options.attention =
      job.training.attention == Attention::MemoryEfficient ? AttentionKernel::MemoryEfficient : AttentionKernel::Flash;
  options.eager_attention = job.training.attention == Attention::Eager;
  options.math_attention = job.training.attention == Attention::Math;
  options.loss = job.training.loss;
  options.loss_chunks = job.training.loss_chunks;
  options.torch = job.training.torch;
  options.transformers = job.training.transformers;
  // PreTrainedModel.gradient_checkpointing_enable does so for whatever it embeds, since transformers 5.
  options.inputs_require_grad =
      !job.training.checkpoint.groups.empty() && job.training.transformers >= Version{5, 0, 0};
  options.narrow_tables = job.training.under_zero_init();
  options.tp = job.parallelism.tp;
  options.stage3_linear = job.training.runtime == Runtime::DeepSpeed && job.training.zero.stage == 3;
  options.checkpointed_modules = job.training.checkpoint.modules;
  options.trainable.assign(model.parameters.size(), false);
  for (const Leaf& leaf : leaves_of(model, job.training)) {
    options.trainable[static_cast<std::size_t>(leaf.id)] = leaf.trainable;
  }
  return options;
}

Checkpointing checkpointing_of(const Training& training, const Graph& graph) {
  Checkpointing result = training.checkpoint;
  if (result.modules.empty()) return result;
  for (std::size_t at = 0; at < graph.regions.size(); ++at) {
    const auto id = static_cast<std::int32_t>(at);
    result.groups.push_back({id, id, result.kind, result.preserve_rng_state});
  }
  return result;
}

namespace {

// Without an argument that wants a gradient the node of a reentrant checkpoint is no part of autograd's graph
// (torch/utils/checkpoint.py: "None of the inputs have requires_grad=True").
void refuse_unreachable(const Graph& graph, const Checkpointing& checkpointing) {
  for (const CheckpointGroup& group : checkpointing.groups) {
    if (group.kind == CheckpointKind::NonReentrant) continue;
    const Region& region = graph.regions[static_cast<std::size_t>(group.first)];
    const auto wants = [&](TensorId id) { return graph.tensor(id).requires_grad; };
    if (std::any_of(region.arguments.begin(), region.arguments.end(), wants)) continue;
    throw Refusal("--checkpoint-impl",
                  "reentrant checkpointing, but no argument of the first checkpoint requires a gradient: everything "
                  "inside would get none",
                  "use non_reentrant, or train what comes before");
  }
}

}  // namespace

Shapes build_shapes(const ModelSpec& model, const Job& job, std::int64_t tensor_rank) {
  Shapes shapes;
  shapes.lengths = job.training.seq_list;
  if (shapes.lengths.empty()) shapes.lengths.push_back(job.training.seq);
  std::sort(shapes.lengths.begin(), shapes.lengths.end());
  shapes.lengths.erase(std::unique(shapes.lengths.begin(), shapes.lengths.end()), shapes.lengths.end());
  GraphOptions options = graph_options(model, job);
  options.tp_rank = tensor_rank;
  for (std::int64_t length : shapes.lengths) {
    options.seq = length;
    shapes.graphs.push_back(build_graph(model, options));
    shapes.recipes.emplace_back(shapes.graphs.back(), job.training.level, CatalogueOptions{job.training.torch});
  }
  return shapes;
}

namespace {

struct View {
  std::int64_t length;
  const Graph* graph;
  const RecipeBook* recipes;
};

Schedule lower_shapes(const ModelSpec& whole, const Job& job, const std::vector<View>& shapes, std::int64_t rank,
                      std::int64_t steps, Recording* recording = nullptr) {
  const bool cut = job.parallelism.tp > 1;
  const std::optional<ModelSpec> part =
      cut ? std::optional(tensor_parallel_part(whole, job.parallelism.tp)) : std::nullopt;
  const ModelSpec& model = cut ? *part : whole;
  DSPLAN_CHECK(rank >= 0 && rank < job.parallelism.dp, "rank " + std::to_string(rank));
  const auto micro_batches = static_cast<std::size_t>(job.training.grad_accum * steps);
  // Regions are the same at every length.
  const Checkpointing checkpointing = checkpointing_of(job.training, *shapes.front().graph);
  refuse_unreachable(*shapes.front().graph, checkpointing);
  // Enough for ZeRO-3 with its streams: a schedule that outgrows this is copied whole.
  const std::size_t recomputed = checkpointing.groups.empty() ? 0 : 5;
  Emitter emitter(shapes.front().graph->nodes.size() * (11 + recomputed) * micro_batches +
                  model.parameters.size() * 12 + 1024);
  emitter.attach(recording);
  emitter.at(Pass::Setup);
  emitter.mark(Moment::StretchBegins, Stretch::Init);
  const std::unique_ptr<TrainingRuntime> runtime = make_runtime(job, model, rank, emitter);
  const std::vector<BufferId> buffers = load_model(model, job.training, *runtime, emitter);
  runtime->initialise();
  emitter.mark(Moment::StretchEnds, Stretch::Init);

  Workspaces workspaces(library_workspaces(job), emitter);
  const bool asynchronous = job.training.deepspeed >= kAsynchronousOffload;
  DeepSpeedCheckpoints deepspeed(checkpointing.deepspeed, asynchronous, job.parallelism.tp, emitter);
  std::vector<std::unique_ptr<Tape>> tapes;
  for (const View& shape : shapes) {
    tapes.push_back(
        std::make_unique<Tape>(model, *shape.graph, *shape.recipes, checkpointing, emitter, *runtime, buffers));
    tapes.back()->attach(workspaces);
    tapes.back()->attach(deepspeed);
  }
  Loop loop(job, emitter, *runtime, [&](std::int64_t k) -> Tape& {
    const std::int64_t length = job.training.seq_of(k);
    const auto at = std::find_if(shapes.begin(), shapes.end(), [&](const View& v) { return v.length == length; });
    if (recording != nullptr) recording->of_graph(static_cast<std::uint8_t>(at - shapes.begin()));
    return *tapes[static_cast<std::size_t>(at - shapes.begin())];
  });
  loop.optimizer_step(Stretch::FirstStep);
  for (std::int64_t k = 2; k < job.training.steps(); ++k) loop.optimizer_step(Stretch::MiddleStep);
  loop.optimizer_step(Stretch::SecondStep);
  // Behind what is predicted, so that the step that is predicted is the one that is measured: under ZeRO-3 without
  // accumulation the second step compares the trace that the first recorded, and a third has nothing to compare.
  for (std::int64_t k = job.training.steps(); k < steps; ++k) loop.optimizer_step(Stretch::MiddleStep);
  if (runtime->saves()) {
    emitter.at(Pass::Save);
    emitter.mark(Moment::StretchBegins, Stretch::Save);
    runtime->save();
    emitter.mark(Moment::StretchEnds, Stretch::Save);
  }
  Schedule schedule = emitter.finish();
  schedule.counts = runtime->counts();
  schedule.rank = rank;
  schedule.world = job.parallelism.world;
  schedule.dp = job.parallelism.dp;
  schedule.tp = job.parallelism.tp;
  if (job.training.zero.stage == 3) schedule.dp_inside = job.training.zero.hpz_partition_size;
  schedule.keeps_results = std::any_of(checkpointing.groups.begin(), checkpointing.groups.end(),
                                       [](const CheckpointGroup& group) { return !group.kept.empty(); });
  return schedule;
}

}  // namespace

namespace {

std::vector<View> views_of(const Shapes& shapes) {
  std::vector<View> views;
  for (std::size_t at = 0; at < shapes.lengths.size(); ++at) {
    views.push_back({shapes.lengths[at], &shapes.graphs[at], &shapes.recipes[at]});
  }
  return views;
}

}  // namespace

Schedule lower(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank) {
  return lower_shapes(model, job, views_of(shapes), rank, job.training.steps());
}

Executable lower_to_execute(const ModelSpec& model, const Job& job, const Shapes& shapes, std::int64_t rank,
                            std::int64_t steps, std::int64_t tensor_rank) {
  DSPLAN_CHECK(steps >= job.training.steps(), "fewer steps than are predicted");
  Recording recording(tensor_rank);
  Executable result;
  result.schedule = lower_shapes(model, job, views_of(shapes), rank, steps, &recording);
  result.program = recording.finish();
  return result;
}

Schedule lower(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
               std::int64_t rank) {
  DSPLAN_CHECK(job.training.seq_list.empty(), "a list of lengths has a graph for each of them");
  return lower_shapes(model, job, {{job.training.seq, &graph, &recipes}}, rank, job.training.steps());
}

}  // namespace dsplan
