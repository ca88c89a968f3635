// How the tensors of a graph lie in their storages, as far as it matters to hooks that copy what is saved: the first
// element, and whether the others follow in one piece. Follows PyTorch: what an elementwise operator makes keeps the
// order of dimensions of a dense operand, fused attention lays its output out token by token, all else is contiguous.
#pragma once

#include <cstdint>

#include "core/graph.h"

namespace dsplan {

struct SavedLayout {
  std::int64_t offset = 0;  // In elements.
  bool contiguous = true;
  bool repeated = false;  // Some dimension has stride 0.
};

[[nodiscard]] Indexed<TensorId, SavedLayout> saved_layouts(const Graph& graph);

}  // namespace dsplan
