// Compiled where a CUDA toolkit's headers are: what src/dry/cuda_abi.h writes down is what they say.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "dry/cuda_abi.h"

namespace dsplan::dry {

#define SAME_PLACE(ours, theirs) \
  static_assert(offsetof(DeviceProperties, ours) == offsetof(cudaDeviceProp, theirs), #theirs)
static_assert(sizeof(DeviceProperties) == sizeof(cudaDeviceProp));
SAME_PLACE(total_memory, totalGlobalMem);
SAME_PLACE(max_grid, maxGridSize);
SAME_PLACE(const_memory, totalConstMem);
SAME_PLACE(major, major);
SAME_PLACE(multiprocessors, multiProcessorCount);
SAME_PLACE(can_map_host, canMapHostMemory);
SAME_PLACE(textures_and_surfaces, maxTexture1D);
SAME_PLACE(surface_alignment, surfaceAlignment);
SAME_PLACE(pci_bus, pciBusID);
SAME_PLACE(async_engines, asyncEngineCount);
SAME_PLACE(bus_bits, memoryBusWidth);
SAME_PLACE(l2_bytes, l2CacheSize);
SAME_PLACE(threads_per_multiprocessor, maxThreadsPerMultiProcessor);
SAME_PLACE(shared_per_multiprocessor, sharedMemPerMultiprocessor);
SAME_PLACE(host_native_atomics, hostNativeAtomicSupported);
SAME_PLACE(cooperative_launch, cooperativeLaunch);
SAME_PLACE(shared_per_block_optin, sharedMemPerBlockOptin);
SAME_PLACE(blocks_per_multiprocessor, maxBlocksPerMultiProcessor);
SAME_PLACE(reserved_shared_per_block, reservedSharedMemPerBlock);
SAME_PLACE(memory_pools, memoryPoolsSupported);
SAME_PLACE(cluster_launch, clusterLaunch);
SAME_PLACE(unified_function_pointers, unifiedFunctionPointers);

static_assert(sizeof(PointerAttributes) == sizeof(cudaPointerAttributes));
static_assert(offsetof(PointerAttributes, host_pointer) == offsetof(cudaPointerAttributes, hostPointer));
static_assert(sizeof(FunctionAttributes) == sizeof(cudaFuncAttributes));
static_assert(offsetof(FunctionAttributes, registers) == offsetof(cudaFuncAttributes, numRegs));
static_assert(offsetof(FunctionAttributes, max_dynamic_shared_bytes) ==
              offsetof(cudaFuncAttributes, maxDynamicSharedSizeBytes));
static_assert(sizeof(LaunchConfig) == sizeof(cudaLaunchConfig_t));
static_assert(offsetof(LaunchConfig, stream) == offsetof(cudaLaunchConfig_t, stream));
static_assert(sizeof(Dim3) == sizeof(dim3));

#define SAME_NUMBER(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #theirs)
SAME_NUMBER(kOutOfMemory, cudaErrorMemoryAllocation);
SAME_NUMBER(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(kInvalidConfiguration, cudaErrorInvalidConfiguration);
SAME_NUMBER(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_NUMBER(kDriverNotFound, CUDA_ERROR_NOT_FOUND);
SAME_NUMBER(kNotReady, cudaErrorNotReady);
SAME_NUMBER(kNotReady, CUDA_ERROR_NOT_READY);
SAME_NUMBER(kOutOfResources, cudaErrorLaunchOutOfResources);
SAME_NUMBER(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_NUMBER(kCaptureUnmatched, cudaErrorStreamCaptureUnmatched);
SAME_NUMBER(kAlreadyRegistered, cudaErrorHostMemoryAlreadyRegistered);
SAME_NUMBER(kMaxDynamicSharedBytes, cudaFuncAttributeMaxDynamicSharedMemorySize);
SAME_NUMBER(kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_NUMBER(kDevice, cudaMemoryTypeDevice);

}  // namespace dsplan::dry
