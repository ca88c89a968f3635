// FSDP2 by formula: states and traffic of fully_shard (torch/distributed/fsdp/_fully_shard). N ranks that shard, d rows
// of dimension 0, n elements: a rank keeps ceil(d / N) rows, and updates those of them that there are.

#include <algorithm>
#include <map>
#include <optional>

#include "model/parts.h"
#include "planner/predict/footprint.h"

namespace dsplan {
namespace {

struct ShardedSize {
  const Parameter* parameter;
  bool trained;
  Elements padded;   // Of one rank; of what is ignored all.
  std::int64_t row;  // Elements.
};

std::int64_t shard_ranks(const Job& job) { return job.parallelism.dp / job.training.fsdp.replicate; }

std::vector<ShardedSize> sharded_sizes(const ModelSpec& model, const Job& job, bool ignored = false) {
  std::vector<ShardedSize> counted;
  const Training& t = job.training;
  for (const Parameter& p : model.parameters) {
    if (p.tied_to != kNone || t.is_ignored(p) != ignored) continue;
    const bool frozen = std::any_of(t.freeze.begin(), t.freeze.end(),
                                    [&](const std::string& glob) { return glob_matches(glob, p.name); });
    const std::int64_t row = p.shape.elements().value() / p.shape.dims[0];
    counted.push_back({&p, p.trainable && !frozen,
                       ignored ? p.shape.elements() : div_ceil(Elements(p.shape.dims[0]), shard_ranks(job)) * row,
                       row});
  }
  return counted;
}

// In which it is kept: adapters have a dtype of their own; and in which it is gathered: param_dtype, else the same.
DType kept(const Training& t, const Parameter& p) { return p.dtype.value_or(t.master_dtype); }
DType gathered(const Training& t, const Parameter& p) { return t.fsdp.casts_parameters ? t.dtype : kept(t, p); }

std::string_view last_part(const Module& module) {
  return std::string_view(module.path).substr(module.path.rfind('.') + 1);
}

bool is_head(const ModelSpec& model, const Module& module) {
  if (model.code == ModelCode::Torchtitan) return module.path == "output";
  return last_part(module) == "lm_head" || last_part(module) == "embed_out";
}

// reshard_after_forward of the group that gathers the parameter: that of the nearest module that is wrapped, the
// model's own else. fully_shard([norm, head]) does where it is told so, and takes a tied embedding along.
class Resharding {
 public:
  Resharding(const ModelSpec& model, const Fsdp& fsdp) : model_(model), fsdp_(fsdp) {
    if (!says("ends")) return;
    // Beside a text; the norm behind its layers has no group with the head then.
    const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
    if (tower != nullptr && (tower->tokens > 0 || tower->merge > 0)) tower_ = tower->module;
    for (const Module& module : model.modules) {
      if (module.layer != kNone || sees(module)) continue;
      const bool table = module.type.ends_with("Embedding") && owns_weight(module);
      if (table && embedding_ == nullptr) embedding_ = &module;
      if (module.type.find("Norm") != std::string::npos && tower_.empty()) norm_ = &module;
      if (is_head(model, module)) head_ = &module;
    }
    for (const Parameter& p : model.parameters) {
      if (p.tied_to == kNone || &owner(p) != head_) continue;
      tied_ = tied_ || &owner(model.parameter_at(p.tied_to)) == embedding_;
    }
    tail_ = norm_ != nullptr ? norm_ : head_;
  }

  struct Unit {
    const Module* module;  // Of several the norm, or the head; the root else.
    std::int64_t reshards;
  };
  [[nodiscard]] Unit of(const Parameter& p) const {
    const Module& own = owner(p);
    const std::int64_t inside = fsdp_.reshard_after_forward;
    if (&own == embedding_ && !tied_) return {&own, inside};
    if (&own == norm_ || &own == head_ || &own == embedding_) return {tail_, fsdp_.reshard_tail ? 1 : 0};
    const bool layers = says("layers") || fsdp_.wrap == "ends";
    for (const Module* module = &own; module->parent != kNone; module = &parent(*module)) {
      const bool layer = module->layer != kNone && parent(*module).layer == kNone;
      if (layers && layer) return {module, !fsdp_.reshard_last && is_last(*module) ? 0 : inside};
      if (says(module->type)) return {module, inside};
    }
    return {&model_.modules.front(), fsdp_.reshard_root ? 1 : 0};
  }
  // By which `of` names the group of norm and head; null: there is none.
  [[nodiscard]] const Module* tail() const { return tail_; }

