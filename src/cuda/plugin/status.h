// Failures of CUDA's calls as exceptions within the plugin; at its boundary they become a dsplan_status.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "exec/backend.h"

namespace dsplan::cuda {

class CudaFailure : public std::runtime_error {
 public:
  CudaFailure(dsplan_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  [[nodiscard]] dsplan_status status() const { return status_; }

 private:
  dsplan_status status_;
};

// What an error of the runtime means at the boundary: no memory, no device, or a device that is lost.
[[nodiscard]] inline dsplan_status status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return DSPLAN_OK;
    case cudaErrorMemoryAllocation: return DSPLAN_OUT_OF_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorStubLibrary: return DSPLAN_UNAVAILABLE;
    case cudaErrorNotSupported: return DSPLAN_UNSUPPORTED;
    case cudaErrorInvalidValue: return DSPLAN_INVALID;
    default: return DSPLAN_DEVICE;
  }
}

inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // What does not stay is told once.
  throw CudaFailure(status_of(error),
                    std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace dsplan::cuda
