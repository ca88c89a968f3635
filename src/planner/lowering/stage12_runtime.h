// ZeRO-1 and ZeRO-2 (DeepSpeed runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer), without offload.
//
// One flat 16-bit buffer per rank holds all trained parameters, padded to 2 * W elements and cut into W equal
// partitions; master copy and optimizer state cover the rank's own partition. Gradients travel through a bucket of
// `reduce_bucket_size` elements: copied in as they become ready, all-reduced when the next one does not fit, and those
// that touch the rank's partition are kept in one tensor (grads_in_partition).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/lowering/runtime_base.h"

namespace dsplan {

class Stage12Runtime final : public RuntimeBase {
 public:
  Stage12Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void initialise() override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  void backward_begins(bool boundary) override {
    boundary_ = boundary;
    if (zero().stage == 2) kept_in_this_backward_ = kNoBuffer;
  }
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void backward_ends(bool boundary) override;
  void step(bool first) override;

 private:
  struct Entry {
    std::size_t parameter;  // Index into trained_.
    std::int64_t offset;    // In the bucket.
    BufferId own;           // kNoBuffer: in the bucket; else the gradient's own tensor (contiguous_gradients off).
  };
  // Part of a gradient that one rank owns.
  struct Slice {
    std::int64_t owner;
    std::int64_t begin;  // Elements, in the tensor that is being reduced.
    std::int64_t count;
  };

  [[nodiscard]] static std::size_t at(ParameterId parameter) { return static_cast<std::size_t>(parameter); }

  // stage12_runtime.cpp
  void lay_out();
  void create_master();

  // stage12_bucket.cpp
  void put_in_bucket(std::size_t parameter, BufferId gradient);
  void open_buckets();
  void reduce_large(std::size_t parameter, BufferId gradient);
  void flush();
  BufferId join_entries();
  void append_slices(std::size_t parameter, std::int64_t begin, std::vector<Slice>& slices) const;
  void keep(std::size_t parameter, BufferId from, std::int64_t offset);
  void add_to_accumulated();

  // stage12_reduce.cpp
  void reduce(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices);
  void reduce_in_place(BufferId tensor, std::int64_t begin, std::int64_t count);
  BufferId cast_for_communication(BufferId tensor, Bytes offset, Bytes bytes, std::int64_t count);
  void reduce_group(BufferId tensor, const std::vector<Slice>& slices, std::size_t from, std::size_t to,
                    std::int64_t count);
  [[nodiscard]] static std::vector<std::int64_t> owners_in_order(const std::vector<Slice>& slices);
  void reduce_to_owner(BufferId tensor, const std::vector<Slice>& slices, std::int64_t owner);

  // stage12_step.cpp
  void measure_gradients();
  void scratch(Bytes bytes, DType type, Label label);
  BufferId own_gradient();
  BufferId cast_to_master(BufferId flat);

  std::vector<BufferId> whole_;            // By ParameterId: parameters outside the flat buffer.
  std::vector<BufferId> held_;             // By ParameterId: `.grad` that waits for the boundary.
  std::vector<std::int64_t> offset_;       // By index into trained_: element offset in the flat buffer.
  std::vector<std::int64_t> kept_offset_;  // Offset in grads_in_partition; -1 if it does not touch this partition.
  std::int64_t padded_ = 0;
  std::int64_t partition_ = 0;
  std::int64_t kept_ = 0;  // Elements of grads_in_partition: G_r.
  std::int64_t largest_fragment_ = 0;
  std::int64_t fragments_ = 0;
  BufferId flat_ = kNoBuffer;
  BufferId master_ = kNoBuffer;
  std::vector<BufferId> state_;
  std::array<BufferId, 2> buckets_{kNoBuffer, kNoBuffer};
  std::size_t active_ = 0;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  BufferId accumulated_ = kNoBuffer;            // grads_in_partition that the step will take.
  BufferId kept_in_this_backward_ = kNoBuffer;  // The one that this backward fills.
  bool boundary_ = true;
};

}  // namespace dsplan
