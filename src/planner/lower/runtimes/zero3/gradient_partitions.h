// Each rank's partition of the gradients, in one buffer that is never freed, in the dtype of the sum (DeepSpeed
// runtime/zero/stage3.py). It lies where the optimizer does.
#pragma once

#include <memory>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"
#include "planner/lower/runtimes/control_values.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {

class PartitionedOptimizer;

// What a reduction leaves of a trained parameter's gradient on this rank: its real elements, or with the padding.
struct ReducedGradient {
  std::size_t index = 0;
  Part part;
  Variable own{};  // The gradient itself, where it is in no bucket: it goes when its part has been taken.
};

class GradientPartitions {
 public:
  GradientPartitions(const Training& training, const Sharding& sharding, GradientNorms& norms, Emitter& emitter);
  virtual ~GradientPartitions() noexcept(false) = default;

  virtual void make() = 0;
  // `boundary`: the micro-batch is the last one before the step.
  void begin_backward(bool boundary) { boundary_ = boundary; }
  void end_backward() { accumulating_ = !boundary_; }
  // partition_grads: the first micro-batch overwrites what is there, later ones add to it.
  virtual void take(std::vector<ReducedGradient> reduced) = 0;
  // What the step looks at before it updates.
  void scan_overflow();
  // The sum of the squares of a sub-group's norms, of which there may be none. `norms` holds those that are taken now.
  [[nodiscard]] virtual Variable measure_norm(const SubGroup& group, Variables& norms) = 0;
  virtual void end_step() {}

  [[nodiscard]] Part of(const Shard& shard) const { return of(shard.offset, shard.part); }
  [[nodiscard]] Part of(const SubGroup& group) const { return of(group.offset, group.elements); }

 protected:
  [[nodiscard]] DType kept() const { return training_.grad_accum_dtype; }
  [[nodiscard]] Bytes bytes(std::int64_t elements) const { return storage(Elements(elements), kept()); }
  [[nodiscard]] Part of(std::int64_t offset, std::int64_t elements) const {
    return {gradients_.id(), bytes(offset), bytes(elements)};
  }
  // The norm of a parameter's gradient, by way of an fp64 copy, which is `wide`.
  [[nodiscard]] Variable norm_of(const Part& gradient, const Shard& shard, const What& wide, const What& what);

  const Training& training_;
  const Sharding& sharding_;
  GradientNorms& norms_of_gradients_;
  Eager eager_;
  Variable gradients_;
  bool boundary_ = false;
  bool accumulating_ = false;
};

[[nodiscard]] std::unique_ptr<GradientPartitions> make_gradient_partitions(const Training& training,
                                                                           const Sharding& sharding,
                                                                           GradientNorms& norms,
                                                                           PartitionedOptimizer& optimizer,
                                                                           Emitter& emitter);

}  // namespace dsplan
