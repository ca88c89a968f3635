// What the stand-ins and their callers agree on: layouts and numbers of CUDA's interface, as far as they are needed.
// Written down here so that the build needs no CUDA; tests/dry_abi_test.cpp holds them against the headers where they
// are.
//
// DSPLAN_DRY_CUDA is the major version, 12 or 13; layouts that are alike in both do not ask for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dry/device.h"

#define DSPLAN_DRY_CALL extern "C" __attribute__((visibility("default")))

namespace dsplan::dry {

// cudaError_t. The driver's CUresult has the same numbers where both have a name.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidConfiguration = 9,
  kInvalidSymbol = 13,
  kMissingConfiguration = 52,
  kInvalidDeviceFunction = 98,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNoKernelImageForDevice = 209,
  kInvalidHandle = 400,
  kDriverNotFound = 500,
  kNotReady = 600,
  kOutOfResources = 701,
  kPeerAlreadyEnabled = 704,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureUnmatched = 903,
  kUnknown = 999,
};

struct Dim3 {
  unsigned x, y, z;
};

enum MemoryType : int { kUnregistered = 0, kHost = 1, kDevice = 2 };

struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
#if !defined(DSPLAN_DRY_CUDA) || DSPLAN_DRY_CUDA >= 13
  long reserved[8];
#endif
};

struct FunctionAttributes {
  std::size_t shared_bytes;
  std::size_t const_bytes;
  std::size_t local_bytes;
  int max_threads_per_block;
  int registers;
  int ptx_version;
  int binary_version;
  int cache_mode;
  int max_dynamic_shared_bytes;
  int preferred_carveout;
  int cluster[5];
  int non_portable_cluster;
  int reserved[16];
};
constexpr int kMaxDynamicSharedBytes = 8;  // cudaFuncAttributeMaxDynamicSharedMemorySize, and the driver's.

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  std::size_t shared;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

// cudaDeviceProp. CUDA 13 left out what attributes say as well.
#if defined(DSPLAN_DRY_CUDA) && DSPLAN_DRY_CUDA == 12
#define DSPLAN_DRY_ONLY_12(...) __VA_ARGS__
#else
#define DSPLAN_DRY_ONLY_12(...)
#endif

struct DeviceProperties {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_mask;
  std::size_t total_memory;
  std::size_t shared_per_block;
  int registers_per_block;
  int warp_size;
  std::size_t memory_pitch;
  int max_threads_per_block;
  int max_block[3];
  int max_grid[3];
  DSPLAN_DRY_ONLY_12(int clock_khz;)
  std::size_t const_memory;
  int major;
  int minor;
  std::size_t texture_alignment;
  std::size_t texture_pitch_alignment;
  DSPLAN_DRY_ONLY_12(int device_overlap;)
  int multiprocessors;
  DSPLAN_DRY_ONLY_12(int kernel_timeout;)
  int integrated;
  int can_map_host;
  DSPLAN_DRY_ONLY_12(int compute_mode;)
  int textures_and_surfaces[DSPLAN_DRY_ONLY_12(1 +) 39];
  std::size_t surface_alignment;
  int concurrent_kernels;
  int ecc;
  int pci_bus;
  int pci_device;
  int pci_domain;
  int tcc;
  int async_engines;
  int unified_addressing;
  DSPLAN_DRY_ONLY_12(int memory_clock_khz;)
  int bus_bits;
  int l2_bytes;
  int persisting_l2_bytes;
  int threads_per_multiprocessor;
  int stream_priorities;
  int global_l1;
  int local_l1;
  std::size_t shared_per_multiprocessor;
  int registers_per_multiprocessor;
  int managed_memory;
  int multi_gpu_board;
  int multi_gpu_board_group;
  int host_native_atomics;
  DSPLAN_DRY_ONLY_12(int single_to_double_ratio;)
  int pageable_access;
  int concurrent_managed_access;
  int compute_preemption;
  int host_pointer_for_registered;
  int cooperative_launch;
  DSPLAN_DRY_ONLY_12(int cooperative_multi_device_launch;)
  std::size_t shared_per_block_optin;
  int pageable_access_by_host_tables;
  int direct_managed_access;
  int blocks_per_multiprocessor;
  int access_policy_window;
  std::size_t reserved_shared_per_block;
  int host_register;
  int sparse_arrays;
  int host_register_read_only;
  int timeline_semaphores;
  int memory_pools;
  int rdma;
  unsigned rdma_flush_options;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_mapping_arrays;
  int ipc_events;
  int cluster_launch;
  int unified_function_pointers;
  int reserved[63];
};

}  // namespace dsplan::dry
