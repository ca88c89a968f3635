#include <algorithm>

#include "core/audit.h"

#include "core/format.h"

namespace dsplan {
namespace {

// The collectives of one rank, for comparison with another's.
struct Collectives : Ignores<Allocate, Release, Compute, RecordEvent, WaitEvent, Enter, Exit, Mark> {
  using Ignores::on;
  void on(std::size_t at, const Communicate& event) { list.emplace_back(at, &event); }
  std::vector<std::pair<std::size_t, const Communicate*>> list;
};

bool same(const Communicate& a, const Communicate& b) {
  return a.collective == b.collective && a.group == b.group && a.dtype == b.dtype && a.kind == b.kind &&
         a.payload == b.payload && a.pass == b.pass && a.module == b.module && a.stream == b.stream;
}

}  // namespace

std::vector<Finding> audit_ranks(std::span<const Schedule> ranks, std::size_t most) {
  std::vector<Finding> findings;
  const auto find = [&](std::size_t at, const Schedule& schedule, std::string_view text) {
    if (findings.size() < most) findings.push_back({at, formatted("rank {}: {}", schedule.rank, text)});
  };
  Collectives expected;
  if (!ranks.empty()) replay(ranks.front(), expected);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Schedule& schedule = ranks[i];
    const std::size_t end = schedule.events.size();
    if (schedule.rank < 0 || schedule.rank >= schedule.dp) find(end, schedule, "not a rank of its group");
    if (schedule.world != ranks[0].world || schedule.dp != ranks[0].dp || schedule.tp != ranks[0].tp)
      find(end, schedule, "another world");
    for (std::size_t j = 0; j < i; ++j) {
      if (ranks[j].rank == schedule.rank) find(end, schedule, "this rank appears twice");
    }
    Collectives found;
    replay(schedule, found);
    for (std::size_t k = 0; k < std::min(found.list.size(), expected.list.size()); ++k) {
      if (same(*found.list[k].second, *expected.list[k].second)) continue;
      find(found.list[k].first, schedule, formatted("collective {} is not rank {}'s", k, ranks[0].rank));
      break;
    }
    if (found.list.size() != expected.list.size()) {
      find(end, schedule,
           formatted("{} collectives, rank {} has {}", found.list.size(), ranks[0].rank, expected.list.size()));
    }
  }
  return findings;
}

}  // namespace dsplan
