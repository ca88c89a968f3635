// Counter-based random numbers: Philox 4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
// easy as 1, 2, 3", 2011). What element e of sample s draws depends on the key, s and e alone: not on ranks, on the
// order of calls, or on whether it is drawn for the second time.
#pragma once

#include <cmath>
#include <cstdint>

#include "exec/bodies/both.h"

namespace dsplan::exec::bodies {

struct Words {
  std::uint32_t word[4];
};

DSPLAN_BOTH inline Words philox(Words counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter.word[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter.word[2];
    const Words next = {
        {static_cast<std::uint32_t>(second >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(second),
         static_cast<std::uint32_t>(first >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(first)}};
    counter = next;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// Four numbers serve four neighbouring elements.
DSPLAN_BOTH inline Words draw(std::uint64_t key, std::uint64_t sample, std::uint64_t quad) {
  const Words counter = {{static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(quad >> 32),
                          static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)}};
  return philox(counter, static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
}

// In [0, 1), in steps of 2^-24, so that fp32 and fp64 see the same.
DSPLAN_BOTH inline double uniform(std::uint32_t word) { return static_cast<double>(word >> 8) * 0x1p-24; }

// Whether dropout with probability `p` keeps the element.
DSPLAN_BOTH inline bool kept(std::uint64_t key, std::uint64_t sample, std::uint64_t element, double p) {
  return uniform(draw(key, sample, element / 4).word[element % 4]) >= p;
}

// Normally distributed (Box and Muller), of mean 0 and deviation 1: elements 2k and 2k + 1 share a pair of uniforms.
DSPLAN_BOTH inline double normal(std::uint64_t key, std::uint64_t sample, std::uint64_t element) {
  const Words words = draw(key, sample, element / 4);
  const unsigned pair = static_cast<unsigned>(element % 4) / 2 * 2;
  const double radius = std::sqrt(-2 * std::log(1 - uniform(words.word[pair])));
  const double angle = 6.283185307179586 * uniform(words.word[pair + 1]);
  return radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace dsplan::exec::bodies
