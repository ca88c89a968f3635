// The CUDA driver, as far as PyTorch, cuDNN and Triton look it up: contexts, modules, launches, memory.
#include <cstdio>
#include <cstring>

#include "dry/cudart.h"
#include "dry/kernels.h"
#include "dry/ledger.h"
#include "dry/mapping.h"
#include "dry/memory.h"

using namespace dsplan::dry;

namespace {

constexpr int kDriverVersion = 13000;
int contexts[64];  // One for each device; only the addresses mean something.

void* context_of(int device) { return &contexts[device]; }
int device_of_context(const void* context) {
  const auto* at = static_cast<const int*>(context);
  return at >= contexts && at < contexts + 64 ? static_cast<int>(at - contexts) : 0;
}

// Modules and the kernels in them. The code may be gone when a kernel is asked for: it is read at once.
void* new_module(const void* image) {
  auto* code = new Code;
  code->read = true;
  if (image != nullptr) code->facts = facts_in(image, device().major, device().minor);
  return code;
}
void* new_kernel(void* module, const char* name) {
  auto* handle = new char;
  kernels().add(handle, name, 0, static_cast<Code*>(module));
  return handle;
}

}  // namespace

// A map of a tensor for the device's copying unit, which a kernel would read. None runs: it says nothing.
DSPLAN_DRY_CALL Result cuTensorMapEncodeTiled(void* map) {
  constexpr std::size_t kBytes = 128;  // CUtensorMap of cuda.h.
  std::memset(map, 0, kBytes);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuInit(unsigned) { return device().count > 0 ? kSuccess : kNoDevice; }
DSPLAN_DRY_CALL Result cuDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceGetCount(int* count) {
  *count = device().count;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceGet(int* handle, int ordinal) {
  *handle = ordinal;
  return ordinal >= 0 && ordinal < device().count ? kSuccess : kInvalidDevice;
}
DSPLAN_DRY_CALL Result cuDeviceGetName(char* text, int bytes, int) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "%s", device().name.c_str());
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceGetUuid(char* bytes, int ordinal) {
  std::memset(bytes, 0, 16);
  std::memcpy(bytes, "dsplan-dry-dev", 14);
  bytes[15] = static_cast<char>(ordinal);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceGetUuid_v2(char* bytes, int ordinal) { return cuDeviceGetUuid(bytes, ordinal); }
DSPLAN_DRY_CALL Result cuDeviceGetPCIBusId(char* text, int bytes, int ordinal) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 27 + ordinal);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = device().memory;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceComputeCapability(int* major, int* minor, int) {
  *major = device().major;
  *minor = device().minor;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute_of(device(), attribute);
  return kSuccess;
}

DSPLAN_DRY_CALL Result cuCtxGetCurrent(void** context) {
  *context = context_of(current_device());
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuCtxSetCurrent(void* context) {
  current_device() = device_of_context(context);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuCtxPushCurrent_v2(void* context) { return cuCtxSetCurrent(context); }
DSPLAN_DRY_CALL Result cuCtxPopCurrent_v2(void** context) {
  if (context != nullptr) *context = context_of(current_device());
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuCtxGetDevice(int* ordinal) {
  *ordinal = current_device();
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuCtxSynchronize() {
  streams().wait_for_all(current_device());
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuDevicePrimaryCtxRetain(void** context, int ordinal) {
  *context = context_of(ordinal);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuGetErrorString(Result result, const char** text) {
  *text = text_of(result);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuGetErrorName(Result result, const char** text) {
  *text = name_of(result);
  return kSuccess;
}

// A CUDA runtime that is built into a library gets no further than this: it says that there is no driver.
DSPLAN_DRY_CALL Result cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotSupported;
}
DSPLAN_DRY_CALL Result cuGetProcAddress_v2(const char*, void** function, int, std::uint64_t, int* status) {
  *function = nullptr;
  if (status != nullptr) *status = 1;
  return kDriverNotFound;
}

// ---- kernels that libraries load by themselves

DSPLAN_DRY_CALL Result cuLibraryLoadData(void** library, const void* image, void*, void**, unsigned, void*, void**,
                                         unsigned) {
  *library = new_module(image);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  *kernel = new_kernel(library, name);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuLibraryGetModule(void** module, void* library) {
  *module = library;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuModuleLoadData(void** module, const void* image) {
  *module = new_module(image);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuModuleLoadDataEx(void** module, const void* image, unsigned, void*, void**) {
  return cuModuleLoadData(module, image);
}
DSPLAN_DRY_CALL Result cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = new_kernel(module, name);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuModuleGetGlobal_v2(std::uintptr_t* at, std::size_t* bytes, void*, const char*) {
  if (at != nullptr) *at = reinterpret_cast<std::uintptr_t>(memory_of(current_device()).reserve(kGranule));
  if (bytes != nullptr) *bytes = kGranule;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuFuncGetAttribute(int* value, int attribute, void* function) {
  const Kernel kernel = kernels().find(function);
  if (kernel.registers == 0) DSPLAN_DRY_GUESS("cuFuncGetAttribute", "32 registers a thread, no static shared memory");
  *value = attribute == 0 ? kernel.threads : attribute == 4 ? registers_of(kernel) : 0;
  if (attribute == 1) *value = static_cast<int>(kernel.shared);
  if (attribute == 5 || attribute == 6) *value = device().major * 10 + device().minor;
  if (attribute == kMaxDynamicSharedBytes) *value = static_cast<int>(kernel.dynamic_shared);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuFuncSetAttribute(void* function, int attribute, int value) {
  return attribute == kMaxDynamicSharedBytes ? kernels().allow_shared(function, value) : kSuccess;
}
DSPLAN_DRY_CALL Result cuFuncSetCacheConfig(void*, int) { return kSuccess; }
DSPLAN_DRY_CALL Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                                   std::size_t shared) {
  const Kernel kernel = kernels().find(function);
  if (kernel.registers == 0) {
    DSPLAN_DRY_GUESS("cuOccupancyMaxActiveBlocksPerMultiprocessor", "32 registers a thread, no static shared memory");
  }
  *blocks = blocks_per_multiprocessor(kernel, threads, shared);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
  DSPLAN_DRY_GUESS("cuOccupancyMaxActiveClusters", "half as many as multiprocessors");
  *clusters = device().multiprocessors / 2;
  return kSuccess;
}

DSPLAN_DRY_CALL Result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                      unsigned bz, unsigned shared, void* stream, void**, void**) {
  return launch(function, {gx, gy, gz}, {bx, by, bz}, shared, stream_of(stream));
}
DSPLAN_DRY_CALL Result cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                                 unsigned by, unsigned bz, unsigned shared, void* stream, void**) {
  return launch(function, {gx, gy, gz}, {bx, by, bz}, shared, stream_of(stream));
}
namespace {
struct DriverLaunch {
  Dim3 grid;
  Dim3 block;
  unsigned shared;
  void* stream;
};
}  // namespace
DSPLAN_DRY_CALL Result cuLaunchKernelEx(const DriverLaunch* how, void* function, void**, void**) {
  return launch(function, how->grid, how->block, how->shared, stream_of(how->stream));
}

// ---- streams and events

DSPLAN_DRY_CALL Result cuStreamCreate(void** stream, unsigned) {
  *stream = streams().create(current_device(), 0);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuStreamSynchronize(void* stream) {
  streams().wait(stream_of(stream));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuStreamGetCtx(void* stream, void** context) {
  *context = context_of(stream_of(stream)->device);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuEventCreate(void** event, unsigned) {
  *event = new Event;
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuEventRecord(void* event, void* stream) {
  streams().record(*static_cast<Event*>(event), stream_of(stream));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuEventQuery(void* event) {
  return streams().done(*static_cast<Event*>(event)) ? kSuccess : kNotReady;
}
DSPLAN_DRY_CALL Result cuEventSynchronize(void* event) {
  streams().wait(*static_cast<Event*>(event));
  return kSuccess;
}
DSPLAN_DRY_CALL Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
  streams().order(stream_of(stream), *static_cast<Event*>(event));
  return kSuccess;
}
