#include "sim/snapshot_replay.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/format.h"
#include "sim/allocator.h"
#include "sim/snapshot_of.h"
#include "sim/snapshot_recording.h"

namespace dsplan {
namespace {

using Action = SnapshotEntry::Action;
const std::vector<SnapshotEntry> kNoTrace;

SnapshotSizes sizes(const AllocatorStatistics& from) {
  return {from.allocated, from.requested, from.active, from.reserved};
}

bool gives_back(Action action) { return action == Action::SegmentFree || action == Action::SegmentUnmap; }

bool is_segment_step(Action action) {
  return action == Action::SegmentAlloc || action == Action::SegmentFree || action == Action::SegmentMap ||
         action == Action::SegmentUnmap;
}

class DeviceReplayer {
 public:
  DeviceReplayer(const Snapshot& snapshot, std::int64_t device, const std::string& path)
      : snapshot_(snapshot),
        trace_(static_cast<std::size_t>(device) < snapshot.traces.size()
                   ? snapshot.traces[static_cast<std::size_t>(device)]
                   : kNoTrace),
        path_(path),
        driver_(trace_),
        allocator_(snapshot.config.value_or(AllocatorConfig{}), CachingAllocator::kUnlimited, &driver_) {
    result_.device = device;
    result_.entries = trace_.size();
  }
  DeviceReplayer(const DeviceReplayer&) = delete;
  DeviceReplayer& operator=(const DeviceReplayer&) = delete;
  ~DeviceReplayer() { driver_.close(); }

  DeviceReplay run() {
    begin(state_before(snapshot_, result_.device, path_));
    result_.start = sizes(allocator_.statistics());
    std::size_t steps = 0;  // Where the segment steps since the last other entry begin.
    for (std::size_t at = 0; at < trace_.size() && !driver_.difference(); ++at) {
      const Action action = trace_[at].action;
      if (is_segment_step(action) || action == Action::Snapshot || action == Action::Other) continue;
      driver_.expect(steps, at);
      apply(at);
      steps = at + 1;
    }
    if (!driver_.difference()) {
      driver_.expect(steps, trace_.size());
      settle();
    }
    result_.end = sizes(allocator_.statistics());
    result_.peaks = sizes(allocator_.peaks());
    result_.segment_steps = driver_.matched();
    const std::vector<SnapshotSegment> segments = segments_of(allocator_, handles_);
    result_.segments = segments.size();
    for (const SnapshotSegment& segment : segments) result_.blocks += segment.blocks.size();
    if (!driver_.difference()) compare(segments);
    if (!result_.difference) result_.difference = driver_.difference();
    return std::move(result_);
  }

 private:
  using State = CachingAllocator::BlockState;

  StreamIndex stream(std::int64_t handle) {
    const auto [at, added] = streams_.try_emplace(handle, static_cast<StreamIndex>(streams_.size()));
    if (added) {
      if (handles_.size() >= static_cast<std::size_t>(CachingAllocator::kMostStreams)) {
        throw Refusal(path_, formatted("more than {} streams", CachingAllocator::kMostStreams));
      }
      handles_.push_back(handle);
    }
    return at->second;
  }

  // The blocks of [begin, end), free where nothing is live. Free memory that touches is one block.
  void fill(const RecordedState& state, std::int64_t begin, std::int64_t end,
            CachingAllocator::AdoptedSegment& into) const {
    const auto add_free = [&](std::int64_t size) {
      const bool goes_on = !into.blocks.empty() && into.blocks.back().state == State::Free;
      if (goes_on)
        into.blocks.back().size += Bytes(size);
      else if (size > 0)
        into.blocks.push_back({Bytes(size), Bytes(0), State::Free});
    };
    std::int64_t at = begin;
    for (auto live = state.live.lower_bound(begin); live != state.live.end() && live->first < end; ++live) {
      add_free(live->first - at);
      into.blocks.push_back({live->second.size, live->second.requested, State::Allocated});
      at = live->first + live->second.size.value();
    }
    add_free(end - at);
  }

  void adopt(const CachingAllocator::AdoptedSegment& segment) {
    const std::vector<BlockId> ids = allocator_.adopt(segment);
    std::int64_t at = segment.address.value();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (segment.blocks[i].state == State::Allocated) {
        live_[at] = ids[i];
        older_.insert(at);
      }
      at += segment.blocks[i].size.value();
    }
  }

