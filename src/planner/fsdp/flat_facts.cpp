#include "planner/fsdp/flat_facts.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "planner/fsdp/fsdp_facts.h"

namespace dsplan {
namespace {

constexpr std::int64_t kAlignment = 16;  // Bytes, of each parameter under use_orig_params (_get_aligned_numel).

// _init_param_reduce_dtypes.
void set_dtypes(FlatUnit& unit, const Parameter& first, const Training& training) {
  unit.made = unit.kept = training.made_dtype(first);
  unit.gathered = training.dtype_of(first);
  unit.reduced = training.communication_dtype != training.dtype ? training.communication_dtype : unit.gathered;
}

// _init_flat_param_and_metadata.
void lay_out(FlatUnit& unit, const ModelSpec& model, const Job& job, std::vector<ParameterId> parameters) {
  const Training& training = job.training;
  const std::int64_t ranks = sharding_ranks(job);
  std::sort(parameters.begin(), parameters.end());
  const auto pad_to = [&](std::int64_t multiple) {
    const std::int64_t over = unit.total.value() % multiple;
    if (over == 0) return;
    unit.pieces.push_back({kNone, unit.total, Elements(multiple - over), false});
    unit.total += unit.pieces.back().elements;
  };
  set_dtypes(unit, model.parameter_at(parameters.front()), training);
  const std::int64_t aligned = kAlignment / bytes_per_element(unit.gathered);
  for (const ParameterId id : parameters) {
    if (training.fsdp.use_orig_params) pad_to(aligned);
    const Parameter& parameter = model.parameter_at(id);
    const Elements elements = parameter.shape.elements();
    const bool trained = training.trains(parameter);
    unit.pieces.push_back({id, unit.total, elements, trained});
    unit.trains = unit.trains || trained;
    unit.total += elements;
  }
  if (training.fsdp.use_orig_params) pad_to(keeps_whole(job) ? job.parallelism.dp : ranks);
  unit.shard = div_ceil(unit.total, ranks);
  if (unit.trains && training.fsdp.widens_shards) unit.kept = training.master_dtype;
}

void set_neighbours(std::vector<FlatUnit>& units, const ModelSpec& model) {
  const auto parent_of = [&](const FlatUnit& unit) {
    return std::max<ModuleId>(model.module_at(unit.module).parent, 0);
  };
  const auto layer_of = [&](const FlatUnit& unit) { return model.module_at(unit.module).layer; };
  for (FlatUnit& unit : units) {
    unit.within_layer = model.module_at(parent_of(unit)).layer != kNone;
  }
  for (FlatUnit& unit : units) {
    if (unit.within_layer || layer_of(unit) <= 0) continue;
    unit.follows_unit = std::any_of(units.begin(), units.end(), [&](const FlatUnit& other) {
      return layer_of(other) == layer_of(unit) - 1 && !other.within_layer && parent_of(other) == parent_of(unit);
    });
  }
}

}  // namespace

bool keeps_whole(const Job& job) { return sharding_ranks(job) == 1; }

std::vector<FlatUnit> flat_units(const ModelSpec& model, const Job& job) {
  const std::vector<FsdpGroup> groups = fsdp_groups(model, job.training.fsdp);
  std::vector<const FsdpGroup*> of(model.modules.size(), nullptr);
  for (const FsdpGroup& group : groups) of[static_cast<std::size_t>(group.modules.front())] = &group;
  std::vector<std::vector<ModuleId>> children(model.modules.size());
  for (std::size_t at = 1; at < model.modules.size(); ++at) {
    children[static_cast<std::size_t>(model.modules[at].parent)].push_back(static_cast<ModuleId>(at));
  }
  std::vector<FlatUnit> units;
  for (std::size_t at = 0; at < of.size(); ++at) {
    if (of[at] == nullptr || of[at]->parameters.empty()) continue;
    FlatUnit unit;
    unit.module = static_cast<ModuleId>(at);
    lay_out(unit, model, job, of[at]->parameters);
    std::deque<ModuleId> queue{unit.module};
    while (!queue.empty()) {
      unit.breadth.push_back(queue.front());
      queue.pop_front();
      for (const ModuleId child : children[static_cast<std::size_t>(unit.breadth.back())]) {
        if (of[static_cast<std::size_t>(child)] == nullptr) queue.push_back(child);
      }
    }
    units.push_back(std::move(unit));
  }
  set_neighbours(units, model);
  // _recursive_wrap: children first, in the order of registration.
  std::vector<ModuleId> open;
  std::int64_t closed = 0;
  std::vector<std::int64_t> left(model.modules.size(), 0);
  const auto close = [&] {
    left[static_cast<std::size_t>(open.back())] = closed++;
    open.pop_back();
  };
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    while (!open.empty() && open.back() != model.modules[at].parent) close();
    open.push_back(static_cast<ModuleId>(at));
  }
  while (!open.empty()) close();
  for (FlatUnit& unit : units) unit.order = left[static_cast<std::size_t>(unit.module)];
  return units;
}

std::optional<ShownAdapters> shown_adapters(const ModelSpec& model, const Job& job) {
  if (job.training.runtime != Runtime::Fsdp1 || !wraps_adapters(job.training.fsdp)) return std::nullopt;
  for (const FlatUnit& unit : flat_units(model, job)) {
    const std::string& name = model.parameter_at(unit.pieces.front().id).name;
    if (name.find(".lora_A.") == std::string::npos) continue;
    return ShownAdapters{unit.made, job.training.fsdp.use_orig_params ? unit.kept : unit.gathered};
  }
  return std::nullopt;
}

std::vector<FlatSlice> slices_of(const FlatUnit& unit, std::int64_t rank) {
  const std::int64_t begin = unit.shard.value() * rank;
  const std::int64_t end = begin + unit.shard.value();
  std::vector<FlatSlice> slices;
  for (const FlatPiece& piece : unit.pieces) {
    const std::int64_t from = std::max(begin, piece.from.value());
    const std::int64_t to = std::min(end, piece.from.value() + piece.elements.value());
    if (piece.id != kNone && from < to) {
      slices.push_back({piece.id, Elements(from - begin), Elements(to - from), piece.trained});
    }
  }
  return slices;
}

}  // namespace dsplan
