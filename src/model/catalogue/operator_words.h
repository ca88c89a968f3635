// A row of the catalogue in the words in which runs are written down (core/operator_runs.h).
#pragma once

#include <string>
#include <vector>

#include "core/operator_runs.h"
#include "model/catalogue/catalogue.h"

namespace dsplan {

// Whether the slot is a by-product that the recipe saves.
[[nodiscard]] bool is_kept(const Recipe& recipe, const Slot& slot);

// The steps of forward or backward as somebody at `level` would see them.
[[nodiscard]] std::string words_of(const Recipe& recipe, const std::vector<RecipeStep>& steps, RunLevel level);

// What the catalogue says of the graph's first node.
[[nodiscard]] OperatorWords catalogue_words(const Graph& graph, RunLevel level, const CatalogueOptions& options = {});

}  // namespace dsplan
