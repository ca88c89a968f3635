// Pinned and pageable memory and files of one rank.
#include "core/format.h"
#include "exec/memory/spaces.h"
#include "sim/host_memory.h"

namespace dsplan::exec {

void* HostSpace::take_pinned(Bytes bytes) {
  const Bytes block = rounded_to_power_of_two(bytes);
  std::vector<void*>& free = free_blocks_[block];
  void* memory = nullptr;
  if (!free.empty()) {
    memory = free.back();
    free.pop_back();
  } else {
    free.reserve(static_cast<std::size_t>(blocks_) + 1);  // So that giving back needs no memory of its own.
    memory = device_.memory().allocate(Space::Pinned, block);
    ++blocks_;
    counters_.pinned += block;
  }
  counters_.pinned_requested += bytes;
  return memory;
}

void HostSpace::return_pinned(void* memory, Bytes bytes) noexcept {
  counters_.pinned_requested -= bytes;
  free_blocks_[rounded_to_power_of_two(bytes)].push_back(memory);
}

void* HostSpace::take_locked(Bytes bytes) {
  void* memory = device_.memory().allocate(Space::Locked, bytes);
  counters_.locked += bytes;
  counters_.pinned_requested += bytes;
  return memory;
}

void HostSpace::return_locked(void* memory, Bytes bytes) noexcept {
  device_.memory().release(Space::Locked, memory, bytes);
  counters_.locked -= bytes;
  counters_.pinned_requested -= bytes;
}

void* HostSpace::take_pageable(Bytes bytes) {
  void* memory = device_.memory().allocate(Space::Pageable, bytes);
  counters_.pageable += bytes;
  return memory;
}

void HostSpace::return_pageable(void* memory, Bytes bytes) noexcept {
  device_.memory().release(Space::Pageable, memory, bytes);
  counters_.pageable -= bytes;
}

dsplan_file* HostSpace::make_file(BufferId id, Bytes bytes) {
  dsplan_file* file = device_.files().create(formatted("rank{}-buffer{}", device_.rank(), id), bytes);
  counters_.nvme += bytes;
  return file;
}

void HostSpace::drop_file(dsplan_file* file, Bytes bytes) noexcept {
  device_.files().remove(file);
  counters_.nvme -= bytes;
}

void HostSpace::finish() noexcept {
  for (auto& [size, blocks] : free_blocks_) {
    for (void* block : blocks) {
      device_.memory().release(Space::Pinned, block, size);
      counters_.pinned -= size;
    }
    blocks.clear();
  }
  blocks_ = 0;
}

}  // namespace dsplan::exec
