#include "dry/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "dry/device.h"

namespace dsplan::dry {
namespace {

// What __cudaRegisterFatBinary is given, and what it points to.
struct Wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const unsigned char* images;
};
constexpr std::uint32_t kWrapperMagic = 0x466243b1;

struct FatHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;  // Of what follows.
};
constexpr std::uint32_t kFatMagic = 0xba55ed50;

struct ImageHeader {
  std::uint16_t kind;  // 1: PTX, 2: machine code.
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes;
  std::uint32_t options;
  std::uint16_t minor;
  std::uint16_t major;
  std::uint32_t architecture;  // 90.
};
constexpr std::uint16_t kText = 1;
constexpr std::uint16_t kMachineCode = 2;

template <class T>
T load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

struct Section {
  std::string_view name;
  Elf64_Shdr header;
};

class Image {
 public:
  Image(const unsigned char* bytes, std::size_t size) : bytes_(bytes) {
    if (size < sizeof(Elf64_Ehdr) || std::memcmp(bytes, ELFMAG, SELFMAG) != 0) return;
    const auto head = load<Elf64_Ehdr>(bytes);
    if (head.e_shoff + std::uint64_t{head.e_shnum} * sizeof(Elf64_Shdr) > size || head.e_shstrndx >= head.e_shnum)
      return;
    for (std::size_t i = 0; i < head.e_shnum; ++i) {
      const auto section = load<Elf64_Shdr>(bytes + head.e_shoff + i * sizeof(Elf64_Shdr));
      if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > size) {
        sections_.clear();
        return;
      }
      sections_.push_back({{}, section});
    }
    for (Section& section : sections_) section.name = text(head.e_shstrndx, section.header.sh_name);
  }

  // `reserved`: what the sections of shared memory hold of the system's own.
  [[nodiscard]] std::map<std::string, KernelFacts> facts(std::size_t reserved) const {
    std::map<std::string, KernelFacts> found;
    for (const Section& section : sections_) read(section, found);
    for (auto& [name, kernel] : found) kernel.shared -= std::min(kernel.shared, reserved);
    return found;
  }

 private:
  enum Attribute : unsigned char { kMaxThreads = 0x05, kRegisters = 0x2f };
  static constexpr unsigned char kWithValue = 4;  // An attribute whose value follows.

  [[nodiscard]] std::string_view text(std::size_t table, std::size_t at) const {
    if (table >= sections_.size() || at >= sections_[table].header.sh_size) return {};
    const auto* first = reinterpret_cast<const char*>(bytes_ + sections_[table].header.sh_offset + at);
    return {first, strnlen(first, sections_[table].header.sh_size - at)};
  }
  [[nodiscard]] std::string_view symbol(std::size_t index) const {
    for (const Section& section : sections_) {
      if (section.header.sh_type != SHT_SYMTAB || (index + 1) * sizeof(Elf64_Sym) > section.header.sh_size) continue;
      return text(section.header.sh_link,
                  load<Elf64_Sym>(bytes_ + section.header.sh_offset + index * sizeof(Elf64_Sym)).st_name);
    }
    return {};
  }

  void read(const Section& section, std::map<std::string, KernelFacts>& found) const {
    constexpr std::string_view kShared = ".nv.shared.";
    constexpr std::string_view kInfo = ".nv.info";
    if (section.name.substr(0, kShared.size()) == kShared) {
      const std::string_view kernel = section.name.substr(kShared.size());
      if (kernel.substr(0, 9) != "reserved.") found[std::string(kernel)].shared = section.header.sh_size;
    }
    if (section.name.substr(0, kInfo.size()) != kInfo) return;
    const std::string kernel(section.name.size() > kInfo.size() ? section.name.substr(kInfo.size() + 1) : "");
    const unsigned char* at = bytes_ + section.header.sh_offset;
    const unsigned char* end = at + section.header.sh_size;
    while (end - at >= 4) {
      const auto bytes = at[0] == kWithValue ? load<std::uint16_t>(at + 2) : std::uint16_t{0};
      if (end - at < 4 + bytes) return;
      if (at[0] == kWithValue) attribute(at[1], at + 4, bytes, kernel, found);
      at += 4 + bytes;
    }
  }

  void attribute(unsigned char what, const unsigned char* value, std::size_t bytes, const std::string& kernel,
                 std::map<std::string, KernelFacts>& found) const {
    if (what == kRegisters && bytes >= 8) {
      const std::string name(symbol(load<std::uint32_t>(value)));
      if (!name.empty()) found[name].registers = load<std::int32_t>(value + 4);
    }
    if (what == kMaxThreads && bytes >= 12 && !kernel.empty()) {
      found[kernel].threads = load<std::int32_t>(value) * load<std::int32_t>(value + 4) * load<std::int32_t>(value + 8);
    }
  }

  const unsigned char* bytes_;
  std::vector<Section> sections_;
};

