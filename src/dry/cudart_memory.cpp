// The CUDA runtime: memory of the device and of the host, copies and fills.
#include <algorithm>
#include <cstring>

#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/ledger.h"
#include "dry/memory.h"
#include "dry/pool.h"

namespace dsplan::dry {
namespace {

Result allocate(void** at, std::size_t bytes) {
  *at = memory_of(current_device()).allocate(bytes);
  return *at != nullptr ? kSuccess : say(kOutOfMemory);
}

Result allocate_pinned(void** at, std::size_t bytes) {
  *at = pinned().allocate(bytes);
  return *at != nullptr ? kSuccess : say(kOutOfMemory);
}

bool pageable(const void* address) { return device_of(address) < 0 && !pinned().holds(address); }

// The host waits where the copy ends in memory that the driver has to fill itself.
void enqueue_copy(void* to, const void* from, std::size_t bytes, Stream* stream) {
  const bool host = device_of(to) < 0 || device_of(from) < 0;
  if (pageable(to)) {
    streams().wait(stream);
  } else {
    streams().launch(stream, copy_time(bytes, host));
  }
  copy(to, from, bytes);
}

}  // namespace
}  // namespace dsplan::dry

using namespace dsplan::dry;

DSPLAN_DRY_CALL Result cudaMalloc(void** at, std::size_t bytes) { return allocate(at, bytes); }
DSPLAN_DRY_CALL Result cudaFree(void* at) {
  if (at == nullptr) return kSuccess;
  const int device = device_of(at);
  if (device < 0) return say(kInvalidValue);
  streams().wait_for_all(device);
  if (pool_of(device).owns(at)) return pool_of(device).free(at) ? kSuccess : say(kInvalidValue);
  return memory_of(device).free(at) ? kSuccess : say(kInvalidValue);
}
DSPLAN_DRY_CALL Result cudaMallocManaged(void** at, std::size_t bytes, unsigned) {
  DSPLAN_DRY_GUESS("cudaMallocManaged", "lies in the host's memory");
  return allocate_pinned(at, bytes);
}
DSPLAN_DRY_CALL Result cudaMallocPitch(void** at, std::size_t* pitch, std::size_t width, std::size_t height) {
  *pitch = round_up(width, 512);
  return allocate(at, *pitch * height);
}
DSPLAN_DRY_CALL Result cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = memory_of(current_device()).available();
  *total = memory_of(current_device()).total();
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaMallocAsync(void** at, std::size_t bytes, void*) {
  *at = pool_of(current_device()).allocate(bytes);
  return *at != nullptr ? kSuccess : say(kOutOfMemory);
}
DSPLAN_DRY_CALL Result cudaMallocFromPoolAsync(void** at, std::size_t bytes, void* pool, void*) {
  *at = static_cast<MemoryPool*>(pool)->allocate(bytes);
  return *at != nullptr ? kSuccess : say(kOutOfMemory);
}
DSPLAN_DRY_CALL Result cudaFreeAsync(void* at, void*) {
  const int device = device_of(at);
  if (device < 0) return say(kInvalidValue);
  return pool_of(device).free(at) || memory_of(device).free(at) ? kSuccess : say(kInvalidValue);
}
DSPLAN_DRY_CALL Result cudaDeviceGetDefaultMemPool(void** pool, int device) {
  *pool = &pool_of(device);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaDeviceGetMemPool(void** pool, int device) {
  return cudaDeviceGetDefaultMemPool(pool, device);
}
DSPLAN_DRY_CALL Result cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  const std::uint64_t told = static_cast<MemoryPool*>(pool)->get(attribute);
  std::memcpy(value, &told, attribute <= MemoryPool::kReuseInternal ? sizeof(int) : sizeof told);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemPoolSetAttribute(void* pool, int attribute, void* value) {
  std::uint64_t told = 0;
  std::memcpy(&told, value, attribute <= MemoryPool::kReuseInternal ? sizeof(int) : sizeof told);
  static_cast<MemoryPool*>(pool)->set(attribute, told);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemPoolTrimTo(void* pool, std::size_t bytes) {
  static_cast<MemoryPool*>(pool)->trim(bytes);
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaHostAlloc(void** at, std::size_t bytes, unsigned) { return allocate_pinned(at, bytes); }
DSPLAN_DRY_CALL Result cudaMallocHost(void** at, std::size_t bytes) { return allocate_pinned(at, bytes); }
DSPLAN_DRY_CALL Result cudaFreeHost(void* at) {
  return at == nullptr || pinned().free(at) ? kSuccess : say(kInvalidValue);
}
DSPLAN_DRY_CALL Result cudaHostRegister(void* at, std::size_t bytes, unsigned) {
  return pinned().register_range(at, bytes) ? kSuccess : say(kAlreadyRegistered);
}
DSPLAN_DRY_CALL Result cudaHostUnregister(void* at) { return pinned().unregister(at) ? kSuccess : say(kNotRegistered); }
DSPLAN_DRY_CALL Result cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned) {
  *on_device = on_host;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaHostGetFlags(unsigned* flags, void*) {
  *flags = 0;
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaPointerGetAttributes(PointerAttributes* out, const void* at) {
  *out = PointerAttributes{};
  auto* address = const_cast<void*>(at);
  const int device = device_of(at);
  if (device >= 0) {
    out->type = kDevice;
    out->device = device;
    out->device_pointer = address;
  } else if (pinned().holds(at)) {
    out->type = kHost;
    out->device = current_device();
    out->device_pointer = out->host_pointer = address;
  } else {
    out->device = -2;
    out->host_pointer = address;
  }
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaMemcpy(void* to, const void* from, std::size_t bytes, int) {
  streams().wait(stream_of(nullptr));
  copy(to, from, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, void* stream) {
  enqueue_copy(to, from, bytes, stream_of(stream));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  copy(to, from, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, void* stream) {
  enqueue_copy(to, from, bytes, stream_of(stream));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                         std::size_t width, std::size_t height, int, void* stream) {
  streams().launch(stream_of(stream), copy_time(width * height, device_of(to) < 0 || device_of(from) < 0));
  if (width * height > copy_limit()) return kSuccess;
  for (std::size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                    std::size_t width, std::size_t height, int kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
DSPLAN_DRY_CALL Result cudaMemset(void* at, int value, std::size_t bytes) {
  fill(at, value, bytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaMemsetAsync(void* at, int value, std::size_t bytes, void* stream) {
  streams().launch(stream_of(stream), copy_time(bytes, false));
  fill(at, value, bytes);
  return kSuccess;
}
