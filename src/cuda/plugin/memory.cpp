// Memory of the device and of the host, as the table promises it. All host memory is mapped for the device, pageable
// memory too, because kernels work on what a plan keeps on the host; it is counted as what was asked for.
#include <cstdlib>

#include "cuda/plugin/device.h"

#include "core/format.h"

namespace dsplan::cuda {
namespace {

constexpr std::int64_t kAlignment = 512;
constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::int64_t bytes) { return (static_cast<std::size_t>(bytes) + kPage - 1) / kPage * kPage; }

void* take_pageable(std::int64_t bytes) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, kPage, whole_pages(bytes)) != 0) {
    throw CudaFailure(DSPLAN_OUT_OF_MEMORY, formatted("the system gives no {} bytes", bytes));
  }
  const cudaError_t registered = cudaHostRegister(memory, whole_pages(bytes), cudaHostRegisterPortable);
  if (registered != cudaSuccess) std::free(memory);
  check(registered, "cudaHostRegister");
  return memory;
}

void* take(dsplan_space space, std::int64_t bytes) {
  void* memory = nullptr;
  if (space == DSPLAN_SPACE_DEVICE) {
    check(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
  } else if (space == DSPLAN_SPACE_PINNED) {
    check(cudaHostAlloc(&memory, whole_pages(bytes), cudaHostAllocPortable), "cudaHostAlloc");
  } else {
    memory = take_pageable(bytes);
  }
  return memory;
}

cudaError_t give_back(dsplan_space space, void* memory) {
  if (space == DSPLAN_SPACE_DEVICE) return cudaFree(memory);
  if (space == DSPLAN_SPACE_PINNED) return cudaFreeHost(memory);
  const cudaError_t result = cudaHostUnregister(memory);
  std::free(memory);
  return result;
}

CUdeviceptr at(void* range, std::int64_t offset) {
  return reinterpret_cast<CUdeviceptr>(range) + static_cast<CUdeviceptr>(offset);
}

// One page of physical memory where the range has none yet.
void map_page(Device& device, void* range, std::int64_t offset, Range& books) {
  const CUmemAllocationProp properties = page_properties(device.ordinal);
  const auto size = static_cast<std::size_t>(device.granularity);
  CUmemGenericAllocationHandle handle = 0;
  check(driver().create(&handle, size, &properties, 0), "cuMemCreate");
  const CUresult mapped = driver().map(at(range, offset), size, 0, handle, 0);
  if (mapped != CUDA_SUCCESS) (void)driver().release(handle);
  check(mapped, "cuMemMap");
  books.pages[offset] = handle;
}

void unmap_page(Device& device, void* range, std::int64_t offset, Range& books) {
  const CUmemGenericAllocationHandle handle = books.pages.at(offset);
  books.pages.erase(offset);
  check(driver().unmap(at(range, offset), static_cast<std::size_t>(device.granularity)), "cuMemUnmap");
  check(driver().release(handle), "cuMemRelease");
}

// The books of a range whose pages [offset, offset + bytes) are all mapped, or none of them.
Range& pages_of(Device& device, void* range, std::int64_t offset, std::int64_t bytes, bool mapped) {
  const auto found = device.ranges.find(range);
  const std::int64_t page = device.granularity;
  if (found == device.ranges.end() || offset < 0 || bytes <= 0 || bytes > found->second.bytes - offset ||
      offset % page != 0 || bytes % page != 0) {
    throw CudaFailure(DSPLAN_INVALID, formatted("pages at {}, {} bytes, of no range", offset, bytes));
  }
  for (std::int64_t each = offset; each < offset + bytes; each += page) {
    if (found->second.pages.contains(each) != mapped) {
      throw CudaFailure(DSPLAN_INVALID, formatted("the page at {} is {}mapped", each, mapped ? "not " : ""));
    }
  }
  return found->second;
}

}  // namespace

