#include "planner/predict/saved_tensors.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "model/graphs/graphs.h"
#include "planner/lower/autograd/graph_facts.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/live_buffers.h"

namespace dsplan {
namespace {

class Lister {
 public:
  Lister(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes, std::span<const std::string> names)
      : model_(model), graph_(graph), recipes_(recipes), names_(names), seen_(graph.storages.size(), false) {
    wanted_ = wanted_nodes(graph);
  }

  std::vector<SavedTensor> list(const Checkpointing& checkpoint) {
    const CheckpointGroup* group = nullptr;
    auto next = checkpoint.groups.begin();
    for (const Instruction& instruction : graph_.program) {
      while (next != checkpoint.groups.end() && is_skipped(graph_.regions.at(static_cast<std::size_t>(next->first))))
        ++next;
      if (instruction.kind == Instruction::Kind::RegionBegins && next != checkpoint.groups.end() &&
          instruction.region() == next->first) {
        group = &*next++;
        products_ = 0;
        add_closure(graph_.regions[static_cast<std::size_t>(instruction.region())]);
      } else if (instruction.kind == Instruction::Kind::RegionEnds && group != nullptr &&
                 instruction.region() == group->last) {
        group = nullptr;
      } else if (instruction.kind == Instruction::Kind::Run) {
        group == nullptr ? add_node(instruction.node()) : add_kept(instruction.node(), *group);
      }
    }
    return std::move(rows_);
  }

 private:
  [[nodiscard]] std::string name_of(TensorId id) const {
    return id.index() < names_.size() ? names_[id.index()] : std::string();
  }

  void add(SavedTensor row) {
    const auto key = std::make_tuple(row.node, row.module, row.name, row.tensor, row.bytes.value(), row.storage);
    const auto [at, fresh] = index_.try_emplace(key, rows_.size());
    if (fresh) {
      rows_.push_back(std::move(row));
      return;
    }
    SavedTensor& held = rows_[at->second];
    ++held.count;
    held.counted += row.counted;
  }

  void add_tensor(std::string node, ModuleId module, std::string name, TensorId id) {
    const StorageId storage = graph_.tensor(id).storage;
    SavedTensor row;
    row.node = std::move(node);
    row.module = in_every_layer(model_, module);
    row.name = std::move(name);
    row.tensor = name_of(id);
    row.bytes = graph_.storages[storage].bytes;
    const bool resident = graph_.storages[storage].parameter != kNone || graph_.storages[storage].buffer != kNone;
    row.storage = resident         ? SavedTensor::Storage::Parameter
                  : seen_[storage] ? SavedTensor::Storage::Shared
                                   : SavedTensor::Storage::Own;
    if (row.storage == SavedTensor::Storage::Own) row.counted = row.bytes;
    seen_[storage] = true;
    add(std::move(row));
  }

  void add_extra(const char* node, ModuleId module, std::string name, Bytes bytes) {
    SavedTensor row;
    row.node = node;
    row.module = in_every_layer(model_, module);
    row.name = std::move(name);
    row.bytes = row.counted = bytes;
    add(std::move(row));
  }

  void add_node(NodeId id) {
    if (!wanted_[id]) return;
    const Node& node = graph_.node(id);
    for (const Saved& saved : recipes_.saved(id)) {
      if (saved.kind == Saved::Kind::Input) {
        add_tensor(name(node.op), node.module, saved.name, graph_.input(node, saved.index));
      } else if (saved.kind == Saved::Kind::Output) {
        add_tensor(name(node.op), node.module, saved.name, graph_.output(node, saved.index));
      } else {
        for (const Slot& slot : recipes_.slots(id)) {
          if (slot.kind != SlotKind::Extra || slot.index != saved.index) continue;
          add_extra(name(node.op), node.module, saved.name, slot.bytes);
        }
      }
    }
  }

  void add_closure(const Region& region) {
    for (TensorId id : region.arguments) add_tensor("checkpoint", kNone, "argument", id);
    for (TensorId id : region.keywords) add_tensor("checkpoint", kNone, "keyword", id);
  }

  void add_kept(NodeId id, const CheckpointGroup& group) {
    const Node& node = graph_.node(id);
    const bool plain = is_plain_product(node);
    if (group.alternate && node.op == Op::Linear && (!plain || ++products_ % 2 == 0)) return;
    if (recipes_.entry(id).alias || std::find(group.kept.begin(), group.kept.end(), node.op) == group.kept.end())
      return;
    for (const Slot& slot : recipes_.slots(id)) {
      if (slot.kind == SlotKind::Output) add_tensor("checkpoint", node.module, "kept", graph_.output(node, slot.index));
      if (slot.kind == SlotKind::Extra) add_extra("checkpoint", node.module, "kept", slot.bytes);
    }
  }

  const ModelSpec& model_;
  const Graph& graph_;
  const RecipeBook& recipes_;
  std::span<const std::string> names_;
  std::int64_t products_ = 0;  // Of the group, so far.
  Indexed<StorageId, bool> seen_;
  Indexed<NodeId, bool> wanted_;
  std::vector<SavedTensor> rows_;
  std::map<std::tuple<std::string, std::string, std::string, std::string, std::int64_t, SavedTensor::Storage>,
           std::size_t>
      index_;
};

}  // namespace

std::vector<SavedTensor> saved_tensors(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes,
                                       const Checkpointing& checkpoint, std::span<const std::string> names) {
  return Lister(model, graph, recipes, names).list(checkpoint);
}

std::vector<SavedTensor> saved_tensors(const ModelSpec& model, const Job& job) {
  if (unsupported(model, job)) return {};
  const Graph graph = build_graph(model, graph_options(model, job));
  const RecipeBook recipes(graph, job.training.level, catalogue_options(job));
  return saved_tensors(model, graph, recipes, checkpointing_of(job.training, graph), {});
}

}  // namespace dsplan
