// Streams: what happens before what (core/schedule.h, RecordEvent).
#include <algorithm>

#include "core/auditor.h"

namespace dsplan {

bool Auditor::is_stream(StreamId stream) {
  if (stream < kStreams) return true;
  find("there is no stream {}", stream);
  return false;
}

void Auditor::on(std::size_t at, const RecordEvent& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  if (identify(event.id) && is_stream(event.stream)) recorded_.emplace_back(event.id, clocks_[event.stream]);
}

void Auditor::on(std::size_t at, const WaitEvent& event) {
  if (full()) return;
  at_ = at;
  before_ = {event.id, false};
  identify(event.id);
  const bool host = event.waiter == kHostSync;
  if (!host && !is_stream(event.waiter)) return;
  const auto found =
      std::find_if(recorded_.rbegin(), recorded_.rend(), [&](const auto& one) { return one.first == event.recorded; });
  if (found == recorded_.rend()) return find("a wait for {}, which nobody has recorded", event.recorded);
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    if (!host && stream != event.waiter) continue;
    for (std::size_t other = 0; other < kStreams; ++other) {
      clocks_[stream][other] = std::max(clocks_[stream][other], found->second[other]);
    }
  }
}

// What is read was made by the same stream, or by one that it has waited for.
void Auditor::judge_read(const Access& access, StreamId stream) {
  const Point made = made_at_[access.content];
  if (clocks_[stream][made.stream] >= made.time) return;
  find("stream {} reads buffer {} without having waited for stream {}", stream, named(access.buffer), made.stream);
}

// What is overwritten has been made, and read, by then.
void Auditor::judge_overwrite(const Access& access, const Piece& piece, StreamId stream) {
  Clock needed = piece.read_at;
  const Point made = made_at_[piece.content];
  needed[made.stream] = std::max(needed[made.stream], made.time);
  for (std::size_t other = 0; other < kStreams; ++other) {
    if (clocks_[stream][other] >= needed[other]) continue;
    find("stream {} writes to buffer {} without having waited for stream {}", stream, named(access.buffer), other);
  }
}

}  // namespace dsplan
