#include "sim/traffic.h"

#include <algorithm>

namespace dsplan {

Bytes wire_bytes(Collective collective, Bytes payload, std::int64_t ranks) {
  if (ranks <= 1) return Bytes(0);
  std::int64_t factor = 1;
  switch (collective) {
    case Collective::AllReduce: factor = 2; break;
    case Collective::AllGather:
    case Collective::ReduceScatter:
    case Collective::AllToAll: break;
    case Collective::Broadcast:
    case Collective::Reduce:
    case Collective::SendRecv: return payload;
  }
  // floor(x (n - 1) / n) = x - ceil(x / n), which needs no wider integer.
  const Bytes moved = payload * factor;
  return moved - div_ceil(moved, ranks);
}

void TrafficMeter::on(std::size_t, const Communicate& event) {
  if (stretch_ == Stretch::FirstStep || stretch_ == Stretch::MiddleStep) return;
  const Pass phase = event.pass == Pass::Recompute ? Pass::Backward : event.pass;
  const auto same = std::find_if(rows_.begin(), rows_.end(), [&](const TrafficRow& row) {
    return row.collective == event.collective && row.group == event.group && row.phase == phase &&
           row.dtype == event.dtype && row.kind == event.kind;
  });
  if (same == rows_.end()) {
    rows_.push_back({event.collective, event.group, phase, event.dtype, event.kind, 1, event.payload, Bytes(0)});
    return;
  }
  ++same->calls;
  same->payload += event.payload;
}

void TrafficMeter::on(std::size_t, const Mark& event) {
  if (event.moment == Moment::StretchBegins) stretch_ = event.stretch;
}

std::vector<TrafficRow> TrafficMeter::rows(std::int64_t ranks, std::int64_t inside, std::int64_t tensor) const {
  std::vector<TrafficRow> rows = rows_;
  for (TrafficRow& row : rows) {
    const std::int64_t members = row.group == Group::DataParallelInside ? inside
                                 : row.group == Group::Replicas         ? ranks / inside
                                 : row.group == Group::TensorParallel   ? tensor
                                                                        : ranks;
    row.wire = wire_bytes(row.collective, row.payload, members);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TrafficRow& a, const TrafficRow& b) { return a.phase < b.phase; });
  return rows;
}

}  // namespace dsplan
