#include "sim/snapshot_of.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "core/format.h"
#include "sim/allocator.h"

namespace dsplan {

std::vector<SnapshotSegment> segments_of(const CachingAllocator& allocator, const std::vector<std::int64_t>& streams) {
  using State = CachingAllocator::BlockState;
  std::vector<SnapshotSegment> segments;
  const std::vector<CachingAllocator::BlockView> blocks = allocator.blocks();
  for (std::size_t at = 0; at < blocks.size(); ++at) {
    const CachingAllocator::BlockView& block = blocks[at];
    if (block.state == State::Unmapped) continue;
    const bool goes_on = at > 0 && blocks[at - 1].segment == block.segment && blocks[at - 1].state != State::Unmapped;
    if (!goes_on) {
      SnapshotSegment segment;
      segment.address = block.address;
      segment.stream = streams[block.stream];
      segment.large = block.large;
      segment.expandable = block.expandable;
      segments.push_back(std::move(segment));
    }
    const SnapshotBlock::State state = block.state == State::Free        ? SnapshotBlock::State::Inactive
                                       : block.state == State::Allocated ? SnapshotBlock::State::Allocated
                                                                         : SnapshotBlock::State::PendingFree;
    segments.back().size += block.size;
    segments.back().blocks.push_back({block.address, block.size, block.requested, state, 0});
  }
  return segments;
}

namespace {

using Action = SnapshotEntry::Action;

// Makes segments up at ascending addresses and writes down each of the allocator's dealings with the driver.
class Driver : public SegmentSource {
 public:
  explicit Driver(std::vector<SnapshotEntry>& entries) : entries_(entries) {}

  // What the allocator is asked for now: the entries that follow belong to it.
  void serve(std::int64_t stream, StackId stack) {
    stream_ = stream;
    stack_ = stack;
  }
  void write(Action action, Bytes address, Bytes size, std::int64_t stream, StackId stack) {
    if (closed_) return;
    entries_.push_back({action, address, size, stream, static_cast<std::int64_t>(entries_.size()), stack});
  }
  void close() { closed_ = true; }
  [[nodiscard]] StackId stack_of(Bytes segment) const {
    const auto at = homes_.find(segment.value());
    return at == homes_.end() ? 0 : at->second.stack;
  }

  [[nodiscard]] bool gives_addresses() const override { return true; }
  [[nodiscard]] void* allocate(Bytes size) override {
    void* const base = reserve(size);
    write(Action::SegmentAlloc, address(base), size, stream_, stack_);
    return base;
  }
  void free(void* segment, Bytes size) override {
    write(Action::SegmentFree, address(segment), size, homes_[address(segment).value()].stream, stack_);
  }
  [[nodiscard]] void* reserve(Bytes size) override {
    const std::int64_t base = next_;
    next_ = checked_add(next_, round_up(size, kSegmentGranularity).value());
    homes_[base] = {stream_, stack_};
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(base));
  }
  void unreserve(void*, Bytes) override {}
  [[nodiscard]] bool map(void* range, Bytes offset, Bytes size) override {
    write(Action::SegmentMap, address(range) + offset, size, homes_[address(range).value()].stream, stack_);
    return true;
  }
  void unmap(void* range, Bytes offset, Bytes size) override {
    write(Action::SegmentUnmap, address(range) + offset, size, homes_[address(range).value()].stream, stack_);
  }

 private:
  struct Home {
    std::int64_t stream = 0;
    StackId stack = 0;
  };
  static Bytes address(void* base) { return Bytes(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(base))); }

  std::vector<SnapshotEntry>& entries_;
  std::unordered_map<std::int64_t, Home> homes_;  // By base address.
  std::int64_t next_ = kSegmentGranularity;
  std::int64_t stream_ = 0;
  StackId stack_ = 0;
  bool closed_ = false;
};

// Where the program stands: what an allocation's stack says beyond the buffer itself.
class Whereabouts : public Ignores<Allocate, Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache> {
 public:
  using Ignores<Allocate, Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache>::on;
  void on(std::size_t, const Enter& event) { stack(event.pass).push_back(event.module); }
  void on(std::size_t, const Exit& event) {
    if (!stack(event.pass).empty()) stack(event.pass).pop_back();
  }
  void on(std::size_t, const Mark& event) {
    mark_ = event;
    open_.clear();
    recomputed_.clear();
  }

  [[nodiscard]] ModuleId module() const {
    if (!recomputed_.empty()) return recomputed_.back();
    return open_.empty() ? kNone : open_.back();
  }
  [[nodiscard]] std::string_view pass() const {
    if (!recomputed_.empty()) return "recomputation";
    switch (mark_.moment) {
      case Moment::BackwardBegins: return "backward";
      case Moment::StepBegins: return "optimizer step";
      case Moment::ForwardBegins: return "forward";
      default: return mark_.stretch == Stretch::Init ? "initialisation" : "training loop";
    }
  }
  [[nodiscard]] Stretch stretch() const { return mark_.stretch; }
  [[nodiscard]] std::int32_t micro_batch() const { return mark_.micro_batch; }

 private:
  std::vector<ModuleId>& stack(Pass pass) { return pass == Pass::Recompute ? recomputed_ : open_; }

  Mark mark_;
  std::vector<ModuleId> open_;
  std::vector<ModuleId> recomputed_;
};

