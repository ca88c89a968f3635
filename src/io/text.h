// Text files as documents. Four notations end in the same `Document`: strict JSON, Hjson as DeepSpeed reads it, YAML as
// PyYAML's safe loader reads it, and TOML. Every value keeps the byte offset at which it starts in the original text.
//
// All of them refuse: text that is not UTF-8, duplicate keys (up to 20 at once, each naming the line of the first),
// nesting deeper than kDeepest, more than kMostValues values, and numbers too large for a double. A byte order mark
// is passed over. Integers that do not fit in 63 bits become Real with `huge` set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/document.h"

namespace dsplan {

inline constexpr std::size_t kLargestText = std::size_t{64} << 20;
inline constexpr std::size_t kLargestYaml = std::size_t{1} << 20;  // Training files; libyaml is slow.
inline constexpr std::size_t kDeepest = 128;
// A value takes about a hundred bytes in memory, so that this bounds a hostile file to a few hundred MiB; the index
// of the largest published model has a tenth of it.
inline constexpr std::size_t kMostValues = 2'000'000;

// What commands take for a file where they shall read standard input.
inline constexpr const char* kStandardInput = "-";

// The whole file, or standard input. Refused: missing, unreadable, not a regular file, larger than `most` bytes. A larger file is never
// read whole: at most `most` + 1 bytes are taken from it, whatever size it claims to have.
[[nodiscard]] std::string read_file(const std::string& path, std::size_t most = kLargestText);

// Strict JSON (RFC 8259): no comments, no trailing commas, no NaN or Infinity, no lone surrogates.
[[nodiscard]] Document parse_json(std::string path, std::string text);

// Hjson by the rules of the Python package that DeepSpeed uses (hjson 3.1.0): comments (#, //, /* */), commas may
// trail or give way to a new line, keys need no quotes, single quotes, '''multi-line strings''', strings without
// quotes to the end of the line, an object without its braces; a blank file is an empty object. Narrower than that
// package where it guesses: refused are a root that is neither an object nor an array, and ''' strings on the first
// line. An integral number with an exponent (5e8) stays Real; `ObjectReader::integer` reads it.
[[nodiscard]] Document parse_hjson(std::string path, std::string text);

// YAML 1.1 as PyYAML's safe loader resolves plain scalars, anchors, aliases and merge keys, with two narrowings and one
// widening. Refused by name: tags beyond the standard scalar and collection ones, more than one document, keys that are
// not strings, anchors and aliases as keys, an alias inside what it names, aliases that make much of little, base-60
// numbers and timestamps (they would silently become something else), infinities and NaN, more than kLargestYaml bytes. `yes`, `no`, `on`, `off` are booleans; a blank file is null. `5e8` and `1e-5`, without
// a dot, are strings to PyYAML and Hugging Face turns them into numbers later; here they are numbers at once.
[[nodiscard]] Document parse_yaml(std::string path, std::string text);

// TOML 1.0 by toml++: tables in the order of the file, duplicate keys refused as TOML has it. Refused besides: dates and
// times, infinities and NaN, more than kLargestYaml bytes.
[[nodiscard]] Document parse_toml(std::string path, std::string text);

// Of standard input what begins with a brace or a bracket is JSON, everything else YAML. By extension: .json strict JSON, .hjson Hjson, .yaml and .yml YAML, .toml TOML (letter case does not matter); others refused.
[[nodiscard]] Document read_document(const std::string& path);

}  // namespace dsplan

namespace dsplan::detail {

// A regular file opened for reading in pieces. Not for use outside io's readers.

class File {
 public:
  // Refused: missing, unreadable, not a regular file.
  explicit File(const std::string& path);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] std::uint64_t size() const { return size_; }  // When it was opened.
  // Up to `count` bytes from `offset`; less only where the system gives less, 0 at the end.
  [[nodiscard]] std::size_t read(std::uint64_t offset, char* into, std::size_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace dsplan::detail
