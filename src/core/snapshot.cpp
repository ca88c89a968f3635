#include "core/snapshot.h"

#include "core/format.h"

namespace dsplan {

std::string_view name(SnapshotBlock::State state) {
  switch (state) {
    case SnapshotBlock::State::Allocated: return "active_allocated";
    case SnapshotBlock::State::PendingFree: return "active_pending_free";
    case SnapshotBlock::State::Inactive: return "inactive";
  }
  return "?";
}

std::string_view name(SnapshotEntry::Action action) {
  using Action = SnapshotEntry::Action;
  switch (action) {
    case Action::Alloc: return "alloc";
    case Action::FreeRequested: return "free_requested";
    case Action::FreeCompleted: return "free_completed";
    case Action::SegmentAlloc: return "segment_alloc";
    case Action::SegmentFree: return "segment_free";
    case Action::SegmentMap: return "segment_map";
    case Action::SegmentUnmap: return "segment_unmap";
    case Action::OutOfMemory: return "oom";
    case Action::Snapshot: return "snapshot";
    case Action::Other: return "other";
  }
  return "?";
}

Bytes SnapshotSegment::allocated() const {
  Bytes sum;
  for (const SnapshotBlock& block : blocks) {
    if (block.state == SnapshotBlock::State::Allocated) sum += block.size;
  }
  return sum;
}

Bytes SnapshotSegment::active() const {
  Bytes sum;
  for (const SnapshotBlock& block : blocks) {
    if (block.state != SnapshotBlock::State::Inactive) sum += block.size;
  }
  return sum;
}

Bytes SnapshotSegment::requested() const {
  Bytes sum;
  for (const SnapshotBlock& block : blocks) {
    if (block.state != SnapshotBlock::State::Inactive) sum += block.requested;
  }
  return sum;
}

std::string conf_text(const AllocatorConfig& config) {
  const AllocatorConfig plain;
  std::string text;
  const auto add = [&text](const std::string& option) { text += (text.empty() ? "" : ",") + option; };
  const auto mebibytes = [](Bytes bytes) { return bytes.value() / kMebibyte; };
  if (config.expandable_segments) add("expandable_segments:True");
  if (config.max_split_size != plain.max_split_size) {
    add(formatted("max_split_size_mb:{}", mebibytes(config.max_split_size)));
  }
  if (config.max_non_split_rounding != plain.max_non_split_rounding) {
    add(formatted("max_non_split_rounding_mb:{}", mebibytes(config.max_non_split_rounding)));
  }
  if (config.large_segment_size != plain.large_segment_size) {
    add(formatted("large_segment_size_mb:{}", mebibytes(config.large_segment_size)));
  }
  if (config.garbage_collection_threshold != plain.garbage_collection_threshold) {
    add(formatted("garbage_collection_threshold:{}", config.garbage_collection_threshold));
  }
  if (config.memory_fraction) add(formatted("per_process_memory_fraction:{}", *config.memory_fraction));
  return text;
}

}  // namespace dsplan
