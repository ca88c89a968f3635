#include "planner/lower/shapes.h"

#include <algorithm>

#include "core/format.h"
#include "model/graphs/graphs.h"
#include "model/parts.h"
#include "planner/fsdp/flat_facts.h"
#include "planner/fsdp/fsdp_facts.h"
#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {

namespace {

// Some of the layers of a tower that brings tables in fp32 to each of them.
bool shards_tower_layers(const ModelSpec& model, const Fsdp& fsdp) {
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  if (tower == nullptr || tower->merge == 0 || tower->projection != ProjectorKind::Merged) return false;
  const std::vector<FsdpGroup> groups = fsdp_groups(model, fsdp);
  return std::any_of(groups.begin(), groups.end(), [&](const FsdpGroup& group) {
    const Module& module = model.module_at(group.modules.front());
    return module.layer != kNone && module.path.find(formatted("{}.blocks.", tower->module)) != std::string::npos;
  });
}

bool under_ddp(const Job& job) { return job.training.runtime == Runtime::PyTorch && job.parallelism.dp > 1; }

// cuDNN takes no mask that wants a gradient, as t5's zeros do where blocks are checkpointed.
AttentionKernel kernel_of(Attention attention, bool gradients_of_zeros) {
  switch (attention) {
    case Attention::MemoryEfficient:
    case Attention::MathOrEfficient: return AttentionKernel::MemoryEfficient;
    case Attention::CuDnn: return AttentionKernel::CuDnn;
    case Attention::MathOrCuDnn: return gradients_of_zeros ? AttentionKernel::MemoryEfficient : AttentionKernel::CuDnn;
    default: return AttentionKernel::Flash;
  }
}

// PreTrainedModel.gradient_checkpointing_enable makes whatever it embeds require a gradient, since transformers 5;
// LLaMA-Factory's does so to what layers are given.
void choose_leaves(const Training& training, GraphOptions& options) {
  const bool checkpoints = !training.checkpoint.groups.empty();
  options.layers_require_grad = checkpoints && training.layers_require_grads;
  const bool embeds = checkpoints && !training.layers_require_grads && training.transformers >= Version{5, 0, 0};
  options.inputs_require_grad = training.input_require_grads || embeds;
}

}  // namespace

GraphOptions graph_options(const ModelSpec& model, const Job& job) {
  GraphOptions options;
  options.micro_batch = job.training.rows();
  options.seq = job.training.seq;
  options.target_seq = job.training.target_seq;
  options.images = job.training.images;
  options.image_size = job.training.image_size;
  options.dtype = job.training.dtype;
  if (is_fsdp(job.training.runtime)) options.kept_dtype = job.training.loaded_dtype();
  options.casts_buffers = job.training.fsdp.casts_buffers || job.training.cast_model;
  options.one_dtype = job.training.casts_parameters();
  options.autocast = job.training.autocast;
  options.outputs_to_fp32 = job.training.outputs_to_fp32;
  options.copies_outputs = under_ddp(job) && job.training.ddp.find_unused_parameters && !job.training.ddp.static_graph;
  options.casts_inputs = job.training.runtime == Runtime::Fsdp2 && job.training.fsdp.casts_parameters;
  options.casts_tables = options.casts_inputs && shards_tower_layers(model, job.training.fsdp);
  const bool wide = model.parts != nullptr && model.parts->rotary.wide_tables;
  options.casts_given = options.casts_inputs && wide && shards_decoder_layers(model, job.training.fsdp);
  options.casts_loss = is_fsdp(job.training.runtime) && job.training.fsdp.casts_outputs;
  options.eager_attention = job.training.attention == Attention::Eager;
  options.windows_in_kernel = job.training.windows_in_kernel;
  options.fused_between_stacks = takes_two_kernels(job.training.attention);
  options.math_attention = options.fused_between_stacks || job.training.attention == Attention::Math;
  options.experts = job.training.experts;
  options.routing = job.training.routing;
  options.loss = job.training.loss;
  options.liger_kernels = job.training.liger_kernels;
  options.lora_kernels = job.training.lora_kernels;
  options.loss_chunks = job.training.loss_chunks;
  options.torch = job.training.torch;
  options.transformers = job.training.transformers;
  choose_leaves(job.training, options);
  options.attention = kernel_of(job.training.attention, options.inputs_require_grad);
  options.narrow_tables = job.training.under_zero_init();
  options.labels_are_ids = job.training.labels_are_ids;
  options.holds_outputs = job.training.loop == LoopKind::Script || job.training.loop == LoopKind::Torchtitan;
  options.use_cache = job.training.use_cache;
  options.torchtitan = job.training.torchtitan;
  options.counts_on_device = counts_tokens_on_device(job.training, job.parallelism.dp);
  options.tp = job.parallelism.tp;
  options.stage3_linear = job.training.runtime == Runtime::DeepSpeed && job.training.zero.stage == 3;
  const Checkpointing& checkpoint = job.training.checkpoint;
  if (checkpoint.groups.empty()) options.checkpointed_modules = checkpoint.modules;  // Else within layers' own.
  options.trainable = trained_parameters(model, job.training);
  if (job.training.runtime == Runtime::Fsdp1) {  // Views of a flat parameter that is trained have gradients.
    for (const FlatUnit& unit : flat_units(model, job)) {
      for (const FlatPiece& piece : unit.pieces) {
        if (piece.id != kNone) options.trainable[at(piece.id)] = unit.trains;
      }
    }
  }
  options.shown_adapters = sharded_adapters(model, job.training);
  if (const auto shown = shown_adapters(model, job)) options.shown_adapters = shown->later;
  return options;
}

