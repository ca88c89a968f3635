// Each buffer its own allocation of the backend.
#include <algorithm>
#include <utility>

#include "exec/memory/spaces.h"

namespace dsplan::exec {
namespace {

class PlainSpace : public DeviceSpace {
 public:
  PlainSpace(Device& device, const MemoryOptions& options)
      : device_(device), patterns_(device, options.patterns), limit_(limit_of(device, options)) {}

  void* allocate(BufferId id, Bytes bytes, StreamId) override {
    const Bytes left = limit_ - books_.now().reserved;
    void* memory = bytes > left ? nullptr : device_.memory().try_allocate(Space::Device, bytes);
    if (memory == nullptr) {
      books_.refuse();
      out_of_memory(device_, id, bytes, {bytes, left, books_.now().reserved, limit_});
    }
    blocks_.reach(id);
    blocks_[id] = {memory, bytes};
    books_.take(bytes);
    books_.add(bytes, bytes);
    patterns_.fill(memory, bytes);
    return memory;
  }
  void release(BufferId id) override {
    const Block held = std::exchange(blocks_[id], Block{});
    device_.memory().release(Space::Device, held.memory, held.bytes);
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
  Indexed<BufferId, Block> blocks_;
  OwnBooks books_;
};

}  // namespace

std::unique_ptr<DeviceSpace> make_plain_space(Device& device, const MemoryOptions& options) {
  return std::make_unique<PlainSpace>(device, options);
}

}  // namespace dsplan::exec
