#include "planner/lower/autograd/recipes.h"

#include <algorithm>

namespace dsplan {
namespace {

// Leaves out what happens to slots that only a kernel sees, and the kernels that did nothing else than fill them.
void leave_out_kernel_slots(const std::vector<Slot>& slots, std::vector<RecipeStep>& steps) {
  std::vector<RecipeStep> kept;
  bool left_out = false;
  bool made = false;
  for (const RecipeStep& step : steps) {
    const bool on_slot = step.kind == RecipeStep::Kind::Make || step.kind == RecipeStep::Kind::Drop;
    if (on_slot && slots[step.slot].visibility == Visibility::Kernel) {
      left_out = left_out || step.kind == RecipeStep::Kind::Make;
      continue;
    }
    made = made || step.kind == RecipeStep::Kind::Make;
    if (step.kind == RecipeStep::Kind::Kernel) {
      const bool idle = left_out && !made;
      left_out = made = false;
      if (idle) continue;
    }
    kept.push_back(step);
  }
  steps = std::move(kept);
}

}  // namespace

RecipeBook::RecipeBook(const Graph& graph, Level level, const CatalogueOptions& options) {
  const std::size_t nodes = graph.nodes.size();
  entries_.reserve(nodes + 1);
  slots_.reserve(nodes * 3);
  forward_.reserve(nodes * 3);
  backward_.reserve(nodes * 4);
  saved_.reserve(nodes * 2);
  Recipe recipe;
  CatalogueOptions seen = options;
  seen.fake = level == Level::Dispatch;
  const auto ends = [&] {
    Entry entry;
    entry.slots = static_cast<std::uint32_t>(slots_.size());
    entry.forward = static_cast<std::uint32_t>(forward_.size());
    entry.backward = static_cast<std::uint32_t>(backward_.size());
    entry.saved = static_cast<std::uint32_t>(saved_.size());
    return entry;
  };
  for (const Node& node : graph.nodes) {
    recipe_of(graph, node, recipe, seen);
    if (recipe.unknown != nullptr && std::find(unknown_.begin(), unknown_.end(), recipe.unknown) == unknown_.end()) {
      unknown_.push_back(recipe.unknown);
    }
    if (level == Level::Dispatch) {
      leave_out_kernel_slots(recipe.slots, recipe.forward);
      leave_out_kernel_slots(recipe.slots, recipe.backward);
    }
    Entry entry = ends();
    entry.saves_after_kernel = recipe.saves_after_kernel;
    entry.in_place = recipe.in_place;
    entry.alias = recipe.alias;
    entry.passes_part = recipe.passes_part;
    entry.passes_own = recipe.passes_own;
    entry.leaves_reversed = recipe.leaves_reversed;
    entry.leaves_first = recipe.leaves_first;
    entry.passes = recipe.passes;
    entry.hands_out = recipe.hands_out;
    entry.overwrites = recipe.overwrites;
    entry.seen_through_view = recipe.seen_through_view;
    entry.holds = recipe.holds;
    entry.comes_empty = recipe.comes_empty;
    entry.not_whole = recipe.not_whole;
    entry.shared_outputs = recipe.shared_outputs;
    entries_.push(entry);
    slots_.insert(slots_.end(), recipe.slots.begin(), recipe.slots.end());
    forward_.insert(forward_.end(), recipe.forward.begin(), recipe.forward.end());
    backward_.insert(backward_.end(), recipe.backward.begin(), recipe.backward.end());
    saved_.insert(saved_.end(), recipe.saved.begin(), recipe.saved.end());
  }
  entries_.push(ends());
}

}  // namespace dsplan
