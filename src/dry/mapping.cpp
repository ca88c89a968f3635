#include "dry/mapping.h"

#include <sys/mman.h>

#include <iterator>
#include <new>

#include "dry/ledger.h"
#include "dry/memory.h"

namespace dsplan::dry {

PhysicalMemory* Mappings::create(int device, std::size_t bytes) {
  if (bytes == 0 || bytes % kGranule != 0 || !memory_of(device).charge(bytes)) return nullptr;
  count(Counted::DeviceAllocations);
  const std::lock_guard guard(lock_);
  auto* memory = new PhysicalMemory{device, bytes, 1};
  alive_.insert(memory);
  return memory;
}

void Mappings::let_go(PhysicalMemory* memory) {
  if (--memory->users > 0) return;
  memory_of(memory->device).discharge(memory->bytes);
  count(Counted::DeviceFrees);
  alive_.erase(memory);
  delete memory;
}

bool Mappings::release(PhysicalMemory* memory) {
  const std::lock_guard guard(lock_);
  if (alive_.count(memory) == 0) return false;
  let_go(memory);
  return true;
}

bool Mappings::map(std::uintptr_t at, std::size_t bytes, PhysicalMemory* memory) {
  const std::lock_guard guard(lock_);
  if (alive_.count(memory) == 0 || bytes != memory->bytes) return false;
  const auto next = mapped_.lower_bound(at);
  if (next != mapped_.end() && next->first < at + bytes) return false;
  if (next != mapped_.begin() && std::prev(next)->first + std::prev(next)->second->bytes > at) return false;
  ++memory->users;
  mapped_[at] = memory;
  return true;
}

bool Mappings::unmap(std::uintptr_t at, std::size_t bytes) {
  const std::lock_guard guard(lock_);
  std::size_t found = 0;
  const auto first = mapped_.lower_bound(at);
  auto end = first;
  for (; end != mapped_.end() && end->first < at + bytes; ++end) found += end->second->bytes;
  if (found != bytes) return false;
  for (auto mapping = first; mapping != end; ++mapping) let_go(mapping->second);
  mapped_.erase(first, end);
  madvise(reinterpret_cast<void*>(at), bytes, MADV_DONTNEED);
  return true;
}

PhysicalMemory* Mappings::retain(std::uintptr_t at) {
  const std::lock_guard guard(lock_);
  auto next = mapped_.upper_bound(at);
  if (next == mapped_.begin()) return nullptr;
  const auto& [from, memory] = *std::prev(next);
  if (at >= from + memory->bytes) return nullptr;
  ++memory->users;
  return memory;
}

Mappings& mappings() {
  static auto* const all = new Mappings;
  return *all;
}

}  // namespace dsplan::dry
