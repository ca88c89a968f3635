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
  struct Trained {
    std::int64_t from;
    std::int64_t to;
    const Parameter* parameter;
  };
  std::vector<Trained> trained;
  bool root = false;
  std::int64_t backward = 1;  // How often backward gathers it, with what checkpoints run again.
  DType kept = DType::Float32;
  DType sent = DType::Float32;
};

std::int64_t up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
std::int64_t flat_ranks(const Job& job) { return job.parallelism.dp / job.training.fsdp.replicate; }
std::int64_t part(const Flat& flat, std::int64_t ranks) { return up(flat.elements, ranks) / ranks; }

bool says(const Fsdp& fsdp, const std::string& word) {
  return ("+" + fsdp.wrap + "+").find("+" + word + "+") != std::string::npos;
}

// By module: it has none inside, and a weight that is trained, which peft has FSDP1 wrap.
std::vector<bool> wrapped_adapters(const ModelSpec& model, const Fsdp& fsdp) {
  std::vector<bool> wrapped(model.modules.size(), false);
  if (!says(fsdp, "adapters")) return wrapped;
  for (const Parameter& p : model.parameters) {
    const bool weight = p.name.size() > 7 && p.name.substr(p.name.size() - 7) == ".weight";
    if (weight && p.trainable) wrapped[static_cast<std::size_t>(p.module)] = true;
  }
  for (const Module& module : model.modules) {
    if (module.parent != kNone) wrapped[static_cast<std::size_t>(module.parent)] = false;
  }
  return wrapped;
}

// By module: wrapped by size. Bottom up, as nothing within a module that is too small is large enough.
std::vector<bool> wrapped_by_size(const ModelSpec& model, const Fsdp& fsdp) {
  std::vector<bool> wrapped(model.modules.size(), false);
  const std::int64_t least = std::stoll(fsdp.wrap.substr(5));
  const auto size = model.modules.size();
  std::vector<std::size_t> end(size);  // Of what lies within: modules stand depth first.
  std::vector<std::int64_t> taken(size, 0);
  for (std::size_t at = size; at-- > 1;) {
    end[at] = at + 1;
    while (end[at] < size && model.modules[end[at]].parent >= static_cast<ModuleId>(at)) ++end[at];
    std::map<ParameterId, std::int64_t> within;  // A shared one once.
    for (std::size_t id = 0; id < model.parameters.size(); ++id) {
      const Parameter& p = model.parameters[id];
      const auto owner = static_cast<std::size_t>(p.module);
      if (owner < at || owner >= end[at]) continue;
      within[p.tied_to == kNone ? static_cast<ParameterId>(id) : p.tied_to] = p.shape.elements().value();
    }
    std::int64_t whole = 0;
    for (const auto& [id, elements] : within) whole += elements;
    const Module& module = model.modules[at];
    const bool box = module.type == "ModuleList" || module.type == "ModuleDict";
    wrapped[at] = !box && whole - taken[at] >= least;
    taken[static_cast<std::size_t>(module.parent)] += wrapped[at] ? whole : taken[at];
  }
  return wrapped;
}

// The nearest module around that is wrapped.
const Module* unit_of(const ModelSpec& model, const Fsdp& fsdp, const std::vector<bool>& chosen, const Parameter& p) {
  const Module* module = &model.module_at(p.module);
  for (; module->parent != kNone; module = &model.module_at(module->parent)) {
    const Module& around = model.module_at(module->parent);
    const bool layer = module->layer != kNone && around.layer == kNone;
    if (chosen[static_cast<std::size_t>(module - model.modules.data())]) break;
    if (says(fsdp, module->type) || (says(fsdp, "layers") && layer)) break;
  }
  return module;
}

// The last module with parameters that a layer calls: where it is an adapter, its hook gathers it before a
// non-reentrant checkpoint runs again, which finds it there.
const Module* last_called(const ModelSpec& model, std::int32_t layer) {
  std::vector<bool> owns(model.modules.size(), false);
  for (const Parameter& p : model.parameters) owns[static_cast<std::size_t>(p.module)] = true;
  const Module* last = nullptr;
  for (const ModuleCall& call : model.calls) {
    const auto at = static_cast<std::size_t>(call.module);
    if (call.enter && owns[at] && model.modules[at].layer == layer) last = &model.modules[at];
  }
  return last;
}

