// How gradients under ZeRO-1 and ZeRO-2 are reduced (zero/stage_1_and_2.py, average_tensor and allreduce_bucket).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/runtimes/stage12_facts.h"

namespace dsplan {

// A gradient that travels as a tensor of its own (contiguous_gradients off).
struct SeparateGradient {
  BufferId gradient = kNoBuffer;
  std::int64_t offset = 0;  // Elements, in what several are joined to.
  std::int64_t elements = 0;
  bool mine = false;  // It touches this rank's partition.
};

class Stage12Reduction {
 public:
  Stage12Reduction(Emitter& emitter, const Stage12Facts& facts, GradientSums& sums)
      : eager_(emitter), facts_(facts), sums_(sums) {}

  // All-reduces `slices` of `tensor`, of whose `elements` they are: in place; through a concatenation; or one reduce
  // per owner.
  void average_tensor(BufferId tensor, std::int64_t elements, const std::vector<GradientSlice>& slices);
  // The allocator hears of what the reduce stream does with `tensor` only where a reduction says so (record_stream):
  // where it is sent as it lies, or where something is copied back.
  void tell_no_use(BufferId tensor);
  // Gradients are joined, all-reduced and copied back, whoever owns them; a single one is reduced where it is.
  void buffered_reduce_fallback(const std::vector<SeparateGradient>& gradients, std::int64_t elements);
  // The host waits for the device, with overlap_comm.
  void synchronize();

 private:
  void gradient_reduction_w_predivide(BufferId tensor, std::int64_t elements, const std::vector<GradientSlice>& slices);
  void allreduce_no_retain(BufferId tensor, const std::vector<GradientSlice>& slices, std::int64_t owner);
  void allreduce_and_copy(BufferId tensor, const std::vector<GradientSlice>& group, std::int64_t owner);
  void all_reduce(const Part& part, Bytes bytes, std::int64_t owner);

  void tell_slices(BufferId tensor, const std::vector<GradientSlice>& group, bool sent_as_it_lies);
  [[nodiscard]] bool casts() const { return facts_.training.communication_dtype != facts_.bucket_dtype; }
  [[nodiscard]] Variable cast_for_communication(const Part& part);
  [[nodiscard]] Variable room_to_join(std::int64_t elements);
  void add_or_copy_own(BufferId reduced, BufferId tensor, bool joined, const std::vector<GradientSlice>& group);

  Eager eager_;
  const Stage12Facts& facts_;
  GradientSums& sums_;
};

}  // namespace dsplan
