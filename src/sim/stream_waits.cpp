#include "sim/stream_waits.h"

#include <algorithm>
#include <bit>

#include "sim/recorded_events.h"

namespace dsplan {

void StreamWaits::allocated(BufferId buffer, StreamId stream) {
  if (stream == 0) return;
  owners_.reach(buffer);
  owners_[buffer] = stream;
}

void StreamWaits::work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  const Use now{stream, ++clocks_[stream][stream]};
  touch(reads, now);
  touch(writes, now);
}

void StreamWaits::touch(std::span<const Access> accesses, Use use) {
  for (const Access& access : accesses) {
    if (owner(access.buffer) == use.stream) continue;
    uses_of_.reach(access.buffer);
    std::uint32_t& index = uses_of_[access.buffer];
    if (index == 0) {
      uses_.emplace_back();
      index = static_cast<std::uint32_t>(uses_.size());
    }
    uses_[index - 1][use.stream] = use.time;
  }
}

void StreamWaits::record_event(const RecordEvent& event) { recorded_.emplace_back(event.id, clocks_[event.stream]); }

void StreamWaits::wait_event(const WaitEvent& event) {
  const auto found = find_recorded(recorded_, event.recorded, [](const auto& one) { return one.first; });
  if (found == recorded_.end()) return;  // Given before there was a second stream.
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    if (event.waiter != kHostSync && event.waiter != stream) continue;
    for (std::size_t other = 0; other < kStreams; ++other) {
      clocks_[stream][other] = std::max(clocks_[stream][other], found->second[other]);
    }
  }
}

StreamWaits::Uses StreamWaits::uses(BufferId buffer) const {
  Uses result;
  if (!uses_of_.has(buffer) || uses_of_[buffer] == 0) return result;
  const Clock& times = uses_[uses_of_[buffer] - 1];
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    if (times[stream] > 0) result.list[result.count++] = {stream, times[stream]};
  }
  return result;
}

bool AllocatorStreams::complete_waited() {
  bool any = false;
  for (unsigned left = waiting_; left != 0; left &= left - 1) {
    const auto user = static_cast<StreamId>(std::countr_zero(left));
    std::deque<Waiting>& queue = queues_[user];
    std::size_t done = 0;
    for (; !queue.empty() && is_over(queue.front()); ++done) queue.pop_front();
    if (done == 0) continue;
    any = true;
    allocator_.complete_uses(user, done);
    completed_[user] += static_cast<std::uint32_t>(done);
    if (queue.empty()) waiting_ = static_cast<StreamSet>(waiting_ & ~bit_of(user));
  }
  return any;
}

// Recorded at the free rather than at the use: between the two nothing depends on it.
StreamSet AllocatorStreams::record_uses(BufferId buffer, BlockId block) {
  const StreamId owner = waits_->owner(buffer);
  StreamSet waits = 0;
  for (const StreamWaits::Use& use : waits_->uses(buffer)) {
    allocator_.record_stream(block, use.stream);
    if (clock_ != nullptr || frees_ == StreamFrees::AtSync) {
      const double ready = clock_ != nullptr ? clock_->ready(use.stream) : 0;
      queues_[use.stream].push_back({owner, waits_->all_of(use.stream), ready});
      waiting_ |= bit_of(use.stream);
    }
    waits |= bit_of(use.stream);
  }
  return waits;
}

void AllocatorStreams::retried() {
  for (StreamId user = 0; user < kStreams; ++user) given_back_[user] += queues_[user].size();
  for (std::deque<Waiting>& queue : queues_) queue.clear();
  waiting_ = 0;
}

void AllocatorStreams::empty_cache() {
  allocator_.empty_cache();
  retried();
  given_back_ = {};
}

void AllocatorStreams::releasing(BlockId block, StreamSet waits_for) {
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    if ((waits_for & bit_of(stream)) == 0) continue;
    allocator_.record_stream(block, stream);
    if (clock_ != nullptr) {
      queues_[stream].push_back({0, {}, clock_->ready(stream)});
      waiting_ |= bit_of(stream);
    } else if (frees_ == StreamFrees::AtSync) {
      queues_[stream].emplace_back();
      waiting_ |= bit_of(stream);
    }
  }
}

void AllocatorStreams::complete(StreamId stream, std::size_t count) {
  if (clock_ != nullptr || frees_ != StreamFrees::AtSync) return;
  const std::size_t gone = std::min(count, given_back_[stream]);
  given_back_[stream] -= gone;
  count -= gone;
  if (count == 0) return;
  std::deque<Waiting>& queue = queues_[stream];
  queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
  if (queue.empty()) waiting_ = static_cast<StreamSet>(waiting_ & ~bit_of(stream));
  allocator_.complete_uses(stream, count);
}

}  // namespace dsplan
