#include "cli/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

// 0, or the errno of the write that failed.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// The file that a path means, through links; the path itself where there is none yet.
std::string through_links(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  std::string result = resolved;
  std::free(resolved);
  return result;
}

bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

mode_t usual_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return static_cast<mode_t>(0666) & static_cast<mode_t>(~mask);
}

}  // namespace

Output::Output(std::string path, std::string option) : path_(std::move(path)), option_(std::move(option)) {
  if (path_.empty()) return;
  const auto refuse = [this] { return Refusal(option_, formatted("{}: {}", path_, std::strerror(errno))); };
  if (is_special(path_)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) throw refuse();
    return;
  }
  final_ = through_links(path_);
  temporary_ = final_ + ".XXXXXX";
  descriptor_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    temporary_.clear();
    throw refuse();
  }
  // mkostemp makes files that only their owner reads; a report is an ordinary file.
  (void)::fchmod(descriptor_, usual_mode());
}

Output::~Output() {
  if (descriptor_ > 2) (void)::close(descriptor_);
  if (!temporary_.empty()) (void)::unlink(temporary_.c_str());
}

bool Output::colour(std::string_view wish) const {
  if (wish != "auto") return wish == "always";
  const char* no_colour = std::getenv("NO_COLOR");
  return path_.empty() && (no_colour == nullptr || *no_colour == '\0') && ::isatty(descriptor_) == 1;
}

void Output::finish() {
  int failed = write_all(descriptor_, text_);
  if (path_.empty()) {
    if (failed != 0 && failed != EPIPE) throw Refusal("standard output", std::strerror(failed));
    return;
  }
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0 && failed == 0) failed = errno;
  if (failed == 0 && !temporary_.empty()) {
    if (::rename(temporary_.c_str(), final_.c_str()) != 0) failed = errno;
    if (failed == 0) temporary_.clear();
  }
  if (failed != 0) throw Refusal(option_, formatted("{}: {}", path_, std::strerror(failed)));
}

void say(std::string_view text) { (void)write_all(2, text); }

}  // namespace dsplan
