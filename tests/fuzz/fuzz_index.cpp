// read_safetensors of an index: the first line is the index's JSON, the rest lies beside it as two shards of one name
// each. It is refused, or each tensor that comes back is named by the index's weight_map.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/safetensors.h"
#include "io/text.h"
#include "property.h"

using namespace dsplan;

namespace {

// A folder in memory, or as near to one as the system has.
const std::string& folder() {
  static const std::string path =
      formatted("{}/dsplan-fuzz-index-{}", ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", ::getpid());
  return path;
}

struct Cleaner {
  Cleaner() { std::filesystem::create_directories(folder()); }
  ~Cleaner() { std::filesystem::remove_all(folder()); }
} cleaner;

void write(const std::string& name, std::string_view bytes) {
  std::ofstream(folder() + "/" + name, std::ios::binary) << bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t line = all.find('\n');
  const std::string_view rest = line == std::string_view::npos ? std::string_view() : all.substr(line + 1);
  const std::size_t half = rest.size() / 2;
  const std::string index = folder() + "/model.safetensors.index.json";
  write("model.safetensors.index.json", all.substr(0, line));
  write("a.safetensors", rest.substr(0, half));
  write("b.safetensors", rest.substr(half));
  std::vector<TensorHeader> tensors;
  if (!fuzz::accepts([&] { tensors = read_safetensors({index}); })) return 0;
  const Document document = parse_json("index", std::string(all.substr(0, line)));
  const Value* map = document.root.find("weight_map");
  fuzz::require(map != nullptr, "an accepted index has a weight_map");
  fuzz::require(tensors.size() == map->members.size(), "each tensor of the index comes back once");
  for (const TensorHeader& tensor : tensors) {
    fuzz::require(map->find(tensor.name) != nullptr, "a tensor that the index names");
  }
  return 0;
}
