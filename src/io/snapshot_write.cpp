#include <optional>

#include "core/error.h"
#include "core/format.h"
#include "io/pickle.h"
#include "io/snapshot.h"

namespace dsplan {
namespace {

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const Snapshot& snapshot) : snapshot_(snapshot), memos_(snapshot.stacks.size()) {}

  std::string write() {
    out_.begin_dict();
    out_.key("segments");
    out_.begin_list();
    for (const SnapshotSegment& segment : snapshot_.segments) write_segment(segment);
    out_.end();
    out_.key("device_traces");
    out_.begin_list();
    for (const std::vector<SnapshotEntry>& trace : snapshot_.traces) {
      out_.begin_list();
      for (const SnapshotEntry& entry : trace) write_entry(entry);
      out_.end();
    }
    out_.end();
    if (snapshot_.config) write_settings(*snapshot_.config);
    out_.key("external_annotations");
    out_.begin_list();
    out_.end();
    out_.end();
    return out_.finish();
  }

 private:
  void field(std::string_view key, std::int64_t value) {
    out_.key(key);
    out_.integer(value);
  }
  void field(std::string_view key, std::string_view value) {
    out_.key(key);
    out_.string(value);
  }
  void flag(std::string_view key, bool value) {
    out_.key(key);
    out_.boolean(value);
  }
  void address(std::string_view key, Bytes value) {
    if (value.value() >= kLargestViewerNumber) {
      throw Refusal("snapshot",
                    formatted("address 0x{:x} is beyond 2^53, where the public viewer loses digits", value.value()));
    }
    field(key, value.value());
  }

  void frames(StackId id) {
    out_.key("frames");
    if (memos_[id]) return out_.share(*memos_[id]);
    out_.begin_list();
    for (const SnapshotFrame& frame : snapshot_.stacks[id]) {
      out_.begin_dict();
      field("name", frame.name);
      field("filename", frame.file);
      field("line", frame.line);
      out_.end();
    }
    out_.end();
    memos_[id] = out_.remember();
  }

  void write_segment(const SnapshotSegment& segment) {
    out_.begin_dict();
    field("device", segment.device);
    address("address", segment.address);
    field("total_size", segment.size.value());
    field("allocated_size", segment.allocated().value());
    field("active_size", segment.active().value());
    field("requested_size", segment.requested().value());
    field("stream", segment.stream);
    field("segment_type", segment.large ? "large" : "small");
    out_.key("segment_pool_id");
    out_.pair(0, 0);
    flag("is_expandable", segment.expandable);
    frames(segment.stack);
    out_.key("blocks");
    out_.begin_list();
    for (const SnapshotBlock& block : segment.blocks) {
      out_.begin_dict();
      address("address", block.address);
      field("size", block.size.value());
      field("requested_size", block.requested.value());
      field("state", name(block.state));
      frames(block.stack);
      out_.end();
    }
    out_.end();
    out_.end();
  }

  void write_entry(const SnapshotEntry& entry) {
    out_.begin_dict();
    field("action", name(entry.action));
    if (entry.action != SnapshotEntry::Action::Other) {
      if (entry.action == SnapshotEntry::Action::OutOfMemory)
        field("device_free", entry.address.value());
      else
        address("addr", entry.address);
      field("size", entry.size.value());
      field("stream", entry.stream);
      field("time_us", entry.time_us);
      frames(entry.stack);
    }
    out_.end();
  }

  // The keys that PyTorch 2.6 writes; the last three move no byte and have its defaults.
  void write_settings(const AllocatorConfig& config) {
    out_.key("allocator_settings");
    out_.begin_dict();
    field("PYTORCH_CUDA_ALLOC_CONF", snapshot_.conf);
    const bool limited = config.max_split_size.value() != AllocatorConfig::kNoSplitLimit;
    field("max_split_size", limited ? config.max_split_size.value() : -1);
    out_.key("garbage_collection_threshold");
    out_.real(config.garbage_collection_threshold);
    flag("expandable_segments", config.expandable_segments);
    field("pinned_num_register_threads", 1);
    flag("release_lock_on_cudamalloc", false);
    flag("pinned_use_cuda_host_register", false);
    out_.key("roundup_power2_divisions");
    out_.begin_dict();
    for (std::size_t at = 0; at < config.roundup_power2_divisions.size(); ++at) {
      field(std::to_string(1 << at), config.roundup_power2_divisions[at]);
    }
    out_.end();
    out_.end();
  }

  const Snapshot& snapshot_;
  PickleWriter out_;
  std::vector<std::optional<std::uint32_t>> memos_;  // Of the stacks that are written.
};

}  // namespace

std::string write_snapshot(const Snapshot& snapshot) { return SnapshotWriter(snapshot).write(); }

}  // namespace dsplan
