#include "sim/allocator_streams.h"

namespace dsplan {

void AllocatorStreams::complete_after(const WaitEvent& event) {
  waits_->wait_event(event);
  for (auto& [user, queue] : queues_) {
    std::size_t done = 0;
    for (; !queue.empty() && waits_->waited(queue.front().owner, queue.front().use); ++done) queue.pop_front();
    if (done > 0) allocator_.complete_uses(user, done);
  }
}

// Recorded at the free rather than at the use: between the two nothing depends on it. What has been waited for by now
// holds nothing up.
StreamSet AllocatorStreams::record_uses(BufferId buffer, BlockId block) {
  const StreamId owner = waits_->owner(buffer);
  StreamSet waits = 0;
  for (const StreamWaits::Use& use : waits_->uses(buffer)) {
    if (waits_->waited(owner, use)) continue;
    allocator_.record_stream(block, use.stream);
    if (frees_ == StreamFrees::AtSync) queues_[use.stream].push_back({owner, use});
    waits |= bit_of(use.stream);
  }
  return waits;
}

}  // namespace dsplan