CatalogueOptions catalogue_options(const Job& job) {
  const DeviceThreads device = job.hardware ? device_threads(*job.hardware) : DeviceThreads{};
  return {job.training.torch, device, false, job.training.liger};
}

Checkpointing checkpointing_of(const Training& training, const Graph& graph) {
  Checkpointing result = training.checkpoint;
  if (result.modules.empty() || !result.groups.empty()) return result;
  for (std::size_t at = 0; at < graph.regions.size(); ++at) {
    const auto id = static_cast<std::int32_t>(at);
    result.groups.push_back({id, id, result.kind, result.preserve_rng_state});
  }
  result.modules.clear();  // None lies within another one.
  return result;
}

namespace detail {

// What a job's shapes depend on beside the model.
struct ShapesKey {
  std::vector<std::int64_t> lengths;  // Ascending.
  GraphOptions options;
  CatalogueOptions catalogue;
  Level level = Level::Kernel;
  // The very first micro-batch has a graph of its own.
  std::int64_t first_length = 0;
  bool first_sinks = false;  // _DDPSink, until the first backward has run.
  std::optional<DType> first_adapters;
  friend bool operator==(const ShapesKey&, const ShapesKey&) = default;
};

}  // namespace detail

namespace {

using detail::ShapesKey;

ShapesKey key_of(const ModelSpec& model, const Job& job) {
  ShapesKey key;
  key.lengths = job.training.seq_list;
  if (key.lengths.empty()) key.lengths.push_back(job.training.seq);
  std::sort(key.lengths.begin(), key.lengths.end());
  key.lengths.erase(std::unique(key.lengths.begin(), key.lengths.end()), key.lengths.end());
  key.options = graph_options(model, job);
  key.catalogue = catalogue_options(job);
  key.level = job.training.level;
  key.first_length = job.training.seq_of(0);
  key.first_sinks = under_ddp(job) && job.training.ddp.static_graph;
  const auto shown = shown_adapters(model, job);
  if (shown && shown->first != shown->later) key.first_adapters = shown->first;
  return key;
}

Shapes shapes_of(const ModelSpec& model, const ShapesKey& key) {
  Shapes shapes;
  shapes.lengths = key.lengths;
  GraphOptions options = key.options;
  const auto add = [&](std::int64_t length) {
    options.seq = length;
    shapes.graphs.push_back(build_graph(model, options));
    shapes.recipes.emplace_back(shapes.graphs.back(), key.level, key.catalogue);
  };
  for (const std::int64_t length : shapes.lengths) add(length);
  if (key.first_sinks) {
    options.copies_outputs = true;
    add(key.first_length);
  }
  if (key.first_adapters) {
    options.shown_adapters = key.first_adapters;
    add(key.first_length);
  }
  for (std::size_t at = 0; at < shapes.graphs.size(); ++at) {
    shapes.facts.emplace_back(model, shapes.graphs[at], shapes.recipes[at]);
  }
  return shapes;
}

}  // namespace

Shapes build_shapes(const ModelSpec& model, const Job& job, std::int64_t tensor_rank) {
  ShapesKey key = key_of(model, job);
  key.options.tp_rank = tensor_rank;
  return shapes_of(model, key);
}

struct SharedShapes::Made {
  ShapesKey key;
  std::once_flag once;
  std::shared_ptr<const Shapes> shapes;
};

SharedShapes::SharedShapes(const ModelSpec& model) : model_(model) {}
SharedShapes::~SharedShapes() = default;

SharedShapes::Made& SharedShapes::made(const Job& job) {
  ShapesKey key = key_of(model_, job);
  const std::lock_guard<std::mutex> lock(looking_);
  for (const std::unique_ptr<Made>& one : made_) {
    if (one->key == key) return *one;
  }
  made_.push_back(std::make_unique<Made>());
  made_.back()->key = std::move(key);
  return *made_.back();
}

std::shared_ptr<const Shapes> SharedShapes::of(const Job& job) {
  Made& one = made(job);
  std::call_once(one.once, [&] { one.shapes = std::make_shared<const Shapes>(shapes_of(model_, one.key)); });
  return one.shapes;
}

}  // namespace dsplan
