// The eager tape's log of a job's two steps.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "eager/runtime.h"

namespace eager {

inline std::function<void(Net&, int)> buffers_of(const dsplan::ModelSpec& model, dsplan::DType kept) {
  return [&model, kept](Net& net, int module) {
    net.buffers.resize(model.buffers.size());
    for (std::size_t at = 0; at < model.buffers.size(); ++at) {
      const dsplan::ModelBuffer& buffer = model.buffers[at];
      if (buffer.module != module) continue;
      const Doing doing("buffer");
      net.buffers[at] = empty({buffer.shape.elements().value()}, buffer.follows_model_dtype ? kept : buffer.dtype);
    }
  };
}

// By module its unit, and the order in which children come before their parents.
inline void lay_out(Plan& plan, const dsplan::ModelSpec& model) {
  std::vector<int> open;
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    while (!open.empty() && open.back() != model.modules[at].parent) {
      plan.order.push_back(open.back());
      open.pop_back();
    }
    open.push_back(static_cast<int>(at));
    int around = static_cast<int>(at);
    const auto unit_at = [&](int module) {
      for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
        const std::vector<int>& modules = plan.units[unit];
        if (std::find(modules.begin(), modules.end(), module) != modules.end()) return static_cast<int>(unit);
      }
      return -1;
    };
    while (unit_at(around) < 0) around = model.module_at(around).parent;
    plan.unit_of.push_back(unit_at(around));
  }
  plan.order.insert(plan.order.end(), open.rbegin(), open.rend());
}

// The calls of fully_shard, by the names of modules: layers, and "ends" as torchtitan and accelerate have them.
inline void shard(Plan& plan, const dsplan::ModelSpec& model, const dsplan::Training& training) {
  const dsplan::Fsdp& fsdp = training.fsdp;
  const bool gpt2 = model.family == "gpt2";
  const auto id = [&](const std::string& path) {
    const auto found = std::find_if(model.modules.begin(), model.modules.end(),
                                    [&](const dsplan::Module& module) { return module.path == path; });
    return static_cast<int>(found - model.modules.begin());
  };
  const auto add = [&](std::vector<int> modules, std::int64_t reshards) {
    plan.units.push_back(std::move(modules));
    plan.reshards.push_back(reshards);
  };
  const bool tied = std::any_of(model.parameters.begin(), model.parameters.end(),
                                [](const dsplan::Parameter& p) { return p.tied_to != dsplan::kNone; });
  if (fsdp.wrap == "ends") {
    const int table = id(gpt2 ? "transformer.wte" : "model.embed_tokens");
    const int norm = id(gpt2 ? "transformer.ln_f" : "model.norm");
    if (!tied) add({table}, fsdp.reshard_after_forward);
    add(tied ? std::vector<int>{norm, table, id("lm_head")} : std::vector<int>{norm, id("lm_head")},
        fsdp.reshard_tail ? 1 : 0);
  }
  for (std::int64_t at = 0; fsdp.wrap != "root" && at < model.dims.layers; ++at) {
    plan.layers.push_back(plan.units.size());
    add({id((gpt2 ? "transformer.h." : "model.layers.") + std::to_string(at))},
        at + 1 == model.dims.layers && !fsdp.reshard_last ? 0 : fsdp.reshard_after_forward);
  }
  add({0}, 0);
  plan.reshard_root = fsdp.reshard_root ? 1 : 0;
  lay_out(plan, model);
  plan.replicate = fsdp.replicate;
  plan.kept = dsplan::bytes_per_element(training.master_dtype);
  plan.reduced = dsplan::bytes_per_element(training.communication_dtype);
  plan.sync_every = fsdp.sync_every;
  plan.clips = training.gradient_clipping > 0;
  plan.keeps_norm = training.loop == dsplan::LoopKind::Trainer;
  plan.make_buffers = buffers_of(model, training.master_dtype);
  plan.forward_prefetch = static_cast<std::size_t>(fsdp.forward_prefetch);
  plan.backward_prefetch = static_cast<std::size_t>(fsdp.backward_prefetch);
  for (const dsplan::Parameter& p : model.parameters) {
    if (!fsdp.ignored.empty()) plan.ignored.push_back(dsplan::glob_matches(fsdp.ignored, p.name));
  }
}

