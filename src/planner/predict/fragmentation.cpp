#include "planner/predict/fragmentation.h"

#include <algorithm>

#include "planner/predict/report_details.h"
#include "sim/fragmentation.h"

namespace dsplan {
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

bool fits(const Schedule& schedule, PlacementOptions options, const VerdictLimit& limit) {
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
  if (limit) remedy.fits = fits(schedule, other, *limit);
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
