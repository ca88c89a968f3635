// Physical memory that is made, mapped to addresses and let go of separately (cuMemCreate and what belongs to it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace dsplan::dry {

struct PhysicalMemory {
  int device;
  std::size_t bytes;
  int users;  // Its handles and its mappings.
};

class Mappings {
 public:
  // nullptr: the device has no more.
  PhysicalMemory* create(int device, std::size_t bytes);
  bool release(PhysicalMemory* memory);
  // False: it is no memory, it is not as large, or something is mapped there already.
  bool map(std::uintptr_t at, std::size_t bytes, PhysicalMemory* memory);
  // False: the range is not exactly a number of mappings.
  bool unmap(std::uintptr_t at, std::size_t bytes);
  PhysicalMemory* retain(std::uintptr_t at);

 private:
  void let_go(PhysicalMemory* memory);

  std::mutex lock_;
  std::set<PhysicalMemory*> alive_;
  std::map<std::uintptr_t, PhysicalMemory*> mapped_;
};
[[nodiscard]] Mappings& mappings();

}  // namespace dsplan::dry
