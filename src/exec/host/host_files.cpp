// The host backend's files, for what a plan keeps on disks. The whole of a file is taken when it is made, so that a
// full disk shows then and not in the middle of a step.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "exec/host/host_device.h"

#include "core/format.h"

namespace dsplan::exec {
namespace {

dsplan_status fail_file(dsplan_device* device, const char* what, const std::string& path, int error) {
  return device->fail(DSPLAN_IO, formatted("{} {}: {}", what, path, std::strerror(error)));
}

// Moves all of it, however the system cuts it. `step(done)` moves some bytes and returns how many, or -1.
template <class Step>
int move_all(std::int64_t bytes, Step&& step) {
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t moved = step(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : EIO;
    done += moved;
  }
  return 0;
}

bool inside(const dsplan_file* file, std::int64_t offset, std::int64_t bytes) {
  return file != nullptr && offset >= 0 && bytes >= 0 && bytes <= file->bytes - offset;
}

bool plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

}  // namespace

bool discard_file(dsplan_file& file) {
  const bool closed = ::close(file.descriptor) == 0;
  return ::unlink(file.path.c_str()) == 0 && closed;
}

dsplan_status host_file_create(dsplan_device* device, const char* name, std::int64_t bytes, dsplan_file** file) {
  return device->guarded([&] {
    if (device->directory.empty()) return device->fail(DSPLAN_INVALID, "opened without a directory for files");
    if (name == nullptr || !plain(name) || bytes <= 0) return device->fail(DSPLAN_INVALID, "no name for a file");
    auto made = std::make_unique<dsplan_file>();
    made->path = device->directory + "/" + name;
    made->bytes = bytes;
    device->files.reserve(device->files.size() + 1);
    made->descriptor = ::open(made->path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (made->descriptor < 0) return fail_file(device, "cannot create", made->path, errno);
    const int full = ::posix_fallocate(made->descriptor, 0, bytes);
    if (full != 0) {
      (void)discard_file(*made);
      return fail_file(device, "no room for", made->path, full);
    }
    *file = made.get();
    device->files.push_back(std::move(made));
    return dsplan_status{DSPLAN_OK};
  });
}

dsplan_status host_file_write(dsplan_device* device, dsplan_file* file, std::int64_t offset, const void* from,
                              std::int64_t bytes) {
  return device->guarded([&] {
    if (!inside(file, offset, bytes)) return device->fail(DSPLAN_INVALID, "written outside a file");
    const int error = move_all(bytes, [&](std::int64_t done) {
      return ::pwrite(file->descriptor, static_cast<const char*>(from) + done, static_cast<std::size_t>(bytes - done),
                      offset + done);
    });
    return error == 0 ? dsplan_status{DSPLAN_OK} : fail_file(device, "cannot write", file->path, error);
  });
}

dsplan_status host_file_read(dsplan_device* device, dsplan_file* file, std::int64_t offset, void* to,
                             std::int64_t bytes) {
  return device->guarded([&] {
    if (!inside(file, offset, bytes)) return device->fail(DSPLAN_INVALID, "read outside a file");
    const int error = move_all(bytes, [&](std::int64_t done) {
      return ::pread(file->descriptor, static_cast<char*>(to) + done, static_cast<std::size_t>(bytes - done),
                     offset + done);
    });
    return error == 0 ? dsplan_status{DSPLAN_OK} : fail_file(device, "cannot read", file->path, error);
  });
}

dsplan_status host_file_remove(dsplan_device* device, dsplan_file* file) {
  return device->guarded([&] {
    const auto found =
        std::find_if(device->files.begin(), device->files.end(), [&](const auto& each) { return each.get() == file; });
    if (found == device->files.end()) return device->fail(DSPLAN_INVALID, "no such file");
    const std::string path = file->path;
    const bool gone = discard_file(*file);
    const int error = errno;
    device->files.erase(found);
    return gone ? dsplan_status{DSPLAN_OK} : fail_file(device, "cannot remove", path, error);
  });
}

}  // namespace dsplan::exec
