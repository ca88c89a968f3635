// What NCCL itself takes on a device, apart from everything that a plan allocates. Read in NCCL 2.28.9 (init.cc,
// channel.cc, transport/p2p.cc, with its default buffer sizes and the 2 MiB pages of its allocations); not yet
// measured.
#pragma once

#include <cstdint>

#include "core/units.h"

namespace dsplan {

inline constexpr Bytes kNcclPage{2LL << 20};
// The most channels that NCCL uses within a node of NVLink; what bounds the blocks of a call bounds them.
inline constexpr std::int64_t kNcclChannels = 32;

// When a communicator is made, of one rank too: itself and a map of ranks, and for each channel a table of shared
// peers, one of own peers, and the order of its ring.
[[nodiscard]] constexpr Bytes nccl_tables(std::int64_t channels) { return kNcclPage * (2 + 3 * channels); }

// At the first call that goes around a ring, whatever the number of ranks above one: for each channel one connection to
// receive (buffers of the protocols LL, LL128 and Simple, rounded: 10 MiB) and one to send (2 MiB).
[[nodiscard]] constexpr Bytes nccl_ring(std::int64_t channels) { return kNcclPage * 6 * channels; }

}  // namespace dsplan
