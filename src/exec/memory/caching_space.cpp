// PyTorch's caching allocator (sim/allocator.h) over segments of the backend, under a hard limit.
#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "exec/memory/spaces.h"
#include "sim/stream_waits.h"

namespace dsplan::exec {
namespace {

// Segments of the backend for the caching allocator, and what they add up to.
class BackendSegments : public SegmentSource {
 public:
  BackendSegments(Device& device, const Patterns& patterns) : device_(device), patterns_(patterns) {}

  void* allocate(Bytes size) override {
    void* segment = device_.memory().try_allocate(Space::Device, size);
    if (segment == nullptr) return nullptr;
    add(size);
    patterns_.fill(segment, size);
    return segment;
  }
  void free(void* segment, Bytes size) override {
    device_.memory().release(Space::Device, segment, size);
    taken_ -= size;
  }
  void* reserve(Bytes size) override { return device_.memory().reserve(size); }
  void unreserve(void* range, Bytes size) override { device_.memory().unreserve(range, size); }
  bool map(void* range, Bytes offset, Bytes size) override {
    if (!device_.memory().try_map(range, offset, size)) return false;
    add(size);
    patterns_.fill(static_cast<char*>(range) + offset.value(), size);
    return true;
  }
  void unmap(void* range, Bytes offset, Bytes size) override {
    device_.memory().unmap(range, offset, size);
    taken_ -= size;
  }

  [[nodiscard]] Bytes taken() const { return taken_; }
  [[nodiscard]] Bytes most_taken() const { return most_taken_; }
  void reset_peaks() { most_taken_ = taken_; }

 private:
  void add(Bytes size) {
    taken_ += size;
    most_taken_ = std::max(most_taken_, taken_);
  }
  Device& device_;
  const Patterns& patterns_;
  Bytes taken_;
  Bytes most_taken_;
};

class CachingSpace : public DeviceSpace {
 public:
  CachingSpace(Device& device, const MemoryOptions& options)
      : device_(device),
        patterns_(device, options.patterns),
        limit_(limit_of(device, options)),
        segments_(device, patterns_),
        allocator_(options.config, options.device.value_or(limit_), &segments_),
        untold_(options.untold),
        streams_(allocator_, options.stream_frees, untold_),
        immediate_(options.stream_frees == StreamFrees::Immediate) {
    allocator_.set_capacity(limit_);
  }

  void* allocate(BufferId id, Bytes bytes, StreamId stream) override {
    streams_.allocating(id, stream);
    const std::optional<BlockId> block = allocator_.allocate(bytes, stream);
    if (allocator_.retries() != retries_) {
      retries_ = allocator_.retries();
      streams_.retried();
    }
    device_.throw_if_noted();
    if (!block) {
      out_of_memory(device_, id, bytes, {allocator_.segment_for(bytes), allocator_.left(), segments_.taken(), limit_});
    }
    blocks_.reach(id);
    blocks_[id] = {*block, bytes};
    void* memory = allocator_.pointer(*block);
    patterns_.check(memory, allocator_.size(*block), "free memory that was given to", id);
    return memory;
  }

  void release(BufferId id) override {
    const Block held = std::exchange(blocks_[id], Block{});
    if (patterns_.on()) {
      char* memory = static_cast<char*>(allocator_.pointer(held.block));
      patterns_.check(memory + held.bytes.value(), allocator_.size(held.block) - held.bytes, "what lies behind", id);
      patterns_.fill(memory, held.bytes);
    }
    const bool waits = streams_.releasing(id, held.block) != 0;
    // What is free at once must be done with.
    if (waits && immediate_ && !device_.synchronous()) device_.synchronize();
    allocator_.release(held.block);
  }

  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) override {
    streams_.work(stream, reads, writes);
  }
  void record_event(const RecordEvent& event) override { streams_.record_event(event); }
  void wait_event(const WaitEvent& event) override { streams_.wait_event(event); }
  void empty_cache() override {
    if (!device_.synchronous()) device_.synchronize();
    streams_.empty_cache();
    device_.throw_if_noted();
  }

  // What the allocator believes to have and what the backend gave are two sums.
  [[nodiscard]] AllocatorStatistics statistics() const override {
    AllocatorStatistics now = allocator_.statistics();
    now.reserved = segments_.taken();
    return now;
  }
  [[nodiscard]] AllocatorStatistics peaks() const override {
    AllocatorStatistics most = allocator_.peaks();
    most.reserved = segments_.most_taken();
    return most;
  }
  void reset_peaks() override {
    allocator_.reset_peaks();
    segments_.reset_peaks();
  }
  void finish() override {
    if (patterns_.on()) {
      for (const CachingAllocator::BlockView& view : allocator_.blocks()) {
        DSPLAN_CHECK(view.state == CachingAllocator::BlockState::Free ||
                         view.state == CachingAllocator::BlockState::AwaitingFree ||
                         view.state == CachingAllocator::BlockState::Unmapped,
                     "a block that nobody released");
      }
    }
    allocator_.empty_cache();
    device_.throw_if_noted();
    DSPLAN_CHECK(segments_.taken() == Bytes(0), "segments that were not given back");
  }

 private:
  struct Block {
    BlockId block = kNullBlock;
    Bytes bytes;
  };

  Device& device_;
  Patterns patterns_;
  Bytes limit_;
  BackendSegments segments_;
  CachingAllocator allocator_;
  UntoldUses untold_;
  AllocatorStreams streams_;
  bool immediate_;
  Indexed<BufferId, Block> blocks_;
  std::int64_t retries_ = 0;
};

}  // namespace

std::unique_ptr<DeviceSpace> make_caching_space(Device& device, const MemoryOptions& options) {
  return std::make_unique<CachingSpace>(device, options);
}

}  // namespace dsplan::exec
