#include "planner/fsdp/fsdp_facts.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "model/parts.h"

namespace dsplan {
namespace {

bool is_named(const Module& module, std::string_view name) {
  return module.path == name || module.path.ends_with("." + std::string(name));
}

bool is_one_of(std::string_view word, std::string_view words) {
  while (true) {
    const std::size_t plus = words.find('+');
    if (words.substr(0, plus) == word) return true;
    if (plus == std::string_view::npos) return false;
    words.remove_prefix(plus + 1);
  }
}

struct Ends {
  ModuleId embedding = kNone;
  ModuleId norm = kNone;
  ModuleId head = kNone;
};

const TowerParts* tower_beside_text(const ModelSpec& model) {
  const bool shown = model.parts != nullptr && model.parts->tower != nullptr && model.parts->tower->beside_text();
  return shown ? model.parts->tower.get() : nullptr;
}

bool is_inside(const Module& module, std::string_view outer) {
  return formatted(".{}.", module.path).find(formatted(".{}.", outer)) != std::string::npos;
}

// accelerate looks for the norm among what its base model is made of, where a model that is shown pictures has none
// (utils/fsdp_utils.py, _find_final_norm).
Ends ends_of(const ModelSpec& model) {
  Ends ends;
  const TowerParts* tower = tower_beside_text(model);
  for (std::size_t at = 0; at < model.modules.size(); ++at) {
    const Module& module = model.modules[at];
    if (module.layer != kNone || (tower != nullptr && is_inside(module, tower->module))) continue;
    const auto id = static_cast<ModuleId>(at);
    const bool looks_up = module.type.ends_with("Embedding") && model.parameter(id, "weight") != kNone;
    if (looks_up && ends.embedding == kNone) ends.embedding = id;
    if (module.type.find("Norm") != std::string::npos && tower == nullptr) ends.norm = id;
    if (is_named(module, "lm_head") || is_named(module, "embed_out")) ends.head = id;
    if (model.code == ModelCode::Torchtitan && is_named(module, "output")) ends.head = id;
  }
  return ends;
}

bool ties(const ModelSpec& model, ModuleId a, ModuleId b) {
  const ParameterId first = model.parameter(a, "weight");
  const ParameterId second = model.parameter(b, "weight");
  return second != kNone && first != kNone && model.parameter_at(second).tied_to == first;
}

// Embeddings; norm and head. A weight that both ends have is in one group with the norm, as accelerate puts it; there
// embeddings come first.
void wrap_ends(const ModelSpec& model, const Fsdp& fsdp, std::vector<FsdpGroup>& groups) {
  const Ends ends = ends_of(model);
  const bool tied = ends.embedding != kNone && ends.head != kNone && ties(model, ends.embedding, ends.head);
  if (!tied && ends.embedding != kNone) {
    groups.push_back({{ends.embedding}, {}, {}, kNone, kNone, fsdp.reshard_after_forward});
  }
  std::vector<ModuleId> tail;
  for (const ModuleId id : {ends.norm, tied ? ends.embedding : ModuleId(kNone), ends.head}) {
    if (id != kNone) tail.push_back(id);
  }
  if (!tail.empty()) groups.push_back({std::move(tail), {}, {}, kNone, kNone, fsdp.reshard_tail ? 1 : 0});
}

bool is_layer(const ModelSpec& model, const Module& module) {
  return module.layer != kNone && model.module_at(module.parent).layer == kNone;
}

// Of peft's fsdp_auto_wrap_policy: no modules inside, and a weight that is trained.
bool is_trained_leaf(const ModelSpec& model, ModuleId module) {
  const auto next = static_cast<std::size_t>(module) + 1;
  if (next < model.modules.size() && model.modules[next].parent == module) return false;
  const ParameterId weight = model.parameter(module, "weight");
  return weight != kNone && model.parameter_at(weight).trainable;
}

// _recursive_wrap with size_based_auto_wrap_policy: what lies inside goes first, and a module is wrapped where what is
// left of it is large enough.
class BySize {
 public:
  BySize(const ModelSpec& model, std::int64_t least) : model_(model), least_(least), children_(model.modules.size()) {
    for (std::size_t at = 1; at < model.modules.size(); ++at) {
      children_[static_cast<std::size_t>(model.modules[at].parent)].push_back(static_cast<ModuleId>(at));
    }
    owned_.resize(model.modules.size());
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      const Parameter& parameter = model.parameters[at];
      const ParameterId first = parameter.tied_to == kNone ? static_cast<ParameterId>(at) : parameter.tied_to;
      owned_[static_cast<std::size_t>(parameter.module)].push_back(first);
    }
  }

