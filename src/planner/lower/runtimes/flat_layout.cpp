#include "planner/lower/runtimes/flat_layout.h"

#include <algorithm>
#include <utility>

#include "core/units.h"

namespace dsplan {

FlatLayout::FlatLayout(std::vector<NamedParameter> parameters, std::int64_t alignment, std::int64_t parts,
                       std::int64_t own)
    : order(std::move(parameters)), ranks(parts), rank(own) {
  for (const NamedParameter& parameter : order) {
    if (at(parameter.id) >= index.size()) index.resize(at(parameter.id) + 1, 0);
    index[at(parameter.id)] = offset.size();
    offset.push_back(elements);
    elements = checked_add(elements, parameter.elements);
  }
  padded = round_up(Elements(elements), alignment).value();
  partition = padded / ranks;
  const std::int64_t end = begin() + partition;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t from = std::max(offset[i], begin());
    const std::int64_t to = std::min(offset[i] + order[i].elements, end);
    const bool mine = from < to;
    kept_offset.push_back(mine ? kept : -1);
    if (!mine) continue;
    fragments.push_back({i, from - offset[i], from - begin(), to - from});
    kept += order[i].elements;
  }
}

std::int64_t FlatLayout::padding() const {
  std::int64_t filled = 0;
  for (const Fragment& fragment : fragments) filled += fragment.count;
  return partition - filled;
}

const FlatLayout::Fragment& FlatLayout::fragment_of(std::size_t parameter) const {
  return *std::lower_bound(fragments.begin(), fragments.end(), parameter,
                           [](const Fragment& fragment, std::size_t wanted) { return fragment.parameter < wanted; });
}

std::vector<NamedParameter> dealt_out(const std::vector<NamedParameter>& trained, std::int64_t ranks) {
  std::vector<NamedParameter> order;
  const auto step = static_cast<std::size_t>(ranks);
  for (std::size_t first = 0; first < step; ++first) {
    for (std::size_t i = first; i < trained.size(); i += step) order.push_back(trained[i]);
  }
  return order;
}

}  // namespace dsplan
