#include "io/snapshot.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "core/document.h"
#include "core/error.h"
#include "core/format.h"
#include "io/json_parse.h"
#include "io/pickle.h"

namespace dsplan {
namespace {

using Kind = PickleNode::Kind;
using Action = SnapshotEntry::Action;

// A value may be shared by many containers, so that a small file could unfold to any size: what is made of it is
// bounded as well.
constexpr std::size_t kMostParts = 8'000'000;

class SnapshotReader {
 public:
  explicit SnapshotReader(const Pickle& pickle) : pickle_(pickle) {}

  Snapshot read() {
    expect(pickle_.root, Kind::Dict, "a snapshot");
    const PickleId segments = need(pickle_.root, "segments");
    expect(segments, Kind::List, "segments");
    for (const PickleId id : pickle_.items(segments)) read_segment(id);
    order_segments();
    if (const PickleId* traces = find(pickle_.root, "device_traces")) {
      expect(*traces, Kind::List, "device_traces");
      if (pickle_.items(*traces).size() > kMostDevices) fault(*traces, "more devices than any machine has");
      for (const PickleId id : pickle_.items(*traces)) read_trace(id);
    }
    if (const PickleId* settings = find(pickle_.root, "allocator_settings")) read_settings(*settings);
    return std::move(snapshot_);
  }

 private:
  static constexpr std::size_t kMostDevices = 1024;
  // Of an address or a size: no device comes near it, and sums stay far within 63 bits.
  static constexpr std::int64_t kLargest = std::int64_t{1} << 59;
  static constexpr std::int64_t kGrain = 512;  // Of all that the allocator cuts.

  [[noreturn]] void fault(PickleId id, std::string message, std::string hint = {}) const {
    throw pickle_.at(pickle_.node(id).offset, std::move(message), std::move(hint));
  }

  void expect(PickleId id, Kind kind, std::string_view what) const {
    const Kind found = pickle_.node(id).kind;
    if (found != kind) fault(id, formatted("{} must be {}, not {}", what, describe(kind), describe(found)));
  }

  // The last one wins, as in Python.
  const PickleId* find(PickleId dict, std::string_view key) const {
    const std::span<const PickleId> items = pickle_.items(dict);
    for (std::size_t i = items.size(); i >= 2; i -= 2) {
      const PickleId name = items[i - 2];
      if (pickle_.node(name).kind == Kind::String && pickle_.string(name) == key) return &items[i - 1];
    }
    return nullptr;
  }

  PickleId need(PickleId dict, std::string_view key) const {
    const PickleId* found = find(dict, key);
    if (found == nullptr) fault(dict, formatted("this dict has no \"{}\"", key), "is it a snapshot of PyTorch?");
    return *found;
  }

  std::int64_t integer(PickleId dict, std::string_view key) const {
    const PickleId id = need(dict, key);
    expect(id, Kind::Integer, key);
    return pickle_.node(id).number;
  }

  std::int64_t integer_or(PickleId dict, std::string_view key, std::int64_t fallback) const {
    return find(dict, key) == nullptr ? fallback : integer(dict, key);
  }

  Bytes bytes(PickleId dict, std::string_view key) const {
    const std::int64_t value = integer(dict, key);
    if (value < 0) fault(need(dict, key), formatted("{} is negative", key));
    if (value > kLargest) fault(need(dict, key), formatted("{} is larger than any device", key));
    return Bytes(value);
  }

  Bytes grains(PickleId dict, std::string_view key) const {
    const Bytes value = bytes(dict, key);
    if (value.value() % kGrain != 0) fault(need(dict, key), formatted("{} is no multiple of 512", key));
    return value;
  }

  bool boolean_or(PickleId dict, std::string_view key, bool fallback) const {
    const PickleId* id = find(dict, key);
    if (id == nullptr) return fallback;
    expect(*id, Kind::Bool, key);
    return pickle_.node(*id).number != 0;
  }

  std::string_view string(PickleId dict, std::string_view key) const {
    const PickleId id = need(dict, key);
    expect(id, Kind::String, key);
    return pickle_.string(id);
  }

  void count_part(PickleId id) {
    if (++parts_ > kMostParts) fault(id, formatted("more than {} segments, blocks, entries and frames", kMostParts));
  }

