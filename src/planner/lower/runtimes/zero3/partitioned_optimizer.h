// The optimizer of a rank's partitions, one sub-group at a time (DeepSpeed runtime/zero/stage3.py; on NVMe
// runtime/swap_tensor).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/zero3/gradient_partitions.h"
#include "planner/lower/runtimes/zero3/optimizer_swapper.h"
#include "planner/lower/runtimes/zero3/partition_home.h"
#include "planner/lower/runtimes/zero3/sharding.h"
#include "planner/lower/runtimes/zero3/sub_group_optimizer.h"

namespace dsplan {

class PartitionedOptimizer {
 public:
  PartitionedOptimizer(const Training& training, const Sharding& sharding, PartitionHome& home,
                       const GradientPartitions& gradients, Emitter& emitter);

  // What the constructors of torch's optimizers and of the wrapper make.
  void construct();
  // _configure_tensor_swapping, _create_fp32_partitions.
  void make_swap_buffers();
  void create_masters();
  void initialise_states();
  // Gradients for the update, one by one until the reduction that they came from is over.
  void take_gradient(std::size_t index, const Variable& gradient);
  void end_reduction();
  [[nodiscard]] std::vector<std::unique_ptr<SubGroupOptimizer>>& groups() { return groups_; }
  // Each step writes every master.
  void promise_updates();

 private:
  [[nodiscard]] std::unique_ptr<SubGroupOptimizer> make_group(const SubGroup& group,
                                                              const GradientPartitions& gradients);
  [[nodiscard]] bool away() const { return training_.zero.offload_optimizer.device != OffloadDevice::None; }
  [[nodiscard]] bool swaps(const SubGroup& group) const { return swapper_ && swapper_->swaps(group.number); }
  [[nodiscard]] Space space() const { return away() ? Space::Pageable : Space::Device; }
  void make_backup();
  [[nodiscard]] Variable gather_master(const SubGroup& group);
  void create_masters_elsewhere();

  const Training& training_;
  const Sharding& sharding_;
  PartitionHome& home_;
  Eager eager_;
  std::optional<OptimizerSwapper> swapper_;
  Variable placeholder_;  // The parameter of the backup optimizer.
  Variable fused_overflow_;
  Variable overflow_tracker_;
  std::vector<std::unique_ptr<SubGroupOptimizer>> groups_;
};

}  // namespace dsplan