dsplan_status allocate(dsplan_device* handle, dsplan_space space, std::int64_t bytes, void** memory) {
  return guarded(handle, [&](Device& device) {
    if (bytes <= 0 || space < DSPLAN_SPACE_DEVICE || space > DSPLAN_SPACE_PAGEABLE) {
      return device.fail(DSPLAN_INVALID, formatted("{} bytes in space {}", bytes, space));
    }
    void* taken = take(space, bytes);
    if (reinterpret_cast<std::uintptr_t>(taken) % kAlignment != 0) {
      (void)give_back(space, taken);
      return device.fail(DSPLAN_DEVICE, formatted("{} bytes at {}: less than {} aligned", bytes, taken, kAlignment));
    }
    device.allocations[taken] = {space, bytes};
    *memory = taken;
    return dsplan_status{DSPLAN_OK};
  });
}

// More lenient than the table asks: what this rank's streams still do is waited for.
dsplan_status release(dsplan_device* handle, dsplan_space space, void* memory, std::int64_t bytes) {
  return guarded(handle, [&](Device& device) {
    const auto found = device.allocations.find(memory);
    if (found == device.allocations.end() || found->second.space != space || found->second.bytes != bytes) {
      return device.fail(DSPLAN_INVALID, formatted("{} bytes of space {} that were not allocated so", bytes, space));
    }
    device.drain();
    device.allocations.erase(found);
    check(give_back(space, memory), "release");
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status reserve(dsplan_device* handle, std::int64_t bytes, void** range) {
  return guarded(handle, [&](Device& device) {
    if (bytes <= 0 || bytes % device.granularity != 0) return device.fail(DSPLAN_INVALID, "a range of broken pages");
    CUdeviceptr made = 0;
    check(driver().reserve(&made, static_cast<std::size_t>(bytes), 0, 0, 0), "cuMemAddressReserve");
    *range = reinterpret_cast<void*>(made);
    device.ranges[*range].bytes = bytes;
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status unreserve(dsplan_device* handle, void* range, std::int64_t bytes) {
  return guarded(handle, [&](Device& device) {
    const auto found = device.ranges.find(range);
    if (found == device.ranges.end() || found->second.bytes != bytes) {
      return device.fail(DSPLAN_INVALID, "a range that was not reserved so");
    }
    if (!found->second.pages.empty()) return device.fail(DSPLAN_INVALID, "a range of which pages are still mapped");
    device.ranges.erase(found);
    check(driver().free_range(at(range, 0), static_cast<std::size_t>(bytes)), "cuMemAddressFree");
    return dsplan_status{DSPLAN_OK};
  });
}

// All or nothing.
dsplan_status map_pages(dsplan_device* handle, void* range, std::int64_t offset, std::int64_t bytes) {
  return guarded(handle, [&](Device& device) {
    Range& books = pages_of(device, range, offset, bytes, false);
    std::int64_t done = offset;
    try {
      for (; done < offset + bytes; done += device.granularity) map_page(device, range, done, books);
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device.ordinal;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      check(driver().set_access(at(range, offset), static_cast<std::size_t>(bytes), &access, 1), "cuMemSetAccess");
    } catch (const CudaFailure&) {
      for (std::int64_t each = offset; each < done; each += device.granularity) unmap_page(device, range, each, books);
      throw;
    }
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status unmap_pages(dsplan_device* handle, void* range, std::int64_t offset, std::int64_t bytes) {
  return guarded(handle, [&](Device& device) {
    Range& books = pages_of(device, range, offset, bytes, true);
    device.drain();
    for (std::int64_t each = offset; each < offset + bytes; each += device.granularity) {
      unmap_page(device, range, each, books);
    }
    return dsplan_status{DSPLAN_OK};
  });
}

void give_back_all(Device& device) noexcept {
  for (const auto& [memory, allocation] : device.allocations) (void)give_back(allocation.space, memory);
  for (auto& [range, books] : device.ranges) {
    for (const auto& [offset, page] : books.pages) {
      (void)driver().unmap(at(range, offset), static_cast<std::size_t>(device.granularity));
      (void)driver().release(page);
    }
    (void)driver().free_range(at(range, 0), static_cast<std::size_t>(books.bytes));
  }
  device.allocations.clear();
  device.ranges.clear();
}

}  // namespace dsplan::cuda
