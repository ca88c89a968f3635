#include "sim/allocation_log.h"

#include <algorithm>

#include "core/format.h"
#include "sim/stream_waits.h"

namespace dsplan {
namespace {

class Logger : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit> {
 public:
  Logger(const Schedule& schedule, const AllocatorConfig& config, std::size_t until)
      : schedule_(schedule), allocator_(config), until_(until), blocks_(schedule.buffers.size(), kNullBlock) {}

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (at >= until_ || buffer.space != Space::Device) return;
    print_before(at);
    log_.allocations.push_back({at, buffer.size, allocator_.statistics().allocated});
    // Only a request beyond all reason fails here.
    blocks_[event.buffer] = allocator_.allocate(buffer.size, event.stream).value_or(kNullBlock);
    const AllocatorStatistics now = allocator_.statistics();
    most_allocated_ = std::max(most_allocated_, now.allocated);
    most_reserved_ = std::max(most_reserved_, now.reserved);
  }
  void on(std::size_t at, const Release& event) {
    if (at >= until_) return;
    print_before(at);
    allocator_.release(blocks_[event.buffer]);
  }
  void on(std::size_t at, const EmptyCache&) {
    if (at >= until_) return;
    print_before(at);
    allocator_.empty_cache();
  }
  void on(std::size_t at, const Mark&) {
    if (at >= until_) return;
    print_before(at);
    const AllocatorStatistics now = allocator_.statistics();
    const AllocatorStatistics peaks = allocator_.peaks();
    log_.marks.push_back({at, now.allocated, now.reserved, peaks.allocated, peaks.reserved});
    allocator_.reset_peaks();
  }

  [[nodiscard]] AllocationLog finish() { return std::move(log_); }
  [[nodiscard]] Bytes emptied() {
    allocator_.empty_cache();
    return allocator_.statistics().reserved;
  }

 private:
  void print_before(std::size_t at) {
    while (log_.prints.size() < schedule_.prints.size() && schedule_.prints[log_.prints.size()].event <= at) {
      const AllocatorStatistics now = allocator_.statistics();
      log_.prints.push_back(
          {schedule_.prints[log_.prints.size()].event, now.allocated, now.reserved, most_allocated_, most_reserved_});
      most_allocated_ = now.allocated;
      most_reserved_ = now.reserved;
    }
  }

  const Schedule& schedule_;
  CachingAllocator allocator_;
  std::size_t until_;
  Indexed<BufferId, BlockId> blocks_;
  AllocationLog log_;
  Bytes most_allocated_;  // Since the print before.
  Bytes most_reserved_;
};

}  // namespace

AllocationLog allocation_log(const Schedule& schedule, const AllocatorConfig& config) {
  Logger logger(schedule, config, schedule.events.size());
  replay(schedule, logger);
  return logger.finish();
}

Bytes reserved_when_emptied(const Schedule& schedule, const AllocatorConfig& config, std::size_t event) {
  Logger logger(schedule, config, event);
  replay(schedule, logger);
  return logger.emptied();
}

namespace {

using SliceKind = TimelineSlice::Kind;

// What the device holds, event by event.
class Levels : public Ignores<Enter, Exit, Mark> {
 public:
  Levels(const Schedule& schedule, const AllocatorConfig& config, StreamFrees frees, Timeline& into)
      : schedule_(schedule),
        allocator_(config),
        streams_(allocator_, frees, schedule.untold),
        blocks_(schedule.buffers.size(), kNullBlock),
        into_(into) {}

  using Ignores<Enter, Exit, Mark>::on;
  void on(std::size_t at, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (buffer.space != Space::Device) return;
    streams_.allocating(event.buffer, event.stream);
    blocks_[event.buffer] = allocator_.allocate(buffer.size, event.stream).value_or(kNullBlock);
    by_role_[buffer.role] += buffer.size;
    write(at, event.buffer, buffer.size);
  }
  void on(std::size_t at, const Release& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (buffer.space != Space::Device) return;
    streams_.releasing(event.buffer, blocks_[event.buffer]);
    allocator_.release(blocks_[event.buffer]);
    by_role_[buffer.role] -= buffer.size;
    write(at, event.buffer, Bytes(0) - buffer.size);
  }
  void on(std::size_t, const Compute& event) {
    streams_.work(event.stream, schedule_.range(event.reads), schedule_.range(event.writes));
  }
  void on(std::size_t, const Communicate& event) {
    streams_.work(event.stream, schedule_.range(event.reads), schedule_.range(event.writes));
  }
  void on(std::size_t, const RecordEvent& event) { streams_.record_event(event); }
  void on(std::size_t, const WaitEvent& event) { streams_.wait_event(event); }
  void on(std::size_t at, const EmptyCache&) {
    streams_.empty_cache();
    write(at, kNoBuffer, Bytes(0));
  }