  // A list of frames is shared by all that was made at one place, and is read once.
  StackId stack(PickleId dict) {
    const PickleId* frames = find(dict, "frames");
    if (frames == nullptr) return 0;
    const auto [at, added] = stacks_.try_emplace(*frames, static_cast<StackId>(snapshot_.stacks.size()));
    if (!added) return at->second;
    expect(*frames, Kind::List, "frames");
    if (pickle_.items(*frames).empty()) return at->second = 0;
    std::vector<SnapshotFrame> list;
    for (const PickleId id : pickle_.items(*frames)) {
      count_part(id);
      expect(id, Kind::Dict, "a frame");
      list.push_back({std::string(string(id, "name")), std::string(string(id, "filename")), integer(id, "line")});
    }
    snapshot_.stacks.push_back(std::move(list));
    return at->second;
  }

  void refuse_pool(PickleId dict) const {
    const PickleId* id = find(dict, "segment_pool_id");
    if (id == nullptr) return;
    if (pickle_.node(*id).kind != Kind::Tuple && pickle_.node(*id).kind != Kind::List)
      expect(*id, Kind::Tuple, "a pool");
    for (const PickleId part : pickle_.items(*id)) {
      expect(part, Kind::Integer, "a pool's number");
      if (pickle_.node(part).number != 0) fault(*id, "memory pools of CUDA graphs and of users are not modelled");
    }
  }

  void read_segment(PickleId id) {
    count_part(id);
    expect(id, Kind::Dict, "a segment");
    refuse_pool(id);
    SnapshotSegment segment;
    segment.device = integer_or(id, "device", 0);
    segment.address = grains(id, "address");
    segment.size = grains(id, "total_size");
    segment.stream = integer(id, "stream");
    segment.expandable = boolean_or(id, "is_expandable", false);
    segment.stack = stack(id);
    const std::string_view type = string(id, "segment_type");
    if (type != "small" && type != "large") fault(need(id, "segment_type"), "must be \"small\" or \"large\"");
    segment.large = type == "large";
    if (segment.size == Bytes(0)) fault(id, "a segment of 0 bytes");
    if (segment.device < 0 || segment.device >= static_cast<std::int64_t>(kMostDevices)) fault(id, "no such device");
    const PickleId blocks = need(id, "blocks");
    expect(blocks, Kind::List, "blocks");
    Bytes next = segment.address;
    for (const PickleId block : pickle_.items(blocks)) {
      segment.blocks.push_back(read_block(block, next));
      next += segment.blocks.back().size;
    }
    if (next != segment.address + segment.size) fault(blocks, "the blocks do not fill their segment");
    check_sum(id, "allocated_size", segment.allocated());
    check_sum(id, "active_size", segment.active());
    snapshot_.segments.push_back(std::move(segment));
  }

  void check_sum(PickleId id, std::string_view key, Bytes sum) const {
    if (find(id, key) == nullptr || bytes(id, key) == sum) return;
    fault(need(id, key), formatted("{} is {}, but the blocks add up to {}", key, integer(id, key), sum.value()));
  }

  // Before PyTorch 2.1 blocks had no address: they follow each other.
  SnapshotBlock read_block(PickleId id, Bytes next) {
    count_part(id);
    expect(id, Kind::Dict, "a block");
    SnapshotBlock block;
    block.size = grains(id, "size");
    block.address = find(id, "address") == nullptr ? next : bytes(id, "address");
    if (block.address != next || block.size == Bytes(0)) fault(id, "this block does not begin where the last one ends");
    const std::string_view state = string(id, "state");
    if (state == "active_allocated") {
      block.state = SnapshotBlock::State::Allocated;
    } else if (state == "active_pending_free" || state == "active_awaiting_free") {
      block.state = SnapshotBlock::State::PendingFree;
    } else if (state != "inactive") {
      fault(need(id, "state"), formatted("{} is no state of a block", detail::in_quotes(state)));
    }
    if (block.state != SnapshotBlock::State::Inactive) {
      block.requested = find(id, "requested_size") == nullptr ? block.size : bytes(id, "requested_size");
      if (block.requested > block.size) fault(id, "more bytes are requested of this block than it has");
    }
    block.stack = stack(id);
    return block;
  }

  void order_segments() {
    std::stable_sort(snapshot_.segments.begin(), snapshot_.segments.end(),
                     [](const SnapshotSegment& a, const SnapshotSegment& b) {
                       return a.device != b.device ? a.device < b.device : a.address < b.address;
                     });
    for (std::size_t at = 1; at < snapshot_.segments.size(); ++at) {
      const SnapshotSegment& before = snapshot_.segments[at - 1];
      const SnapshotSegment& segment = snapshot_.segments[at];
      if (before.device != segment.device || before.address + before.size <= segment.address) continue;
      fault(need(pickle_.root, "segments"), formatted("two segments overlap at 0x{:x}", segment.address.value()));
    }
  }