  // Elements that are wrapped by then.
  std::int64_t wrap(ModuleId module, std::vector<ModuleId>& wrapped) const {
    std::set<ParameterId> seen;
    const std::int64_t whole = elements_of(module, seen);
    if (whole < least_) return 0;
    std::int64_t taken = 0;
    for (const ModuleId child : children_[static_cast<std::size_t>(module)]) taken += wrap(child, wrapped);
    const std::string& type = model_.module_at(module).type;
    const bool holds_others = type == "ModuleList" || type == "ModuleDict";
    if (module == 0 || holds_others || whole - taken < least_) return taken;
    wrapped.push_back(module);
    return whole;
  }

 private:
  // Of parameters that several modules have, one is counted.
  std::int64_t elements_of(ModuleId module, std::set<ParameterId>& seen) const {
    std::int64_t sum = 0;
    for (const ParameterId id : owned_[static_cast<std::size_t>(module)]) {
      if (!seen.insert(id).second) continue;
      sum += model_.parameter_at(id).shape.elements().value();
    }
    for (const ModuleId child : children_[static_cast<std::size_t>(module)]) sum += elements_of(child, seen);
    return sum;
  }

  const ModelSpec& model_;
  std::int64_t least_;
  std::vector<std::vector<ModuleId>> children_;
  std::vector<std::vector<ParameterId>> owned_;
};

// Of a word that names modules one by one, in the order in which they are wrapped; classes all at once, bottom up.
std::vector<ModuleId> named_by(const ModelSpec& model, const Fsdp& fsdp, std::string_view word) {
  std::vector<ModuleId> modules;
  if (const auto least = least_wrapped(word)) {
    BySize(model, *least).wrap(0, modules);
    return modules;
  }
  const auto size = static_cast<ModuleId>(model.modules.size());
  const auto add_if = [&](ModuleId at, bool wraps) {
    if (wraps) modules.push_back(at);
  };
  if (word == "layers") {
    for (ModuleId at = 1; at < size; ++at) add_if(at, is_layer(model, model.module_at(at)));
  } else if (word == kAdapters) {
    for (ModuleId at = 1; at < size; ++at) add_if(at, is_trained_leaf(model, at));
  } else {
    for (ModuleId at = size - 1; at > 0; --at) add_if(at, is_one_of(model.module_at(at).type, fsdp.wrap));
  }
  return modules;
}

bool is_class(std::string_view word) { return word != "layers" && word != kAdapters && !least_wrapped(word); }

// Factors come before the layer in which they lie, as get_module_children_bottom_up finds them.
void sort_bottom_up(const ModelSpec& model, std::vector<FsdpGroup>& groups) {
  const auto called = [&](const FsdpGroup& group) {
    const ModuleId module = group.modules.front();
    const ModuleId around = model.module_at(module).parent;
    return is_factor(model, group) ? model.module_at(around).parent : module;
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const FsdpGroup& a, const FsdpGroup& b) {
    const ModuleId first = called(a);
    const ModuleId second = called(b);
    if (first == second || model.lies_in(second, first)) return false;
    return model.lies_in(first, second) || first < second;
  });
}

