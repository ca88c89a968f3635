// Keys for the counter-based generator: what is drawn depends on what it is for, never on who draws it or when, so that
// ranks, stages, recomputation and the order of calls change nothing.
#pragma once

#include <cstdint>

namespace dsplan::exec {

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
