// What stands behind the plugin's handles; private to src/cuda/plugin.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cuda/nccl.h"
#include "cuda/nvml.h"
#include "cuda/plugin/status.h"
#include "cuda/products.h"
#include "cuda/queue.h"
#include "exec/backend.h"

namespace dsplan::cuda {

struct Stream {
  cudaStream_t handle = nullptr;
  double* scratch = nullptr;
};

struct Event {
  cudaEvent_t handle = nullptr;
};

struct Allocation {
  dsplan_space space = DSPLAN_SPACE_DEVICE;
  std::int64_t bytes = 0;
};

// Pages are mapped one by one, so that any of them can be unmapped.
struct Range {
  std::int64_t bytes = 0;
  std::map<std::int64_t, CUmemGenericAllocationHandle> pages;  // By offset.
};

// One rank's device: a set of streams and memory on a GPU that other ranks may share.
struct Device {
  int ordinal = 0;
  std::string error;
  std::int64_t granularity = 0;
  Stream* first = nullptr;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::map<void*, Allocation> allocations;
  std::map<void*, Range> ranges;
  std::unique_ptr<Products> products;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators;
  // What NVML says of this process on the device; -1: it does not say.
  [[nodiscard]] std::int64_t process_bytes();
  dsplan_device* files = nullptr;  // Files are the host's business: a device of the host backend stands behind.

  dsplan_status fail(dsplan_status status, std::string text) {
    error = std::move(text);
    return status;
  }
  [[nodiscard]] Stream* stream(dsplan_stream* handle) {
    return handle == nullptr ? first : reinterpret_cast<Stream*>(handle);
  }
  // Everything that was enqueued on this rank's streams has happened.
  void drain() {
    for (const auto& each : streams) synchronize(each->handle);
  }
  // Work that waits for other ranks is waited for as long as their timeout, and no longer than they live.
  void synchronize(cudaStream_t stream) const {
    if (communicators.empty()) return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    wait_with(communicators, [&] {
      const cudaError_t state = cudaStreamQuery(stream);
      if (state != cudaErrorNotReady) check(state, "cudaStreamQuery");
      return state == cudaSuccess;
    });
  }
};

[[nodiscard]] inline Device* device_of(dsplan_device* handle) { return reinterpret_cast<Device*>(handle); }
[[nodiscard]] inline Event* event_of(dsplan_event* handle) { return reinterpret_cast<Event*>(handle); }

// No exception crosses the boundary. The thread's current device is this one, whoever used the thread before.
template <class Body>
dsplan_status guarded(dsplan_device* handle, Body&& body) {
  Device* device = device_of(handle);
  try {
    check(cudaSetDevice(device->ordinal), "cudaSetDevice");
    return body(*device);
  } catch (const CudaFailure& failure) {
    return device->fail(failure.status(), failure.what());
  } catch (const NcclFailure& failure) {
    return device->fail(failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    return device->fail(DSPLAN_OUT_OF_MEMORY, "no memory for the plugin's own books");
  } catch (const std::exception& failure) {
    return device->fail(DSPLAN_INVALID, failure.what());
  }
}

// Of the last call without a device that failed in this thread.
[[nodiscard]] std::string& last_failure();

// The table's functions, by what they work on. memory.cpp, streams.cpp and communicators.cpp.
dsplan_status allocate(dsplan_device* device, dsplan_space space, std::int64_t bytes, void** memory);
dsplan_status release(dsplan_device* device, dsplan_space space, void* memory, std::int64_t bytes);
dsplan_status reserve(dsplan_device* device, std::int64_t bytes, void** range);
dsplan_status unreserve(dsplan_device* device, void* range, std::int64_t bytes);
dsplan_status map_pages(dsplan_device* device, void* range, std::int64_t offset, std::int64_t bytes);
dsplan_status unmap_pages(dsplan_device* device, void* range, std::int64_t offset, std::int64_t bytes);
void give_back_all(Device& device) noexcept;

Stream* make_stream(Device& device);
dsplan_status stream_create(dsplan_device* device, dsplan_stream** stream);
dsplan_status stream_destroy(dsplan_device* device, dsplan_stream* stream);
dsplan_status stream_synchronize(dsplan_device* device, dsplan_stream* stream);
dsplan_status event_create(dsplan_device* device, dsplan_event** event);
dsplan_status event_destroy(dsplan_device* device, dsplan_event* event);
dsplan_status event_record(dsplan_device* device, dsplan_event* event, dsplan_stream* stream);
dsplan_status event_wait(dsplan_device* device, dsplan_stream* stream, dsplan_event* event);
dsplan_status event_synchronize(dsplan_device* device, dsplan_event* event);
dsplan_status event_query(dsplan_device* device, dsplan_event* event, std::int32_t* done);
dsplan_status event_elapsed(dsplan_device* device, dsplan_event* start, dsplan_event* end, std::int64_t* nanoseconds);
void end_streams(Device& device) noexcept;

dsplan_status comm_library(const dsplan_backend* self, char* text, std::uint32_t bytes);
dsplan_status comm_id(const dsplan_backend* self, void* id);
dsplan_status comm_create(dsplan_device* device, const void* id, const dsplan_group* group,
                          dsplan_communicator** communicator);
dsplan_status comm_destroy(dsplan_device* device, dsplan_communicator* communicator);
dsplan_status comm_abort(dsplan_communicator* communicator);
dsplan_status comm_run(dsplan_device* device, dsplan_communicator* communicator, const dsplan_collective* call,
                       dsplan_stream* stream);
dsplan_status comm_memory(dsplan_device* device, dsplan_communicator* communicator, std::int64_t* bytes);

// The virtual-memory calls of the driver, which is never linked: a library that links it does not load where there is
// none.
struct Driver {
  CUresult (*get_granularity)(std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) = nullptr;
  CUresult (*reserve)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long) = nullptr;
  CUresult (*free_range)(CUdeviceptr, std::size_t) = nullptr;
  CUresult (*create)(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*,
                     unsigned long long) = nullptr;
  CUresult (*release)(CUmemGenericAllocationHandle) = nullptr;
  CUresult (*map)(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long) = nullptr;
  CUresult (*unmap)(CUdeviceptr, std::size_t) = nullptr;
  CUresult (*set_access)(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) = nullptr;
  CUresult (*error_name)(CUresult, const char**) = nullptr;
};
// Looked up once. Throws CudaFailure (DSPLAN_UNAVAILABLE) where the driver is missing or too old.
[[nodiscard]] const Driver& driver();
void check(CUresult result, const char* call);
[[nodiscard]] CUmemAllocationProp page_properties(int ordinal);

// cublas.cpp.
[[nodiscard]] std::unique_ptr<Products> make_products();

}  // namespace dsplan::cuda
