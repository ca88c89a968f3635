// Views as steps on layouts, forwards and backwards. Shared by the operators' rules and by kernels that copy a
// gradient back through a view.
#pragma once

#include <optional>
#include <span>

#include "core/graph.h"
#include "exec/operators/layout.h"

namespace dsplan::exec {

struct OffsetLayout {
  std::int64_t offset = 0;  // Of its first element, in elements.
  Layout layout;
};

// What the steps make of a tensor that lies like `from`. Where the last step is a reshape that this layout does not
// allow without a copy, it is left out: the dimensions are then not the view's, but the elements stand in its order,
// and the copy that must follow reads them in that order. nullopt: no such view.
[[nodiscard]] std::optional<OffsetLayout> apply_steps(const Layout& from, std::span<const ViewStep> steps);

// The gradient of what the steps start from (of dimensions `dims`), as a view of the gradient of their result: only of
// reshapes and swaps. A reshape that comes first is left out where the layout does not allow it without a copy, as
// above. nullopt where no view shows it.
[[nodiscard]] std::optional<Layout> undo_steps(const Layout& gradient, std::span<const std::int64_t> dims,
                                               std::span<const ViewStep> steps);

[[nodiscard]] OffsetLayout narrowed(const Layout& from, std::size_t dim, std::int64_t start, std::int64_t length);

}  // namespace dsplan::exec
