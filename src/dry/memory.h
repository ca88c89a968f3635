// Device and pinned memory without a device: addresses that can be read and written, and a capacity that is kept.
//
// A device's addresses are a mapping that nothing stands behind until it is touched; it reads as zeros. Large copies
// and fills are not carried out, so the host's memory stays flat however large the model is.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace dsplan::dry {

constexpr std::size_t kGranule = std::size_t{2} << 20;  // Of mappings, and of what cudaMalloc takes from the device.
[[nodiscard]] constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// One device's. All methods may be called by any thread.
class DeviceMemory {
 public:
  DeviceMemory(std::size_t total, std::size_t context) : total_(total), context_(context) {}

  // Addresses alone, the lowest that are free. nullptr: the machine has no more.
  void* reserve(std::size_t bytes);
  // False: nothing was reserved there.
  bool release(void* address);
  // Physical memory alone. False: there is not as much.
  bool charge(std::size_t bytes);
  void discharge(std::size_t bytes);
  // Both.
  void* allocate(std::size_t bytes);
  bool free(void* address);

  [[nodiscard]] bool holds(const void* address);
  // The allocation or reservation around an address, or {nullptr, 0}.
  [[nodiscard]] std::pair<void*, std::size_t> around(const void* address);
  [[nodiscard]] std::size_t available();
  [[nodiscard]] std::size_t total() const { return total_; }
  [[nodiscard]] std::size_t used();
  [[nodiscard]] std::size_t peak();

 private:
  struct Taken {
    std::size_t bytes;
    bool charged;
  };
  bool grow(std::size_t bytes);
  void* take(std::size_t bytes, bool charged);

  std::mutex lock_;
  std::size_t total_;
  std::size_t context_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  std::vector<std::pair<char*, std::size_t>> mapped_;
  std::map<char*, std::size_t> free_;
  std::map<char*, Taken> taken_;
};

[[nodiscard]] DeviceMemory& memory_of(int device);
// The device whose memory an address is, or -1.
[[nodiscard]] int device_of(const void* address);

// Memory of the host that the driver knows: allocated by it, or registered with it.
class PinnedMemory {
 public:
  void* allocate(std::size_t bytes);
  bool free(void* address);
  bool register_range(void* address, std::size_t bytes);
  bool unregister(void* address);
  [[nodiscard]] bool holds(const void* address);
  [[nodiscard]] std::size_t used();
  [[nodiscard]] std::size_t peak();

 private:
  void add(std::size_t bytes);

  std::mutex lock_;
  std::map<char*, std::size_t> allocated_;
  std::map<char*, std::size_t> registered_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};
[[nodiscard]] PinnedMemory& pinned();

// Carried out up to DSPLAN_DRY_COPY_LIMIT bytes (64 KiB), so that what Python reads back of small tensors is there.
void copy(void* to, const void* from, std::size_t bytes);
void fill(void* to, int value, std::size_t bytes);
[[nodiscard]] std::size_t copy_limit();

}  // namespace dsplan::dry
