// Images as nvcc writes them, as far as they are read: an ELF file with the sections that describe kernels.
#include "dry/cubin.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

using namespace dsplan::dry;

namespace {

using Bytes = std::vector<unsigned char>;

template <class T>
void append(Bytes& to, const T& value) {
  const auto* first = reinterpret_cast<const unsigned char*>(&value);
  to.insert(to.end(), first, first + sizeof value);
}

// An image with one kernel "k" of so many registers, threads by its launch bounds, and bytes of shared memory.
Bytes image(std::int32_t registers, std::int32_t threads, std::size_t shared) {
  std::string names("\0k\0", 3);
  std::vector<std::pair<Elf64_Shdr, Bytes>> sections;
  const auto add = [&](const char* name, std::uint32_t type, Bytes content, std::uint32_t link = 0) {
    Elf64_Shdr header{};
    header.sh_name = static_cast<std::uint32_t>(names.size());
    header.sh_type = type;
    header.sh_link = link;
    header.sh_size = type == SHT_NOBITS ? shared : content.size();
    names += std::string(name) + '\0';
    sections.emplace_back(header, std::move(content));
  };
  Bytes info{4, 0x2f, 8, 0};
  append(info, std::int32_t{1});  // The symbol.
  append(info, registers);
  Bytes bounds{4, 0x05, 12, 0};
  for (const std::int32_t along : {threads, 1, 1}) append(bounds, along);
  Bytes symbols(sizeof(Elf64_Sym));
  Elf64_Sym kernel{};
  kernel.st_name = 1;
  append(symbols, kernel);
  add("", SHT_NULL, {});
  add(".nv.info", 0x70000000, info);
  add(".nv.info.k", 0x70000000, bounds);
  add(".nv.shared.k", SHT_NOBITS, {});
  add(".symtab", SHT_SYMTAB, symbols, 5);
  add(".strtab", SHT_STRTAB, {});
  sections.back().second.assign(names.begin(), names.end());
  sections.back().first.sh_size = names.size();

  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_shnum = static_cast<std::uint16_t>(sections.size());
  head.e_shstrndx = 5;
  Bytes content;
  for (auto& [header, bytes] : sections) {
    header.sh_offset = sizeof head + content.size();
    content.insert(content.end(), bytes.begin(), bytes.end());
  }
  head.e_shoff = sizeof head + content.size();
  Bytes all;
  append(all, head);
  all.insert(all.end(), content.begin(), content.end());
  for (const auto& section : sections) append(all, section.first);
  return all;
}

// Images of several architectures, as a program registers them.
Bytes fat(const std::vector<std::pair<std::uint32_t, Bytes>>& images, std::uint32_t compressed = 0) {
  Bytes inner;
  for (const auto& [architecture, bytes] : images) {
    append(inner, std::uint16_t{2});
    append(inner, std::uint16_t{0x101});
    append(inner, std::uint32_t{64});
    append(inner, std::uint64_t{bytes.size()});
    append(inner, compressed);
    append(inner, std::uint32_t{0});
    append(inner, std::uint32_t{0x10008});
    append(inner, architecture);
    inner.resize(inner.size() + 32);
    inner.insert(inner.end(), bytes.begin(), bytes.end());
  }
  Bytes all;
  append(all, std::uint32_t{0xba55ed50});
  append(all, std::uint16_t{1});
  append(all, std::uint16_t{16});
  append(all, std::uint64_t{inner.size()});
  all.insert(all.end(), inner.begin(), inner.end());
  return all;
}

// What a program hands over with its images.
struct Registration {
  explicit Registration(const Bytes& all) : images(all.data()) {}
  std::uint32_t magic = 0x466243b1;
  std::uint32_t version = 1;
  const unsigned char* images;
  void* more = nullptr;
};

std::map<std::string, KernelFacts> registered(const Bytes& images, int major, int minor) {
  const Registration code(images);
  return facts_in(&code, major, minor);
}
int loaded(const Bytes& images, int major, int minor) {
  const Registration code(images);
  return architecture_in(&code, major, minor);
}

}  // namespace

TEST_CASE("an image says what its kernels need") {
  const Bytes alone = image(80, 256, 8192);
  const auto facts = facts_in(alone.data(), 8, 0);
  REQUIRE(facts.count("k") == 1);
  CHECK(facts.at("k").registers == 80);
  CHECK(facts.at("k").threads == 256);
  CHECK(facts.at("k").shared == 8192);
  CHECK(facts_in(alone.data(), 9, 0).at("k").shared == 7168);  // From there on the system's part is in the section.
}

TEST_CASE("of several images the one is read that the device would load") {
  const Bytes all = fat({{80, image(10, 64, 0)}, {86, image(20, 64, 0)}, {90, image(30, 64, 0)}});
  CHECK(registered(all, 8, 0).at("k").registers == 10);
  CHECK(registered(all, 8, 9).at("k").registers == 20);
  CHECK(registered(all, 9, 0).at("k").registers == 30);
  CHECK(registered(all, 10, 0).empty());
}

TEST_CASE("a device loads the latest image that it runs, compressed or not") {
  for (const std::uint32_t compressed : {0U, 100U}) {
    const Bytes all = fat({{80, image(10, 64, 0)}, {86, image(20, 64, 0)}, {100, image(30, 64, 0)}}, compressed);
    CHECK(loaded(all, 8, 0) == 80);
    CHECK(loaded(all, 8, 9) == 86);
    CHECK(loaded(all, 10, 3) == 100);
    CHECK(loaded(all, 7, 0) == kNoImage);
    CHECK(loaded(all, 9, 0) == kNoImage);
  }
  CHECK(loaded(fat({}), 9, 0) == 0);
}

TEST_CASE("text is compiled for a later device, and machine code goes before it") {
  Bytes all = fat({{80, image(10, 64, 0)}, {86, image(20, 64, 0)}});
  const std::size_t second = all.size() - image(20, 64, 0).size() - 64;
  all[second] = 1;
  CHECK(loaded(all, 9, 0) == 86);
  CHECK(loaded(all, 8, 9) == 80);
  CHECK(loaded(all, 7, 5) == kNoImage);
  CHECK(registered(all, 9, 0).empty());
}

TEST_CASE("what is compressed or cut off is not read") {
  CHECK(registered(fat({{90, image(30, 64, 0)}}, 100), 9, 0).empty());
  Bytes broken = image(30, 64, 0);
  broken.resize(200);
  CHECK(registered(fat({{90, broken}}), 9, 0).empty());
  CHECK(registered(fat({}), 9, 0).empty());
}