 private:
  [[nodiscard]] bool says(const std::string& word) const {
    return ("+" + fsdp_.wrap + "+").find("+" + word + "+") != std::string::npos;
  }
  [[nodiscard]] bool sees(const Module& module) const {
    return !tower_.empty() && ("." + module.path + ".").find("." + tower_ + ".") != std::string::npos;
  }
  [[nodiscard]] bool owns_weight(const Module& module) const {
    return std::any_of(model_.parameters.begin(), model_.parameters.end(),
                       [&](const Parameter& p) { return &owner(p) == &module && p.name.ends_with(".weight"); });
  }
  // No other layer stands behind it.
  [[nodiscard]] bool is_last(const Module& layer) const {
    const auto from = static_cast<std::ptrdiff_t>(&layer - model_.modules.data()) + 1;
    return std::none_of(model_.modules.begin() + from, model_.modules.end(),
                        [this](const Module& other) { return other.layer != kNone && parent(other).layer == kNone; });
  }
  [[nodiscard]] const Module& owner(const Parameter& p) const { return model_.module_at(p.module); }
  [[nodiscard]] const Module& parent(const Module& module) const { return model_.module_at(module.parent); }

  const ModelSpec& model_;
  const Fsdp& fsdp_;
  const Module* embedding_ = nullptr;
  std::string tower_;
  const Module* norm_ = nullptr;
  const Module* tail_ = nullptr;
  const Module* head_ = nullptr;
  bool tied_ = false;
};

// What is gathered together.
struct Sent {
  std::int64_t reshards = 0;
  std::optional<DType> type;
  Bytes whole;
};
using Units = std::map<const Module*, Sent>;  // In the order of modules.

// In a backward pass, of each unit.
std::vector<LayerGathers> gathers_of(const ModelSpec& model, const Training& t, const Units& units,
                                     const Resharding& resharding) {
  const auto is_layer = [&](const Module& module) {
    return module.layer != kNone && model.module_at(module.parent).layer == kNone;
  };
  std::vector<std::int64_t> layers;
  for (const auto& [module, sent] : units) {
    if (is_layer(*module)) layers.push_back(sent.reshards);
  }
  const bool tail = resharding.tail() != nullptr && !units.contains(&model.modules.front());
  const std::vector<LayerGathers> counted = layer_gathers(t, layers, tail);
  std::vector<LayerGathers> gathers;
  std::size_t layer = 0;
  for (const auto& [module, sent] : units) {
    LayerGathers one{sent.reshards == 1 ? 1 : 0, sent.reshards > 1 ? 1 : 0};
    if (module == resharding.tail()) one.of_all += counted.back().of_all;
    gathers.push_back(is_layer(*module) ? counted[layer++] : one);
  }
  return gathers;
}

}  // namespace

void fsdp_footprint(const ModelSpec& model, const Job& job, std::int64_t rank, Footprint& result) {
  const Training& t = job.training;
  if (t.runtime == Runtime::Fsdp1) return fsdp1_footprint(model, job, rank, result);
  const std::int64_t place = rank % shard_ranks(job);
  for (const ShardedSize& p : sharded_sizes(model, job, true)) {
    result.persistent[Role::Parameters] += storage(p.padded, kept(t, *p.parameter));
  }
  std::vector<GivenTensor> shards;  // To the optimizer: its states have the shape of the local shard.
  std::optional<DType> norm;        // That the Trainer holds for its log: the gradients', fp32 where they differ.
  for (const ShardedSize& p : sharded_sizes(model, job)) {
    const DType type = kept(t, *p.parameter);
    if (!t.fsdp.cpu_offload) result.persistent[Role::Parameters] += storage(p.padded, type);
    if (!p.trained) continue;
    norm = norm.value_or(type) == type ? type : DType::Float32;
    result.states.gradients += storage(p.padded, type);
    if (t.fsdp.cpu_offload) continue;  // The optimizer is the host's.
    const std::int64_t before = std::min(p.parameter->shape.elements().value(), p.padded.value() * place);
    const Elements local(std::min(p.padded.value(), p.parameter->shape.elements().value() - before));
    shards.push_back({Shape{local.value()}, type});
  }
  if (!shards.empty()) result.persistent[Role::Optimizer] += states_of(t.optimizer, shards);
  if (t.loop == LoopKind::FactoryV1) result.persistent[Role::Gradients] += result.states.gradients;
  const bool held = t.gradient_clipping > 0 && holds_norm(t.loop) && norm && !t.fsdp.cpu_offload;
  if (held) result.persistent[Role::Temporaries] += Bytes(bytes_per_element(*norm));
}

// A group whose parameters differ in dtype is gathered as bytes.
std::vector<TrafficRow> fsdp_traffic(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  if (t.runtime == Runtime::Fsdp1) return fsdp1_traffic(model, job);
  const bool replicates = t.fsdp.replicate > 1;
  const Group mesh = replicates ? Group::DataParallelInside : Group::DataParallel;
  const Resharding resharding(model, t.fsdp);
  Units units;
  std::map<DType, Bytes> reduced;
  for (const ShardedSize& p : sharded_sizes(model, job)) {
    const Resharding::Unit unit = resharding.of(*p.parameter);
    const DType type = gathered(t, *p.parameter);
    Sent& sent = units[unit.module];
    sent.reshards = unit.reshards;
    sent.type = sent.type.value_or(type) == type ? type : DType::UInt8;
    sent.whole += storage(p.padded * shard_ranks(job), type);
    const DType travels = t.communication_dtype != t.dtype ? t.communication_dtype : type;
    if (p.trained) reduced[travels] += storage(p.padded, travels);
  }
  std::vector<TrafficRow> rows;
  const auto add = [&](Collective collective, Group group, Pass phase, DType dtype, Bytes payload) {
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const TrafficRow& row) {
      return row.collective == collective && row.group == group && row.phase == phase && row.dtype == dtype;
    });
    if (same != rows.end()) {
      same->payload += payload;
    } else {
      rows.push_back({collective, group, phase, dtype, TrafficKind::Data, 0, payload, Bytes(0)});
    }
  };
  const std::vector<LayerGathers> gathers = gathers_of(model, t, units, resharding);
  std::size_t at = 0;
  for (const auto& [module, sent] : units) {
    const Bytes payload = sent.whole * t.grad_accum;
    const LayerGathers backward = gathers[at++];
    add(Collective::AllGather, mesh, Pass::Forward, *sent.type, payload);
    if (backward.of_all > 0) add(Collective::AllGather, mesh, Pass::Backward, *sent.type, payload * backward.of_all);
    if (backward.of_fewer == 0) continue;
    add(Collective::AllGather, Group::DataParallelInside, Pass::Backward, *sent.type, payload * backward.of_fewer);
  }
  const std::int64_t times = t.fsdp.sync_every ? t.grad_accum : 1;
  for (const auto& [type, payload] : reduced) {
    add(Collective::ReduceScatter, mesh, Pass::Backward, type, payload * shard_ranks(job) * times);
    if (replicates) add(Collective::AllReduce, Group::Replicas, Pass::Backward, type, payload * times);
  }
  return rows;
}

