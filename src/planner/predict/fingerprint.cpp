// One hash of everything that determines bytes. The canonical text lists each input on a line of its own, in a fixed
// order; a new input gets a new line, so that older fingerprints stay comparable as long as it has its default.
#include <iterator>

#include "core/format.h"
#include "core/sha256.h"
#include "planner/predict/library_memory.h"
#include "planner/predict/predict.h"

namespace dsplan {
namespace {

void add_model(const ModelSpec& model, std::string& text) {
  append_formatted(text, "family {}\nclass {}\n", model.family, model.graph_class);
  const Dimensions& d = model.dims;
  append_formatted(text, "dims {} {} {} {} {} {} {} {} {} {} {}\n", d.layers, d.hidden, d.heads, d.kv_heads, d.head_dim,
                   d.ffn, d.vocab, d.max_positions, d.experts, d.experts_per_token, d.sliding_window);
  append_formatted(text, "execution {} {} {} {} {} {} {}\n", d.rotary_fraction, d.attention_dropout, d.residual_dropout,
                   d.embedding_dropout, d.attention_softcap, d.final_softcap, d.activation);
  if (d.adapter_dropout > 0) append_formatted(text, "adapter dropout {}\n", d.adapter_dropout);
  for (const Parameter& p : model.parameters) {
    text += p.name;
    for (std::uint8_t i = 0; i < p.shape.rank; ++i) append_formatted(text, " {}", p.shape.dims[i]);
    if (p.tied_to != kNone) append_formatted(text, " = {}", p.tied_to);
    if (p.dtype) append_formatted(text, " {}", name(*p.dtype));
    text += p.trainable ? "\n" : " frozen\n";
  }
  for (const ModelBuffer& b : model.buffers) {
    append_formatted(text, "buffer {} {} {}\n", b.name, b.shape.elements().value(), name(b.dtype));
  }
}

void add_zero(const Zero& z, std::string& text) {
  append_formatted(text, "zero {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", z.stage, z.contiguous_gradients,
                   z.reduce_scatter, z.reduce_bucket_size.value(), z.use_multi_rank_bucket_allreduce, z.overlap_comm,
                   z.round_robin_gradients, z.sub_group_size.value(), z.prefetch_bucket_size.value(),
                   z.param_persistence_threshold.value(), z.model_persistence_threshold.value(),
                   z.max_live_parameters.value(), z.max_reuse_distance.value(), z.gather_16bit_weights_on_model_save,
                   name(z.offload_param.device), name(z.offload_optimizer.device));
  for (const Offload* o : {&z.offload_param, &z.offload_optimizer}) {
    append_formatted(text, "offload {} {} {} {} {} {}\n", o->pin_memory, o->buffer_count, o->buffer_size.value(),
                     o->max_in_cpu.value(), o->pipeline_read, o->pipeline_write);
  }
  // Since partial offload is modelled: what was before keeps its fingerprint.
  if (z.offload_optimizer.ratio < 1) {
    append_formatted(text, "offload ratio {}\n", z.offload_optimizer.ratio);
  }
  append_formatted(text, "aio {} {}\n", z.aio_block_size, z.aio_intra_op_parallelism);
  if (z.stage < 3) return;
  append_formatted(
      text, "fetch {} {} {} {} {} {} {}\n", z.all_reduce_for_fetch, z.allgather_sequential, z.memory_efficient_linear,
      z.hpz_partition_size, z.quantized_weights, z.module_granularity_threshold.value(),
      formatted("{} {} {}", joined(z.leaf_classes, ","), joined(z.leaf_names, ","), joined(z.leaf_suffixes, ",")));
}

// Weight decay moves bytes only where it is added to a gradient.
bool adds_decay(const Training& t) {
  const OptimizerKind kind = t.optimizer.kind;
  const bool adding = kind == OptimizerKind::Adam || kind == OptimizerKind::Sgd || kind == OptimizerKind::Adagrad ||
                      kind == OptimizerKind::RmsProp;
  return adding && t.optimizer.weight_decay != 0 && t.optimizer.implementation != Implementation::Fused &&
         t.runtime == Runtime::PyTorch;
}

void add_training(const Training& t, std::string& text) {
  append_formatted(text, "runtime {}\ndtypes {} {} {} {}\n", name(t.runtime), name(t.dtype), name(t.grad_accum_dtype),
                   name(t.communication_dtype), name(t.master_dtype));
  if (!t.seq_list.empty()) append_formatted(text, "lengths {}\n", joined(t.seq_list, " "));
  if (t.autocast) append_formatted(text, "autocast {}{}\n", name(*t.autocast), t.outputs_to_fp32 ? " outputs" : "");
  append_formatted(text, "optimizer {} {} {}\n", name(t.optimizer.kind), name(t.optimizer.implementation),
                   t.optimizer.momentum > 0);
  append_formatted(text, "batch {} {} {}\nclipping {} {}\n", t.micro_batch, t.grad_accum, t.seq,
                   t.gradient_clipping > 0, t.check_grad_overflow);
  if (t.immediate_grad_update) text += "immediate\n";
  text += "checkpoint";
  for (const CheckpointGroup& group : t.checkpoint.groups) {
    append_formatted(text, " {}-{}", group.first, group.last);
    if (group.kind == CheckpointKind::Reentrant) text += " reentrant";
    if (group.kind == CheckpointKind::DeepSpeed) {
      const DeepSpeedCheckpointing& d = t.checkpoint.deepspeed;
      append_formatted(text, " deepspeed {} {} {} {}", d.partition, d.cpu, d.contiguous, d.number_checkpoints);
    }
    if (!group.preserve_rng_state) text += " without rng";
    for (Op op : group.kept) append_formatted(text, " keeps {}", name(op));
  }
  for (const std::string& module : t.checkpoint.modules) {
    append_formatted(text, " {} {} {}", module, name(t.checkpoint.kind), t.checkpoint.preserve_rng_state);
  }
  append_formatted(text, "\nattention {}\nloss {}\nloop {}\n", name(t.attention), static_cast<int>(t.loss),
                   static_cast<int>(t.loop));
  if (t.loss == Loss::Chunked) append_formatted(text, "loss chunks {}\n", t.loss_chunks);
  if (t.level == Level::Dispatch) text += "level dispatch\n";
  for (const std::string& glob : t.freeze) append_formatted(text, "freeze {}\n", glob);
  append_formatted(text, "versions {} {} {}\n", t.torch.text(), t.transformers.text(), t.deepspeed.text());
  add_zero(t.zero, text);
  if (adds_decay(t)) text += "weight_decay 1\n";
  if (t.optimizer.embeddings_32bit) text += "embeddings_32bit 1\n";
  if (t.param_groups != ParamGroups::Single) append_formatted(text, "param_groups {}\n", name(t.param_groups));
  const bool whole = t.runtime == Runtime::DeepSpeed && t.zero.stage == 3 && !t.under_zero_init();
  if (whole || t.model_init == ModelInit::Host) append_formatted(text, "model_init {}\n", name(t.model_init));
  if (!t.zero_grad_to_none) text += "zero_grad_to_none 0\n";
  if (t.grad_scaler) text += "grad_scaler 1\n";
}

}  // namespace

std::string fingerprint(const ModelSpec& model, const Job& job) {
  std::string text = "dsplan fingerprint 1\n";
  text.reserve(model.parameters.size() * 72 + 4096);
  add_model(model, text);
  add_training(job.training, text);
  const Parallelism& p = job.parallelism;
  append_formatted(text, "ranks {} {} {} {} {}\n", p.world, p.gpus_per_node, p.tp, p.sp, p.ep);
  if (job.allocator != AllocatorConfig{}) text += "allocator " + canonical(job.allocator) + "\n";
  if (job.stream_frees != StreamFrees::AtSync) append_formatted(text, "frees {}\n", name(job.stream_frees));
  if (job.placement == PlacementKind::Planned) text += "placement planned\n";
  if (const auto sizes = library_workspaces(job)) {
    append_formatted(text, "workspaces {} {} {}\n", sizes->cublas.value(), sizes->cublaslt.value(), sizes->lt_per_call);
  }
  return "sha256:" + sha256(text);
}

}  // namespace dsplan
