// Python's pickle as data, never as code: what `pickle.dump` writes under protocols 2 to 5 for None, booleans,
// integers, floats, strings, bytes, lists, tuples and dicts. Source of the format: Python's Lib/pickletools.py.
//
// Refused, each with the byte offset: every opcode that names or calls something (GLOBAL, REDUCE, BUILD, ...), the text
// opcodes of protocols 0 and 1, sets, buffers outside the file, truncated or contradictory input, text that is not
// UTF-8, more than kMostPickleValues values. Nothing here recurses and nothing is copied out of the file, so that
// memory is bounded by the file and that figure. A value may be shared, and a hostile list may hold itself: readers
// that walk must know how deep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"

namespace dsplan {

// Entries of a history of 100,000 take some 10 to 60 MiB.
inline constexpr std::size_t kLargestPickle = std::size_t{512} << 20;
inline constexpr std::size_t kMostPickleValues = 16'000'000;

using PickleId = std::uint32_t;  // Index into Pickle::nodes.

struct PickleNode {
  enum class Kind : std::uint8_t { None, Bool, Integer, Huge, Real, String, Binary, List, Tuple, Dict };
  std::int64_t number = 0;   // Integer and Bool; the bits of a Real; where a String begins; a container's index.
  std::uint64_t offset = 0;  // Of the opcode.
  std::uint32_t length = 0;  // String, Binary.
  Kind kind = Kind::None;    // Huge: an integer that does not fit in 63 bits and a sign.
};

struct Pickle {
  std::string path;
  std::string text;
  std::vector<PickleNode> nodes;
  std::vector<std::vector<PickleId>> containers;  // A dict: key, value, key, value, ...
  PickleId root = 0;

  [[nodiscard]] const PickleNode& node(PickleId id) const { return nodes[id]; }
  [[nodiscard]] std::span<const PickleId> items(PickleId id) const;  // Of a List, Tuple or Dict.
  [[nodiscard]] std::string_view string(PickleId id) const;          // Of a String or Binary.
  [[nodiscard]] double real(PickleId id) const;                      // Of a Real.
  [[nodiscard]] Refusal at(std::size_t offset, std::string message, std::string hint = {}) const;
};

[[nodiscard]] std::string_view describe(PickleNode::Kind kind);  // "a list"

[[nodiscard]] Pickle read_pickle(std::string path, std::string text);

// Whether `text` begins as a pickle of protocol 2 or later.
[[nodiscard]] bool looks_like_pickle(std::string_view text);

// Writes protocol 2 with the opcodes that PyTorch's public viewer (torch/utils/viz/MemoryViz.js) knows. A container is
// what is written between its `begin` and `end`, keys and values in turn; equal strings are written once and shared.
class PickleWriter {
 public:
  PickleWriter();

  void begin_dict();
  void begin_list();
  void end();
  void string(std::string_view text);
  void integer(std::int64_t value);
  void boolean(bool value);
  void real(double value);
  // Two integers as a tuple.
  void pair(std::int64_t first, std::int64_t second);
  void key(std::string_view text) { string(text); }

  // Names the value that was just written, so that `share` can write it again as a reference.
  [[nodiscard]] std::uint32_t remember();
  void share(std::uint32_t memo);

  [[nodiscard]] std::string finish();

 private:
  struct Open {
    bool list = false;
    std::size_t count = 0;
  };
  void next();
  void little_endian(std::uint64_t value, int bytes);

  std::string text_;
  std::unordered_map<std::string, std::uint32_t> strings_;
  std::vector<Open> open_;
  std::uint32_t memos_ = 0;
};

}  // namespace dsplan
