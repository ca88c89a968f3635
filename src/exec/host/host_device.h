// What stands behind the host backend's handles; private to its own files.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/host/host_backend.h"

struct dsplan_stream {};

struct dsplan_event {
  std::int64_t nanoseconds = 0;
  bool recorded = false;
};

struct dsplan_file {
  std::string path;
  int descriptor = -1;
  std::int64_t bytes = 0;
};

struct dsplan_device {
  struct Allocation {
    dsplan_space space = DSPLAN_SPACE_DEVICE;
    std::int64_t bytes = 0;
  };
  struct Range {
    std::int64_t bytes = 0;
    std::map<std::int64_t, std::int64_t> mapped;  // Offset to bytes, as they were mapped, cut where they were unmapped.
  };

  explicit dsplan_device(dsplan::exec::HostBackend& owner) : backend(owner) {}

  dsplan_status fail(dsplan_status status, std::string text) {
    error = std::move(text);
    return status;
  }

  // No exception crosses the boundary.
  template <class Body>
  dsplan_status guarded(Body&& body) {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return fail(DSPLAN_OUT_OF_MEMORY, "no memory for the host backend's own books");
    } catch (const std::exception& fault) {
      return fail(DSPLAN_INVALID, fault.what());
    }
  }

  template <class Thing>
  dsplan_status drop(std::vector<std::unique_ptr<Thing>>& things, Thing* thing, const char* complaint) {
    const auto found =
        std::find_if(things.begin(), things.end(), [&](const auto& each) { return each.get() == thing; });
    if (found == things.end()) return fail(DSPLAN_INVALID, complaint);
    things.erase(found);
    return DSPLAN_OK;
  }

  dsplan::exec::HostBackend& backend;
  std::string directory;
  std::string error;
  std::int64_t memory_bytes = 0;
  std::int64_t device_bytes = 0;  // Taken from it: segments and mapped pages.
  std::map<void*, Allocation> allocations;
  std::map<void*, Range> ranges;
  std::vector<std::unique_ptr<dsplan_file>> files;
  std::vector<std::unique_ptr<dsplan_stream>> streams;
  std::vector<std::unique_ptr<dsplan_event>> stamps;
};

namespace dsplan::exec {

inline constexpr std::int64_t kHeapAlignment = 512;
[[nodiscard]] inline std::int64_t page_bytes() { return ::sysconf(_SC_PAGESIZE); }

// The table's functions, by what they work on. host_memory.cpp and host_files.cpp.
void host_close(dsplan_device* device);
dsplan_status host_allocate(dsplan_device* device, dsplan_space space, std::int64_t bytes, void** memory);
dsplan_status host_release(dsplan_device* device, dsplan_space space, void* memory, std::int64_t bytes);
dsplan_status host_reserve(dsplan_device* device, std::int64_t bytes, void** range);
dsplan_status host_unreserve(dsplan_device* device, void* range, std::int64_t bytes);
dsplan_status host_map(dsplan_device* device, void* range, std::int64_t offset, std::int64_t bytes);
dsplan_status host_unmap(dsplan_device* device, void* range, std::int64_t offset, std::int64_t bytes);
dsplan_status host_file_create(dsplan_device* device, const char* name, std::int64_t bytes, dsplan_file** file);
dsplan_status host_file_write(dsplan_device* device, dsplan_file* file, std::int64_t offset, const void* from,
                              std::int64_t bytes);
dsplan_status host_file_read(dsplan_device* device, dsplan_file* file, std::int64_t offset, void* to,
                             std::int64_t bytes);
dsplan_status host_file_remove(dsplan_device* device, dsplan_file* file);
// Closes and deletes; false: that went wrong.
[[nodiscard]] bool discard_file(dsplan_file& file);

}  // namespace dsplan::exec
