#include "sim/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "sim/allocator.h"
#include "sim/stream_waits.h"

namespace dsplan {
namespace {

constexpr std::size_t kToTheEnd = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kMostKept = std::numeric_limits<std::uint32_t>::max();

// What an allocator was asked, so that another one can be asked the same without the schedule's work in between.
struct Asked {
  enum class What : std::uint8_t { Allocate, Release, EmptyCache, Mark };
  std::uint32_t event = 0;
  BufferId buffer = kNoBuffer;
  What what = What::Mark;
  StreamId stream = 0;
  StreamSet waits_for = 0;  // Of a release.
};

class Placer : public Ignores<Enter, Exit> {
 public:
  // What is asked is kept in `requests`, if there is one.
  Placer(const Schedule& schedule, const PlacementOptions& options, std::size_t last,
         std::vector<Asked>* requests = nullptr)
      : schedule_(schedule),
        allocator_(options.config, options.device),
        clock_(options.times != nullptr ? std::make_unique<StreamClock>(*options.times) : nullptr),
        streams_(allocator_, options.frees, schedule.orders_frees, clock_.get()),
        last_(last),
        blocks_(schedule.buffers.size(), kNullBlock),
        requests_(requests) {
    allocator_.set_capacity(options.limit);
  }

  using Ignores<Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event) {
    if (stopped_ || at > last_ || schedule_.buffers[event.buffer].space != Space::Device) return;
    streams_.allocating(event.buffer, event.stream);
    note({static_cast<std::uint32_t>(at), event.buffer, Asked::What::Allocate, event.stream});
    allocate(at, event.buffer, event.stream);
  }
  void on(std::size_t at, const Release& event) {
    if (stopped_ || at > last_ || blocks_[event.buffer] == kNullBlock) return;
    const StreamSet waits_for = streams_.releasing(event.buffer, blocks_[event.buffer]);
    note({static_cast<std::uint32_t>(at), event.buffer, Asked::What::Release, 0, waits_for});
    release(at, event.buffer, waits_for);
  }
  void on(std::size_t at, const Mark& event) {
    if (stopped_ || at > last_) return;
    note({static_cast<std::uint32_t>(at)});
    mark(at, event);
  }
  void on(std::size_t at, const EmptyCache&) {
    if (stopped_ || at > last_) return;
    note({static_cast<std::uint32_t>(at), kNoBuffer, Asked::What::EmptyCache});
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

  // Instead of a replay: frees complete at once, in a schedule of at most 2^32 events.
  void repeat(const std::vector<Asked>& requests);

  [[nodiscard]] Placement finish();
  [[nodiscard]] AllocatorState state() const;

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
  void note(const Asked& request) {
    if (requests_ != nullptr) requests_->push_back(request);
  }
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

  const Schedule& schedule_;
  CachingAllocator allocator_;
  std::unique_ptr<StreamClock> clock_;
  AllocatorStreams streams_;
  std::size_t last_;
  Indexed<BufferId, BlockId> blocks_;
  std::vector<Asked>* requests_ = nullptr;
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

void Placer::print() {
  const AllocatorStatistics now = allocator_.statistics();
  result_.prints.push_back({now.allocated, now.reserved, most_allocated_since_print_, most_reserved_since_print_});
  most_allocated_since_print_ = now.allocated;
  most_reserved_since_print_ = now.reserved;
}

void Placer::allocate(std::size_t at, BufferId id, StreamId stream) {
  const Bytes size = schedule_.buffers[id].size;
  print_before(at);
  const std::optional<BlockId> block = allocator_.allocate(size, stream);
  if (allocator_.retries() != retries_) note_retry(at);
  if (!block) return fail(at, size);
  blocks_[id] = *block;
  if (!schedule_.prints.empty()) {
    const AllocatorStatistics now = allocator_.statistics();
    most_allocated_since_print_ = std::max(most_allocated_since_print_, now.allocated);
    most_reserved_since_print_ = std::max(most_reserved_since_print_, now.reserved);
  }
  if (allocator_.reserved() > most_reserved_) {
    most_reserved_ = allocator_.reserved();
    reserved_at_ = at;
  }
}

void Placer::release(std::size_t at, BufferId id, StreamSet waits_for) {
  print_before(at);
  if (waits_for != 0) {
    result_.waited = true;
    awaited_.push_back({allocator_.address(blocks_[id]), id});
  }
  allocator_.release(blocks_[id]);
  blocks_[id] = kNullBlock;
}

void Placer::mark(std::size_t at, const Mark& event) {
  print_before(at);
  const PlacementPeaks since = peaks();
  if (event.moment != Moment::StretchBegins) {
    PlacementPeaks& stretch = result_.by_stretch[static_cast<std::size_t>(event.stretch)];
    stretch.requested = std::max(stretch.requested, since.requested);
    stretch.allocated = std::max(stretch.allocated, since.allocated);
    stretch.active = std::max(stretch.active, since.active);
    if (since.reserved > stretch.reserved) {
      stretch.reserved = since.reserved;
      stretch.reserved_at = since.reserved_at;
    }
    saved_ = saved_ || event.stretch == Stretch::Save;
  }
  allocator_.reset_peaks();
  most_reserved_ = allocator_.reserved();
  reserved_at_ = at;
  const AllocatorStatistics now = allocator_.statistics();
  result_.marks.push_back({at, now.requested, now.allocated, now.active, now.reserved, since});
}

void Placer::repeat(const std::vector<Asked>& requests) {
  for (const Asked& request : requests) {
    if (stopped_) return;
    switch (request.what) {
      case Asked::What::Allocate: allocate(request.event, request.buffer, request.stream); break;
      case Asked::What::Release:
        for (StreamId stream = 0; stream < kStreams; ++stream) {
          if ((request.waits_for & bit_of(stream)) != 0) allocator_.record_stream(blocks_[request.buffer], stream);
        }
        release(request.event, request.buffer, request.waits_for);
        break;
      case Asked::What::EmptyCache:
        print_before(request.event);
        streams_.empty_cache();
        break;
      case Asked::What::Mark: mark(request.event, std::get<Mark>(schedule_.events[request.event])); break;
    }
  }
}

void Placer::note_retry(std::size_t at) {
  retries_ = allocator_.retries();
  if (clock_) clock_->wait_for_all();
  streams_.retried();
  if (!result_.first_retry) result_.first_retry = at;
}

void Placer::fail(std::size_t at, Bytes request) {
  stopped_ = true;
  result_.failed_event = at;
  result_.failed_request = request;
  const Bytes needed = allocator_.segment_for(request);
  result_.missing = needed > allocator_.left() ? needed - allocator_.left() : Bytes(0);
}

PlacementPeaks Placer::peaks() const {
  const AllocatorStatistics most = allocator_.peaks();
  return {most.requested, most.allocated, most.active, most.reserved, reserved_at_};
}

Placement Placer::finish() {
  result_.retries = allocator_.retries();
  // What lies behind the last stretch, or a schedule without marks. Behind saving there is nothing.
  if (!saved_) result_.peak = peaks();
  for (auto at = result_.by_stretch.rbegin(); at != result_.by_stretch.rend(); ++at) {
    if (at == result_.by_stretch.rend() - 1 - static_cast<std::ptrdiff_t>(Stretch::Save)) continue;
    result_.peak.requested = std::max(result_.peak.requested, at->requested);
    result_.peak.allocated = std::max(result_.peak.allocated, at->allocated);
    result_.peak.active = std::max(result_.peak.active, at->active);
    if (at->reserved < result_.peak.reserved) continue;
    result_.peak.reserved = at->reserved;
    result_.peak.reserved_at = at->reserved_at;
  }
  return result_;
}

AllocatorState Placer::state() const {
  AllocatorState state;
  state.statistics = allocator_.statistics();
  std::map<Bytes, BufferId> waiting;
  for (const Awaited& one : awaited_) waiting[one.address] = one.buffer;  // The latest at an address.
  std::map<Bytes, BufferId> held;
  for (const BufferId id : blocks_.ids()) {
    if (blocks_[id] != kNullBlock) held[allocator_.address(blocks_[id])] = id;
  }
  for (const CachingAllocator::BlockView& view : allocator_.blocks()) {
    AllocatorState::Block block{view, std::nullopt};
    if (view.state == CachingAllocator::BlockState::Allocated) block.buffer = held.at(view.address);
    if (view.state == CachingAllocator::BlockState::AwaitingFree) block.buffer = waiting.at(view.address);
    state.blocks.push_back(block);
  }
  return state;
}

}  // namespace

Placement place(const Schedule& schedule, const PlacementOptions& options) {
  Placer placer(schedule, options, kToTheEnd);
  replay(schedule, placer);
  return placer.finish();
}

PlacementOptions other_end(PlacementOptions options) {
  const bool at_sync = options.frees == StreamFrees::AtSync;
  options.times = nullptr;
  options.frees = at_sync ? StreamFrees::Immediate : StreamFrees::AtSync;
  return options;
}

// Which uses a free waits for does not depend on the allocator: where frees complete at once, nothing else is asked of
// the schedule's work. A replay that stops has not seen everything.
BothPlacements place_both(const Schedule& schedule, const PlacementOptions& options) {
  const PlacementOptions other = other_end(options);
  const bool kept = other.frees == StreamFrees::Immediate && schedule.events.size() <= kMostKept;
  std::vector<Asked> requests;
  if (kept) requests.reserve(2 * schedule.buffers.size());
  Placer placer(schedule, options, kToTheEnd, kept ? &requests : nullptr);
  replay(schedule, placer);
  BothPlacements both{placer.finish(), std::nullopt};
  if (!both.asked.waited) return both;
  if (!kept || both.asked.failed_event) {
    both.other = place(schedule, other);
    return both;
  }
  Placer again(schedule, other, kToTheEnd);
  again.repeat(requests);
  both.other = again.finish();
  return both;
}

namespace {

// One step of a schedule, and which of its buffers stands, one step later, for each that it releases and did not make.
struct SteadyStep {
  std::vector<Asked> requests;
  std::vector<std::pair<BufferId, BufferId>> heirs;  // Released, left behind.
  std::size_t end = 0;                               // The event at which the step ends.
};

class SteadyPlacer : public Placer {
 public:
  using Placer::Placer;
  // What is released and was not made has the block of what stands for it.
  void step(const SteadyStep& step) {
    requests_ = nullptr;
    for (const auto& [gone, heir] : step.heirs) blocks_[gone] = std::exchange(blocks_[heir], kNullBlock);
    repeat(step.requests);
  }
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] std::int64_t retries() const { return allocator_.retries(); }
};

std::optional<std::pair<std::size_t, std::size_t>> second_step(const Schedule& schedule) {
  std::optional<std::size_t> begin;
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    const auto* mark = std::get_if<Mark>(&schedule.events[at]);
    if (mark == nullptr || mark->stretch != Stretch::SecondStep) continue;
    if (mark->moment == Moment::StretchBegins) begin = at;
    if (mark->moment == Moment::StretchEnds && begin) return std::pair(*begin, at);
  }
  return std::nullopt;
}

// What is released and was there before, and what is made and stays, in the order in which they were made: the same
// kinds, one for one.
std::optional<SteadyStep> steady_step(const Schedule& schedule, const std::vector<Asked>& requests, std::size_t begin,
                                      std::size_t end) {
  SteadyStep step;
  step.end = end;
  std::set<BufferId> made;
  std::set<BufferId> released;
  for (const Asked& request : requests) {
    if (request.event < begin || request.event > end) continue;
    step.requests.push_back(request);
    if (request.what == Asked::What::Allocate) made.insert(request.buffer);
    if (request.what == Asked::What::Release && made.erase(request.buffer) == 0) released.insert(request.buffer);
  }
  if (made.size() != released.size()) return std::nullopt;
  const auto kind = [&](BufferId id) {
    const Buffer& buffer = schedule.buffers[id];
    return std::tuple(std::string_view(buffer.label), buffer.size, buffer.parameter);
  };
  std::vector<BufferId> left(made.begin(), made.end());
  for (const BufferId gone : released) {
    const auto heir = std::find_if(left.begin(), left.end(), [&](BufferId id) { return kind(id) == kind(gone); });
    if (heir == left.end()) return std::nullopt;
    step.heirs.emplace_back(gone, *heir);
    left.erase(heir);
  }
  return step;
}

// What of the allocator decides how it answers: segments and blocks in their order, and whose they are.
std::string shape_of(const AllocatorState& state) {
  std::string text;
  const CachingAllocator::BlockView* before = nullptr;
  for (const AllocatorState::Block& block : state.blocks) {
    const bool begins = before == nullptr || before->segment != block.view.segment;
    append_formatted(text, "{}{} {} {} {};", begins ? "| " : "", block.view.size.value(), block.view.stream,
                     static_cast<int>(block.view.state),
                     block.buffer ? formatted("{}", block.buffer->number()) : "none");
    before = &block.view;
  }
  return text;
}

}  // namespace

