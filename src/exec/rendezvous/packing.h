// Values as bytes for another process of the same run, which is the same program on the same kind of machine: numbers
// as they lie in memory, texts and lists behind their length. A struct goes through where a function
// `fields(archive, value)` hands each of its members to the archive.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "core/units.h"

namespace dsplan::exec {

using Blob = std::vector<std::byte>;

// What came is not what was to come.
class Garbled : public std::runtime_error {
 public:
  Garbled() : std::runtime_error("what another rank sent is not understood") {}
};

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Packer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  [[nodiscard]] Blob take() { return std::move(bytes_); }

 private:
  template <Plain T>
  void put(const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  template <class Tag>
  void put(const Count<Tag>& count) {
    put(count.value());
  }
  void put(const std::string& text) {
    put(static_cast<std::uint64_t>(text.size()));
    const auto* from = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), from, from + text.size());
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put(static_cast<std::uint64_t>(list.size()));
    for (const T& each : list) put(each);
  }
  template <class T, std::size_t N>
  void put(const std::array<T, N>& list) {
    for (const T& each : list) put(each);
  }
  template <class T>
  void put(const T& value) {
    fields(*this, const_cast<T&>(value));  // The archive decides the direction; this one only reads.
  }

  Blob bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(const Blob& bytes) : bytes_(bytes) {}
  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  // Throws where something was left over.
  void finish() const {
    if (at_ != bytes_.size()) throw Garbled();
  }

 private:
  void read(void* into, std::size_t bytes) {
    if (bytes > bytes_.size() - at_) throw Garbled();
    if (bytes > 0) std::memcpy(into, bytes_.data() + at_, bytes);
    at_ += bytes;
  }
  // Of a list whose elements take a byte each at least.
  [[nodiscard]] std::size_t length() {
    std::uint64_t count = 0;
    get(count);
    if (count > bytes_.size() - at_) throw Garbled();
    return static_cast<std::size_t>(count);
  }
  template <Plain T>
  void get(T& value) {
    read(&value, sizeof value);
  }
  template <class Tag>
  void get(Count<Tag>& count) {
    std::int64_t value = 0;
    get(value);
    count = Count<Tag>(value);
  }
  void get(std::string& text) {
    text.resize(length());
    read(text.data(), text.size());
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool there = false;
    get(there);
    value.reset();
    if (there) get(value.emplace());
  }
  template <class T>
  void get(std::vector<T>& list) {
    list.clear();
    list.resize(length());
    for (T& each : list) get(each);
  }
  template <class T, std::size_t N>
  void get(std::array<T, N>& list) {
    for (T& each : list) get(each);
  }
  template <class T>
  void get(T& value) {
    fields(*this, value);
  }

  const Blob& bytes_;
  std::size_t at_ = 0;
};

template <class... T>
[[nodiscard]] Blob packed(const T&... values) {
  Packer packer;
  packer(values...);
  return packer.take();
}

template <class T>
[[nodiscard]] T unpacked(const Blob& bytes) {
  T value{};
  Unpacker unpacker(bytes);
  unpacker(value);
  unpacker.finish();
  return value;
}

}  // namespace dsplan::exec