  void read_trace(PickleId trace) {
    expect(trace, Kind::List, "a device's trace");
    std::vector<SnapshotEntry>& entries = snapshot_.traces.emplace_back();
    for (const PickleId id : pickle_.items(trace)) {
      count_part(id);
      expect(id, Kind::Dict, "an entry");
      entries.push_back(read_entry(id));
    }
  }

  static Action action_of(std::string_view text) {
    for (int i = 0; i < static_cast<int>(Action::Other); ++i) {
      if (text == name(static_cast<Action>(i))) return static_cast<Action>(i);
    }
    return Action::Other;
  }

  SnapshotEntry read_entry(PickleId id) {
    SnapshotEntry entry;
    entry.action = action_of(string(id, "action"));
    if (entry.action == Action::Other) return entry;
    const bool failed = entry.action == Action::OutOfMemory;
    entry.address = failed ? Bytes(integer_or(id, "device_free", 0)) : grains(id, "addr");
    // What failed may have been of any size.
    entry.size = failed ? Bytes(integer(id, "size")) : bytes(id, "size");
    const bool of_segment = entry.action >= Action::SegmentAlloc && entry.action <= Action::SegmentUnmap;
    if (of_segment && entry.size.value() % kGrain != 0) fault(need(id, "size"), "size is no multiple of 512");
    entry.stream = integer_or(id, "stream", 0);
    entry.time_us = integer_or(id, "time_us", 0);
    entry.stack = stack(id);
    refuse_pool(id);
    return entry;
  }

  void read_settings(PickleId settings) {
    expect(settings, Kind::Dict, "allocator_settings");
    AllocatorConfig config;
    for (const std::string_view key : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
      if (find(settings, key) == nullptr || !snapshot_.conf.empty()) continue;
      snapshot_.conf = string(settings, key);
      if (const auto bad = apply_allocator_conf(snapshot_.conf, config))
        fault(need(settings, key), bad->message, bad->hint);
    }
    const std::int64_t split = integer_or(settings, "max_split_size", -1);
    config.max_split_size = Bytes(split < 0 ? AllocatorConfig::kNoSplitLimit : split);
    config.expandable_segments = boolean_or(settings, "expandable_segments", config.expandable_segments);
    if (const PickleId* id = find(settings, "garbage_collection_threshold")) {
      const PickleNode& node = pickle_.node(*id);
      if (node.kind == Kind::Integer && node.number == 0)
        config.garbage_collection_threshold = 0;
      else
        expect(*id, Kind::Real, "garbage_collection_threshold");
      if (node.kind == Kind::Real) config.garbage_collection_threshold = pickle_.real(*id);
      if (!(config.garbage_collection_threshold >= 0 && config.garbage_collection_threshold < 1)) {
        fault(*id, "garbage_collection_threshold must lie in 0 to 1");
      }
    }
    if (const PickleId* id = find(settings, "roundup_power2_divisions")) read_divisions(*id, config);
    snapshot_.config = config;
  }

  // {"1": 0, "2": 0, ..., "32768": 0}: keys are MiB.
  void read_divisions(PickleId id, AllocatorConfig& config) {
    expect(id, Kind::Dict, "roundup_power2_divisions");
    for (std::size_t at = 0; at < config.roundup_power2_divisions.size(); ++at) {
      const std::int64_t value = integer_or(id, std::to_string(1 << at), 0);
      if (value < 0 || value > kMostDivisions ||
          (value > 0 && !std::has_single_bit(static_cast<std::uint64_t>(value)))) {
        fault(id, "divisions are powers of two");
      }
      config.roundup_power2_divisions[at] = value;
    }
  }

  static constexpr std::int64_t kMostDivisions = 1 << 20;

  const Pickle& pickle_;
  Snapshot snapshot_;
  std::unordered_map<PickleId, StackId> stacks_;
  std::size_t parts_ = 0;
};

}  // namespace

Snapshot read_snapshot(std::string path, std::string text) {
  const Pickle pickle = read_pickle(std::move(path), std::move(text));
  return SnapshotReader(pickle).read();
}

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