// A unit inside of a checkpoint is gathered by what runs again, and once more by its own hook.
void count_gathers(const ModelSpec& model, const Training& t, std::map<const Module*, Flat>& units) {
  for (auto& [module, flat] : units) {
    if (module->parent == kNone || module->layer == kNone) continue;
    if (model.module_at(module->parent).layer == kNone) continue;  // The layer itself.
    for (const CheckpointGroup& group : t.checkpoint.groups) {
      if (module->layer < group.first || module->layer > group.last) continue;
      const bool there = group.kind == CheckpointKind::NonReentrant && last_called(model, module->layer) == module;
      if (!there) flat.backward = 2;
    }
  }
}

// In which a parameter's unit is kept and sent. accelerate casts what is trained to fp32, and a frozen unit stays as it
// was loaded.
void add_dtypes(Flat& flat, const Parameter& p, const Training& t) {
  flat.sent = t.fsdp.casts_parameters ? t.dtype : p.dtype.value_or(t.dtype);
  if (flat.trained.empty()) flat.kept = p.dtype.value_or(t.fsdp.widens_shards ? t.dtype : t.master_dtype);
}

std::vector<Flat> flats(const ModelSpec& model, const Job& job) {
  const Fsdp& fsdp = job.training.fsdp;
  const std::vector<bool> chosen =
      fsdp.wrap.find("size:") == 0 ? wrapped_by_size(model, fsdp) : wrapped_adapters(model, fsdp);
  std::map<const Module*, Flat> units;
  for (const Parameter& p : model.parameters) {
    if (p.tied_to != kNone) continue;
    const Module* const module = unit_of(model, fsdp, chosen, p);
    Flat& flat = units[module];
    flat.root = module->parent == kNone;
    add_dtypes(flat, p, job.training);
    if (fsdp.use_orig_params) flat.elements = up(flat.elements, 16 / bytes_per_element(flat.sent));
    const std::int64_t begin = flat.elements;
    flat.elements += p.shape.elements().value();
    const bool frozen = !p.trainable || std::any_of(job.training.freeze.begin(), job.training.freeze.end(),
                                                    [&](const auto& glob) { return glob_matches(glob, p.name); });
    if (frozen) continue;
    if (fsdp.widens_shards) flat.kept = DType::Float32;
    flat.trained.push_back({begin, flat.elements, &p});
  }
  count_gathers(model, job.training, units);
  std::vector<Flat> all;
  const std::int64_t dp = job.parallelism.dp;
  for (auto& [module, flat] : units) {
    if (fsdp.use_orig_params && flat_ranks(job) == 1) flat.elements = up(flat.elements, dp);  // NO_SHARD pads, too.
  }
  for (auto& [module, flat] : units) all.push_back(std::move(flat));
  return all;
}

// A zero, for ranks without gradients, and the norm that the Trainer holds.
Bytes numbers_of_clipping(const Training& t) {
  if (t.gradient_clipping <= 0) return Bytes(0);
  const bool held = t.loop == LoopKind::Trainer && !t.fsdp.cpu_offload;
  return Bytes(4 + (held ? bytes_per_element(t.master_dtype) : 0));
}

TrafficRow row(Collective collective, Group group, Pass pass, DType type, Bytes payload) {
  return TrafficRow{collective, group, pass, type, TrafficKind::Data, 0, payload, Bytes(0)};
}

// NO_SHARD: gradients alone are summed.
std::vector<TrafficRow> whole_traffic(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  std::vector<TrafficRow> rows;
  if (job.parallelism.dp == 1) return rows;
  std::map<DType, Bytes> reduced;
  for (const Flat& flat : flats(model, job)) {
    if (flat.trained.empty()) continue;
    const DType type = t.communication_dtype != t.dtype ? t.communication_dtype : flat.sent;
    reduced[type] += storage(Elements(flat.elements), type) * (t.fsdp.sync_every ? t.grad_accum : 1);
  }
  for (const auto& [type, bytes] : reduced) {
    rows.push_back(row(Collective::AllReduce, Group::DataParallel, Pass::Backward, type, bytes));
  }
  return rows;
}

}  // namespace

