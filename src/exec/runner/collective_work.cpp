#include "exec/runner/collective_work.h"

#include "core/error.h"

namespace dsplan::exec {

void ExposedTime::begin_pair() {
  if (used_ == pairs_.size()) pairs_.push_back({DeviceEvent(device_), DeviceEvent(device_)});
  pairs_[used_].begin.record(kComputeStream);
}

void ExposedTime::settle() {
  for (std::size_t at = 0; at < used_; ++at) nanoseconds_ += pairs_[at].end.since(pairs_[at].begin);
  used_ = 0;
}

bool is_flag(const Communicate& event) {
  return event.kind == TrafficKind::Control && event.collective == Collective::AllReduce && event.payload == Bytes(1);
}

// Parts are put where they will lie, unless they lie there or are one piece.
Piece CollectiveWork::joined(const std::vector<Piece>& parts, const Piece& place) {
  if (parts.size() == 1) return parts.front();
  side_by_side(parts, {&place, 1}, [&](const Piece& from, const Piece& to) {
    if (from.data != nullptr) return launcher_.copy(from, to);
    device_.fill(to.data, to.space, 0, storage(Elements(to.elements), to.dtype));
  });
  return place;
}

void CollectiveWork::run(std::size_t at, const Communicate& event, const Task& task) {
  Communicator& communicator = communicators_.of(event.group);
  const std::vector<Piece> reads = launcher_.pieces(task.reads);
  const std::vector<Piece> writes = launcher_.pieces(task.writes);
  DSPLAN_CHECK(writes.size() == 1, "a collective makes one stretch");
  CollectiveCall call;
  call.kind = event.collective;
  call.dtype = event.dtype;
  call.reduction = is_flag(event) || task.part == 1 ? DSPLAN_MAX : DSPLAN_SUM;
  call.elements = event.payload.value() / bytes_per_element(event.dtype);
  call.output = writes.front().data;
  call.root = task.root;
  call.stream = event.stream;
  call.event = at;
  if (event.collective == Collective::AllGather) {
    const std::int64_t own = call.elements / communicator.ranks();
    call.input = joined(reads, writes.front().part(own * communicator.rank(), own)).data;
  } else {
    DSPLAN_CHECK(reads.size() == 1, "a collective takes one stretch");
    call.input = reads.front().data;
  }
  CallRecord record;
  exposed_.around(event.stream, [&] { record = communicator.run(call); });
  record.group = event.group;
  sent_.push_back({at, record});
}

}  // namespace dsplan::exec
