// What lies between the bytes that were asked for and those that are reserved, at one moment of an allocator.
#pragma once

#include <cstddef>
#include <vector>

#include "core/allocator_config.h"
#include "sim/placement.h"

namespace dsplan {

// A segment (of an expandable range: one mapped stretch) that is partly handed out and partly free.
struct SegmentInUse {
  Bytes address;
  Bytes size;
  Bytes free;                       // What empty_cache could not give back.
  std::vector<std::size_t> blocks;  // Indices into AllocatorState::blocks of those that pin it, largest first.
};

// reserved = requested + slack + awaiting + inactive_split + cached, by construction.
struct FragmentationMap {
  Bytes reserved;
  Bytes requested;                     // Of the blocks handed out.
  Bytes slack;                         // Of the same: rounding, and rests that are too small to be split off.
  Bytes awaiting;                      // Blocks whose free waits for another stream, slack included.
  Bytes inactive_split;                // Free, within segments in use; of expandable ranges what fills no page.
  Bytes cached;                        // What empty_cache would give back: whole segments, whole pages.
  std::vector<SegmentInUse> segments;  // Those with free bytes, most free bytes first, then by address.
};

// `config` is what the allocator ran with.
[[nodiscard]] FragmentationMap fragmentation_of(const AllocatorState& state, const AllocatorConfig& config);

}  // namespace dsplan
