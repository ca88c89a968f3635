// What DeepSpeed's constructor settles for ZeRO-1 and ZeRO-2 (runtime/zero/stage_1_and_2.py): pure data.
#pragma once

#include <cstdint>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtimes/flat_layout.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

// has_inf_or_nan without copies (#8325).
inline constexpr Version kScanWithoutCopies{0, 19, 6};
// Sums of offloaded gradients only where another micro-batch needs them.
inline constexpr Version kSumsWhereNeeded{0, 19, 0};

struct Stage12Facts {
  Stage12Facts(const Training& training, const std::vector<NamedParameter>& trained, std::int64_t ranks,
               std::int64_t rank);

  [[nodiscard]] const Zero& zero() const { return training.zero; }
  [[nodiscard]] bool offloads() const { return zero().offload_optimizer.device != OffloadDevice::None; }
  // The overflow scan: fp16, and bf16 where check_grad_overflow.
  [[nodiscard]] bool scans() const;
  [[nodiscard]] StreamId reduce_stream() const { return zero().overlap_comm ? kReduceStream : kComputeStream; }
  // Of what is kept of gradients, without padding.
  [[nodiscard]] DType kept_dtype() const { return sums_partition ? training.grad_accum_dtype : training.dtype; }
  [[nodiscard]] Bytes in_model_dtype(std::int64_t elements) const {
    return storage(Elements(elements), training.dtype);
  }
  [[nodiscard]] Bytes in_master_dtype(std::int64_t elements) const {
    return storage(Elements(elements), training.master_dtype);
  }
  [[nodiscard]] Bytes in_bucket(std::int64_t elements) const { return storage(Elements(elements), bucket_dtype); }

  const Training& training;
  FlatLayout layout;
  // Since 0.19.8 sums in fp32 beside a 16-bit model are kept for the own partition only. Before, ZeRO-2 kept 16 bits
  // all the same, and only the padding of the partition was made in fp32.
  bool sums_partition = false;
  bool widens = false;  // ZeRO-1 besides: each gradient is cast when it is ready, and travels in fp32.
  DType bucket_dtype = DType::BFloat16;
};

// Part of a gradient that one rank owns.
struct GradientSlice {
  std::int64_t owner = 0;
  std::int64_t begin = 0;  // Elements, in the tensor that is being reduced.
  std::int64_t count = 0;
  std::int64_t target = 0;  // Element of the owner's partition at which it belongs.
};
// Appends the gradient of a parameter (its index in the layout) that begins at element `begin` of that tensor, cut by
// owner.
void append_slices(const Stage12Facts& facts, std::size_t parameter, std::int64_t begin,
                   std::vector<GradientSlice>& slices);

// Sums in fp32 beside a 16-bit model: one flat buffer of the own partition (_build_compact_grad_partition_buffer), to
// which every reduction adds.
class GradientSums {
 public:
  GradientSums(Emitter& emitter, const Stage12Facts& facts) : eager_(emitter), facts_(facts) {}

  void open();
  // `begin`: the slice's first element in `from`.
  void add(BufferId from, std::int64_t begin, const GradientSlice& slice);
  [[nodiscard]] const Variable& buffer() const { return sums_; }  // None where nothing has come.
  [[nodiscard]] Variable take() { return std::move(sums_); }

 private:
  Eager eager_;
  const Stage12Facts& facts_;
  Variable sums_;
};

}  // namespace dsplan