// The image that a device loads: the latest machine code that it runs, else the latest text that it may compile.
struct Choice {
  const unsigned char* at = nullptr;
  ImageHeader image{};
  bool any = false;
};

// Code runs on its own capability and on later minor ones of the same major.
bool runs(const ImageHeader& image, int major, int minor) {
  const auto of = static_cast<int>(image.architecture);
  if (image.kind == kText) return of <= major * 10 + minor;
  return image.kind == kMachineCode && of / 10 == major && of % 10 <= minor;
}

Choice choose(const void* code, int major, int minor) {
  const auto wrapper = load<Wrapper>(static_cast<const unsigned char*>(code));
  if (wrapper.magic != kWrapperMagic || wrapper.images == nullptr) return {};
  const auto head = load<FatHeader>(wrapper.images);
  if (head.magic != kFatMagic) return {};
  Choice best;
  const unsigned char* at = wrapper.images + head.header_bytes;
  for (const unsigned char* end = at + head.bytes; end - at >= static_cast<std::ptrdiff_t>(sizeof(ImageHeader));) {
    const auto image = load<ImageHeader>(at);
    best.any = best.any || image.kind == kText || image.kind == kMachineCode;
    const auto rank = [](const ImageHeader& of) { return std::pair(of.kind, of.architecture); };
    if (runs(image, major, minor) && rank(image) >= rank(best.image)) {
      best.at = at;
      best.image = image;
    }
    at += image.header_bytes + image.bytes;
  }
  return best;
}

bool is_one_image(const void* code) { return std::memcmp(code, ELFMAG, SELFMAG) == 0; }

}  // namespace

std::map<std::string, KernelFacts> facts_in(const void* code, int major, int minor) {
  const std::size_t reserved = major >= 9 ? Device::kSharedOfTheSystem : 0;
  if (is_one_image(code)) {  // Its sections' table is its end.
    const auto* bytes = static_cast<const unsigned char*>(code);
    const auto head = load<Elf64_Ehdr>(bytes);
    return Image(bytes, std::max(head.e_shoff + std::uint64_t{head.e_shnum} * sizeof(Elf64_Shdr),
                                 head.e_phoff + std::uint64_t{head.e_phnum} * sizeof(Elf64_Phdr)))
        .facts(reserved);
  }
  const Choice chosen = choose(code, major, minor);
  if (chosen.at == nullptr || chosen.image.kind != kMachineCode || chosen.image.compressed_bytes != 0) return {};
  return Image(chosen.at + chosen.image.header_bytes, chosen.image.bytes).facts(reserved);
}

int architecture_in(const void* code, int major, int minor) {
  if (is_one_image(code)) return 0;
  const Choice chosen = choose(code, major, minor);
  if (chosen.at != nullptr) return static_cast<int>(chosen.image.architecture);
  return chosen.any ? kNoImage : 0;
}

}  // namespace dsplan::dry
