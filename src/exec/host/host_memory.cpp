// The host backend's memory: mappings of the operating system, or heap blocks where sanitizers are to look.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "exec/host/host_device.h"

#include "core/format.h"

namespace dsplan::exec {
namespace {

std::size_t whole_pages(std::int64_t bytes) {
  return static_cast<std::size_t>(round_up(Bytes(bytes), page_bytes()).value());
}

void* take(bool heap, std::int64_t bytes) {
  if (heap) {
    void* memory = nullptr;
    const int failed =
        ::posix_memalign(&memory, static_cast<std::size_t>(kHeapAlignment), static_cast<std::size_t>(bytes));
    return failed != 0 ? nullptr : memory;
  }
  void* memory = ::mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void give_back(bool heap, void* memory, std::int64_t bytes) {
  if (heap) {
    std::free(memory);
  } else {
    ::munmap(memory, whole_pages(bytes));
  }
}

dsplan_status out_of_memory(dsplan_device* device, std::int64_t bytes) {
  return device->fail(DSPLAN_OUT_OF_MEMORY,
                      formatted("{} bytes asked for, {} of {} left", bytes, device->memory_bytes - device->device_bytes,
                                device->memory_bytes));
}

bool whole(std::int64_t value) { return value % page_bytes() == 0; }

// The mapped stretch of `range` that holds [offset, offset + bytes).
auto holding(dsplan_device::Range& range, std::int64_t offset, std::int64_t bytes) {
  auto found = range.mapped.upper_bound(offset);
  if (found == range.mapped.begin()) return range.mapped.end();
  --found;
  return found->first + found->second >= offset + bytes ? found : range.mapped.end();
}

// Whether any byte of [offset, offset + bytes) is mapped.
bool any_mapped(const dsplan_device::Range& range, std::int64_t offset, std::int64_t bytes) {
  auto after = range.mapped.lower_bound(offset + bytes);
  return after != range.mapped.begin() && std::prev(after)->first + std::prev(after)->second > offset;
}

void join_neighbours(dsplan_device::Range& range, std::map<std::int64_t, std::int64_t>::iterator at) {
  const auto next = std::next(at);
  if (next != range.mapped.end() && at->first + at->second == next->first) {
    at->second += next->second;
    range.mapped.erase(next);
  }
  if (at == range.mapped.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  range.mapped.erase(at);
}

}  // namespace

dsplan_status host_allocate(dsplan_device* device, dsplan_space space, std::int64_t bytes, void** memory) {
  return device->guarded([&] {
    if (bytes <= 0 || space < DSPLAN_SPACE_DEVICE || space > DSPLAN_SPACE_PAGEABLE) {
      return device->fail(DSPLAN_INVALID, formatted("{} bytes in space {}", bytes, space));
    }
    const bool on_device = space == DSPLAN_SPACE_DEVICE;
    if (on_device && bytes > device->memory_bytes - device->device_bytes) return out_of_memory(device, bytes);
    void* taken = take(device->backend.options().heap, bytes);
    if (taken == nullptr) {
      return device->fail(DSPLAN_OUT_OF_MEMORY,
                          formatted("the system gives no {} bytes: {}", bytes, std::strerror(errno)));
    }
    device->allocations[taken] = {space, bytes};
    if (on_device) device->device_bytes += bytes;
    *memory = taken;
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status host_release(dsplan_device* device, dsplan_space space, void* memory, std::int64_t bytes) {
  return device->guarded([&] {
    const auto found = device->allocations.find(memory);
    if (found == device->allocations.end() || found->second.space != space || found->second.bytes != bytes) {
      return device->fail(DSPLAN_INVALID, formatted("{} bytes of space {} that were not allocated so", bytes, space));
    }
    device->allocations.erase(found);
    if (space == DSPLAN_SPACE_DEVICE) device->device_bytes -= bytes;
    give_back(device->backend.options().heap, memory, bytes);
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status host_reserve(dsplan_device* device, std::int64_t bytes, void** range) {
  return device->guarded([&] {
    if (bytes <= 0 || !whole(bytes)) return device->fail(DSPLAN_INVALID, "a range of broken pages");
    void* made =
        ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) {
      return device->fail(DSPLAN_OUT_OF_MEMORY, formatted("no range of {} bytes: {}", bytes, std::strerror(errno)));
    }
    device->ranges[made].bytes = bytes;
    *range = made;
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status host_unreserve(dsplan_device* device, void* range, std::int64_t bytes) {
  return device->guarded([&] {
    const auto found = device->ranges.find(range);
    if (found == device->ranges.end() || found->second.bytes != bytes) {
      return device->fail(DSPLAN_INVALID, "a range that was not reserved so");
    }
    if (!found->second.mapped.empty()) return device->fail(DSPLAN_INVALID, "a range of which pages are still mapped");
    ::munmap(range, static_cast<std::size_t>(bytes));
    device->ranges.erase(found);
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status host_map(dsplan_device* device, void* range, std::int64_t offset, std::int64_t bytes) {
  return device->guarded([&] {
    const auto found = device->ranges.find(range);
    if (found == device->ranges.end() || offset < 0 || bytes <= 0 || bytes > found->second.bytes - offset ||
        !whole(offset) || !whole(bytes) || any_mapped(found->second, offset, bytes)) {
      return device->fail(DSPLAN_INVALID, formatted("pages at {}, {} bytes, cannot be mapped", offset, bytes));
    }
    if (bytes > device->memory_bytes - device->device_bytes) return out_of_memory(device, bytes);
    if (::mprotect(static_cast<char*>(range) + offset, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE) != 0) {
      return device->fail(DSPLAN_OUT_OF_MEMORY, formatted("{} bytes were not mapped: {}", bytes, std::strerror(errno)));
    }
    join_neighbours(found->second, found->second.mapped.emplace(offset, bytes).first);
    device->device_bytes += bytes;
    return dsplan_status{DSPLAN_OK};
  });
}

// A new mapping without access takes the place of the old one: its pages go back to the system at once.
dsplan_status host_unmap(dsplan_device* device, void* range, std::int64_t offset, std::int64_t bytes) {
  return device->guarded([&] {
    const auto found = device->ranges.find(range);
    if (found == device->ranges.end() || bytes <= 0 || !whole(offset) || !whole(bytes)) {
      return device->fail(DSPLAN_INVALID, "pages of no range");
    }
    const auto stretch = holding(found->second, offset, bytes);
    if (stretch == found->second.mapped.end()) return device->fail(DSPLAN_INVALID, "pages that are not mapped");
    void* at = static_cast<char*>(range) + offset;
    if (::mmap(at, static_cast<std::size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
               -1, 0) == MAP_FAILED) {
      return device->fail(DSPLAN_DEVICE, std::strerror(errno));
    }
    const auto [begin, size] = *stretch;
    found->second.mapped.erase(stretch);
    if (offset > begin) found->second.mapped[begin] = offset - begin;
    if (begin + size > offset + bytes) found->second.mapped[offset + bytes] = begin + size - offset - bytes;
    device->device_bytes -= bytes;
    return dsplan_status{DSPLAN_OK};
  });
}

void host_close(dsplan_device* device) {
  if (device == nullptr) return;
  HostBackend& backend = device->backend;
  backend.add_left_behind(
      static_cast<std::int64_t>(device->allocations.size() + device->ranges.size() + device->files.size()));
  for (const auto& [memory, allocation] : device->allocations) {
    give_back(backend.options().heap, memory, allocation.bytes);
  }
  for (const auto& [range, what] : device->ranges) ::munmap(range, static_cast<std::size_t>(what.bytes));
  for (const auto& file : device->files) (void)discard_file(*file);
  delete device;
}

}  // namespace dsplan::exec