// accelerate's fsdp2_load_full_state_dict gives each weight to distribute_tensor, under each of its names. That
// scatters padded chunks within the dimension that shards (tensor/placement_types.py, Shard._shard_tensor), from the
// first rank of each replica: NCCL has no scatter, and so it is a send to each other rank (torch/csrc/cuda/nccl.cpp,
// scatter).
std::vector<TrafficRow> scattered_rows(const ModelSpec& model, const Job& job, std::int64_t rank) {
  const Training& t = job.training;
  const std::int64_t ranks = shard_ranks(job);
  if (t.runtime != Runtime::Fsdp2 || t.model_init != ModelInit::Rank0 || ranks == 1) return {};
  const std::int64_t peers = rank % ranks == 0 ? ranks - 1 : 1;
  const Group mesh = t.fsdp.replicate > 1 ? Group::DataParallelInside : Group::DataParallel;
  std::vector<TrafficRow> rows;
  for (const Parameter& p : model.parameters) {
    const DType type = kept(t, p.tied_to == kNone ? p : model.parameter_at(p.tied_to));
    const std::int64_t row = p.shape.elements().value() / p.shape.dims[0];
    const Bytes sent = storage(div_ceil(Elements(p.shape.dims[0]), ranks) * row, type) * peers;
    auto same = std::find_if(rows.begin(), rows.end(), [&](const TrafficRow& other) { return other.dtype == type; });
    if (same == rows.end()) {
      same = rows.insert(rows.end(), {Collective::SendRecv, mesh, Pass::Setup, type, TrafficKind::Data, 0, {}, {}});
    }
    ++same->calls;
    same->payload += sent;
    same->wire += sent;
  }
  return rows;
}

}  // namespace dsplan
