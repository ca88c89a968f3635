// Drives one caching allocator along a schedule, or along what another one was asked. Private to sim/placement and
// sim/long_run.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/schedule.h"
#include "sim/allocator.h"
#include "sim/placement.h"
#include "sim/stream_clock.h"
#include "sim/stream_waits.h"

namespace dsplan {

inline constexpr std::size_t kToTheEnd = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t kMostKept = std::numeric_limits<std::uint32_t>::max();  // Events whose requests are kept.

// `blocks`: of all buffers. `held`: those that are handed out.
[[nodiscard]] AllocatorShape shape_of(const CachingAllocator& allocator, const Indexed<BufferId, BlockId>& blocks,
                                      std::span<const BufferId> held);

class Placer : public Ignores<Enter, Exit> {
 public:
  // What is asked is kept in `requests`, if there is one.
  Placer(const Schedule& schedule, const PlacementOptions& options, std::size_t last,
         std::vector<AllocatorRequest>* requests = nullptr)
      : schedule_(schedule),
        allocator_(options.config, options.device),
        clock_(options.times != nullptr ? std::make_unique<StreamClock>(*options.times) : nullptr),
        streams_(allocator_, options.frees, schedule.orders_frees, clock_.get()),
        at_sync_(options.times == nullptr && options.frees == StreamFrees::AtSync),
        last_(last),
        blocks_(schedule.buffers.size(), kNullBlock),
        requests_(requests) {
    allocator_.set_capacity(options.limit);
  }

  using Ignores<Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event) {
    if (stopped_ || at > last_ || schedule_.buffers[event.buffer].space != Space::Device) return;
    streams_.allocating(event.buffer, event.stream);
    if (requests_ != nullptr) note_completed(at);
    note({static_cast<std::uint32_t>(at), event.buffer, AllocatorRequest::What::Allocate, event.stream});
    allocate(at, event.buffer, event.stream);
  }
  void on(std::size_t at, const Release& event) {
    if (stopped_ || at > last_ || blocks_[event.buffer] == kNullBlock) return;
    const StreamSet waits_for = streams_.releasing(event.buffer, blocks_[event.buffer]);
    note({static_cast<std::uint32_t>(at), event.buffer, AllocatorRequest::What::Release, 0, waits_for});
    release(at, event.buffer, waits_for);
  }
  void on(std::size_t at, const Mark& event) {
    if (stopped_ || at > last_) return;
    note({static_cast<std::uint32_t>(at)});
    mark(at, event);
  }
  void on(std::size_t at, const EmptyCache&) {
    if (stopped_ || at > last_) return;
    note({static_cast<std::uint32_t>(at), kNoBuffer, AllocatorRequest::What::EmptyCache});
    print_before(at);
    if (clock_) clock_->wait_for_all();
    streams_.empty_cache();
  }
  void on(std::size_t at, const RecordEvent& event) {
    if (stopped_ || at > last_) return;
    if (clock_) clock_->record_event(event);
    streams_.record_event(event);
  }
  void on(std::size_t at, const WaitEvent& event) {
    if (stopped_ || at > last_) return;
    if (clock_) clock_->wait_event(event);
    streams_.wait_event(event);
  }
  void on(std::size_t at, const Compute& event) { work(at, event.stream, event.reads, event.writes); }
  void on(std::size_t at, const Communicate& event) { work(at, event.stream, event.reads, event.writes); }

  // Instead of a replay, in a schedule of at most 2^32 events: what another one was asked at whose frees waited for
  // synchronisation.
  void repeat(std::span<const AllocatorRequest> requests);

  [[nodiscard]] Placement finish();
  [[nodiscard]] AllocatorState state() const;
  [[nodiscard]] AllocatorShape shape() const;
  [[nodiscard]] bool stopped() const { return stopped_; }
  // As the second step found and left it.
  [[nodiscard]] AllocatorShape take_before() { return std::move(before_); }
  [[nodiscard]] AllocatorShape take_after() { return std::move(after_); }

 protected:
  struct Awaited {
    Bytes address;
    BufferId buffer;
  };

  void work(std::size_t at, StreamId stream, Span reads, Span writes) {
    if (stopped_ || at > last_) return;
    if (clock_) clock_->work(at, stream);
    streams_.work(stream, schedule_.range(reads), schedule_.range(writes));
  }
  void note(const AllocatorRequest& request) {
    if (requests_ != nullptr) requests_->push_back(request);
  }
  void note_completed(std::size_t at);
  void allocate(std::size_t at, BufferId buffer, StreamId stream);
  void release(std::size_t at, BufferId buffer, StreamSet waits_for);
  void mark(std::size_t at, const Mark& event);
  void fail(std::size_t at, Bytes request);
  void note_retry(std::size_t at);
  [[nodiscard]] PlacementPeaks peaks() const;
  // Those of the schedule's prints that come before event `at`.
  void print_before(std::size_t at) {
    while (result_.prints.size() < schedule_.prints.size() && schedule_.prints[result_.prints.size()].event <= at)
      [[unlikely]] { print(); }
  }
  void print();
  // The clock goes on to this event.
  void catch_up(std::size_t event);
  void note_shape(const Mark& event);

  const Schedule& schedule_;
  CachingAllocator allocator_;
  std::unique_ptr<StreamClock> clock_;
  AllocatorStreams streams_;
  bool at_sync_;
  std::size_t last_;
  std::size_t caught_up_ = 0;
  Indexed<BufferId, BlockId> blocks_;
  std::vector<AllocatorRequest>* requests_ = nullptr;
  AllocatorShape before_;
  AllocatorShape after_;
  bool stopped_ = false;
  std::int64_t retries_ = 0;
  bool saved_ = false;   // The schedule's last stretch is saving.
  Bytes most_reserved_;  // Since the last mark, as the next.
  std::size_t reserved_at_ = 0;
  Placement result_;
  std::vector<Awaited> awaited_;
  Bytes most_allocated_since_print_;
  Bytes most_reserved_since_print_;
};

}  // namespace dsplan
