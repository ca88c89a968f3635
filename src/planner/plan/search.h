// The search: every candidate is counted, those whose memory's lower bound is too much are left out, the rest are
// simulated in full in the order of the objective, until one fits. As the order is that of the objective itself, what
// fits first is the best of all. No shortcut changes the answer; each can be switched off.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/search.h"
#include "planner/plan/space.h"

namespace dsplan {

struct SearchProgress {
  std::int64_t candidates = 0;  // Counted so far.
  std::int64_t simulated = 0;
  std::int64_t open = 0;  // That may still have to be simulated; 0 while counting.
  const PlanRow* best = nullptr;
};

struct SearchOptions {
  Objective objective = Objective::TokensPerSecond;
  bool front = false;   // Also the front of memory, time and traffic: simulates many more.
  bool explain = true;  // Also neighbours, remedies and advice.
  // Of the chosen one the whole prediction, of those that do not fit what they would take; else what verdicts rest on.
  bool whole = true;
  std::size_t listed = 3;          // Rows of `next`.
  std::size_t segmentations = 12;  // That `auto` stands for, at most.
  // Shortcuts.
  bool bounds = true;      // Lower bounds of memory.
  bool stop_early = true;  // What is slower than one that fits is not simulated.
  bool few_layers = true;  // Bounds and times of alike layers are made once (needs `with_layers`).
  // Called often; false ends the search with what there is.
  std::function<bool(const SearchProgress&)> go_on;
  // The same model with so many layers; refuses what cannot be. Objective::Layers needs it.
  std::function<ModelSpec(std::int64_t)> with_layers;
};

// Refuses what space_of refuses; a space in which every combination is impossible, with the reasons; a device without
// rates, naming the rows. A budget is a reserve: Request::reserve must already hold it.
[[nodiscard]] PlanAnswer search(const SearchInputs& inputs, const ListedSpace& listed, const SearchOptions& options);

}  // namespace dsplan