// The modules of each call, in the order of the calls: layers from the first to the last, classes bottom up.
std::vector<FsdpGroup> wrapped(const ModelSpec& model, const Fsdp& fsdp) {
  std::vector<FsdpGroup> groups;
  const auto add = [&](std::vector<ModuleId> modules, std::int64_t reshards) {
    groups.push_back({std::move(modules), {}, {}, kNone, kNone, reshards});
  };
  std::string_view words = fsdp.wrap == "ends" ? std::string_view("ends+layers") : fsdp.wrap;
  bool classes = false;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find('+'), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    if (word == "ends") {
      wrap_ends(model, fsdp, groups);
    } else if (word != "root" && word != kHeldEnds && word != kAxolotl && !(classes && is_class(word))) {
      classes = classes || is_class(word);
      for (const ModuleId module : named_by(model, fsdp, word)) add({module}, fsdp.reshard_after_forward);
    }
  }
  if (prepared_by_axolotl(fsdp.wrap) && wraps_adapters(fsdp)) sort_bottom_up(model, groups);
  add({0}, fsdp.reshard_root ? 1 : 0);
  return groups;
}

// Depth first, a module's own after its children's, never into what another call has taken (_fsdp_init.py,
// _get_managed_modules, _get_managed_states).
class Managed {
 public:
  Managed(const ModelSpec& model, const Fsdp& fsdp, const std::vector<FsdpGroup>& groups)
      : model_(model),
        children_(model.modules.size()),
        own_(model.modules.size()),
        group_(model.modules.size(), kNobody),
        taken_(model.parameters.size(), false) {
    for (std::size_t at = 1; at < model.modules.size(); ++at) {
      children_[static_cast<std::size_t>(model.modules[at].parent)].push_back(static_cast<ModuleId>(at));
    }
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      const ParameterId tied = model.parameters[at].tied_to;  // What is tied has one name: the first.
      const Parameter& named = model.parameters[tied == kNone ? at : static_cast<std::size_t>(tied)];
      if (!fsdp.ignored.empty() && fsdp.ignores(named)) continue;
      own_[static_cast<std::size_t>(model.parameters[at].module)].push_back(static_cast<ParameterId>(at));
    }
    for (std::size_t at = 0; at < groups.size(); ++at) {
      for (const ModuleId module : groups[at].modules) group_[static_cast<std::size_t>(module)] = at;
    }
  }

  void find(FsdpGroup& group, std::size_t number) {
    for (const ModuleId module : group.modules) visit(module, number, group);
  }

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  void visit(ModuleId module, std::size_t number, FsdpGroup& into) {
    const auto at = static_cast<std::size_t>(module);
    if (group_[at] != kNobody && group_[at] != number) return;
    for (const ModuleId child : children_[at]) visit(child, number, into);
    into.managed.push_back(module);
    for (ParameterId id : own_[at]) {
      const ParameterId tied = model_.parameter_at(id).tied_to;
      if (tied != kNone) id = tied;
      if (taken_[static_cast<std::size_t>(id)]) continue;
      taken_[static_cast<std::size_t>(id)] = true;
      into.parameters.push_back(id);
    }
  }

  const ModelSpec& model_;
  std::vector<std::vector<ModuleId>> children_;
  std::vector<std::vector<ParameterId>> own_;
  std::vector<std::size_t> group_;
  std::vector<bool> taken_;
};

}  // namespace

FsdpShard shard_on_dim0(const Shape& shape, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t rows = shape.dims[0];
  const std::int64_t most = div_ceil(rows, ranks);
  const std::int64_t begin = std::min(rows, checked_mul(most, rank));
  const std::int64_t row = shape.elements().value() / rows;
  FsdpShard shard;
  shard.local = shape;
  shard.local.dims[0] = std::min(most, rows - begin);
  shard.from = Elements(checked_mul(begin, row));
  shard.real = shard.local.elements();
  shard.padded = Elements(checked_mul(most, row));
  return shard;
}