 private:
  void write(std::size_t at, BufferId buffer, Bytes change) {
    const AllocatorStatistics now = allocator_.statistics();
    into_.points.push_back({at, buffer, change, by_role_, now.allocated, now.reserved});
  }

  const Schedule& schedule_;
  CachingAllocator allocator_;
  AllocatorStreams streams_;
  Indexed<BufferId, BlockId> blocks_;
  ByRole by_role_;
  Timeline& into_;
};

// What runs.
class Slices : public Ignores<Allocate, Release, RecordEvent, WaitEvent, EmptyCache> {
 public:
  Slices(const ModelSpec& model, Timeline& into) : model_(model), into_(into) {}

  using Ignores<Allocate, Release, RecordEvent, WaitEvent, EmptyCache>::on;
  void on(std::size_t at, const Compute& event) {
    into_.slices.push_back({SliceKind::Kernel, at, at + 1, event.stream, event.work});
  }
  void on(std::size_t at, const Communicate& event) {
    into_.slices.push_back({SliceKind::Collective, at, at + 1, event.stream, std::string(name(event.collective))});
  }
  void on(std::size_t at, const Enter& event) { open(of(event.pass), at, path_of(event.module)); }
  void on(std::size_t at, const Exit& event) { close(of(event.pass), at + 1); }
  void on(std::size_t at, const Mark& event) {
    // No module's pass goes on beyond a moment of the loop.
    for (const SliceKind kind : {SliceKind::Recomputation, SliceKind::Module}) close_all(kind, at);
    const std::string batch = formatted(", micro-batch {}", event.micro_batch + 1);
    switch (event.moment) {
      case Moment::StretchBegins: return open(SliceKind::Phase, at, std::string(name(event.stretch)));
      case Moment::StretchEnds: return close_all(SliceKind::Phase, at + 1);
      case Moment::ForwardBegins: return open(SliceKind::Pass, at, "forward" + batch);
      case Moment::BackwardBegins: return open(SliceKind::Pass, at, "backward" + batch);
      case Moment::StepBegins: return open(SliceKind::Pass, at, "step");
      case Moment::ForwardEnds:
      case Moment::BackwardEnds:
      case Moment::StepEnds: return close_all(SliceKind::Pass, at + 1);
      case Moment::MicroBatchBegins: return;
    }
  }
  void finish(std::size_t end) {
    for (const SliceKind kind : {SliceKind::Recomputation, SliceKind::Module, SliceKind::Pass, SliceKind::Phase})
      close_all(kind, end);
  }

 private:
  static SliceKind of(Pass pass) { return pass == Pass::Recompute ? SliceKind::Recomputation : SliceKind::Module; }
  std::string path_of(ModuleId module) const {
    const std::string& path = model_.module_at(module).path;
    return path.empty() ? model_.graph_class : path;
  }
  std::vector<TimelineSlice>& stack(SliceKind kind) { return open_[static_cast<std::size_t>(kind)]; }
  void open(SliceKind kind, std::size_t at, std::string name) {
    stack(kind).push_back({kind, at, at, kComputeStream, std::move(name)});
  }
  void close(SliceKind kind, std::size_t end) {
    if (stack(kind).empty()) return;
    stack(kind).back().end = end;
    into_.slices.push_back(std::move(stack(kind).back()));
    stack(kind).pop_back();
  }
  void close_all(SliceKind kind, std::size_t end) {
    while (!stack(kind).empty()) close(kind, end);
  }

  const ModelSpec& model_;
  Timeline& into_;
  std::vector<TimelineSlice> open_[6];
};

}  // namespace

Timeline timeline_of(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config,
                     StreamFrees frees) {
  Timeline timeline;
  timeline.events = schedule.events.size();
  Levels levels(schedule, config, frees, timeline);
  Slices slices(model, timeline);
  replay(schedule, levels, slices);
  slices.finish(schedule.events.size());
  return timeline;
}

}  // namespace dsplan