void fsdp1_footprint(const ModelSpec& model, const Job& job, std::int64_t rank, Footprint& result) {
  const Training& t = job.training;
  const std::int64_t ranks = flat_ranks(job);
  std::vector<GivenTensor> given;  // To the optimizer.
  for (const Flat& flat : flats(model, job)) {
    const std::int64_t mine = part(flat, ranks);
    const Bytes kept = storage(Elements(mine), flat.kept);
    if (!t.fsdp.cpu_offload) result.persistent[Role::Parameters] += kept;
    if (flat.trained.empty()) continue;
    result.states.gradients += kept;
    if (t.fsdp.cpu_offload) continue;  // The optimizer is the host's, and its gradients.
    // Gradients of views are dropped by name alone: the flat one waits for the next forward.
    if (t.fsdp.use_orig_params) result.persistent[Role::Gradients] += kept;
    if (!t.fsdp.use_orig_params) {
      given.push_back({Shape{mine}, flat.kept});
      continue;
    }
    const std::int64_t begin = mine * (rank % ranks);
    for (const Flat::Trained& one : flat.trained) {
      const std::int64_t in = std::min(one.to, begin + mine) - std::max(one.from, begin);
      const bool embeds = model.module_at(one.parameter->module).type == "Embedding";
      if (in > 0) given.push_back({ranks == 1 ? one.parameter->shape : Shape{in}, flat.kept, embeds});
    }
  }
  if (!given.empty()) result.persistent[Role::Optimizer] += states_of(t.optimizer, given);
  if (t.grad_scaler) result.persistent[Role::Optimizer] += Bytes(8);
  result.persistent[Role::Temporaries] += numbers_of_clipping(t);
}

std::vector<TrafficRow> fsdp1_traffic(const ModelSpec& model, const Job& job) {
  if (flat_ranks(job) == 1) return whole_traffic(model, job);
  const Training& t = job.training;
  const std::int64_t ranks = flat_ranks(job);
  const Group mesh = t.fsdp.replicate > 1 ? Group::DataParallelInside : Group::DataParallel;
  const std::int64_t times = t.fsdp.sync_every ? t.grad_accum : 1;
  std::map<DType, std::pair<Bytes, Bytes>> gathered;  // In forward, in backward.
  std::map<DType, Bytes> reduced;
  for (const Flat& flat : flats(model, job)) {
    const Elements whole(up(flat.elements, ranks));
    const bool again = t.fsdp.reshard_after_forward == 1 && !flat.root;
    // What no reduction frees is still there in the next micro-batch, unless the strategy reshards after forward.
    const std::int64_t gathers = t.fsdp.reshard_after_forward == 1 ? t.grad_accum : times;
    auto& [forward, backward] = gathered[flat.sent];
    forward += storage(whole, flat.sent) * gathers;
    if (again) backward += storage(whole, flat.sent) * t.grad_accum * flat.backward;
    const DType type = t.communication_dtype != t.dtype ? t.communication_dtype : flat.sent;
    if (!flat.trained.empty()) reduced[type] += storage(whole, type) * times;
  }
  std::vector<TrafficRow> rows;
  for (const auto& [type, bytes] : gathered) {
    rows.push_back(row(Collective::AllGather, mesh, Pass::Forward, type, bytes.first));
    if (bytes.second > Bytes(0)) rows.push_back(row(Collective::AllGather, mesh, Pass::Backward, type, bytes.second));
  }
  for (const auto& [type, bytes] : reduced) {
    rows.push_back(row(Collective::ReduceScatter, mesh, Pass::Backward, type, bytes));
    if (t.fsdp.replicate == 1) continue;
    rows.push_back(row(Collective::AllReduce, Group::Replicas, Pass::Backward, type, Bytes(bytes.value() / ranks)));
  }
  return rows;
}

}  // namespace dsplan
