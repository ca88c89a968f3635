// Gradients under ZeRO-1 and ZeRO-2 on their way into buckets and out of them to the rank's own partition
// (zero/stage_1_and_2.py: independent parameter gradient buckets, ipg).
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/lower/runtimes/stage12_partition.h"
#include "planner/lower/runtimes/stage12_reduction.h"

namespace dsplan {

class IpgBuckets {
 public:
  // All must outlive this.
  IpgBuckets(Emitter& emitter, const Stage12Facts& facts, Stage12Reduction& reduction, OwnPartition& partition)
      : eager_(emitter), facts_(facts), reduction_(reduction), partition_(partition) {}

  // All of them, whatever the model's size, where they are not there yet. The second one of overlap_comm is made even
  // where gradients are not copied together.
  void setup_buckets();
  // `parameter`: its index in the layout.
  void reduce_independent_p_g_buckets_and_remove_grads(std::size_t parameter, Variable gradient);
  // At the end of a backward: what is left is reduced, and buckets go.
  void independent_gradient_partition_epilogue(bool boundary);
  // What waits for the end of a backward, or of a step.
  void drop_late() { late_.reset(Reason::GradientHeld); }

 private:
  struct Entry {
    std::size_t parameter;
    std::int64_t offset;  // Elements, in the bucket.
    Variable own;         // None: in the bucket; else the gradient's own tensor (contiguous_gradients off).
  };

  void reduce_ipg_grads();
  void reduce_extra_large_param();
  void reduce_apart();
  void close_buckets();
  void wait_for_reductions();
  void let_go(std::size_t parameter, Variable gradient);

  Eager eager_;
  const Stage12Facts& facts_;
  Stage12Reduction& reduction_;
  OwnPartition& partition_;
  std::array<Variable, 2> buckets_;
  std::size_t active_ = 0;
  std::array<bool, 2> points_into_{};  // Whether gradients of other ranks' parameters lie in it.
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::pair<std::size_t, Variable> extra_large_param_;  // Alone in the bucket that it does not fit into.
  Variables previous_reduced_grads_;                    // Overlap, contiguous_gradients off: until the next reduction.
  Variables late_;  // Reduced, and still held by `.grad` of parameters that are not this rank's.
};

}  // namespace dsplan