std::optional<LongRun> long_run(const Schedule& schedule, PlacementOptions options, std::int64_t most) {
  options.frees = StreamFrees::Immediate;
  options.times = nullptr;
  const auto range = second_step(schedule);
  if (!range || schedule.events.size() > kMostKept) return std::nullopt;
  std::vector<Asked> requests;
  SteadyPlacer placer(schedule, options, range->second, &requests);
  replay(schedule, placer);
  const std::optional<SteadyStep> step = steady_step(schedule, requests, range->first, range->second);
  if (!step || placer.stopped()) return std::nullopt;
  LongRun run;
  run.steps = 2;
  run.reserved = placer.finish().peak.reserved;
  run.retries = placer.retries();
  std::vector<std::pair<std::string, std::int64_t>> ends{{shape_of(placer.state()), run.retries}};
  while (run.steps < most && !run.repeats) {
    const std::int64_t before = placer.retries();
    placer.step(*step);
    ++run.steps;
    run.retries = placer.retries();
    run.reserved = std::max(run.reserved, placer.finish().peak.reserved);
    if (run.first_retry == 0 && run.retries > before) run.first_retry = run.steps;
    if (placer.stopped()) {
      run.failed_step = run.steps;
      run.verdict = Verdict::DoesNotFit;
      return run;
    }
    std::string end = shape_of(placer.state());
    const auto same = std::find_if(ends.begin(), ends.end(), [&](const auto& one) { return one.first == end; });
    run.repeats = same != ends.end();
    if (run.repeats) {
      run.period = ends.end() - same;
      run.retries_period = run.retries - same->second;
    }
    ends.emplace_back(std::move(end), run.retries);
  }
  run.verdict = run.retries > 0 ? Verdict::FitsWithRetries : Verdict::Fits;
  return run;
}

AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options, std::size_t event) {
  Placer placer(schedule, options, event);
  replay(schedule, placer);
  return placer.state();
}

namespace {

using BlockState = CachingAllocator::BlockState;

// The whole pages inside [from, to), both relative to the start of the range.
Bytes whole_pages(Bytes from, Bytes to, std::int64_t page) {
  const std::int64_t first = round_up(from, page).value();
  const std::int64_t last = to.value() / page * page;
  return Bytes(std::max<std::int64_t>(0, last - first));
}

class Collector {
 public:
  Collector(const AllocatorState& state, const AllocatorConfig& config) : state_(state), config_(config) {}

  FragmentationMap run() {
    for (std::size_t at = 0; at < state_.blocks.size(); ++at) add(at);
    close();
    FragmentationMap& map = map_;
    map.reserved = map.requested + map.slack + map.awaiting + map.inactive_split + map.cached;
    DSPLAN_CHECK(map.reserved == state_.statistics.reserved, "the blocks do not add up to what is reserved");
    std::stable_sort(map.segments.begin(), map.segments.end(),
                     [](const SegmentInUse& a, const SegmentInUse& b) { return a.free > b.free; });
    return std::move(map_);
  }

 private:
  void add(std::size_t at) {
    const CachingAllocator::BlockView& view = state_.blocks[at].view;
    if (at == 0 || view.segment != segment_) {
      close();
      segment_ = view.segment;
      base_ = view.address;
    }
    if (view.state == BlockState::Unmapped) return close();
    if (open_.size == Bytes(0)) open_.address = view.address;
    open_.size += view.size;
    if (view.state == BlockState::Free) {
      free(view);
    } else {
      open_.blocks.push_back(at);
      hold(view);
    }
  }

