// NVML: how many devices there are, what they are called, and how much of their memory is taken.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "dry/cuda_abi.h"
#include "dry/memory.h"

using namespace dsplan::dry;

namespace {

enum Status : int { kDone = 0, kInvalidArgument = 2, kNotSupportedHere = 3, kNotFound = 6 };

int devices[64];
int ordinal_of(const int* handle) { return static_cast<int>(handle - devices); }

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

Status by_index(unsigned index, int** handle) {
  if (index >= static_cast<unsigned>(device().count)) return kInvalidArgument;
  *handle = &devices[index];
  return kDone;
}

void uuid(char* text, unsigned bytes, int ordinal) {
  std::snprintf(text, bytes, "GPU-6473706c-616e-2d64-7279-%012d", ordinal);
}

}  // namespace

DSPLAN_DRY_CALL Status nvmlInit_v2() { return kDone; }
DSPLAN_DRY_CALL Status nvmlInit() { return kDone; }
DSPLAN_DRY_CALL Status nvmlInitWithFlags(unsigned) { return kDone; }
DSPLAN_DRY_CALL Status nvmlShutdown() { return kDone; }
DSPLAN_DRY_CALL const char* nvmlErrorString(Status) { return "answered by the dry device"; }
DSPLAN_DRY_CALL Status nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(device().count);
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
DSPLAN_DRY_CALL Status nvmlDeviceGetHandleByIndex_v2(unsigned index, int** handle) { return by_index(index, handle); }
DSPLAN_DRY_CALL Status nvmlDeviceGetHandleByIndex(unsigned index, int** handle) { return by_index(index, handle); }
DSPLAN_DRY_CALL Status nvmlDeviceGetHandleByPciBusId_v2(const char* text, int** handle) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2 || bus < 27) return kNotFound;
  return by_index(bus - 27, handle);
}
DSPLAN_DRY_CALL Status nvmlDeviceGetHandleByUUID(const char* text, int** handle) {
  for (int i = 0; i < device().count; ++i) {
    char other[96];
    uuid(other, sizeof other, i);
    if (std::strcmp(text, other) == 0) return by_index(static_cast<unsigned>(i), handle);
  }
  return kNotFound;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetIndex(const int* handle, unsigned* index) {
  *index = static_cast<unsigned>(ordinal_of(handle));
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetName(const int*, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "%s", device().name.c_str());
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetUUID(const int* handle, char* text, unsigned bytes) {
  uuid(text, bytes, ordinal_of(handle));
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetMemoryInfo(const int* handle, Memory* memory) {
  DeviceMemory& of = memory_of(ordinal_of(handle));
  *memory = {of.total(), of.available(), of.total() - of.available()};
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetMemoryInfo_v2(const int* handle, Memory2* memory) {
  DeviceMemory& of = memory_of(ordinal_of(handle));
  *memory = {memory->version, of.total(), 0, of.available(), of.total() - of.available()};
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetCudaComputeCapability(const int*, int* major, int* minor) {
  *major = device().major;
  *minor = device().minor;
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::snprintf(text, bytes, "580.00");
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
// Nobody is listed: a process asks cudaMemGetInfo instead.
DSPLAN_DRY_CALL Status nvmlDeviceGetComputeRunningProcesses_v3(const int*, unsigned* count, void*) {
  *count = 0;
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetComputeRunningProcesses(const int*, unsigned* count, void*) {
  *count = 0;
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetP2PStatus(const int*, const int*, int, int* status) {
  *status = 5;  // Unknown.
  return kDone;
}
DSPLAN_DRY_CALL Status nvmlDeviceGetNvLinkState(const int*, unsigned, int*) { return kNotSupportedHere; }
DSPLAN_DRY_CALL Status nvmlDeviceGetNvLinkRemoteDeviceType(const int*, unsigned, int*) { return kNotSupportedHere; }
DSPLAN_DRY_CALL Status nvmlDeviceGetNvLinkRemotePciInfo_v2(const int*, unsigned, void*) { return kNotSupportedHere; }
DSPLAN_DRY_CALL Status nvmlDeviceGetGpuFabricInfoV(const int*, void*) { return kNotSupportedHere; }
