// The CUDA runtime: devices, errors, the way to the driver.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "dry/cudart.h"
#include "dry/ledger.h"

namespace dsplan::dry {

Result& last_failure() {
  thread_local Result last = kSuccess;
  return last;
}

namespace {

constexpr int kVersion = DSPLAN_DRY_CUDA * 1000 + (DSPLAN_DRY_CUDA == 12 ? 80 : 0);

void describe(DeviceProperties& p, const Device& d, int ordinal) {
  std::memset(&p, 0, sizeof p);
  std::snprintf(p.name, sizeof p.name, "%s", d.name.c_str());
  std::memcpy(p.uuid, "dsplan-dry-dev", 14);
  p.uuid[15] = static_cast<unsigned char>(ordinal);
  p.total_memory = d.memory;
  p.shared_per_block = Device::kSharedPerBlock;
  p.registers_per_block = p.registers_per_multiprocessor = d.registers_per_block;
  p.warp_size = 32;
  p.memory_pitch = 2147483647;
  p.max_threads_per_block = p.max_block[0] = p.max_block[1] = Device::kThreadsPerBlock;
  p.max_block[2] = Device::kBlockZ;
  p.max_grid[0] = Device::kGridX;
  p.max_grid[1] = p.max_grid[2] = Device::kGridYZ;
  p.const_memory = 65536;
  p.major = d.major;
  p.minor = d.minor;
  DSPLAN_DRY_ONLY_12(p.clock_khz = d.clock_khz; p.memory_clock_khz = d.memory_clock_khz; p.device_overlap = 1;)
  DSPLAN_DRY_ONLY_12(p.single_to_double_ratio = 2; p.cooperative_multi_device_launch = 1;)
  p.texture_alignment = p.surface_alignment = 512;
  p.texture_pitch_alignment = 32;
  p.multiprocessors = d.multiprocessors;
  p.can_map_host = p.concurrent_kernels = p.ecc = p.unified_addressing = p.stream_priorities = 1;
  p.pci_bus = 27 + ordinal;
  p.async_engines = 3;
  p.bus_bits = d.bus_bits;
  p.l2_bytes = d.l2_bytes;
  p.persisting_l2_bytes = d.l2_bytes / 16 * 10;
  p.threads_per_multiprocessor = d.threads_per_multiprocessor;
  p.global_l1 = p.local_l1 = p.managed_memory = p.concurrent_managed_access = p.compute_preemption = 1;
  p.host_pointer_for_registered = p.cooperative_launch = p.host_register = p.memory_pools = 1;
  p.shared_per_multiprocessor = d.shared_per_multiprocessor;
  p.shared_per_block_optin = d.shared_per_block_optin();
  p.blocks_per_multiprocessor = d.blocks_per_multiprocessor;
  p.access_policy_window = 134213632;
  p.reserved_shared_per_block = Device::kSharedOfTheSystem;
  p.cluster_launch = d.major >= 9 ? 1 : 0;
  p.unified_function_pointers = p.deferred_mapping_arrays = p.ipc_events = 1;
}

Result properties(void* out, int ordinal, std::size_t bytes) {
  if (ordinal < 0 || ordinal >= device().count) return say(kInvalidDevice);
  DeviceProperties all;
  describe(all, device(), ordinal);
  std::memcpy(out, &all, bytes);
  return kSuccess;
}

enum EntryPoint : int { kFound = 0, kNotFound = 1 };

Result entry_point(const char* name, void** function, int* status) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver != nullptr ? dlsym(driver, name) : nullptr;
  if (status != nullptr) *status = *function != nullptr ? kFound : kNotFound;
  return kSuccess;
}

}  // namespace
}  // namespace dsplan::dry

using namespace dsplan::dry;

DSPLAN_DRY_CALL Result cudaGetDeviceCount(int* count) {
  *count = device().count;
  return device().count > 0 ? kSuccess : say(kNoDevice);
}
DSPLAN_DRY_CALL Result cudaGetDevice(int* ordinal) {
  *ordinal = current_device();
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaSetDevice(int ordinal) {
  if (ordinal >= device().count) tell_missing_device(ordinal);
  if (ordinal < 0 || ordinal >= device().count) return say(kInvalidDevice);
  current_device() = ordinal;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaInitDevice(int, unsigned, unsigned) { return kSuccess; }
DSPLAN_DRY_CALL Result cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
// Ranks reach each other through NCCL alone.
DSPLAN_DRY_CALL Result cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaDeviceGetPCIBusId(char* text, int bytes, int ordinal) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 27 + ordinal);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaDeviceGetByPCIBusId(int* ordinal, const char* text) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2 || bus < 27) return say(kInvalidValue);
  *ordinal = static_cast<int>(bus) - 27;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}
#if DSPLAN_DRY_CUDA >= 13
DSPLAN_DRY_CALL Result cudaGetDeviceProperties(DeviceProperties* out, int ordinal) {
  return properties(out, ordinal, sizeof *out);
}
#else
DSPLAN_DRY_CALL Result cudaGetDeviceProperties_v2(DeviceProperties* out, int ordinal) {
  return properties(out, ordinal, sizeof *out);
}
// Of programs that were built with CUDA 11, whose structure is shorter.
DSPLAN_DRY_CALL Result cudaGetDeviceProperties(DeviceProperties* out, int ordinal) {
  return properties(out, ordinal, offsetof(DeviceProperties, host_register));
}
#endif
DSPLAN_DRY_CALL Result cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute_of(device(), attribute);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cudaDeviceSynchronize() {
  streams().wait_for_all(current_device());
  return kSuccess;
}

DSPLAN_DRY_CALL Result cudaGetLastError() {
  const Result last = last_failure();
  last_failure() = kSuccess;
  return last;
}
DSPLAN_DRY_CALL Result cudaPeekAtLastError() { return last_failure(); }
DSPLAN_DRY_CALL const char* cudaGetErrorName(Result result) { return name_of(result); }
DSPLAN_DRY_CALL const char* cudaGetErrorString(Result result) { return text_of(result); }

DSPLAN_DRY_CALL Result cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* status) {
  return entry_point(name, function, status);
}
DSPLAN_DRY_CALL Result cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                        int* status) {
  return entry_point(name, function, status);
}
