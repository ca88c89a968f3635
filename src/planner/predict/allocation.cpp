#include "planner/predict/allocation.h"

#include <algorithm>
#include <utility>

#include "planner/libraries/library_memory.h"
#include "planner/predict/live_buffers.h"
#include "sim/arena.h"
#include "sim/fragmentation.h"
#include "sim/placement.h"

namespace dsplan {

DeviceRoom device_room(const Job& job) { return {job.capacity, context_of(job), communicators_of(job), job.reserve}; }

DeviceRoom device_room(const Prediction& p) {
  return {p.capacity, p.context.value_or(Bytes(0)), p.communicators.value_or(Bytes(0)), p.reserve};
}

std::optional<VerdictLimit> verdict_limit(const DeviceRoom& room) {
  if (!room.capacity) return std::nullopt;
  const Bytes taken = room.beside() + room.reserve;
  return VerdictLimit{taken < *room.capacity ? *room.capacity - taken : Bytes(0), *room.capacity};
}

PlacementOptions without_limit(const Job& job) {
  PlacementOptions options;
  options.config = job.allocator;
  options.config.memory_fraction.reset();  // A limit, too.
  options.frees = job.stream_frees;
  return options;
}

PlacementOptions under_limit(const Job& job, const DeviceRoom& room) {
  PlacementOptions options = without_limit(job);
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  if (!limit) return options;
  options.config = job.allocator;
  options.limit = limit->limit;
  options.device = limit->device;
  return options;
}

PlacementPeaks peaks_of(const Schedule& schedule, const Placement& placement, const std::optional<Window>& only) {
  if (!only) return placement.peak;
  if (!only->part && !only->recording) return placement.by_stretch[static_cast<std::size_t>(only->stretch)];
  PlacementPeaks most;
  WindowWalk walk(*only);
  bool inside = false;
  for (const PlacementMark& mark : placement.marks) {
    if (inside) {
      most.requested = std::max(most.requested, mark.since.requested);
      most.allocated = std::max(most.allocated, mark.since.allocated);
      most.active = std::max(most.active, mark.since.active);
      if (mark.since.reserved > most.reserved) {
        most.reserved = mark.since.reserved;
        most.reserved_at = mark.since.reserved_at;
      }
    }
    inside = walk.inside_after(std::get<Mark>(schedule.events[mark.event]));
  }
  return most;
}

BothEnds ends_of(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options,
                 const std::optional<Window>& only) {
  const PlacementPeaks asked = peaks_of(schedule, both.asked, only);
  if (!both.other) return {asked, asked, asked};
  const PlacementPeaks other = peaks_of(schedule, *both.other, only);
  return options.frees == StreamFrees::AtSync ? BothEnds{asked, asked, other} : BothEnds{asked, other, asked};
}

PlannedArena plan_arena(const Schedule& schedule, Bytes reserved) {
  const Lives lives = lives_of(schedule);
  const Layout layout = pack(lives.intervals);
  PlannedArena arena;
  arena.height = layout.height;
  arena.lower_bound = layout.lower_bound;
  arena.reserved = reserved;
  arena.buffers = lives.buffers.size();
  arena.offsets.assign(schedule.buffers.size(), -1);
  for (std::size_t at = 0; at < lives.buffers.size(); ++at) {
    arena.offsets[lives.buffers[at]] = layout.offsets[at].value();
  }
  return arena;
}

namespace {

constexpr std::size_t kMostSegments = 20;
constexpr std::size_t kMostPins = 8;

PinnedSegment described(const SegmentInUse& segment, const AllocatorState& state, const Schedule& schedule,
                        const ModelSpec& model) {
  PinnedSegment result{
      segment.address, segment.size, segment.free, static_cast<std::int64_t>(segment.blocks.size()), {}};
  for (const std::size_t at : segment.blocks) {
    if (result.pins.size() == kMostPins) break;
    const AllocatorState::Block& block = state.blocks[at];
    const Buffer& buffer = schedule.buffers[*block.buffer];
    result.pins.push_back({buffer.label, module_path(model, buffer), buffer.role, block.view.address,
                           block.view.requested, block.view.size});
  }
  return result;
}

// Confs that people try. Each is added to the job's own.
struct Trial {
  const char* keys;
  Version first;
  bool needs_limit;
};
constexpr Trial kTrials[] = {
    {"expandable_segments:True", {0, 0, 0}, false},
    {"max_split_size_mb:128", {0, 0, 0}, false},
    {"max_split_size_mb:512", {0, 0, 0}, false},
    {"roundup_power2_divisions:8", {0, 0, 0}, false},
    {"per_process_memory_fraction:0.95,garbage_collection_threshold:0.8", {2, 10, 0}, true},
};

bool fits_under(const Schedule& schedule, PlacementOptions options, const VerdictLimit& limit) {
  options.limit = limit.limit;
  options.device = limit.device;
  return !place(schedule, options).failed_event;
}

std::optional<AllocatorRemedy> tried(const Trial& trial, const Schedule& schedule, const Job& job,
                                     const PlacementOptions& options, const std::optional<VerdictLimit>& limit) {
  if (job.training.torch < trial.first || (trial.needs_limit && !limit)) return std::nullopt;
  AllocatorRemedy remedy;
  remedy.conf = job.allocator_conf.empty() ? trial.keys : job.allocator_conf + "," + trial.keys;
  PlacementOptions other = options;
  if (apply_allocator_conf(remedy.conf, other.config, job.training.torch)) return std::nullopt;
  if (other.config == options.config) return std::nullopt;
  if (trial.needs_limit) {
    other.limit = limit->limit;
    other.device = limit->device;
  }
  const Placement placement = place(schedule, other);
  if (placement.failed_event && trial.needs_limit) return std::nullopt;  // How far it would have gone is not known.
  remedy.reserved = placement.peak.reserved;
  if (limit) remedy.fits = fits_under(schedule, other, *limit);
  return remedy;
}

}  // namespace

Fragmentation explain_fragmentation(const Schedule& schedule, const ModelSpec& model, const Job& job,
                                    const PlacementOptions& options, const PlacementPeaks& peaks,
                                    const std::optional<VerdictLimit>& limit) {
  const AllocatorState state = allocator_after(schedule, options, peaks.reserved_at);
  const FragmentationMap map = fragmentation_of(state, options.config);
  Fragmentation result;
  result.event_index = peaks.reserved_at;
  result.event = describe_moment(schedule, model, peaks.reserved_at);
  result.reserved = map.reserved;
  result.requested = map.requested;
  result.slack = map.slack;
  result.awaiting = map.awaiting;
  result.inactive_split = map.inactive_split;
  result.cached = map.cached;
  result.segments_in_use = static_cast<std::int64_t>(map.segments.size());
  for (const SegmentInUse& segment : map.segments) {
    if (result.segments.size() == kMostSegments) break;
    result.segments.push_back(described(segment, state, schedule, model));
  }
  for (const Trial& trial : kTrials) {
    if (auto remedy = tried(trial, schedule, job, options, limit)) result.remedies.push_back(std::move(*remedy));
  }
  std::stable_sort(result.remedies.begin(), result.remedies.end(),
                   [](const AllocatorRemedy& a, const AllocatorRemedy& b) { return a.reserved < b.reserved; });
  return result;
}

}  // namespace dsplan