std::int64_t full_shards(const Shape& shape, std::int64_t ranks) {
  const std::int64_t rows = shape.dims[0];
  return rows / div_ceil(rows, ranks);
}

std::optional<std::int64_t> least_wrapped(std::string_view word) {
  constexpr std::string_view kSize = "size:";
  if (!word.starts_with(kSize)) return std::nullopt;
  word.remove_prefix(kSize.size());
  std::int64_t least = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), least);
  if (error != std::errc() || end != word.data() + word.size() || least <= 0) return std::nullopt;
  return least;
}

bool prepared_by_axolotl(std::string_view wrap) { return is_one_of(kAxolotl, wrap); }

bool wraps_adapters(const Fsdp& fsdp) { return is_one_of(kAdapters, fsdp.wrap); }

std::optional<DType> sharded_adapters(const ModelSpec& model, const Training& training) {
  if (training.runtime != Runtime::Fsdp2 || !wraps_adapters(training.fsdp)) return std::nullopt;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.name.find(".lora_A.") != std::string::npos) return training.made_dtype(parameter);
  }
  return std::nullopt;
}

bool is_factor(const ModelSpec& model, const FsdpGroup& group) {
  return model.module_at(group.modules.front()).path.find(".lora_") != std::string::npos;
}

bool same_shards(const ModelSpec& model, const Job& job, std::int64_t a, std::int64_t b) {
  const std::int64_t ranks = sharding_ranks(job);
  if (job.training.runtime == Runtime::Fsdp1) return a % ranks == b % ranks;  // Cut anywhere.
  return std::all_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& p) {
    return shard_on_dim0(p.shape, ranks, a % ranks).real == shard_on_dim0(p.shape, ranks, b % ranks).real;
  });
}

std::vector<FsdpGroup> fsdp_groups(const ModelSpec& model, const Fsdp& fsdp) {
  std::vector<FsdpGroup> groups = wrapped(model, fsdp);
  Managed managed(model, fsdp, groups);
  for (std::size_t at = 0; at < groups.size(); ++at) managed.find(groups[at], at);
  std::vector<std::vector<std::size_t>> passed(model.modules.size());  // By module: the calls that it was passed to.
  for (std::size_t at = 0; at < groups.size(); ++at) {
    for (const ModuleId module : groups[at].modules) passed[static_cast<std::size_t>(module)].push_back(at);
  }
  for (const ModuleCall& call : model.calls) {
    for (const std::size_t at : passed[static_cast<std::size_t>(call.module)]) {
      FsdpGroup& group = groups[at];
      if (call.enter && group.first == kNone) group.first = call.module;
      if (!call.enter) group.last = call.module;
    }
  }
  const std::vector<std::size_t> layers = layer_groups(model, groups);
  if (!fsdp.reshard_last && !layers.empty()) groups[layers.back()].reshards = 0;
  return groups;
}

bool shards_decoder_layers(const ModelSpec& model, const Fsdp& fsdp) {
  const std::vector<FsdpGroup> groups = fsdp_groups(model, fsdp);
  return std::any_of(groups.begin(), groups.end(), [&](const FsdpGroup& group) {
    return model.module_at(group.modules.front()).type.ends_with("DecoderLayer");
  });
}

bool is_held(const ModelSpec& model, const Fsdp& fsdp, ParameterId id) {
  if (!is_one_of(kHeldEnds, fsdp.wrap)) return false;
  const auto first = [&](ParameterId one) {
    const ParameterId tied = model.parameter_at(one).tied_to;
    return tied == kNone ? one : tied;
  };
  const auto last = std::find_if(model.parameters.rbegin(), model.parameters.rend(),
                                 [](const Parameter& parameter) { return parameter.tied_to == kNone; });
  if (id == model.parameters.rend() - last - 1) return true;
  const Ends ends = ends_of(model);
  for (const ModuleId end : {ends.embedding, ends.head}) {
    const ParameterId weight = end == kNone ? ParameterId(kNone) : model.parameter(end, "weight");
    if (weight != kNone && first(weight) == id) return true;
  }
  return false;
}