class Recorder : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit, Mark> {
 public:
  Recorder(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config, Bytes capacity,
           const Whereabouts& whereabouts)
      : schedule_(schedule),
        model_(model),
        whereabouts_(whereabouts),
        driver_(snapshot_.traces.emplace_back()),
        allocator_(config, capacity, &driver_),
        capacity_(capacity),
        blocks_(schedule.buffers.size(), kNullBlock),
        stacks_(schedule.buffers.size(), 0),
        streams_(schedule.buffers.size(), 0) {
    snapshot_.config = config;
    snapshot_.conf = conf_text(config);
  }

  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, Enter, Exit, Mark>::on;
  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (failed_ || buffer.space != Space::Device) return;
    const StackId stack = stack_of(buffer);
    driver_.serve(event.stream, stack);
    const std::optional<BlockId> block = allocator_.allocate(buffer.size, event.stream);
    if (!block) {
      failed_ = true;
      const Bytes left = capacity_ - allocator_.statistics().reserved;
      driver_.write(Action::OutOfMemory, left, buffer.size, event.stream, stack);
      return;
    }
    blocks_[event.buffer] = *block;
    stacks_[event.buffer] = stack;
    streams_[event.buffer] = event.stream;
    driver_.write(Action::Alloc, allocator_.address(*block), buffer.size, event.stream, stack);
  }

  void on(std::size_t, const Release& event) {
    BlockId& block = blocks_[event.buffer];
    if (failed_ || block == kNullBlock) return;
    const Buffer& buffer = schedule_.buffers[event.buffer];
    const Bytes address = allocator_.address(block);
    const StreamId stream = streams_[event.buffer];  // A block belongs to the stream that it was made on.
    driver_.serve(stream, 0);
    driver_.write(Action::FreeRequested, address, buffer.size, stream, stacks_[event.buffer]);
    allocator_.release(block);
    driver_.write(Action::FreeCompleted, address, buffer.size, stream, stacks_[event.buffer]);
    block = kNullBlock;
  }

  void on(std::size_t, const EmptyCache&) {
    if (failed_) return;
    driver_.serve(kComputeStream, 0);
    allocator_.empty_cache();
  }

  [[nodiscard]] Snapshot finish() {
    std::vector<std::int64_t> streams(CachingAllocator::kMostStreams);
    for (std::size_t i = 0; i < streams.size(); ++i) streams[i] = static_cast<std::int64_t>(i);
    snapshot_.segments = segments_of(allocator_, streams);
    std::unordered_map<std::int64_t, StackId> stacks;
    for (const BufferId id : blocks_.ids()) {
      if (blocks_[id] != kNullBlock) stacks[allocator_.address(blocks_[id]).value()] = stacks_[id];
    }
    for (SnapshotSegment& segment : snapshot_.segments) {
      segment.stack = driver_.stack_of(segment.address);
      for (SnapshotBlock& block : segment.blocks) {
        if (block.state != SnapshotBlock::State::Inactive) block.stack = stacks[block.address.value()];
      }
    }
    driver_.close();
    return std::move(snapshot_);
  }

 private:
  using Key = std::tuple<std::string_view, Role, ModuleId, ParameterId, std::string_view, Stretch, std::int32_t>;

  StackId stack_of(const Buffer& buffer) {
    ModuleId module = buffer.module;
    if (buffer.parameter != kNone) module = model_.parameter_at(buffer.parameter).module;
    if (module == kNone) module = whereabouts_.module();
    const Key key{buffer.label,
                  buffer.role,
                  module,
                  buffer.parameter,
                  whereabouts_.pass(),
                  whereabouts_.stretch(),
                  whereabouts_.micro_batch()};
    const auto [at, added] = known_.try_emplace(key, static_cast<StackId>(snapshot_.stacks.size()));
    if (added) snapshot_.stacks.push_back(frames(buffer, module));
    return at->second;
  }

  std::vector<SnapshotFrame> frames(const Buffer& buffer, ModuleId module) const {
    std::vector<SnapshotFrame> list;
    list.push_back({buffer.label, std::string(name(buffer.role)), 0});
    if (buffer.parameter != kNone) {
      list.push_back({model_.parameter_at(buffer.parameter).name, "parameter", 0});
    }
    if (module != kNone) {
      const Module& m = model_.module_at(module);
      list.push_back({m.type, m.path.empty() ? model_.name : m.path, std::max(m.layer, 0)});
    }
    list.push_back({formatted("{}, {}", whereabouts_.pass(), name(whereabouts_.stretch())), "dsplan",
                    whereabouts_.micro_batch() + 1});
    return list;
  }

  const Schedule& schedule_;
  const ModelSpec& model_;
  const Whereabouts& whereabouts_;
  Snapshot snapshot_;
  Driver driver_;
  CachingAllocator allocator_;
  Bytes capacity_;
  Indexed<BufferId, BlockId> blocks_;
  Indexed<BufferId, StackId> stacks_;
  Indexed<BufferId, StreamId> streams_;
  std::map<Key, StackId> known_;
  bool failed_ = false;
};

}  // namespace

Snapshot snapshot_of(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config, Bytes capacity) {
  Whereabouts whereabouts;
  Recorder recorder(schedule, model, config, capacity, whereabouts);
  replay(schedule, whereabouts, recorder);
  return recorder.finish();
}

}  // namespace dsplan
