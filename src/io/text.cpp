#include "io/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dsplan {
namespace {

struct Descriptor {
  int number;
  explicit Descriptor(const std::string& path) : number(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

std::string size_text(std::size_t bytes) {
  return bytes % (std::size_t{1} << 20) == 0 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} bytes", bytes);
}

}  // namespace

std::string read_file(const std::string& path, std::size_t most) {
  // A path from a command line can hold no NUL; one from elsewhere would name another file than it shows.
  if (path.empty() || path.find('\0') != std::string::npos) throw Refusal(path.c_str(), "not a file name");
  // Without blocking: opening a named pipe must not wait for a writer.
  const Descriptor file(path);
  if (file.number < 0) {
    throw Refusal(path, errno == ENOENT ? "no such file" : fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  struct stat status {};
  if (::fstat(file.number, &status) != 0) throw Refusal(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) throw Refusal(path, "is a directory", "name a file in it");
  if (!S_ISREG(status.st_mode)) throw Refusal(path, "is not a regular file");
  const auto claimed = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  const auto too_large = [&] { return Refusal(path, fmt::format("larger than {}", size_text(most))); };
  if (claimed > most) throw too_large();

  // Files that grow, or that claim no size, are read to their end but not beyond the limit.
  std::string text;
  std::size_t used = 0;
  text.resize(std::min(claimed + 1, most + 1));
  for (;;) {
    const ssize_t got = ::read(file.number, text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Refusal(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    used += static_cast<std::size_t>(got);
    if (used > most) throw too_large();
    if (got == 0) break;
    if (used == text.size()) text.resize(std::min(std::max<std::size_t>(2 * used, 4096), most + 1));
  }
  text.resize(used);
  return text;
}

}  // namespace dsplan