std::vector<std::size_t> layer_groups(const ModelSpec& model, const std::vector<FsdpGroup>& groups) {
  std::vector<std::size_t> found;
  for (std::size_t at = 0; at < groups.size(); ++at) {
    const FsdpGroup& group = groups[at];
    const bool layer = group.modules.size() == 1 && is_layer(model, model.module_at(group.modules.front()));
    if (layer && !group.parameters.empty()) found.push_back(at);
  }
  std::sort(found.begin(), found.end(),
            [&](std::size_t a, std::size_t b) { return groups[a].modules.front() < groups[b].modules.front(); });
  return found;
}

namespace {

// By module, the number of the group that takes it. What lies inside comes first.
std::vector<std::size_t> numbers_of(const ModelSpec& model, const std::vector<FsdpGroup>& groups) {
  std::vector<std::size_t> number(model.modules.size(), 0);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const ModuleId module : groups[group].managed) number[static_cast<std::size_t>(module)] = group;
  }
  return number;
}

bool unties(const ModelSpec& model, const Training& training, const std::vector<std::size_t>& number) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& parameter) {
    if (parameter.tied_to == kNone) return false;
    const Parameter& first = model.parameter_at(parameter.tied_to);
    if (training.is_ignored(first)) return false;
    return number[static_cast<std::size_t>(parameter.module)] != number[static_cast<std::size_t>(first.module)];
  });
}

// Within a layer: of a group that is no whole layer.
bool is_inside(const ModelSpec& model, ModuleId module) {
  const Module& own = model.module_at(module);
  return own.layer != kNone && model.module_at(own.parent).layer != kNone;
}

// _fsdp_param_group.py, _init_mp_dtypes, wants one dtype of all that is trained in a group.
bool trains_two_dtypes(const ModelSpec& model, const Training& training, const FsdpGroup& group) {
  std::optional<DType> one;
  return std::any_of(group.parameters.begin(), group.parameters.end(), [&](ParameterId id) {
    const Parameter& parameter = model.parameter_at(id);
    if (!parameter.trainable) return false;
    const DType dtype = training.made_dtype(parameter);
    return std::exchange(one, dtype).value_or(dtype) != dtype;
  });
}

}  // namespace

std::optional<std::string> groups_unsupported(const ModelSpec& model, const Training& training) {
  const std::vector<FsdpGroup> groups = fsdp_groups(model, training.fsdp);
  if (is_one_of("ends", training.fsdp.wrap) && model.dims.image > 0 && tower_beside_text(model) == nullptr) {
    return "groups of the ends of a classifier of pictures";
  }
  if (unties(model, training, numbers_of(model, groups)))
    return "a tied weight in two groups of fully_shard, which unties it";
  if (std::any_of(groups.begin(), groups.end(),
                  [&](const FsdpGroup& group) { return trains_two_dtypes(model, training, group); })) {
    return "trained parameters of two dtypes in one group, which fully_shard refuses";
  }
  const Checkpointing& checkpoint = training.checkpoint;
  if (checkpoint.groups.empty() && checkpoint.modules.empty()) return std::nullopt;
  const bool flattens = training.runtime == Runtime::Fsdp1;  // Such units are gathered by what runs again.
  const bool inside = !flattens && std::any_of(groups.begin(), groups.end(), [&](const FsdpGroup& group) {
    return is_inside(model, group.modules.front()) && !is_factor(model, group);
  });
  if (inside || checkpoint.groups.empty()) {
    return "groups of fully_shard inside a checkpoint, or checkpoints inside a layer's group";
  }
  for (const CheckpointGroup& group : checkpoint.groups) {
    if (group.first != group.last) return "checkpoints around several groups of fully_shard";
    if (group.kind == CheckpointKind::DeepSpeed) return "DeepSpeed's checkpoints under fully_shard";
  }
  return std::nullopt;
}

}  // namespace dsplan