  // All mapped stretches of one pool and stream count as one range: where ranges begin and end is not recorded.
  void begin(const RecordedState& state) {
    std::map<std::pair<std::int64_t, bool>, CachingAllocator::AdoptedSegment> ranges;
    std::map<std::pair<std::int64_t, bool>, std::int64_t> ends;
    for (const auto& [address, segment] : state.segments) {
      const std::int64_t end = address + segment.size.value();
      if (!segment.expandable) {
        CachingAllocator::AdoptedSegment made{Bytes(address), stream(segment.stream), segment.large, false, {}};
        fill(state, address, end, made);
        adopt(made);
        continue;
      }
      const auto key = std::pair(segment.stream, segment.large);
      const auto [range, first] = ranges.try_emplace(key);
      if (first)
        range->second = {Bytes(address), stream(segment.stream), segment.large, true, {}};
      else if (address > ends[key])
        range->second.blocks.push_back({Bytes(address - ends[key]), Bytes(0), State::Unmapped});
      fill(state, address, end, range->second);
      ends[key] = end;
    }
    for (auto& [key, range] : ranges) {
      range.blocks.push_back({Bytes(kLargestDevice), Bytes(0), State::Unmapped});
      adopt(range);
    }
  }

  void apply(std::size_t at) {
    const SnapshotEntry& entry = trace_[at];
    switch (entry.action) {
      case Action::Alloc: allocate(at); return;
      case Action::FreeRequested:
        settle();
        leaving_.insert(entry.address.value());
        return;
      case Action::FreeCompleted:
        settle();
        release(at);
        return;
      case Action::OutOfMemory: run_out(at); return;
      default: return;
    }
  }

  // A run of segments given back that no request explains.
  void settle() {
    const std::optional<std::size_t> first = driver_.left();
    if (!first || driver_.difference()) return;
    if (gives_back(trace_[*first].action)) give_everything_back();
    const std::optional<std::size_t> left = driver_.left();
    if (left) driver_.differ(*left, in_words(trace_[*left]), "no request needs this");
  }

  void give_everything_back() {
    ++result_.releases;
    allocator_.empty_cache();
  }

  // Whether the segments given back before a request are all that there are to give. Otherwise the allocator itself
  // gave some back, by max_split_size or garbage collection.
  [[nodiscard]] bool gives_all(std::size_t count) const {
    const AllocatorConfig& config = allocator_.config();
    const bool partial =
        config.max_split_size.value() != AllocatorConfig::kNoSplitLimit || config.garbage_collection_threshold > 0;
    if (!partial) return true;
    std::size_t whole = 0;
    for (const SnapshotSegment& segment : segments_of(allocator_, handles_)) {
      const bool idle = segment.blocks.size() == 1 && segment.blocks[0].state == SnapshotBlock::State::Inactive;
      whole += idle ? 1 : 0;
    }
    return whole == count;
  }

  void allocate(std::size_t at) {
    const SnapshotEntry& entry = trace_[at];
    if (const std::size_t count = driver_.given_back_first(); count > 0 && gives_all(count)) give_everything_back();
    if (driver_.difference()) return;
    const std::optional<BlockId> block = allocator_.allocate(entry.size, stream(entry.stream));
    if (driver_.difference()) return;
    if (!block || *block == kNullBlock) {
      driver_.differ(at, in_words(entry), "no place for it");
      return;
    }
    const std::optional<std::size_t> left = driver_.left();
    if (left) {
      driver_.differ(*left, in_words(trace_[*left]), "the request is served from what is cached");
    } else if (allocator_.address(*block) != entry.address) {
      driver_.differ(at, in_words(entry), formatted("placed at 0x{:x}", allocator_.address(*block).value()));
    }
    live_[entry.address.value()] = *block;
    ++result_.allocations;
  }

  void release(std::size_t at) {
    if (driver_.difference()) return;
    const SnapshotEntry& entry = trace_[at];
    const auto found = live_.find(entry.address.value());
    DSPLAN_CHECK(found != live_.end(), "undoing the trace has shown that this block is there");
    allocator_.release(found->second);
    live_.erase(found);
    leaving_.erase(entry.address.value());
    older_.erase(entry.address.value());
    ++result_.frees;
  }

