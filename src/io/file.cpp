#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/format.h"

namespace dsplan::detail {
namespace {

Refusal unreadable(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) return {path, "no such file"};
  return {path, formatted("cannot be read: {}", std::strerror(error))};
}

}  // namespace

File::File(const std::string& path) : path_(path) {
  // Text from elsewhere than a command line may hold a NUL, and would then name another file than it shows.
  if (path.empty() || path.find('\0') != std::string::npos) throw Refusal(path.c_str(), "not a file name");
  // Without blocking: opening a named pipe must not wait for a writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw unreadable(path, errno);
  struct stat status {};
  const int failed = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (failed == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (failed != 0) throw unreadable(path, failed);
  if (S_ISDIR(status.st_mode)) throw Refusal(path, "is a folder", "name a file in it");
  throw Refusal(path, "is not a regular file");
}

File::~File() { ::close(descriptor_); }

std::size_t File::read(std::uint64_t offset, char* into, std::size_t count) const {
  for (;;) {
    const ssize_t got = ::pread(descriptor_, into, count, static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw unreadable(path_, errno);
  }
}

}  // namespace dsplan::detail
