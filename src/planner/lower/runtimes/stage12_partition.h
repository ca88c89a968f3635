// A rank's own partition under ZeRO-1 and ZeRO-2: what is kept of reduced gradients, and the optimizer over it. On the
// device here; on the host in stage12_host.cpp.
#pragma once

#include <memory>
#include <vector>

#include "planner/lower/runtimes/control_values.h"
#include "planner/lower/runtimes/flat_optimizer.h"
#include "planner/lower/runtimes/flat_parameters.h"
#include "planner/lower/runtimes/stage12_facts.h"

namespace dsplan {

class OwnPartition {
 public:
  virtual ~OwnPartition() noexcept(false) = default;

  virtual void create_master(const Part& parameters) = 0;
  virtual void initialize_optimizer_states() = 0;
  [[nodiscard]] virtual BufferId master() const = 0;

  virtual void backward_begins(bool boundary) = 0;
  // What a gradient that is larger than the bucket is reduced from: itself, or what takes its place.
  [[nodiscard]] virtual Variable storage_of_large(Variable gradient) { return gradient; }
  // copy_grads_in_partition: the gradient of `parameter` has been reduced at element `offset` of `from`.
  virtual void keep(std::size_t parameter, BufferId from, std::int64_t offset) = 0;
  // The same where it was reduced as a tensor of its own (contiguous_gradients off).
  virtual void keep_apart(std::size_t /*parameter*/, Variable /*gradient*/) {}
  // `.grad` of a parameter stays to the end of the backward even where it has been kept.
  [[nodiscard]] virtual bool stays(std::size_t /*parameter*/) const { return false; }
  // get_all_grad_tensors, at the end of a backward: zeros in the place of gradients that have not come.
  virtual void fill_missing() {}
  // Before and after buckets are let go of at the end of a backward.
  virtual void pad() {}
  virtual void add_up() {}

  virtual void check_overflow() = 0;
  virtual void measure() = 0;
  virtual void update(bool first, const Part& parameters) = 0;
  virtual void drop_gradients() {}
};

// What both kinds work with; all outlive them.
struct PartitionInputs {
  Emitter& emitter;
  const Stage12Facts& facts;
  GradientSums& sums;
  ControlValues& control;
  HeldNorms& norms;
  GradientNorms& gradient_norms;
};
[[nodiscard]] std::unique_ptr<OwnPartition> make_partition_on_device(const PartitionInputs& inputs);
[[nodiscard]] std::unique_ptr<OwnPartition> make_partition_on_host(const PartitionInputs& inputs);

}  // namespace dsplan
