#include "sim/stream_waits.h"

#include <algorithm>

namespace dsplan {

void StreamWaits::allocated(BufferId buffer, StreamId stream) {
  if (stream != 0) owners_[buffer] = stream;
}

StreamWaits::Clock& StreamWaits::clock(StreamId stream) {
  if (stream >= clocks_.size()) clocks_.resize(stream + std::size_t{1});
  Clock& own = clocks_[stream];
  if (stream >= own.size()) own.resize(stream + std::size_t{1});
  return own;
}

void StreamWaits::work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  Clock& own = clock(stream);
  for (const Access& read : reads) {
    const auto made = made_.find(read.content);
    if (made == made_.end()) continue;
    const Clock& other = after_[made->second];
    if (own.size() < other.size()) own.resize(other.size());
    for (std::size_t at = 0; at < other.size(); ++at) own[at] = std::max(own[at], other[at]);
  }
  const Use now{stream, ++own[stream]};
  for (const Access& read : reads) touch(read.buffer, now);
  for (const Access& write : writes) {
    touch(write.buffer, now);
    made_[write.content] = static_cast<std::uint32_t>(after_.size());
  }
  if (!writes.empty()) after_.push_back(own);
}

void StreamWaits::touch(BufferId buffer, Use use) {
  if (owner(buffer) == use.stream) return;
  std::vector<Use>& uses = foreign_[buffer];
  const auto same = std::find_if(uses.begin(), uses.end(), [&](const Use& one) { return one.stream == use.stream; });
  if (same == uses.end()) {
    uses.push_back(use);
  } else {
    same->time = use.time;
  }
}

StreamId StreamWaits::owner(BufferId buffer) const {
  const auto found = owners_.find(buffer);
  return found == owners_.end() ? StreamId{0} : found->second;
}

std::span<const StreamWaits::Use> StreamWaits::uses(BufferId buffer) const {
  const auto found = foreign_.find(buffer);
  if (found == foreign_.end()) return {};
  return found->second;
}

bool StreamWaits::waited(StreamId waiter, Use use) const {
  return waiter < clocks_.size() && use.stream < clocks_[waiter].size() && clocks_[waiter][use.stream] >= use.time;
}

}  // namespace dsplan