// FullyShardedDataParallel: layers, or modules of the classes that are named, and the model.
inline void flatten(Plan& plan, const dsplan::ModelSpec& model, const dsplan::Training& training) {
  const dsplan::Fsdp& fsdp = training.fsdp;
  for (std::size_t at = 1; at < model.modules.size(); ++at) {
    const dsplan::Module& module = model.modules[at];
    const bool layer = module.layer != dsplan::kNone && model.module_at(module.parent).layer == dsplan::kNone;
    const bool named = ("+" + fsdp.wrap + "+").find("+" + module.type + "+") != std::string::npos;
    if (named || (layer && fsdp.wrap == "layers")) plan.units.push_back({static_cast<int>(at)});
  }
  plan.units.push_back({0});
  lay_out(plan, model);
  plan.replicate = fsdp.replicate;
  plan.kept = dsplan::bytes_per_element(training.master_dtype);
  plan.reduced = dsplan::bytes_per_element(training.communication_dtype);
  plan.sync_every = fsdp.sync_every;
  plan.clips = training.gradient_clipping > 0;
  plan.keeps_norm = training.loop == dsplan::LoopKind::Trainer;
  Plan::Flat& flat = plan.flat;
  flat.on = true;
  flat.made = training.loaded_dtype();
  flat.views = fsdp.use_orig_params;
  flat.reshards = fsdp.reshard_after_forward == 1;
  flat.offloads = fsdp.cpu_offload;
  flat.on_host = training.model_init == dsplan::ModelInit::Host;
  flat.sends = fsdp.sync_module_states;
  flat.casts_buffers = fsdp.casts_buffers;
  flat.prefetches_forward = fsdp.forward_prefetch > 0;
  flat.prefetches_backward = fsdp.backward_prefetch;
  plan.make_buffers = buffers_of(model, flat.made);
  for (const dsplan::Module& module : model.modules) flat.parents.push_back(module.parent);
  for (const dsplan::ModelBuffer& buffer : model.buffers) flat.buffer_modules.push_back(buffer.module);
  for (const dsplan::Parameter& p : model.parameters) flat.frozen.push_back(!training.trains(p));
}

inline std::vector<Entry> of_job(const dsplan::ModelSpec& model, const dsplan::Job& job, std::int64_t rank) {
  using namespace dsplan;
  const Training& training = job.training;
  eager::Settings settings;
  settings.batch = training.micro_batch;
  settings.seq = training.seq;
  settings.dtype = training.dtype;
  settings.tp = job.parallelism.tp;
  settings.memory_efficient = training.attention == Attention::MemoryEfficient;
  for (const CheckpointGroup& group : training.checkpoint.groups) {
    settings.checkpoints.emplace_back(group.first, group.last);
    settings.reentrant = group.kind == CheckpointKind::Reentrant;
  }
  eager::Plan plan;
  plan.deepspeed = training.runtime == dsplan::Runtime::DeepSpeed;
  plan.stage = training.zero.stage;
  plan.world = job.parallelism.dp;
  plan.rank = rank;
  plan.micro_batches = training.grad_accum;
  plan.dtype = training.dtype;
  plan.fused = training.optimizer.implementation == Implementation::Fused;
  plan.scans_overflow = training.check_grad_overflow;
  plan.overlap = training.zero.overlap_comm;
  plan.reduce_scatter = training.zero.reduce_scatter;
  plan.bucket = training.zero.reduce_bucket_size.value();
  plan.ddp_cap = training.ddp.bucket_cap_mb;
  plan.ddp_buffers = training.ddp.broadcast_buffers;
  plan.ddp_views = training.ddp.gradient_as_bucket_view;
  plan.ddp_static = training.ddp.static_graph;
  plan.ddp_shares = training.ddp.zero_redundancy;
  plan.sub_group = training.zero.sub_group_size.value();
  plan.persistence = training.zero.param_persistence_threshold.value();
  plan.sequential = training.zero.allgather_sequential;
  plan.all_reduce_fetch = training.zero.all_reduce_for_fetch;
  plan.prefetch = plan.sequential ? 1 : training.zero.prefetch_bucket_size.value();
  plan.reuse = training.zero.max_reuse_distance.value();
  plan.max_live = training.zero.max_live_parameters.value();
  if (training.runtime == dsplan::Runtime::Fsdp2) shard(plan, model, training);
  if (training.runtime == dsplan::Runtime::Fsdp1) flatten(plan, model, training);
  settings.frozen = plan.ignored;
  const ModelSpec part = tensor_parallel_part(model, settings.tp);
  return eager::train(part, settings, plan);
}

}  // namespace eager
