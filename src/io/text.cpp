#include "io/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/text/letters.h"
#include "io/json_parse.h"

namespace dsplan {
namespace {

std::string size_text(std::size_t bytes) {
  return bytes % (std::size_t{1} << 20) == 0 ? formatted("{} MiB", bytes >> 20) : formatted("{} bytes", bytes);
}

// A pipe gives what it has once: whoever asks again gets the same.
const std::string& standard_input(std::size_t most) {
  static std::optional<std::string> known;
  if (known) return *known;
  std::string text;
  std::array<char, 65536> piece{};
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Refusal("standard input", std::strerror(errno));
    if (got == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > most) throw Refusal("standard input", formatted("larger than {}", size_text(most)));
  }
  return known.emplace(std::move(text));
}

// A JSON text begins with a brace or a bracket, whatever blanks stand before it.
bool begins_like_json(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && (text[first] == '{' || text[first] == '[');
}

}  // namespace

std::string read_file(const std::string& path, std::size_t most) {
  if (path == kStandardInput) return standard_input(most);
  const detail::File file(path);
  const auto too_large = [&] { return Refusal(path, formatted("larger than {}", size_text(most))); };
  if (file.size() > most) throw too_large();
  // Files that grow, or that claim no size as in /proc, are read to their end but not beyond the limit.
  std::string text(std::min<std::size_t>(file.size(), most) + 1, '\0');
  std::size_t used = 0;
  for (;;) {
    const std::size_t got = file.read(used, text.data() + used, text.size() - used);
    used += got;
    if (used > most) throw too_large();
    if (got == 0) break;
    if (used == text.size()) text.resize(std::min(std::max<std::size_t>(2 * used, 4096), most + 1));
  }
  text.resize(used);
  return text;
}

Document read_document(const std::string& path) {
  if (path == kStandardInput) {
    const std::string text = read_file(path);
    return begins_like_json(text) ? parse_json("standard input", text) : parse_yaml("standard input", text);
  }
  const std::size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::size_t dot = name.rfind('.');
  const std::string extension = dot == std::string::npos ? std::string() : in_lower_case(name.substr(dot));
  if (extension == ".json") return parse_json(path, read_file(path));
  if (extension == ".hjson") return parse_hjson(path, read_file(path));
  if (extension == ".yaml" || extension == ".yml") return parse_yaml(path, read_file(path, kLargestYaml));
  if (extension == ".toml") return parse_toml(path, read_file(path, kLargestYaml));
  const detail::File there(path);  // Of what is not there the ending is not what is wrong.
  throw Refusal(path, "not a .json, .hjson, .yaml, .yml or .toml file");
}

}  // namespace dsplan

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

namespace {

constexpr std::size_t kClip = 60;

// The length of the well-formed sequence at `at`, or 0: no overlong forms, no surrogates, nothing beyond U+10FFFF
// (Unicode 15, table 3-7).
std::size_t sequence(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned least, unsigned most) { return byte(i) >= least && byte(i) <= most; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool second = within(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF);
    return second && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool second = within(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF);
    return second && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::size_t bad_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    // Eight plain characters at a time: nearly all of any file.
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = sequence(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void refuse_bad_utf8(const Document& document) {
  const std::size_t at = bad_utf8(document.text);
  if (at == std::string_view::npos) return;
  const auto byte = static_cast<unsigned char>(document.text[at]);
  throw Refusal({document.at(at, formatted("byte 0x{:02X} is not UTF-8 text", byte))});
}

std::size_t after_mark(std::string_view text) { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }

std::string in_quotes(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(sequence(text, at), 1);
    if (at + length > kClip) return '"' + shown + "...\"";
    const auto lead = static_cast<unsigned char>(text[at]);
    shown += lead < 0x20 || lead == 0x7F ? std::string_view("?") : text.substr(at, length);
    at += length;
  }
  return '"' + shown + '"';
}

std::string found(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "the end of the file";
  const auto lead = static_cast<unsigned char>(text[offset]);
  if (lead < 0x20 || lead == 0x7F) return formatted("byte 0x{:02X}", lead);
  return formatted("'{}'", text.substr(offset, std::max<std::size_t>(sequence(text, offset), 1)));
}

}  // namespace dsplan::detail
