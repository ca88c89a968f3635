// How trained parameters lie in one flat buffer that is cut into equal partitions: offsets in elements, pure data.
//
// Sources: DeepSpeed zero/stage_1_and_2.py (nccl_start_alignment_factor, _round_robin_reorder, get_partition_info),
// bf16_optimizer.py (nccl_start_alignment_factor).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtimes/named_parameters.h"

namespace dsplan {

struct FlatLayout {
  // The part of a parameter that lies in this rank's partition, in elements.
  struct Fragment {
    std::size_t parameter = 0;  // Index into `order`.
    std::int64_t source = 0;    // Where it begins in the parameter,
    std::int64_t target = 0;    // and in the partition.
    std::int64_t count = 0;
  };

  // In the order of `order`; padded to `alignment` elements, a multiple of `ranks`, and cut into as many partitions.
  FlatLayout(std::vector<NamedParameter> order, std::int64_t alignment, std::int64_t ranks, std::int64_t rank);

  // The first element of this rank's partition.
  [[nodiscard]] std::int64_t begin() const { return rank * partition; }
  // Elements of this rank's partition that no parameter fills.
  [[nodiscard]] std::int64_t padding() const;
  [[nodiscard]] bool is_mine(std::size_t parameter) const { return kept_offset[parameter] >= 0; }
  // Of a parameter that is in `order`.
  [[nodiscard]] std::size_t index_of(ParameterId parameter) const { return index[at(parameter)]; }
  // Of a parameter that is mine.
  [[nodiscard]] const Fragment& fragment_of(std::size_t parameter) const;

  std::vector<NamedParameter> order;
  std::vector<std::int64_t> offset;  // By index into `order`.
  std::vector<std::size_t> index;    // By ParameterId.
  std::int64_t elements = 0;
  std::int64_t padded = 0;
  std::int64_t partition = 0;
  std::int64_t ranks = 1;
  std::int64_t rank = 0;
  std::vector<Fragment> fragments;  // Of this rank's partition, in its order.
  // What touches the partition, whole and back to back (grads_in_partition): offsets by index, -1 for others; its sum.
  std::vector<std::int64_t> kept_offset;
  std::int64_t kept = 0;
};

// Each rank's parameters, dealt out one by one, lie together (round_robin_gradients).
[[nodiscard]] std::vector<NamedParameter> dealt_out(const std::vector<NamedParameter>& trained, std::int64_t ranks);

}  // namespace dsplan
