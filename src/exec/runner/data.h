// The numbers that a run starts from: what is drawn, initial values, tokens. None depends on ranks, stages or the order
// of calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model.h"

namespace dsplan::exec {

// Of a text, byte by byte. A sample is a stretch of it; which one depends on its number among all samples of the run
// alone, so that ranks and accumulation divide the same data differently.
class Text {
 public:
  // The text that ships with dsplan.
  Text();
  // At least two bytes.
  explicit Text(std::string text);

  // `length` tokens of sample `sample`; each is below `vocabulary`.
  [[nodiscard]] std::vector<std::int64_t> tokens(std::int64_t sample, std::int64_t length,
                                                 std::int64_t vocabulary) const;

 private:
  std::string text_;
};

enum class Initial : std::uint8_t { Zeros, Ones, Normal };

// Biases and LoRA's second factors begin as zeros, the weights of norms as ones, everything else is drawn.
[[nodiscard]] Initial initial_of(const ModelSpec& model, ParameterId parameter);

// The values of a buffer: frequencies of rotary positions, without any scaling of theirs; numbers of places; kinds of
// tokens, which are all of the first. Refuses, by name, a buffer that is none of them.
[[nodiscard]] std::vector<double> values_of(const ModelSpec& model, const ModelBuffer& buffer);

// Keys for the counter-based generator: what is drawn depends on what it is for, never on who draws it or when.
//
// splitmix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

enum class DrawnFor : std::uint8_t { Parameter, Dropout };

// `what`: the parameter or the operator. `when`: the micro-batch since the beginning; 0 for parameters.
[[nodiscard]] constexpr std::uint64_t random_key(std::uint64_t seed, DrawnFor purpose, std::uint64_t what,
                                                 std::uint64_t when) {
  return mixed(mixed(mixed(seed + static_cast<std::uint64_t>(purpose)) ^ what) ^ when);
}

}  // namespace dsplan::exec
