#include "planner/lowering/recipes.h"

#include <algorithm>

namespace dsplan {

RecipeBook::RecipeBook(const Graph& graph, const CatalogueOptions& options) {
  const std::size_t nodes = graph.nodes.size();
  entries_.reserve(nodes + 1);
  slots_.reserve(nodes * 3);
  forward_.reserve(nodes * 3);
  backward_.reserve(nodes * 4);
  saved_.reserve(nodes * 2);
  Recipe recipe;
  const auto ends = [&] {
    Entry entry;
    entry.slots = static_cast<std::uint32_t>(slots_.size());
    entry.forward = static_cast<std::uint32_t>(forward_.size());
    entry.backward = static_cast<std::uint32_t>(backward_.size());
    entry.saved = static_cast<std::uint32_t>(saved_.size());
    return entry;
  };
  for (const Node& node : graph.nodes) {
    recipe_of(graph, node, recipe, options);
    if (recipe.unknown != nullptr && std::find(unknown_.begin(), unknown_.end(), recipe.unknown) == unknown_.end()) {
      unknown_.push_back(recipe.unknown);
    }
    Entry entry = ends();
    entry.saves_after_kernel = recipe.saves_after_kernel;
    entry.in_place = recipe.in_place;
    entry.alias = recipe.alias;
    entry.passes_part = recipe.passes_part;
    entry.leaves_reversed = recipe.leaves_reversed;
    entry.passes = recipe.passes;
    entry.hands_out = recipe.hands_out;
    entry.seen_through_view = recipe.seen_through_view;
    entries_.push_back(entry);
    slots_.insert(slots_.end(), recipe.slots.begin(), recipe.slots.end());
    forward_.insert(forward_.end(), recipe.forward.begin(), recipe.forward.end());
    backward_.insert(backward_.end(), recipe.backward.begin(), recipe.backward.end());
    saved_.insert(saved_.end(), recipe.saved.begin(), recipe.saved.end());
  }
  entries_.push_back(ends());
}

}  // namespace dsplan
