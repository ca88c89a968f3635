// Which streams have waited for which: a clock for each stream, carried along by recorded and awaited events. Knows
// nothing of the allocator; sim/allocator_streams asks it when a use by another stream is over.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/schedule.h"

namespace dsplan {

using StreamSet = std::uint8_t;  // A bit for each stream.
static_assert(kStreams <= 8);
[[nodiscard]] constexpr StreamSet bit_of(StreamId stream) { return static_cast<StreamSet>(1U << stream); }

class StreamWaits {
 public:
  using Time = std::uint32_t;  // Counts the work of one stream, from 1.
  struct Use {
    StreamId stream = 0;
    Time time = 0;
  };
  struct Uses {
    std::array<Use, kStreams> list;
    std::size_t count = 0;
    [[nodiscard]] const Use* begin() const { return list.data(); }
    [[nodiscard]] const Use* end() const { return list.data() + count; }
  };

  // `buffer` belongs to `stream`; those that were never named belong to stream 0.
  void allocated(BufferId buffer, StreamId stream);
  // One piece of work, in program order. What streams did before the first call counts as waited for.
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes);
  void record_event(const RecordEvent& event);
  void wait_event(const WaitEvent& event);

  [[nodiscard]] StreamId owner(BufferId buffer) const { return owners_.has(buffer) ? owners_[buffer] : StreamId{0}; }
  // The last use of `buffer` by each stream that does not own it.
  [[nodiscard]] Uses uses(BufferId buffer) const;
  // Whether `waiter`, or the host, has waited for that use.
  [[nodiscard]] bool waited(StreamId waiter, Use use) const { return clocks_[waiter][use.stream] >= use.time; }

 private:
  using Clock = std::array<Time, kStreams>;

  void touch(std::span<const Access> accesses, Use use);

  std::array<Clock, kStreams> clocks_{};
  std::vector<std::pair<ContentId, Clock>> recorded_;  // Ascending.
  Indexed<BufferId, StreamId> owners_;                 // Those beyond belong to stream 0.
  Indexed<BufferId, std::uint32_t> uses_of_;           // Index into uses_, from 1; 0: none.
  std::vector<Clock> uses_;
};

}  // namespace dsplan
