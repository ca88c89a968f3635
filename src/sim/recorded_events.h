// Recorded events that somebody keeps, found by their identity.
#pragma once

#include <algorithm>
#include <iterator>

#include "core/schedule.h"

namespace dsplan {

// Where event `id` stands among what was kept of recorded events, ascending by `id_of`; the end: nowhere. Most are
// waited for right after they were recorded.
template <class List, class IdOf>
[[nodiscard]] auto find_recorded(const List& recorded, ContentId id, const IdOf& id_of) {
  if (!recorded.empty() && id_of(recorded.back()) == id) return std::prev(recorded.end());
  const auto found =
      std::partition_point(recorded.begin(), recorded.end(), [&](const auto& one) { return id_of(one) < id; });
  return found != recorded.end() && id_of(*found) == id ? found : recorded.end();
}

}  // namespace dsplan