  // What was given back or mapped before the failure happened all the same.
  void run_out(std::size_t at) {
    ++result_.ooms;
    const std::optional<std::size_t> first = driver_.left();
    if (!first) return;
    if (gives_back(trace_[*first].action)) return settle();
    const SnapshotEntry& entry = trace_[at];
    if (allocator_.allocate(entry.size, stream(entry.stream)) && !driver_.difference()) {
      driver_.differ(at, in_words(entry), "there is room");
    }
    settle();
  }

  void differ_at_the_end(std::string recorded, std::string predicted) {
    result_.difference = SnapshotDifference{std::nullopt, std::move(recorded), std::move(predicted)};
  }

  static std::string in_words(const SnapshotEntry& entry) { return dsplan::in_words(entry); }
  static std::string in_words(const SnapshotSegment& segment) {
    return formatted("{} segment of {} bytes at 0x{:x}, stream {}", segment.large ? "large" : "small",
                     grouped(segment.size.value()), segment.address.value(), segment.stream);
  }
  static std::string in_words(const SnapshotBlock& block) {
    return formatted("{} block of {} bytes ({} requested) at 0x{:x}", name(block.state), grouped(block.size.value()),
                     grouped(block.requested.value()), block.address.value());
  }

  void compare(const std::vector<SnapshotSegment>& predicted) {
    std::size_t at = 0;
    for (const SnapshotSegment& segment : snapshot_.segments) {
      if (segment.device != result_.device || result_.difference) continue;
      if (at == predicted.size()) return differ_at_the_end(in_words(segment), "no such segment");
      compare(segment, predicted[at++]);
    }
    if (!result_.difference && at < predicted.size()) differ_at_the_end("no such segment", in_words(predicted[at]));
  }

  void compare(const SnapshotSegment& recorded, const SnapshotSegment& predicted) {
    const bool alike = recorded.address == predicted.address && recorded.size == predicted.size &&
                       recorded.stream == predicted.stream && recorded.large == predicted.large &&
                       recorded.expandable == predicted.expandable;
    if (!alike) return differ_at_the_end(in_words(recorded), in_words(predicted));
    for (std::size_t i = 0; i < recorded.blocks.size() && i < predicted.blocks.size(); ++i) {
      SnapshotBlock block = predicted.blocks[i];
      // The program has let go of it, and other streams still use it: the trace says so, unless that was before it.
      const std::int64_t address = block.address.value();
      const bool was_leaving =
          older_.contains(address) && recorded.blocks[i].state == SnapshotBlock::State::PendingFree;
      if (block.state == SnapshotBlock::State::Allocated && (leaving_.contains(address) || was_leaving)) {
        block.state = SnapshotBlock::State::PendingFree;
      }
      block.stack = recorded.blocks[i].stack;
      if (block != recorded.blocks[i]) return differ_at_the_end(in_words(recorded.blocks[i]), in_words(block));
    }
    if (recorded.blocks.size() != predicted.blocks.size()) {
      differ_at_the_end(formatted("{} blocks in the {}", recorded.blocks.size(), in_words(recorded)),
                        formatted("{} blocks", predicted.blocks.size()));
    }
  }

  const Snapshot& snapshot_;
  const std::vector<SnapshotEntry>& trace_;
  const std::string& path_;
  RecordedDriver driver_;
  CachingAllocator allocator_;
  std::unordered_map<std::int64_t, StreamIndex> streams_;
  std::vector<std::int64_t> handles_;  // By stream.
  std::unordered_map<std::int64_t, BlockId> live_;
  std::unordered_set<std::int64_t> leaving_;  // Let go of, and not yet free.
  std::unordered_set<std::int64_t> older_;    // Live since before the trace.
  DeviceReplay result_;
};

}  // namespace

std::vector<DeviceReplay> replay_snapshot(const Snapshot& snapshot, const std::string& path) {
  std::set<std::int64_t> devices;
  for (const SnapshotSegment& segment : snapshot.segments) devices.insert(segment.device);
  for (std::size_t at = 0; at < snapshot.traces.size(); ++at) {
    if (!snapshot.traces[at].empty()) devices.insert(static_cast<std::int64_t>(at));
  }
  std::vector<DeviceReplay> replays;
  for (const std::int64_t device : devices) replays.push_back(DeviceReplayer(snapshot, device, path).run());
  return replays;
}

SnapshotComparison compare_snapshots(const DeviceReplay& recorded, const DeviceReplay& predicted) {
  return {recorded.device, recorded.peaks,    predicted.peaks,   recorded.end,
          predicted.end,   recorded.segments, predicted.segments};
}

}  // namespace dsplan
