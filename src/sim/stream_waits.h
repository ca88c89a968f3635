// Which streams have waited for which: a clock for each stream, carried along by what it reads from others. Knows
// nothing of the allocator; sim/placement asks it when a use by another stream is over.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/schedule.h"

namespace dsplan {

class StreamWaits {
 public:
  using Time = std::uint32_t;  // Counts the work of one stream, from 1.
  struct Use {
    StreamId stream = 0;
    Time time = 0;
  };

  // `buffer` belongs to `stream`; those that were never named belong to stream 0.
  void allocated(BufferId buffer, StreamId stream);
  // One piece of work, in program order. What it reads from another stream it has waited for, and with it for all that
  // stream had waited for by then. What streams did before the first call counts as waited for.
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes);

  [[nodiscard]] StreamId owner(BufferId buffer) const;
  // The last use of `buffer` by each stream that does not own it.
  [[nodiscard]] std::span<const Use> uses(BufferId buffer) const;
  // Whether `waiter` has waited for that use.
  [[nodiscard]] bool waited(StreamId waiter, Use use) const;

 private:
  using Clock = std::vector<Time>;  // By stream; missing entries are 0.

  [[nodiscard]] Clock& clock(StreamId stream);
  void touch(BufferId buffer, Use use);

  std::vector<Clock> clocks_;
  std::vector<Clock> after_;                                // The maker's clock, for each work that made something.
  std::unordered_map<ContentId, std::uint32_t> made_;       // Content -> index into after_.
  std::unordered_map<BufferId, StreamId> owners_;           // Other than stream 0.
  std::unordered_map<BufferId, std::vector<Use>> foreign_;  // By buffer.
};

}  // namespace dsplan
