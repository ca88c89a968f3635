#include "exec/operators/views.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace dsplan::exec {
namespace {

std::size_t dimension(const Layout& layout, std::int8_t at) {
  DSPLAN_CHECK(at >= 0 && at < layout.rank, "a view's step names no dimension");
  return static_cast<std::size_t>(at);
}

Layout swapped(Layout layout, std::int8_t a, std::int8_t b) {
  const std::size_t first = dimension(layout, a);
  const std::size_t second = dimension(layout, b);
  std::swap(layout.dims[first], layout.dims[second]);
  std::swap(layout.strides[first], layout.strides[second]);
  return layout;
}

// The dimensions alone, as the framework sees them.
void follow(std::vector<std::int64_t>& dims, const ViewStep& step) {
  switch (step.kind) {
    case ViewStep::Kind::Reshape:
      dims.assign(step.shape.dims.begin(), step.shape.dims.begin() + step.shape.rank);
      break;
    case ViewStep::Kind::Swap:
      std::swap(dims.at(static_cast<std::size_t>(step.a)), dims.at(static_cast<std::size_t>(step.b)));
      break;
    case ViewStep::Kind::Narrow:
    case ViewStep::Kind::Repeat: dims.at(static_cast<std::size_t>(step.a)) = step.length; break;
  }
}

}  // namespace

OffsetLayout narrowed(const Layout& from, std::size_t dim, std::int64_t start, std::int64_t length) {
  DSPLAN_CHECK(dim < from.rank && start >= 0 && start + length <= from.dims[dim], "a part lies outside its tensor");
  OffsetLayout seen{start * from.strides[dim], from};
  seen.layout.dims[dim] = length;
  return seen;
}

std::optional<OffsetLayout> apply_steps(const Layout& from, std::span<const ViewStep> steps) {
  OffsetLayout seen{0, from};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const ViewStep& step = steps[i];
    switch (step.kind) {
      case ViewStep::Kind::Reshape: {
        const std::optional<Layout> to = reshaped(seen.layout, extents(step.shape));
        if (to) {
          seen.layout = *to;
        } else if (i + 1 < steps.size() || seen.layout.elements() != step.shape.elements().value()) {
          return std::nullopt;
        }
        break;
      }
      case ViewStep::Kind::Swap: seen.layout = swapped(seen.layout, step.a, step.b); break;
      case ViewStep::Kind::Narrow: {
        const OffsetLayout part = narrowed(seen.layout, dimension(seen.layout, step.a), step.start, step.length);
        seen = {seen.offset + part.offset, part.layout};
        break;
      }
      case ViewStep::Kind::Repeat: {
        const std::size_t dim = dimension(seen.layout, step.a);
        if (seen.layout.dims[dim] != 1) return std::nullopt;
        seen.layout.dims[dim] = step.length;
        seen.layout.strides[dim] = 0;
        break;
      }
    }
  }
  return seen;
}

std::optional<Layout> undo_steps(const Layout& gradient, std::span<const std::int64_t> dims,
                                 std::span<const ViewStep> steps) {
  std::vector<std::vector<std::int64_t>> before{{dims.begin(), dims.end()}};
  for (const ViewStep& step : steps) {
    before.push_back(before.back());
    follow(before.back(), step);
  }
  if (!std::ranges::equal(before.back(), gradient.extents())) return std::nullopt;
  Layout layout = gradient;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (steps[i].kind == ViewStep::Kind::Swap) {
      layout = swapped(layout, steps[i].a, steps[i].b);
    } else if (steps[i].kind == ViewStep::Kind::Reshape) {
      const std::optional<Layout> back = reshaped(layout, before[i]);
      if (!back && i > 0) return std::nullopt;
      if (back) layout = *back;
    } else {
      return std::nullopt;  // Such a gradient is made, not seen.
    }
  }
  return layout;
}

}  // namespace dsplan::exec
