// The three allocators of device memory.
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/format.h"
#include "exec/memory_spaces.h"
#include "exec/stream_events.h"
#include "sim/allocator_streams.h"

namespace dsplan::exec {
namespace {

[[noreturn]] void out_of_memory(const Device& device, BufferId id, Bytes requested, Bytes missing, Bytes reserved,
                                Bytes limit) {
  Failure failure{DSPLAN_OUT_OF_MEMORY, device.rank(), kNoEvent, "allocate",
                  formatted("buffer {} wants {} bytes; {} are taken of {}, {} are missing", id, requested.value(),
                            reserved.value(), limit.value(), missing.value())};
  failure.requested = requested;
  failure.missing = missing;
  throw RunFailure(std::move(failure));
}

// Remembers what each number holds; numbers are dense.
template <class T>
T& at(std::vector<T>& list, BufferId id, const T& nothing) {
  if (id >= list.size()) list.resize(std::size_t{id} + 1, nothing);
  return list[id];
}

Bytes limit_of(const Device& device, const MemoryOptions& options) {
  const Bytes all(device.info().memory_bytes);
  return options.limit ? std::min(*options.limit, all) : all;
}

// Segments of the backend for the caching allocator, and what they add up to.
class BackendSegments : public SegmentSource {
 public:
  BackendSegments(Device& device, const Patterns& patterns) : device_(device), patterns_(patterns) {}

  void* allocate(Bytes size) override {
    void* segment = device_.try_allocate(Space::Device, size);
    if (segment == nullptr) return nullptr;
    add(size);
    patterns_.fill(segment, size);
    return segment;
  }
  void free(void* segment, Bytes size) override {
    device_.release(Space::Device, segment, size);
    taken_ -= size;
  }
  void* reserve(Bytes size) override { return device_.reserve(size); }
  void unreserve(void* range, Bytes size) override { device_.unreserve(range, size); }
  bool map(void* range, Bytes offset, Bytes size) override {
    if (!device_.try_map(range, offset, size)) return false;
    add(size);
    patterns_.fill(static_cast<char*>(range) + offset.value(), size);
    return true;
  }
  void unmap(void* range, Bytes offset, Bytes size) override {
    device_.unmap(range, offset, size);
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
        streams_(allocator_, options.stream_frees),
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
      const Bytes needed = allocator_.segment_for(bytes);
      const Bytes missing = std::max(Bytes(0), needed - allocator_.left());
      out_of_memory(device_, id, bytes, missing, segments_.taken(), limit_);
    }
    at(blocks_, id, Block{}) = {*block, bytes};
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
  AllocatorStreams streams_;
  bool immediate_;
  std::vector<Block> blocks_;  // By BufferId.
  std::int64_t retries_ = 0;
};

// Sums for the two allocators that keep no books of their own.
class OwnBooks {
 public:
  void add(Bytes requested, Bytes block) {
    now_.requested += requested;
    now_.allocated += block;
    now_.active += block;
    most_.requested = std::max(most_.requested, now_.requested);
    most_.allocated = std::max(most_.allocated, now_.allocated);
    most_.active = std::max(most_.active, now_.active);
  }
  void subtract(Bytes requested, Bytes block) {
    now_.requested -= requested;
    now_.allocated -= block;
    now_.active -= block;
  }
  void take(Bytes reserved) {
    now_.reserved += reserved;
    ++now_.segments;
    most_.reserved = std::max(most_.reserved, now_.reserved);
  }
  void give_back(Bytes reserved) {
    now_.reserved -= reserved;
    --now_.segments;
  }
  void refuse() { ++now_.ooms; }
  [[nodiscard]] const AllocatorStatistics& now() const { return now_; }
  [[nodiscard]] AllocatorStatistics most() const {
    AllocatorStatistics most = most_;
    most.segments = now_.segments;
    most.ooms = now_.ooms;
    return most;
  }
  void reset_peaks() { most_ = now_; }

 private:
  AllocatorStatistics now_;
  AllocatorStatistics most_;
};

class PlannedSpace : public DeviceSpace {
 public:
  PlannedSpace(Device& device, MemoryOptions options)
      : device_(device),
        patterns_(device, options.patterns),
        height_(std::min(options.limit.value_or(options.height), options.height)),
        offsets_(std::move(options.offsets)),
        order_(device) {
    if (height_ == Bytes(0)) return;
    arena_ = static_cast<char*>(device_.allocate(Space::Device, height_));
    books_.take(height_);
    patterns_.fill(arena_, height_);
  }
  ~PlannedSpace() override {
    if (arena_ != nullptr) device_.release(Space::Device, arena_, height_);
  }

  void* allocate(BufferId id, Bytes bytes, StreamId stream) override {
    DSPLAN_CHECK(id < offsets_.size() && offsets_[id] >= 0, formatted("buffer {} has no place in the plan", id));
    const Bytes offset(offsets_[id]);
    const Bytes block = rounded_to_block(bytes);
    if (offset + block > height_) {
      books_.refuse();
      out_of_memory(device_, id, bytes, offset + block - height_, height_, height_);
    }
    const auto after = live_.lower_bound(offset);
    if (after != live_.end() && after->first < offset + block) collide(id, after->second.id);
    if (after != live_.begin()) {
      const auto before = std::prev(after);
      if (before->first + rounded_to_block(before->second.bytes) > offset) collide(id, before->second.id);
    }
    order_.take(offset, offset + block, stream);
    char* memory = arena_ + offset.value();
    patterns_.check(memory, block, "free memory that was given to", id);
    live_.emplace_hint(after, offset, Live{id, bytes});
    books_.add(bytes, block);
    return memory;
  }

