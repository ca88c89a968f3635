#include "planner/lowering/lower.h"

#include "core/error.h"
#include "model/graphs/graphs.h"
#include "planner/lowering/runtime_base.h"
#include "planner/lowering/tape.h"

namespace dsplan {
namespace {

// The model's own buffers, whole on every rank.
std::vector<BufferId> load_buffers(const ModelSpec& model, const Training& training, Emitter& emitter) {
  std::vector<BufferId> made;
  for (const ModelBuffer& buffer : model.buffers) {
    const DType dtype = buffer.follows_model_dtype ? training.dtype : buffer.dtype;
    made.push_back(emitter.allocate(storage(buffer.shape.elements(), dtype), dtype, Role::ModuleBuffers, "buffer"));
    emitter.begin();
    emitter.write(made.back());
    emitter.compute("load buffer");
  }
  return made;
}

class Loop {
 public:
  Loop(const Job& job, Emitter& emitter, TrainingRuntime& runtime, Tape& tape)
      : job_(job), emitter_(emitter), runtime_(runtime), tape_(tape) {}

  void optimizer_step(Stretch stretch) {
    emitter_.mark(Moment::StretchBegins, stretch);
    for (std::int64_t k = 0; k < job_.training.grad_accum; ++k) micro_batch(stretch, static_cast<std::int32_t>(k));
    emitter_.at(Pass::Step);
    emitter_.mark(Moment::StepBegins, stretch);
    runtime_.step(stretch == Stretch::FirstStep);
    emitter_.mark(Moment::StepEnds, stretch);
    emitter_.mark(Moment::StretchEnds, stretch);
  }

 private:
  void micro_batch(Stretch stretch, std::int32_t k) {
    const bool boundary = k + 1 == job_.training.grad_accum;
    emitter_.at(Pass::Forward);
    emitter_.mark(Moment::MicroBatchBegins, stretch, k);
    tape_.make_batch();
    runtime_.forward_begins();
    emitter_.mark(Moment::ForwardBegins, stretch, k);
    tape_.forward();
    emitter_.mark(Moment::ForwardEnds, stretch, k);
    emitter_.at(Pass::Backward);
    runtime_.backward_begins(boundary);
    emitter_.mark(Moment::BackwardBegins, stretch, k);
    tape_.backward();
    emitter_.at(Pass::Backward);
    runtime_.backward_ends(boundary);
    tape_.drop_loss();  // A framework's backward() reduces before it returns to the loop.
    emitter_.mark(Moment::BackwardEnds, stretch, k);
  }

  const Job& job_;
  Emitter& emitter_;
  TrainingRuntime& runtime_;
  Tape& tape_;
};

}  // namespace

std::optional<std::string> schedule_obstacle(const ModelSpec& model, const Job& job) {
  const Training& training = job.training;
  if (const auto graph = graph_obstacle(model, training, job.parallelism.tp)) return graph;
  if (job.parallelism.sp > 1) return "sequence parallelism";
  if (job.parallelism.ep > 1) return "expert parallelism";
  if (training.runtime == Runtime::DeepSpeed) {
    if (training.zero.offload_optimizer.device != OffloadDevice::None) return "optimizer offload";
    if (training.zero.offload_param.device != OffloadDevice::None) return "parameter offload";
    if (training.zero.stage < 3 && training.grad_accum_dtype != training.dtype) {
      return "gradient accumulation in another dtype than the model's (BF16_Optimizer)";
    }
  }
  return std::nullopt;
}

GraphOptions graph_options(const ModelSpec& model, const Job& job) {
  GraphOptions options;
  options.micro_batch = job.training.micro_batch;
  options.seq = job.training.seq;
  options.dtype = job.training.dtype;
  options.autocast = job.training.autocast;
  options.outputs_to_fp32 = job.training.outputs_to_fp32;
  options.attention =
      job.training.attention == Attention::MemoryEfficient ? AttentionKernel::MemoryEfficient : AttentionKernel::Flash;
  options.stage3_linear = job.training.runtime == Runtime::DeepSpeed && job.training.zero.stage == 3;
  options.trainable.assign(model.parameters.size(), false);
  for (const Leaf& leaf : leaves_of(model, job.training)) {
    options.trainable[static_cast<std::size_t>(leaf.id)] = leaf.trainable;
  }
  return options;
}

Schedule lower(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
               std::int64_t rank) {
  DSPLAN_CHECK(rank >= 0 && rank < job.parallelism.dp, "rank " + std::to_string(rank));
  const std::size_t micro_batches = static_cast<std::size_t>(job.training.grad_accum) * 2;
  const std::size_t recomputed = job.training.checkpoint.groups.empty() ? 0 : 4;
  Emitter emitter(graph.nodes.size() * (9 + recomputed) * micro_batches + model.parameters.size() * 12 + 1024);
  emitter.at(Pass::Setup);
  emitter.mark(Moment::StretchBegins, Stretch::Init);
  const std::unique_ptr<TrainingRuntime> runtime = make_runtime(job, model, rank, emitter);
  std::vector<BufferId> buffers = load_buffers(model, job.training, emitter);
  runtime->initialise();
  emitter.mark(Moment::StretchEnds, Stretch::Init);

  Tape tape(model, graph, recipes, job.training.checkpoint, emitter, *runtime, std::move(buffers));
  Loop loop(job, emitter, *runtime, tape);
  loop.optimizer_step(Stretch::FirstStep);
  loop.optimizer_step(Stretch::SecondStep);
  Schedule schedule = emitter.finish();
  schedule.rank = rank;
  schedule.world = job.parallelism.world;
  schedule.dp = job.parallelism.dp;
  return schedule;
}

}  // namespace dsplan
