// One block of memory; each buffer at the offset that was planned for it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "exec/memory/spaces.h"
#include "sim/stream_waits.h"

namespace dsplan::exec {
namespace {

// Places of an arena go from buffer to buffer, whichever streams use them: a stream that is given a place waits for the
// streams that used what lay there. For devices that only enqueue.
class PlaceOrder {
 public:
  explicit PlaceOrder(Device& device) : device_(device) {}

  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes);
  // Before `stream` is given [begin, end).
  void take(Bytes begin, Bytes end, StreamId stream);
  // `id` lay at [begin, end) and goes.
  void leave(BufferId id, Bytes begin, Bytes end);

 private:
  struct Place {
    Bytes end;
    StreamSet users = 0;
  };

  Device& device_;
  Indexed<BufferId, StreamSet> users_;
  std::map<Bytes, Place> places_;  // Left, by their beginning; disjoint.
  std::vector<DeviceEvent> events_;
};

void PlaceOrder::work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  if (device_.synchronous()) return;
  for (const std::span<const Access> list : {reads, writes}) {
    for (const Access& access : list) {
      users_.reach(access.buffer);
      users_[access.buffer] |= bit_of(stream);
    }
  }
}

// A stream that waits for another waits for all that it has by now: nothing is kept of earlier waits.
void PlaceOrder::take(Bytes begin, Bytes end, StreamId stream) {
  if (device_.synchronous()) return;
  StreamSet before = 0;
  auto at = places_.upper_bound(begin);
  if (at != places_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != places_.end() && at->first < end) {
    const auto [from, place] = *at;
    before |= place.users;
    at = places_.erase(at);
    if (from < begin) places_.emplace(from, Place{begin, place.users});
    if (place.end > end) at = places_.emplace(end, Place{place.end, place.users}).first;
  }
  for (StreamId other = 0; other < kStreams; ++other) {
    if (other == stream || (before & bit_of(other)) == 0) continue;
    while (events_.size() <= other) events_.emplace_back(device_);
    events_[other].record(other);
    device_.wait(stream, events_[other]);
  }
}

void PlaceOrder::leave(BufferId id, Bytes begin, Bytes end) {
  if (device_.synchronous() || !users_.has(id)) return;
  places_[begin] = {end, std::exchange(users_[id], StreamSet{0})};
}

class PlannedSpace : public DeviceSpace {
 public:
  PlannedSpace(Device& device, MemoryOptions options)
      : device_(device),
        patterns_(device, options.patterns),
        height_(std::min(options.limit.value_or(options.height), options.height)),
        offsets_(std::move(options.offsets)),
        order_(device) {
    if (height_ == Bytes(0)) return;
    arena_ = static_cast<char*>(device_.memory().try_allocate(Space::Device, height_));
    if (arena_ == nullptr) no_arena();
    books_.take(height_);
    patterns_.fill(arena_, height_);
  }
  ~PlannedSpace() override {
    if (arena_ != nullptr) device_.memory().release(Space::Device, arena_, height_);
  }

  void* allocate(BufferId id, Bytes bytes, StreamId stream) override {
    DSPLAN_CHECK(offsets_.has(id) && offsets_[id] >= 0, formatted("buffer {} has no place in the plan", id));
    const Bytes offset(offsets_[id]);
    const Bytes block = rounded_to_block(bytes);
    if (offset + block > height_) {
      books_.refuse();
      out_of_memory(device_, id, bytes, {offset + block - height_, Bytes(0), height_, height_});
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
    device_.memory().release(Space::Device, std::exchange(arena_, nullptr), height_);
    books_.give_back(height_);
  }

 private:
  struct Live {
    BufferId id;
    Bytes bytes;
  };
  [[noreturn]] void no_arena() {
    const Bytes free(device_.usage().device_free);
    Failure failure{
        DSPLAN_OUT_OF_MEMORY, device_.rank(), kNoEvent, "allocate",
        formatted("the plan's arena wants {} bytes; the device has {} left", height_.value(), free.value())};
    failure.requested = height_;
    failure.missing = height_ - free;
    throw RunFailure(std::move(failure));
  }
  [[noreturn]] void collide(BufferId id, BufferId other) const {
    check_failed("planned places do not overlap", __FILE__, __LINE__,
                 formatted("buffer {} is placed on buffer {}, which is still held", id, other));
  }

  Device& device_;
  Patterns patterns_;
  Bytes height_;
  Indexed<BufferId, std::int64_t> offsets_;
  PlaceOrder order_;
  char* arena_ = nullptr;
  std::map<Bytes, Live> live_;  // By offset.
  OwnBooks books_;
};

}  // namespace

std::unique_ptr<DeviceSpace> make_planned_space(Device& device, MemoryOptions options) {
  return std::make_unique<PlannedSpace>(device, std::move(options));
}

}  // namespace dsplan::exec