  void release(BufferId id) override {
    const auto found = live_.find(Bytes(offsets_[id]));
    const Bytes bytes = found->second.bytes;
    const Bytes block = rounded_to_block(bytes);
    char* memory = arena_ + offsets_[id];
    patterns_.check(memory + bytes.value(), block - bytes, "what lies behind", id);
    patterns_.fill(memory, bytes);
    order_.leave(id, Bytes(offsets_[id]), Bytes(offsets_[id]) + block);
    live_.erase(found);
    books_.subtract(bytes, block);
  }
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) override {
    order_.work(stream, reads, writes);
  }

  [[nodiscard]] AllocatorStatistics statistics() const override { return books_.now(); }
  [[nodiscard]] AllocatorStatistics peaks() const override { return books_.most(); }
  void reset_peaks() override { books_.reset_peaks(); }
  void finish() override {
    if (arena_ == nullptr) return;
    patterns_.check(arena_, height_, "the arena after the last", kNoBuffer);
    device_.release(Space::Device, std::exchange(arena_, nullptr), height_);
    books_.give_back(height_);
  }

 private:
  struct Live {
    BufferId id;
    Bytes bytes;
  };
  [[noreturn]] void collide(BufferId id, BufferId other) const {
    check_failed("planned places do not overlap", __FILE__, __LINE__,
                 formatted("buffer {} is placed on buffer {}, which is still held", id, other));
  }

  Device& device_;
  Patterns patterns_;
  Bytes height_;
  std::vector<std::int64_t> offsets_;
  PlaceOrder order_;
  char* arena_ = nullptr;
  std::map<Bytes, Live> live_;  // By offset.
  OwnBooks books_;
};

class PlainSpace : public DeviceSpace {
 public:
  PlainSpace(Device& device, const MemoryOptions& options)
      : device_(device), patterns_(device, options.patterns), limit_(limit_of(device, options)) {}

  void* allocate(BufferId id, Bytes bytes, StreamId) override {
    const Bytes left = limit_ - books_.now().reserved;
    void* memory = bytes > left ? nullptr : device_.try_allocate(Space::Device, bytes);
    if (memory == nullptr) {
      books_.refuse();
      out_of_memory(device_, id, bytes, std::max(Bytes(0), bytes - left), books_.now().reserved, limit_);
    }
    at(blocks_, id, Block{}) = {memory, bytes};
    books_.take(bytes);
    books_.add(bytes, bytes);
    patterns_.fill(memory, bytes);
    return memory;
  }
  void release(BufferId id) override {
    const Block held = std::exchange(blocks_[id], Block{});
    device_.release(Space::Device, held.memory, held.bytes);
    books_.subtract(held.bytes, held.bytes);
    books_.give_back(held.bytes);
  }
  [[nodiscard]] AllocatorStatistics statistics() const override { return books_.now(); }
  [[nodiscard]] AllocatorStatistics peaks() const override { return books_.most(); }
  void reset_peaks() override { books_.reset_peaks(); }

 private:
  struct Block {
    void* memory = nullptr;
    Bytes bytes;
  };
  Device& device_;
  Patterns patterns_;
  Bytes limit_;
  std::vector<Block> blocks_;  // By BufferId.
  OwnBooks books_;
};

}  // namespace

Patterns::Patterns(const Device& device, bool on) : on_(on) {
  constexpr std::uint32_t kNeeded = DSPLAN_HOST_READABLE | DSPLAN_SYNCHRONOUS;
  if (on && (device.info().flags & kNeeded) != kNeeded) {
    throw Refusal("patterns", "need a device whose memory the host can read, and that does everything at once");
  }
}

void Patterns::fill(void* memory, Bytes bytes) const {
  if (on_ && bytes > Bytes(0)) std::memset(memory, kPattern, static_cast<std::size_t>(bytes.value()));
}

void Patterns::check(const void* memory, Bytes bytes, const char* what, BufferId id) const {
  if (!on_ || bytes <= Bytes(0)) return;
  const auto* begin = static_cast<const std::uint8_t*>(memory);
  const auto* end = begin + bytes.value();
  const auto* wrong = std::find_if(begin, end, [](std::uint8_t byte) { return byte != kPattern; });
  if (wrong == end) return;
  check_failed("memory that nobody holds is not written to", __FILE__, __LINE__,
               formatted("{} buffer {}: byte {} of {} was written", what, id, wrong - begin, bytes.value()));
}

std::unique_ptr<DeviceSpace> make_device_space(Device& device, MemoryOptions options) {
  switch (options.kind) {
    case AllocatorKind::Caching: return std::make_unique<CachingSpace>(device, options);
    case AllocatorKind::Planned: return std::make_unique<PlannedSpace>(device, std::move(options));
    case AllocatorKind::Plain: break;
  }
  return std::make_unique<PlainSpace>(device, options);
}

}  // namespace dsplan::exec
