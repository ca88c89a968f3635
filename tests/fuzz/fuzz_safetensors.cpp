// read_safetensors_file: the input's bytes are a file. Accepted tensors tile what follows the header: their bytes add
// up to the file's size, and each is what its type and shape make.
#include <unistd.h>

#include "io/safetensors.h"
#include "property.h"

using namespace dsplan;

namespace {

// The input as a file in memory, or as near to one as the system has.
const std::string& scratch() {
  static const std::string path = dsplan::formatted("{}/dsplan-fuzz-{}.safetensors",
                                                    ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", ::getpid());
  return path;
}

struct Cleaner {
  ~Cleaner() { ::unlink(scratch().c_str()); }
} cleaner;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::FILE* file = std::fopen(scratch().c_str(), "wb");
  fuzz::require(file != nullptr && std::fwrite(data, 1, size, file) == size, "the scratch file can be written");
  std::fclose(file);
  std::vector<TensorHeader> tensors;
  if (!fuzz::accepts([&] { tensors = read_safetensors_file(scratch()); })) return 0;
  std::uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | data[i];
  std::uint64_t total = 8 + header;
  for (const TensorHeader& tensor : tensors) {
    fuzz::require(tensor.bytes >= 0 && safetensors_bits(tensor.dtype) > 0, "a tensor has a type and a size");
    long double bits = static_cast<long double>(safetensors_bits(tensor.dtype));
    for (const std::int64_t dimension : tensor.shape) bits *= static_cast<long double>(dimension);
    fuzz::require(bits == 8 * static_cast<long double>(tensor.bytes), "bytes are type times shape");
    total += static_cast<std::uint64_t>(tensor.bytes);
  }
  fuzz::require(total == size, "the tensors tile the file");
  return 0;
}
