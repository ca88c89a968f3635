// The plugin's table: CUDA behind the interface of exec/backend.h.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "core/format.h"
#include "core/graph.h"
#include "core/program.h"
#include "core/units.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/plugin/device.h"
#include "exec/host/args.h"
#include "exec/host/host_backend.h"

namespace dsplan::cuda {
namespace {

constexpr int kLeastMajor = 8;  // Compute capability: the kernels are compiled for 8.0 and 9.0.

// Of files alone.
const dsplan_backend& host() {
  static const exec::HostBackend backend;
  return backend.table();
}

std::string versions() {
  int of_driver = 0;
  int of_runtime = 0;
  (void)cudaDriverGetVersion(&of_driver);
  (void)cudaRuntimeGetVersion(&of_runtime);
  return formatted("driver {}, runtime {}", of_driver, of_runtime);
}

// Says what is missing, from the ground up: the driver, a device, this device, one that runs the kernels.
void find_device(int ordinal) {
  int of_driver = 0;
  check(cudaDriverGetVersion(&of_driver), "cudaDriverGetVersion");
  if (of_driver == 0) {
    throw CudaFailure(DSPLAN_UNAVAILABLE, formatted("no usable CUDA device: no driver is loaded ({})", versions()));
  }
  int devices = 0;
  if (const cudaError_t found = cudaGetDeviceCount(&devices); found != cudaSuccess) {
    (void)cudaGetLastError();
    throw CudaFailure(DSPLAN_UNAVAILABLE,
                      formatted("no usable CUDA device: {} ({})", cudaGetErrorString(found), versions()));
  }
  if (ordinal < 0 || ordinal >= devices) {
    throw CudaFailure(DSPLAN_UNAVAILABLE, formatted("no CUDA device {}: there are {}", ordinal, devices));
  }
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "cudaDeviceGetAttribute");
  if (major < kLeastMajor) {
    throw CudaFailure(DSPLAN_UNAVAILABLE,
                      formatted("CUDA device {} has compute capability {}; the kernels need {}.0 or later", ordinal,
                                major, kLeastMajor));
  }
}

dsplan_status open_device(const dsplan_backend*, const dsplan_open* how, dsplan_device** handle) {
  auto device = std::make_unique<Device>();
  try {
    if (how == nullptr || how->size != sizeof(dsplan_open)) {
      throw CudaFailure(DSPLAN_INVALID, "an opening of another version");
    }
    find_device(how->ordinal);
    device->ordinal = how->ordinal;
    check(cudaSetDevice(how->ordinal), "cudaSetDevice");
    check(cudaFree(nullptr), "the context");
    std::size_t granularity = 0;
    const CUmemAllocationProp pages = page_properties(how->ordinal);
    check(driver().get_granularity(&granularity, &pages, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          "cuMemGetAllocationGranularity");
    device->granularity = static_cast<std::int64_t>(granularity);
    device->first = make_stream(*device);
    device->products = make_products();
    dsplan_open files = *how;
    files.ordinal = 0;
    if (host().open(&host(), &files, &device->files) != DSPLAN_OK) {
      throw CudaFailure(DSPLAN_UNAVAILABLE, host().last_error(&host(), nullptr));
    }
    *handle = reinterpret_cast<dsplan_device*>(device.release());
    return DSPLAN_OK;
  } catch (const CudaFailure& failure) {
    last_failure() = failure.what();
    end_streams(*device);
    return failure.status();
  } catch (const std::exception& failure) {
    last_failure() = failure.what();
    end_streams(*device);
    return DSPLAN_OUT_OF_MEMORY;
  }
}

void close_device(dsplan_device* handle) {
  if (handle == nullptr) return;
  const std::unique_ptr<Device> device(device_of(handle));
  (void)cudaSetDevice(device->ordinal);
  device->communicators.clear();
  end_streams(*device);
  give_back_all(*device);
  device->products.reset();
  host().close(device->files);
}

const char* last_error(const dsplan_backend*, const dsplan_device* device) {
  return device == nullptr ? last_failure().c_str() : reinterpret_cast<const Device*>(device)->error.c_str();
}

dsplan_status devices(const dsplan_backend*, std::int32_t* count) {
  int found = 0;
  const cudaError_t asked = cudaGetDeviceCount(&found);
  *count = asked == cudaSuccess ? found : 0;
  if (asked == cudaSuccess || asked == cudaErrorNoDevice) return DSPLAN_OK;
  (void)cudaGetLastError();
  last_failure() = formatted("no usable CUDA device: {} ({})", cudaGetErrorString(asked), versions());
  return DSPLAN_UNAVAILABLE;
}

// Whether CUDA's libraries are the dry device's, one of which says so by this name (src/dry/device.cpp).
bool is_dry() { return ::dlsym(RTLD_DEFAULT, "dsplan_dry_computes_nothing") != nullptr; }

dsplan_status info(dsplan_device* handle, dsplan_device_info* info) {
  return guarded(handle, [&](Device& device) {
    if (info->size != sizeof(dsplan_device_info)) return device.fail(DSPLAN_INVALID, "an info of another size");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device.ordinal), "cudaGetDeviceProperties");
    std::size_t left = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    info->flags = is_dry() ? DSPLAN_NO_NUMBERS : 0;
    std::memset(info->name, 0, sizeof info->name);
    const std::string called = properties.name;
    std::memcpy(info->name, called.data(), std::min(called.size(), sizeof info->name - 1));
    info->memory_bytes = static_cast<std::int64_t>(total);
    info->granularity = device.granularity;
    info->alignment = 512;
    check(cudaDriverGetVersion(&info->driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&info->runtime), "cudaRuntimeGetVersion");
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status usage(dsplan_device* handle, dsplan_usage* usage) {
  return guarded(handle, [&](Device& device) {
    if (usage->size != sizeof(dsplan_usage)) return device.fail(DSPLAN_INVALID, "a usage of another size");
    std::size_t left = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    usage->device_free = static_cast<std::int64_t>(left);
    usage->device_total = static_cast<std::int64_t>(total);
    usage->process_bytes = device.process_bytes();
    return dsplan_status{DSPLAN_OK};
  });
}

// Files: reads and writes happen at once, after everything that was enqueued.
template <class Call>
dsplan_status on_files(dsplan_device* handle, Call&& call) {
  return guarded(handle, [&](Device& device) {
    device.drain();
    const dsplan_status status = call(device.files);
    return status == DSPLAN_OK ? status : device.fail(status, host().last_error(&host(), device.files));
  });
}

dsplan_status file_create(dsplan_device* device, const char* name, std::int64_t bytes, dsplan_file** file) {
  return on_files(device, [&](dsplan_device* files) { return host().file_create(files, name, bytes, file); });
}
dsplan_status file_write(dsplan_device* device, dsplan_file* file, std::int64_t offset, const void* from,
                         std::int64_t bytes) {
  return on_files(device, [&](dsplan_device* files) { return host().file_write(files, file, offset, from, bytes); });
}
dsplan_status file_read(dsplan_device* device, dsplan_file* file, std::int64_t offset, void* to, std::int64_t bytes) {
  return on_files(device, [&](dsplan_device* files) { return host().file_read(files, file, offset, to, bytes); });
}
dsplan_status file_remove(dsplan_device* device, dsplan_file* file) {
  return on_files(device, [&](dsplan_device* files) { return host().file_remove(files, file); });
}

Queue queue_of(Device& device, dsplan_stream* stream) {
  const Stream* on = device.stream(stream);
  return {on->handle, on->scratch, device.products.get(), nullptr, 0};
}

dsplan_status copy(dsplan_device* handle, void* to, dsplan_space, const void* from, dsplan_space, std::int64_t bytes,
                   dsplan_stream* stream) {
  return guarded(handle, [&](Device& device) {
    if (bytes < 0 || (bytes > 0 && (to == nullptr || from == nullptr))) {
      return device.fail(DSPLAN_INVALID, "a copy from or to nowhere");
    }
    if (bytes == 0 || to == from) return dsplan_status{DSPLAN_OK};
    // Which way it goes follows from the addresses, also where they are another rank's.
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, device.stream(stream)->handle),
          "cudaMemcpyAsync");
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status fill_bytes(dsplan_device* handle, void* memory, dsplan_space space, std::uint8_t value,
                         std::int64_t bytes, dsplan_stream* stream) {
  return guarded(handle, [&](Device& device) {
    if (bytes < 0 || (bytes > 0 && memory == nullptr)) return device.fail(DSPLAN_INVALID, "a fill of nowhere");
    if (bytes == 0) return dsplan_status{DSPLAN_OK};
    if (space == DSPLAN_SPACE_DEVICE) {
      check(cudaMemsetAsync(memory, value, static_cast<std::size_t>(bytes), device.stream(stream)->handle),
            "cudaMemsetAsync");
      return dsplan_status{DSPLAN_OK};
    }
    dsplan_tensor all{memory, static_cast<std::int32_t>(DType::UInt8), 1, {bytes}, {1}};
    fill(queue_of(device, stream), all, value);
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status combine_pieces(dsplan_device* handle, dsplan_reduction how, std::int32_t dtype, void* target,
                             const void* const* pieces, std::uint32_t piece_count, std::int64_t elements,
                             dsplan_stream* stream) {
  return guarded(handle, [&](Device& device) {
    if (piece_count == 0 || elements < 0 || dtype < 0 || dtype > static_cast<std::int32_t>(DType::Bool)) {
      return device.fail(DSPLAN_INVALID, "nothing to combine");
    }
    if (!combine(queue_of(device, stream), how, static_cast<DType>(dtype), target, pieces, piece_count, elements)) {
      return device.fail(DSPLAN_UNSUPPORTED, formatted("such a reduction of {} pieces", piece_count));
    }
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status launch_kernel(dsplan_device* handle, const dsplan_launch* what, dsplan_stream* stream) {
  return guarded(handle, [&](Device& device) {
    if (what == nullptr) return device.fail(DSPLAN_INVALID, "no launch");
    Queue queue = queue_of(device, stream);
    queue.workspace = what->workspace;
    queue.workspace_bytes = what->workspace == nullptr ? 0 : what->workspace_bytes;
    try {
      launch(*what, queue);
    } catch (const CudaFailure& failure) {  // CUDA does not know what the kernel is called here.
      throw CudaFailure(failure.status(), exec::host::called(*what) + ": " + failure.what());
    }
    return dsplan_status{DSPLAN_OK};
  });
}

// What PyTorch gives cuBLAS (ATen, CublasHandlePool.cpp). Products take what a launch gives them, and do without where
// it gives nothing.
dsplan_status workspace(dsplan_device* handle, const dsplan_launch* what, std::int64_t* bytes) {
  return guarded(handle, [&](Device& device) {
    const auto body = static_cast<Body>(what->body);
    const auto op = static_cast<Op>(what->op);
    const bool product = (body == Body::Forward || body == Body::Backward) && (op == Op::Linear || op == Op::Matmul);
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.ordinal), "cudaDeviceGetAttribute");
    *bytes = !product ? 0 : major == 9 ? 32LL << 20 : 2 * 4096 * 1024 + 8 * 16 * 1024;
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_backend make_table() {
  dsplan_backend table{};
  table.version = DSPLAN_BACKEND_VERSION;
  table.size = sizeof(dsplan_backend);
  table.name = "cuda";
  table.open = open_device;
  table.close = close_device;
  table.last_error = last_error;
  table.devices = devices;
  table.info = info;
  table.usage = usage;
  table.allocate = allocate;
  table.release = release;
  table.reserve = reserve;
  table.unreserve = unreserve;
  table.map = map_pages;
  table.unmap = unmap_pages;
  table.file_create = file_create;
  table.file_write = file_write;
  table.file_read = file_read;
  table.file_remove = file_remove;
  table.copy = copy;
  table.fill = fill_bytes;
  table.combine = combine_pieces;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_wait = event_wait;
  table.event_synchronize = event_synchronize;
  table.event_query = event_query;
  table.event_elapsed = event_elapsed;
  table.launch = launch_kernel;
  table.workspace = workspace;
  table.comm_library = comm_library;
  table.comm_id = comm_id;
  table.comm_create = comm_create;
  table.comm_destroy = comm_destroy;
  table.comm_abort = comm_abort;
  table.comm_run = comm_run;
  table.comm_memory = comm_memory;
  return table;
}

}  // namespace

std::string& last_failure() {
  static thread_local std::string text;
  return text;
}

}  // namespace dsplan::cuda

extern "C" __attribute__((visibility("default"))) const dsplan_backend* dsplan_backend_table(void);
const dsplan_backend* dsplan_backend_table(void) {
  static const dsplan_backend table = dsplan::cuda::make_table();
  return &table;
}
