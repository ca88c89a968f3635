// What all transports know of a collective call: whether it can be, how buffers are cut, and a group of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "exec/transport/transport.h"

namespace dsplan::exec {

// Elements [begin, begin + length) of n in W chunks whose lengths differ by one at most.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
[[nodiscard]] inline Chunk chunk_of(std::int64_t elements, int ranks, int at) {
  const std::int64_t base = elements / ranks;
  const std::int64_t longer = elements % ranks;
  return {base * at + std::min<std::int64_t>(at, longer), base + (at < longer ? 1 : 0)};
}

// Bytes of so many elements of a call, and where one of them stands in a buffer.
[[nodiscard]] inline std::int64_t bytes_of(std::int64_t elements, const CollectiveCall& call) {
  return elements * bytes_per_element(call.dtype);
}
[[nodiscard]] inline const char* element_at(const void* buffer, std::int64_t element, const CollectiveCall& call) {
  return static_cast<const char*>(buffer) + bytes_of(element, call);
}
[[nodiscard]] inline char* element_at(void* buffer, std::int64_t element, const CollectiveCall& call) {
  return static_cast<char*>(buffer) + bytes_of(element, call);
}

// Throws RunFailure (DSPLAN_INVALID) for calls that no group of `ranks` ranks can make. `me` is the rank within the
// group, `rank` among all.
void validate(const CollectiveCall& call, int me, int ranks, int rank);

// "rank 2 calls all_reduce of 9 fp32 from root 0 at event 41"
[[nodiscard]] std::string describe(const CollectiveCall& call, int rank);
// Whether ranks of one group may make these two calls together.
[[nodiscard]] bool agree(const CollectiveCall& a, const CollectiveCall& b);

// A group of one rank: nothing is sent.
[[nodiscard]] std::unique_ptr<Communicator> alone(Group group, Device& device);

}  // namespace dsplan::exec
