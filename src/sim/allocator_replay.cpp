#include "sim/allocator_replay.h"

#include <iterator>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "sim/allocator.h"

namespace dsplan {
namespace {

using Kind = TraceStep::Kind;

class Replay {
 public:
  explicit Replay(const AllocatorTrace& trace) : trace_(&trace), allocator_({}, kTraceCapacity), slots_(trace.ids) {}

  std::string run() {
    text_ = "allocated,requested,active,reserved,inactive_split,segments,retries,ooms\n";
    for (const TraceStep& step : trace_->steps) {
      apply(step);
      if (prints_row(step.kind)) row();
    }
    return std::move(text_);
  }

 private:
  enum class Holds : std::uint8_t { NeverUsed, Block, Nothing, Freed };
  struct Slot {
    Holds holds = Holds::NeverUsed;
    BlockId block = kNullBlock;
  };

  [[noreturn]] void refuse(const TraceStep& step, std::string message) const {
    throw Refusal(std::vector<Diagnostic>{trace_->document.at(step.offset, std::move(message))});
  }

  void apply(const TraceStep& step) {
    switch (step.kind) {
      case Kind::Capacity: allocator_.set_capacity(step.bytes); break;
      case Kind::Configure: allocator_.configure(trace_->configs[step.config]); break;
      case Kind::Fraction: allocator_.set_memory_fraction(step.fraction); break;
      case Kind::Allocate: allocate(step); break;
      case Kind::Free: release(step); break;
      case Kind::RecordStream: record(step); break;
      case Kind::EventsReady: allocator_.set_events_ready(step.ready); break;
      case Kind::EmptyCache: allocator_.empty_cache(); break;
    }
  }

  void allocate(const TraceStep& step) {
    Slot& slot = slots_[step.id];
    if (slot.holds == Holds::Block) refuse(step, "this ID is live: it must be freed before it is allocated again");
    const std::optional<BlockId> block = allocator_.allocate(step.bytes, step.stream);
    slot = block && *block != kNullBlock ? Slot{Holds::Block, *block} : Slot{Holds::Nothing, kNullBlock};
  }

  void release(const TraceStep& step) {
    Slot& slot = slots_[step.id];
    switch (slot.holds) {
      case Holds::NeverUsed: refuse(step, "this ID was never allocated");
      case Holds::Freed: refuse(step, "this ID was already freed");
      case Holds::Nothing: return;
      case Holds::Block: break;
    }
    allocator_.release(slot.block);
    slot = {Holds::Freed, kNullBlock};
  }

  void record(const TraceStep& step) {
    const Slot& slot = slots_[step.id];
    if (slot.holds == Holds::NeverUsed) refuse(step, "this ID was never allocated");
    if (slot.holds == Holds::Block) allocator_.record_stream(slot.block, step.stream);
  }

  void row() {
    const AllocatorStatistics now = allocator_.statistics();
    append_formatted(text_, "{},{},{},{},{},{},{},{}\n", now.allocated.value(), now.requested.value(),
                     now.active.value(), now.reserved.value(), now.inactive_split.value(), now.segments, now.retries,
                     now.ooms);
  }

  const AllocatorTrace* trace_;
  CachingAllocator allocator_;
  std::vector<Slot> slots_;  // By ID.
  std::string text_;
};

}  // namespace

std::string replay_csv(const AllocatorTrace& trace) { return Replay(trace).run(); }

}  // namespace dsplan
