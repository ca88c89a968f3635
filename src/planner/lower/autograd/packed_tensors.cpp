#include "planner/lower/autograd/packed_tensors.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace dsplan {
namespace {

bool is_input(const Saved& item) { return item.kind == Saved::Kind::Input; }

// A torch.autograd.Function of Python's: save_for_backward.
bool is_function(std::span<const Saved> saved) {
  return !saved.empty() && saved.front().name == std::string_view("_saved_tensors");
}

}  // namespace

PackedTensors::PackedTensors(const GraphFacts& facts, Storages& storages, OffloadActivations& hooks, ModuleId head)
    : facts_(facts),
      storages_(storages),
      hooks_(hooks),
      head_(head),
      layouts_(saved_layouts(facts.graph())),
      ids_(facts.recipes().saved_count(), 0) {}

bool PackedTensors::concerns(NodeId node) const {
  return head_ == kNone || !facts_.lies_in(facts_.graph().node(node).module, head_);
}

// torchgen's nodes have their inputs in the order of their names, and then their results.
std::vector<const Saved*> PackedTensors::in_order(NodeId node) const {
  const std::span<const Saved> saved = facts_.recipes().saved(node);
  std::vector<const Saved*> items;
  for (const Saved& item : saved) items.push_back(&item);
  if (is_function(saved)) return items;
  std::stable_sort(items.begin(), items.end(), [](const Saved* a, const Saved* b) {
    if (is_input(*a) != is_input(*b)) return is_input(*a);
    return std::string_view(a->name) < std::string_view(b->name);
  });
  return items;
}

PackedTensors::When PackedTensors::packed_when(NodeId node, const Saved& item) const {
  const bool early = is_input(item) && !is_function(facts_.recipes().saved(node));
  return early ? When::BeforeKernel : When::BehindKernel;
}

HookedTensor PackedTensors::seen(TensorId tensor) const {
  const Tensor& what = facts_.graph().tensor(tensor);
  const SavedLayout& layout = layouts_[tensor];
  const bool parameter = facts_.graph().storage_of(tensor).parameter != kNone;
  return {parameter ? BufferId(kNoBuffer) : storages_.of(tensor),
          facts_.graph().bytes(tensor),
          what.dtype,
          layout.offset,
          layout.contiguous,
          layout.repeated};
}

// nn.functional.linear hands its weight over transposed.
HookedTensor PackedTensors::seen(NodeId id, const Saved& item, std::span<const BufferId> made) const {
  const Graph& graph = facts_.graph();
  const Node& node = graph.node(id);
  if (item.kind == Saved::Kind::Extra) {
    const std::span<const Slot> slots = facts_.recipes().slots(id);
    for (std::size_t at = 0; at < slots.size(); ++at) {
      const Slot& slot = slots[at];
      if (slot.kind == SlotKind::Extra && slot.index == item.index) return {made[at], slot.bytes, slot.dtype};
    }
    return {};
  }
  HookedTensor tensor = seen(is_input(item) ? graph.input(node, item.index) : graph.output(node, item.index));
  const bool turned = node.op == Op::Linear && node.product == Product::Transposed && is_input(item) && item.index == 1;
  if (turned) tensor.contiguous = false;
  return tensor;
}

void PackedTensors::pack(NodeId node, When when, std::span<const BufferId> made) {
  const std::size_t first = facts_.recipes().saved_index(node);
  for (const Saved* item : in_order(node)) {
    if (packed_when(node, *item) == when) ids_[first + at(node, item)] = hooks_.pack(seen(node, *item, made));
  }
}

void PackedTensors::unpack(NodeId node) {
  const std::size_t first = facts_.recipes().saved_index(node);
  for (const Saved* item : in_order(node)) {
    const std::size_t index = first + at(node, item);
    if (const std::uint64_t id = std::exchange(ids_[index], 0); id != 0)
      storages_.saved(index) = hooks_.unpack(id, node);
  }
}

std::vector<std::uint64_t> PackedTensors::pack_arguments(std::span<const TensorId> arguments) {
  std::vector<std::uint64_t> ids{hooks_.pack({})};
  for (const TensorId tensor : arguments) ids.push_back(hooks_.pack(seen(tensor)));
  return ids;
}

std::vector<BufferId> PackedTensors::unpack_arguments(std::span<const TensorId> arguments,
                                                      const std::vector<std::uint64_t>& ids, NodeId node) {
  std::vector<BufferId> handed{hooks_.unpack(ids.front(), node)};
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    handed.push_back(hooks_.unpack(ids[k + 1], node));
    if (handed.back() != kNoBuffer) storages_.of(arguments[k]) = handed.back();
  }
  return handed;
}

}  // namespace dsplan