  void hold(const CachingAllocator::BlockView& view) {
    if (view.state == BlockState::AwaitingFree) {
      map_.awaiting += view.size;
      return;
    }
    map_.requested += view.requested;
    map_.slack += view.size - view.requested;
  }

  void free(const CachingAllocator::BlockView& view) {
    Bytes whole;
    if (view.expandable) {
      const std::int64_t page = view.large ? config_.large_segment_size.value() : kSmallSegment;
      const Bytes from = view.address - base_;
      whole = whole_pages(from, from + view.size, page);
    }
    cached_ += whole;
    open_.free += view.size - whole;
  }

  // A stretch ends: free bytes within one that holds nothing can all be given back.
  void close() {
    map_.cached += cached_;
    if (open_.blocks.empty()) {
      map_.cached += open_.free;
    } else if (open_.free > Bytes(0)) {
      map_.inactive_split += open_.free;
      std::stable_sort(open_.blocks.begin(), open_.blocks.end(), [&](std::size_t a, std::size_t b) {
        return state_.blocks[a].view.size > state_.blocks[b].view.size;
      });
      map_.segments.push_back(std::move(open_));
    }
    open_ = {};
    cached_ = Bytes(0);
  }

  const AllocatorState& state_;
  const AllocatorConfig& config_;
  FragmentationMap map_;
  std::uint32_t segment_ = 0;
  Bytes base_;  // Of the segment or range.
  SegmentInUse open_;
  Bytes cached_;  // Whole pages of the open stretch.
};

}  // namespace

FragmentationMap fragmentation_of(const AllocatorState& state, const AllocatorConfig& config) {
  return Collector(state, config).run();
}

}  // namespace dsplan
