// FSDP1 by formula: states and traffic of FullyShardedDataParallel (torch/distributed/fsdp/_flat_param.py). A unit is a
// wrapped module's parameters, one after another, with what pads them; each of N ranks keeps an N-th, rounded up.

#include <algorithm>
#include <map>
#include <string>

#include "planner/predict/footprint.h"

namespace dsplan {
namespace {

struct Flat {
  std::int64_t elements = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> trained;  // Where each parameter begins and ends.
  bool root = false;
};

std::int64_t up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
std::int64_t flat_ranks(const Job& job) { return job.parallelism.dp / job.training.fsdp.replicate; }
std::int64_t part(const Flat& flat, std::int64_t ranks) { return up(flat.elements, ranks) / ranks; }

// The nearest module around that is wrapped.
const Module* unit_of(const ModelSpec& model, const Fsdp& fsdp, const Parameter& p) {
  const auto says = [&](const std::string& word) {
    return ("+" + fsdp.wrap + "+").find("+" + word + "+") != std::string::npos;
  };
  const Module* module = &model.modules[static_cast<std::size_t>(p.module)];
  for (; module->parent != kNone; module = &model.modules[static_cast<std::size_t>(module->parent)]) {
    const Module& around = model.modules[static_cast<std::size_t>(module->parent)];
    if (says(module->type) || (says("layers") && module->layer != kNone && around.layer == kNone)) break;
  }
  return module;
}

std::vector<Flat> flats(const ModelSpec& model, const Job& job) {
  const Fsdp& fsdp = job.training.fsdp;
  std::map<const Module*, Flat> units;
  const std::int64_t lanes = 16 / bytes_per_element(job.training.dtype);
  for (const Parameter& p : model.parameters) {
    if (p.tied_to != kNone) continue;
    const Module* const module = unit_of(model, fsdp, p);
    Flat& flat = units[module];
    flat.root = module->parent == kNone;
    if (fsdp.use_orig_params) flat.elements = up(flat.elements, lanes);
    const std::int64_t begin = flat.elements;
    flat.elements += p.shape.elements().value();
    const bool frozen = !p.trainable || std::any_of(job.training.freeze.begin(), job.training.freeze.end(),
                                                    [&](const auto& glob) { return glob_matches(glob, p.name); });
    if (!frozen) flat.trained.emplace_back(begin, flat.elements);
  }
  std::vector<Flat> all;
  for (auto& [module, flat] : units) all.push_back(std::move(flat));
  return all;
}

// A zero, for ranks without gradients, and the norm that the Trainer holds.
Bytes numbers_of_clipping(const Training& t) {
  if (t.gradient_clipping <= 0) return Bytes(0);
  const bool held = t.loop == LoopKind::Trainer && !t.fsdp.cpu_offload;
  return Bytes(4 + (held ? bytes_per_element(t.master_dtype) : 0));
}

}  // namespace

void fsdp1_footprint(const ModelSpec& model, const Job& job, std::int64_t rank, Footprint& result) {
  const Training& t = job.training;
  const std::int64_t ranks = flat_ranks(job);
  const Optimizer& o = t.optimizer;
  const int copies = o.kind != OptimizerKind::Sgd ? 2 : o.momentum > 0 ? 1 : 0;
  const Bytes step(o.kind != OptimizerKind::Sgd && o.implementation == Implementation::Fused ? 4 : 0);
  for (const Flat& flat : flats(model, job)) {
    const std::int64_t mine = part(flat, ranks);
    const bool frozen = flat.trained.empty();  // accelerate leaves it as it was loaded.
    const Bytes kept = storage(Elements(mine), frozen && t.fsdp.widens_shards ? t.dtype : t.master_dtype);
    if (!t.fsdp.cpu_offload) result.persistent[Role::Parameters] += kept;
    if (frozen) continue;
    result.states.gradients += kept;
    if (t.fsdp.cpu_offload) continue;  // The optimizer is the host's, and its gradients.
    // Gradients of views are dropped by name alone: the flat one waits for the next forward.
    if (t.fsdp.use_orig_params) result.persistent[Role::Gradients] += kept;
    if (!t.fsdp.use_orig_params) {
      result.persistent[Role::Optimizer] += kept * copies + step;
      continue;
    }
    const std::int64_t begin = mine * (rank % ranks);
    for (const auto& [from, to] : flat.trained) {
      const std::int64_t in = std::min(to, begin + mine) - std::max(from, begin);
      if (in > 0) result.persistent[Role::Optimizer] += storage(Elements(in), t.master_dtype) * copies + step;
    }
  }
  result.persistent[Role::Temporaries] += numbers_of_clipping(t);
}

std::vector<TrafficRow> fsdp1_traffic(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  const std::int64_t ranks = flat_ranks(job);
  const Group mesh = t.fsdp.replicate > 1 ? Group::DataParallelInside : Group::DataParallel;
  const std::int64_t times = t.fsdp.sync_every ? t.grad_accum : 1;
  Bytes forward;
  Bytes backward;
  Elements reduced;
  for (const Flat& flat : flats(model, job)) {
    const Elements whole(up(flat.elements, ranks));
    const bool again = t.fsdp.reshard_after_forward == 1 && !flat.root;
    // What no reduction frees is still there in the next micro-batch, unless the strategy reshards after forward.
    const std::int64_t gathers = t.fsdp.reshard_after_forward == 1 ? t.grad_accum : times;
    forward += storage(whole, t.dtype) * gathers;
    if (again) backward += storage(whole, t.dtype) * t.grad_accum;
    if (!flat.trained.empty()) reduced += whole;
  }
  const auto row = [&](Collective collective, Group group, Pass pass, DType type, Bytes payload) {
    return TrafficRow{collective, group, pass, type, TrafficKind::Data, 0, payload, Bytes(0)};
  };
  std::vector<TrafficRow> rows{row(Collective::AllGather, mesh, Pass::Forward, t.dtype, forward)};
  if (backward > Bytes(0)) rows.push_back(row(Collective::AllGather, mesh, Pass::Backward, t.dtype, backward));
  const DType type = t.communication_dtype;
  rows.push_back(row(Collective::ReduceScatter, mesh, Pass::Backward, type, storage(reduced, type) * times));
  if (t.fsdp.replicate > 1) {
    const Elements shard(reduced.value() / ranks);
    rows.push_back(row(Collective::AllReduce, Group::Replicas, Pass::Backward, type, storage(shard, type) * times));
  }
  return rows;
}

}  // namespace dsplan
