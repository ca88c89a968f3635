#include "sim/allocator_streams.h"

namespace dsplan {

void AllocatorStreams::work_on_streams(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  waits().work(stream, reads, writes);
  for (auto& [user, queue] : queues_) {
    std::size_t done = 0;
    for (; !queue.empty() && waits_->waited(queue.front().owner, queue.front().use); ++done) queue.pop_front();
    if (done > 0) allocator_.complete_uses(user, done);
  }
}

// Recorded at the free rather than at the use: between the two nothing depends on it.
bool AllocatorStreams::record_uses(BufferId buffer, BlockId block) {
  const StreamId owner = waits_->owner(buffer);
  const std::span<const StreamWaits::Use> uses = waits_->uses(buffer);
  for (const StreamWaits::Use& use : uses) {
    allocator_.record_stream(block, use.stream);
    if (frees_ == StreamFrees::AtSync) queues_[use.stream].push_back({owner, use});
  }
  return !uses.empty();
}

}  // namespace dsplan
