#include "io/text.h"

#include <algorithm>

#include "core/format.h"
#include "io/file.h"

namespace dsplan {
namespace {

std::string size_text(std::size_t bytes) {
  return bytes % (std::size_t{1} << 20) == 0 ? formatted("{} MiB", bytes >> 20) : formatted("{} bytes", bytes);
}

}  // namespace

std::string read_file(const std::string& path, std::size_t most) {
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
  const std::size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::size_t dot = name.rfind('.');
  std::string extension = dot == std::string::npos ? std::string() : name.substr(dot);
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (extension == ".json") return parse_json(path, read_file(path));
  if (extension == ".hjson") return parse_hjson(path, read_file(path));
  if (extension == ".yaml" || extension == ".yml") return parse_yaml(path, read_file(path, kLargestYaml));
  throw Refusal(path, "not a .json, .hjson, .yaml or .yml file");
}

}  // namespace dsplan
