// In front of the real cuDNN: it is told the device's properties instead of given a handle, which is its own way to
// compile for a device that is not there. So engines and sizes of workspaces are cuDNN's; nothing is executed.
// Its interface of convolutions and recurrent networks is not helped here.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "dry/cuda_abi.h"
#include "dry/ledger.h"
#include "dry/streams.h"

using namespace dsplan::dry;

namespace {

// Numbers of cudnn_graph.h of release 9.
enum Type : int { kBackendDescriptor = 15, kChar = 24 };
enum DescriptorType : int {
  kEngine = 2,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kTensor = 17,
  kDeviceProperties = 38
};
enum Attribute : int {
  kHeuristicProperties = 204,
  kPlanHandle = 400,
  kPlanProperties = 407,
  kGraphHandle = 800,
  kEngineProperties = 1307,
  kPropertiesAsJson = 2702,
};
using Descriptor = void*;

template <class Function>
Function real(const char* name) {
  static void* const library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(library != nullptr ? dlsym(library, name) : dlsym(RTLD_NEXT, name));
}
int really_create(int type, Descriptor* made) {
  static const auto call = real<int (*)(int, Descriptor*)>("cudnnBackendCreateDescriptor");
  return call(type, made);
}
int really_set(Descriptor descriptor, int attribute, int type, std::int64_t count, const void* value) {
  static const auto call = real<int (*)(Descriptor, int, int, std::int64_t, const void*)>("cudnnBackendSetAttribute");
  return call(descriptor, attribute, type, count, value);
}
int really_finalize(Descriptor descriptor) {
  static const auto call = real<int (*)(Descriptor)>("cudnnBackendFinalize");
  return call(descriptor);
}

struct Types {
  std::mutex lock;
  std::map<Descriptor, int> of;
};
Types& types() {
  static auto* const all = new Types;
  return *all;
}

std::string properties_as_json(const Device& d) {
  char text[2000];
  const int bytes = std::snprintf(
      text, sizeof text,
      "{\"deviceName\":\"%s\",\"cudaDeviceId\":0,\"deviceVer\":%d,\"multiProcessorCount\":%d,\"driverVer\":13000,"
      "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"warpSize\":32,"
      "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%zu,\"reservedSharedMemoryPerBlock\":1024,"
      "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,"
      "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,"
      "\"l2CacheSize\":%d,\"totalGlobalMem\":%zu}",
      d.name.c_str(), d.major * 100 + d.minor * 10, d.multiprocessors, d.shared_per_block_optin(),
      d.blocks_per_multiprocessor, d.threads_per_multiprocessor, d.clock_khz, d.memory_clock_khz, d.l2_bytes, d.memory);
  return {text, static_cast<std::size_t>(bytes)};
}

Descriptor device_properties() {
  static const Descriptor made = [] {
    const std::string json = properties_as_json(device());
    Descriptor descriptor = nullptr;
    if (really_create(kDeviceProperties, &descriptor) != 0 ||
        really_set(descriptor, kPropertiesAsJson, kChar, static_cast<std::int64_t>(json.size()), json.data()) != 0 ||
        really_finalize(descriptor) != 0) {
      DSPLAN_DRY_GUESS("cudnnBackendFinalize", "this cuDNN refused the device's properties: it finds no engine");
      return Descriptor{nullptr};
    }
    return descriptor;
  }();
  return made;
}

struct Handle {
  void* stream = nullptr;
};

}  // namespace

DSPLAN_DRY_CALL int cudnnCreate(Handle** handle) {
  *handle = new Handle;
  return 0;
}
DSPLAN_DRY_CALL int cudnnDestroy(Handle* handle) {
  delete handle;
  return 0;
}
DSPLAN_DRY_CALL int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return 0;
}
DSPLAN_DRY_CALL int cudnnGetStream(Handle* handle, void** stream) {
  *stream = handle->stream;
  return 0;
}

DSPLAN_DRY_CALL int cudnnBackendCreateDescriptor(int type, Descriptor* made) {
  const int status = really_create(type, made);
  if (status == 0) {
    const std::lock_guard guard(types().lock);
    types().of[*made] = type;
  }
  return status;
}
DSPLAN_DRY_CALL int cudnnBackendSetAttribute(Descriptor descriptor, int attribute, int type, std::int64_t count,
                                             const void* value) {
  if (attribute == kGraphHandle || attribute == kPlanHandle) return 0;
  return really_set(descriptor, attribute, type, count, value);
}
DSPLAN_DRY_CALL int cudnnBackendFinalize(Descriptor descriptor) {
  int type = kTensor;
  {
    const std::lock_guard guard(types().lock);
    if (const auto found = types().of.find(descriptor); found != types().of.end()) type = found->second;
  }
  const int attribute = type == kEngineHeuristic ? kHeuristicProperties
                        : type == kEngine        ? kEngineProperties
                        : type == kExecutionPlan ? kPlanProperties
                                                 : 0;
  if (attribute != 0) {
    const Descriptor properties = device_properties();
    really_set(descriptor, attribute, kBackendDescriptor, 1, &properties);
  }
  return really_finalize(descriptor);
}
DSPLAN_DRY_CALL int cudnnBackendExecute(Handle* handle, Descriptor, Descriptor) {
  DSPLAN_DRY_GUESS("cudnnBackendExecute", "takes 20 us");
  streams().launch(streams().of(handle->stream, current_device()), 20000);
  return 0;
}
