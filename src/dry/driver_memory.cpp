// The CUDA driver: memory, and the mapping of physical memory to addresses that expandable segments are made of.
#include <cstring>

#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/mapping.h"
#include "dry/memory.h"

using namespace dsplan::dry;
using Address = std::uintptr_t;

DSPLAN_DRY_CALL Result cuDevicePrimaryCtxRetain(void** context, int ordinal);

namespace {

void* pointer(Address at) { return reinterpret_cast<void*>(at); }

// CUmemAllocationProp, as far as it is read.
struct AllocationProperties {
  int type;
  int handle_types;
  int location_type;
  int location;
};

int device_in(const AllocationProperties* given) {
  const bool ours = given != nullptr && given->location_type == 1 && given->location < device().count;
  return ours ? given->location : current_device();
}

}  // namespace

DSPLAN_DRY_CALL Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = memory_of(current_device()).available();
  *total = memory_of(current_device()).total();
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemAlloc_v2(Address* at, std::size_t bytes) {
  *at = reinterpret_cast<Address>(memory_of(current_device()).allocate(bytes));
  return *at != 0 ? kSuccess : kOutOfMemory;
}
DSPLAN_DRY_CALL Result cuMemFree_v2(Address at) {
  const int device = device_of(pointer(at));
  return at == 0 || (device >= 0 && memory_of(device).free(pointer(at))) ? kSuccess : kInvalidValue;
}
DSPLAN_DRY_CALL Result cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  *at = pinned().allocate(bytes);
  return *at != nullptr ? kSuccess : kOutOfMemory;
}
DSPLAN_DRY_CALL Result cuMemFreeHost(void* at) { return pinned().free(at) ? kSuccess : kInvalidValue; }

DSPLAN_DRY_CALL Result cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  copy(pointer(to), from, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  copy(to, pointer(from), bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* stream) {
  streams().launch(stream_of(stream), copy_time(bytes, true));
  copy(pointer(to), from, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* stream) {
  streams().launch(stream_of(stream), copy_time(bytes, true));
  copy(to, pointer(from), bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemsetD8Async(Address at, unsigned char value, std::size_t bytes, void* stream) {
  streams().launch(stream_of(stream), copy_time(bytes, false));
  fill(pointer(at), value, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemsetD32Async(Address at, unsigned value, std::size_t count, void* stream) {
  streams().launch(stream_of(stream), copy_time(count * sizeof value, false));
  if (count * sizeof value > copy_limit()) return kSuccess;
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(static_cast<char*>(pointer(at)) + i * sizeof value, &value, sizeof value);
  return kSuccess;
}

DSPLAN_DRY_CALL Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties*, int) {
  *bytes = kGranule;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuMemAddressReserve(Address* at, std::size_t bytes, std::size_t, Address, unsigned long long) {
  *at = reinterpret_cast<Address>(memory_of(current_device()).reserve(bytes));
  return *at != 0 ? kSuccess : kOutOfMemory;
}
DSPLAN_DRY_CALL Result cuMemAddressFree(Address at, std::size_t) {
  const int device = device_of(pointer(at));
  return device >= 0 && memory_of(device).release(pointer(at)) ? kSuccess : kInvalidValue;
}
DSPLAN_DRY_CALL Result cuMemCreate(PhysicalMemory** handle, std::size_t bytes, const AllocationProperties* how,
                                   unsigned long long) {
  *handle = mappings().create(device_in(how), bytes);
  return *handle != nullptr ? kSuccess : kOutOfMemory;
}
DSPLAN_DRY_CALL Result cuMemRelease(PhysicalMemory* handle) {
  return mappings().release(handle) ? kSuccess : kInvalidValue;
}
DSPLAN_DRY_CALL Result cuMemMap(Address at, std::size_t bytes, std::size_t, PhysicalMemory* handle,
                                unsigned long long) {
  return mappings().map(at, bytes, handle) ? kSuccess : kInvalidValue;
}
DSPLAN_DRY_CALL Result cuMemUnmap(Address at, std::size_t bytes) {
  return mappings().unmap(at, bytes) ? kSuccess : kInvalidValue;
}
DSPLAN_DRY_CALL Result cuMemSetAccess(Address, std::size_t, const void*, std::size_t) { return kSuccess; }
DSPLAN_DRY_CALL Result cuMemRetainAllocationHandle(PhysicalMemory** handle, void* at) {
  *handle = mappings().retain(reinterpret_cast<Address>(at));
  return *handle != nullptr ? kSuccess : kInvalidValue;
}
// Memory is not shared between processes.
DSPLAN_DRY_CALL Result cuMemExportToShareableHandle(void*, PhysicalMemory*, int, unsigned long long) {
  return kNotSupported;
}
DSPLAN_DRY_CALL Result cuMemImportFromShareableHandle(PhysicalMemory**, void*, int) { return kNotSupported; }

DSPLAN_DRY_CALL Result cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address at) {
  const int device = device_of(pointer(at));
  if (device < 0) return kInvalidValue;
  const auto [first, size] = memory_of(device).around(pointer(at));
  if (base != nullptr) *base = reinterpret_cast<Address>(first);
  if (bytes != nullptr) *bytes = size;
  return first != nullptr ? kSuccess : kInvalidValue;
}
DSPLAN_DRY_CALL Result cuPointerGetAttribute(void* out, int attribute, Address at) {
  enum : int { kContext = 1, kMemoryType = 2, kDevicePointer = 3, kOrdinal = 9 };
  const int device = device_of(pointer(at));
  const bool host = device < 0 && pinned().holds(pointer(at));
  if (device < 0 && !host) return kInvalidValue;
  const int ordinal = device < 0 ? current_device() : device;
  const int type = host ? 1 : 2;
  switch (attribute) {
    case kContext: return cuDevicePrimaryCtxRetain(static_cast<void**>(out), ordinal);
    case kMemoryType: std::memcpy(out, &type, sizeof type); break;
    case kDevicePointer: std::memcpy(out, &at, sizeof at); break;
    case kOrdinal: std::memcpy(out, &ordinal, sizeof ordinal); break;
    default: std::memset(out, 0, sizeof(int)); break;
  }
  return kSuccess;
}
