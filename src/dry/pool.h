// A memory pool of cudaMallocAsync: used bytes, and reserved ones that it keeps up to a threshold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace dsplan::dry {

class MemoryPool {
 public:
  explicit MemoryPool(int device) : device_(device) {}

  void* allocate(std::size_t bytes);
  bool free(void* address);
  [[nodiscard]] bool owns(const void* address);
  // Gives back what is not used beyond so many bytes.
  void trim(std::size_t keep);
  // cudaMemPoolAttr.
  [[nodiscard]] std::uint64_t get(int attribute);
  void set(int attribute, std::uint64_t value);

  static constexpr int kReuseInternal = 3;  // Up to here attributes are int.

 private:
  bool reserve(std::size_t bytes);

  std::mutex lock_;
  int device_;
  std::map<void*, std::size_t> taken_;
  std::uint64_t used_ = 0;
  std::uint64_t used_high_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t reserved_high_ = 0;
  std::uint64_t threshold_ = 0;
};
[[nodiscard]] MemoryPool& pool_of(int device);

}  // namespace dsplan::dry
