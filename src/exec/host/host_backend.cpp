#include "exec/host/host_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "core/format.h"
#include "exec/host/host_device.h"

namespace dsplan::exec {
namespace {

thread_local std::string open_error;

HostBackend& backend_of(const dsplan_backend* self) { return *static_cast<HostBackend*>(self->state); }

dsplan_status open_host(const dsplan_backend* self, const dsplan_open* how, dsplan_device** device) {
  try {
    HostBackend& backend = backend_of(self);
    if (how == nullptr || how->size != sizeof(dsplan_open) || how->ordinal != 0) {
      open_error = "the host has the one device 0";
      return how != nullptr && how->size == sizeof(dsplan_open) ? DSPLAN_UNAVAILABLE : DSPLAN_INVALID;
    }
    auto made = std::make_unique<dsplan_device>(backend);
    made->directory = how->directory == nullptr ? "" : how->directory;
    made->memory_bytes = backend.options().device_memory.value();
    *device = made.release();
    return DSPLAN_OK;
  } catch (const std::exception& error) {
    open_error = error.what();
    return DSPLAN_OUT_OF_MEMORY;
  }
}

const char* last_error(const dsplan_backend*, const dsplan_device* device) {
  return device == nullptr ? open_error.c_str() : device->error.c_str();
}

dsplan_status info(dsplan_device* device, dsplan_device_info* info) {
  if (info->size != sizeof(dsplan_device_info)) return device->fail(DSPLAN_INVALID, "an info of another size");
  info->flags = DSPLAN_HOST_READABLE | DSPLAN_SYNCHRONOUS;
  std::memset(info->name, 0, sizeof info->name);
  std::memcpy(info->name, "host", 4);
  info->memory_bytes = device->memory_bytes;
  info->granularity = page_bytes();
  info->alignment = device->backend.options().heap ? kHeapAlignment : page_bytes();
  info->driver = 0;
  info->runtime = 0;
  return DSPLAN_OK;
}

dsplan_status usage(dsplan_device* device, dsplan_usage* usage) {
  if (usage->size != sizeof(dsplan_usage)) return device->fail(DSPLAN_INVALID, "a usage of another size");
  usage->device_total = device->memory_bytes;
  usage->device_free = device->memory_bytes - device->device_bytes;
  usage->process_bytes = resident_bytes();
  return DSPLAN_OK;
}

dsplan_status copy(dsplan_device* device, void* to, dsplan_space, const void* from, dsplan_space, std::int64_t bytes,
                   dsplan_stream*) {
  if (bytes < 0 || (bytes > 0 && (to == nullptr || from == nullptr))) {
    return device->fail(DSPLAN_INVALID, "a copy from or to nowhere");
  }
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  return DSPLAN_OK;
}

dsplan_status fill(dsplan_device* device, void* memory, dsplan_space, std::uint8_t value, std::int64_t bytes,
                   dsplan_stream*) {
  if (bytes < 0 || (bytes > 0 && memory == nullptr)) return device->fail(DSPLAN_INVALID, "a fill of nowhere");
  if (bytes > 0) std::memset(memory, value, static_cast<std::size_t>(bytes));
  return DSPLAN_OK;
}

dsplan_status combine(dsplan_device* device, dsplan_reduction how, std::int32_t dtype, void* target,
                      const void* const* pieces, std::uint32_t piece_count, std::int64_t elements, dsplan_stream*) {
  if (piece_count == 0 || elements < 0 || dtype < 0 || dtype > static_cast<std::int32_t>(DType::Bool)) {
    return device->fail(DSPLAN_INVALID, "nothing to combine");
  }
  if (!combine_pieces(how, static_cast<DType>(dtype), target, pieces, piece_count, elements)) {
    return device->fail(DSPLAN_UNSUPPORTED, "such a reduction");
  }
  return DSPLAN_OK;
}

dsplan_status stream_create(dsplan_device* device, dsplan_stream** stream) {
  return device->guarded([&] {
    device->streams.push_back(std::make_unique<dsplan_stream>());
    *stream = device->streams.back().get();
    return DSPLAN_OK;
  });
}

dsplan_status stream_destroy(dsplan_device* device, dsplan_stream* stream) {
  return device->drop(device->streams, stream, "a stream of another device");
}

dsplan_status stream_synchronize(dsplan_device*, dsplan_stream*) { return DSPLAN_OK; }

dsplan_status event_create(dsplan_device* device, dsplan_event** event) {
  return device->guarded([&] {
    device->stamps.push_back(std::make_unique<dsplan_event>());
    *event = device->stamps.back().get();
    return DSPLAN_OK;
  });
}

dsplan_status event_destroy(dsplan_device* device, dsplan_event* event) {
  return device->drop(device->stamps, event, "an event of another device");
}

dsplan_status event_record(dsplan_device* device, dsplan_event* event, dsplan_stream*) {
  if (event == nullptr) return device->fail(DSPLAN_INVALID, "no event");
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  event->nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  event->recorded = true;
  return DSPLAN_OK;
}

// What was recorded is done. Nothing of the event is read, for it may be another thread's.
dsplan_status event_wait(dsplan_device*, dsplan_stream*, dsplan_event*) { return DSPLAN_OK; }
dsplan_status event_synchronize(dsplan_device*, dsplan_event*) { return DSPLAN_OK; }

dsplan_status event_query(dsplan_device*, dsplan_event*, std::int32_t* done) {
  *done = 1;
  return DSPLAN_OK;
}

dsplan_status event_elapsed(dsplan_device* device, dsplan_event* start, dsplan_event* end, std::int64_t* nanoseconds) {
  if (start == nullptr || end == nullptr || !start->recorded || !end->recorded) {
    return device->fail(DSPLAN_INVALID, "time between events that were not both recorded");
  }
  *nanoseconds = end->nanoseconds - start->nanoseconds;
  return DSPLAN_OK;
}

dsplan_status launch(dsplan_device* device, const dsplan_launch* what, dsplan_stream*) {
  const HostKernels kernels = device->backend.options().kernels;
  if (kernels == nullptr) return device->fail(DSPLAN_UNSUPPORTED, "this host backend has no kernels");
  if (what == nullptr || what->size != sizeof(dsplan_launch)) return device->fail(DSPLAN_INVALID, "another launch");
  return device->guarded([&] {
    kernels(*what);
    return DSPLAN_OK;
  });
}

dsplan_status workspace(dsplan_device*, const dsplan_launch*, std::int64_t* bytes) {
  *bytes = 0;
  return DSPLAN_OK;
}

dsplan_status devices(const dsplan_backend*, std::int32_t* count) {
  *count = 1;
  return DSPLAN_OK;
}

void fill_memory(dsplan_backend& table) {
  table.allocate = host_allocate;
  table.release = host_release;
  table.reserve = host_reserve;
  table.unreserve = host_unreserve;
  table.map = host_map;
  table.unmap = host_unmap;
  table.file_create = host_file_create;
  table.file_write = host_file_write;
  table.file_read = host_file_read;
  table.file_remove = host_file_remove;
}

}  // namespace

HostBackend::HostBackend(const HostOptions& options) : options_(options) {
  if (options_.device_memory == Bytes(0)) {
    options_.device_memory = Bytes(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
  }
  table_.version = DSPLAN_BACKEND_VERSION;
  table_.size = sizeof(dsplan_backend);
  table_.name = "host";
  table_.state = this;
  table_.open = open_host;
  table_.close = host_close;
  table_.last_error = last_error;
  table_.devices = devices;
  table_.info = info;
  table_.usage = usage;
  fill_memory(table_);
  table_.copy = copy;
  table_.fill = fill;
  table_.combine = combine;
  table_.stream_create = stream_create;
  table_.stream_destroy = stream_destroy;
  table_.stream_synchronize = stream_synchronize;
  table_.event_create = event_create;
  table_.event_destroy = event_destroy;
  table_.event_record = event_record;
  table_.event_wait = event_wait;
  table_.event_synchronize = event_synchronize;
  table_.event_query = event_query;
  table_.event_elapsed = event_elapsed;
  table_.launch = launch;
  table_.workspace = workspace;
}

std::int64_t resident_bytes() {
  std::ifstream books("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  if (!(books >> total >> resident)) return -1;
  return resident * page_bytes();
}

std::int64_t most_resident_bytes() {
  std::ifstream books("/proc/self/status");
  for (std::string key; books >> key;) {
    std::int64_t kibibytes = 0;
    if (key == "VmHWM:" && books >> kibibytes) return kibibytes * 1024;
  }
  return -1;
}

}  // namespace dsplan::exec
