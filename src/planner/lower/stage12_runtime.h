// ZeRO-1 and ZeRO-2 (DeepSpeed runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer). With the optimizer on the host:
// stage12_offload.h.
//
// One flat 16-bit buffer per rank holds all trained parameters, padded to 2 * W elements and cut into W equal
// partitions; master copy and optimizer state cover the rank's own partition. Gradients travel through a bucket of
// `reduce_bucket_size` elements: copied in as they become ready, all-reduced when the next one does not fit, and those
// that touch the rank's partition are kept in one tensor (grads_in_partition).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/lower/runtime_base.h"

namespace dsplan {

// has_inf_or_nan without copies (#8325).
inline constexpr Version kScanWithoutCopies{0, 19, 6};
// Sums of offloaded gradients only where another micro-batch needs them.
inline constexpr Version kSumsWhereNeeded{0, 19, 0};

class Stage12Runtime : public RuntimeBase {
 public:
  Stage12Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter);

  void initialise() override;
  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override;
  void backward_begins(bool boundary) override;
  void gradient_ready(ParameterId parameter, BufferId gradient) override;
  void backward_ends(bool boundary) override;
  void step(bool first) override;

 protected:
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
    std::int64_t target;  // Element of the owner's partition at which it belongs.
  };

  [[nodiscard]] static std::size_t at(ParameterId parameter) { return static_cast<std::size_t>(parameter); }
  // Elements of the partition that no parameter fills.
  [[nodiscard]] std::int64_t padding() const;
  // Of what is kept of gradients, without padding.
  [[nodiscard]] DType kept_dtype() const { return sums_partition_ ? training().grad_accum_dtype : dtype(); }
  [[nodiscard]] Bytes staged(std::int64_t elements) const { return storage(Elements(elements), staged_); }

  // stage12_runtime.cpp
  void lay_out();
  virtual void create_master();
  virtual void create_gradients();  // initialize_optimizer_states.

  // stage12_flatten.cpp
  void flatten_parameters();
  void flatten_on_host(std::int64_t elements);

  // stage12_bucket.cpp
  void put_in_bucket(std::size_t parameter, BufferId gradient);
  void open_buckets();
  void reduce_large();
  void flush();
  // What is reduced from its own storage: the gradient, or what takes its place.
  virtual BufferId own_storage(std::size_t /*parameter*/, BufferId gradient) { return gradient; }
  virtual void let_go(std::size_t parameter, BufferId gradient);
  void close_buckets();
  void drop_late();
  virtual void pad_partition();
  void append_slices(std::size_t parameter, std::int64_t begin, std::vector<Slice>& slices) const;
  virtual void keep(std::size_t parameter, BufferId from, std::int64_t offset);
  void add_to_accumulated();
  void add_to_own(BufferId& own, BufferId gradient);
  void widen(std::size_t parameter, BufferId gradient);

  // stage12_reduce.cpp
  void reduce(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices);
  void reduce_whole(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices);
  void reduce_in_groups(BufferId tensor, const std::vector<Slice>& slices, std::int64_t owner);
  void reduce_group(BufferId tensor, const std::vector<Slice>& group, std::int64_t owner);
  BufferId cast_for_communication(BufferId source, Bytes offset, Bytes bytes, std::int64_t count);
  void reduce_apart();
  void synchronize();
  void wait_for_reductions();
  [[nodiscard]] static std::vector<std::int64_t> owners_in_order(const std::vector<Slice>& slices);

  // stage12_sums.cpp
  void open_sums();
  void add_to_sums(BufferId from, DType type, std::int64_t begin, const Slice& slice);

  // stage12_step.cpp
  [[nodiscard]] bool scans() const;
  void scan_for_overflow();
  void measure_gradients();
  void scratch(Bytes bytes, DType type, Label label, std::size_t fragment);
  // Where the own partition's gradient lies in `parts`, without what belongs to other ranks, piece by piece.
  [[nodiscard]] ParameterId parameter_of(std::size_t fragment) const;
  [[nodiscard]] std::vector<ByteRange> fragments_of(const std::vector<BufferId>& parts) const;
  BufferId own_gradient();
  [[nodiscard]] std::vector<BufferId> sources() const;
  void record_update(BufferId gradient);
  BufferId flatten(const std::vector<BufferId>& parts);
  BufferId cast_to_master(BufferId flat);
  void gather_parameters();

  std::vector<BufferId> whole_;            // By ParameterId: parameters outside the flat buffer.
  std::vector<BufferId> held_;             // By ParameterId: `.grad` that waits for the boundary.
  std::vector<std::int64_t> offset_;       // By index into trained_: element offset in the flat buffer.
  std::vector<std::int64_t> kept_offset_;  // Offset in grads_in_partition; -1 if it does not touch this partition.
  std::int64_t padded_ = 0;
  std::int64_t partition_ = 0;
  std::int64_t kept_ = 0;                // Elements of grads_in_partition: G_r.
  std::vector<std::int64_t> fragments_;  // Elements of the pieces of parameters in this partition, in its order.
  BufferId flat_ = kNoBuffer;
  BufferId master_ = kNoBuffer;
  std::vector<BufferId> state_;
  std::array<BufferId, 2> buckets_{kNoBuffer, kNoBuffer};
  std::size_t active_ = 0;
  std::array<bool, 2> points_into_{};  // Whether gradients of other ranks' parameters lie in it.
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::pair<std::size_t, BufferId> large_{0, kNoBuffer};  // Alone in the bucket that it does not fit into.
  BufferId accumulated_ = kNoBuffer;                      // grads_in_partition that the step will take.
  BufferId kept_in_this_backward_ = kNoBuffer;            // The one that this backward fills.
  // contiguous_gradients off, by index into trained_: gradients that the step will take; and those of this backward.
  std::vector<BufferId> own_;
  std::vector<std::pair<std::size_t, BufferId>> arrived_;
  std::vector<BufferId> previous_;  // Overlap, contiguous_gradients off: until the next reduction.
  std::vector<BufferId> late_;      // Reduced, and still held by `.grad` of parameters that are not this rank's.
  BufferId padding_ = kNoBuffer;    // Zeros behind the last fragment, from the boundary to the step.
  bool boundary_ = true;
  // Since 0.19.8 sums in fp32 beside a 16-bit model are kept for the own partition only (accumulated_, S elements).
  // Before, ZeRO-2 kept 16 bits all the same, and only the padding of the partition was made in fp32.
  bool sums_partition_ = false;
  bool widens_ = false;             // ZeRO-1 besides: each gradient is cast when it is ready, and travels in fp32.
  DType staged_ = DType::BFloat16;  // Of buckets.
};

}  // namespace dsplan
