// Operators on values: the batch, forward and backward of each node, and losses.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/runner/data.h"
#include "exec/runner/launcher.h"
#include "exec/runner/rank_plan.h"
#include "exec/runner/values.h"

namespace dsplan::exec {

class OperatorWork {
 public:
  // All must outlive this.
  OperatorWork(const RankPlan& plan, const RunSettings& settings, Device& device, const RankMemory& memory,
               Launcher& launcher, Values& values, const Text& text);

  void begin_micro_batch() { ++micro_batches_; }
  void run(const Task& task, double loss_scale);
  [[nodiscard]] dsplan_tensor tensor_of(const TensorAt& tensor) const;
  void take_loss(ValueId value);
  // The mean loss of each micro-batch of this rank, in order.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

  // The first that the plan has for the libraries of products, which work in it one after the other.
  void workspace_came(BufferId buffer);
  void workspace_goes(BufferId buffer);

 private:
  void run_node(const Task& task, std::span<const dsplan_tensor> in, std::span<const dsplan_tensor> made);
  void make_batch(const Task& task);
  [[nodiscard]] dsplan_random random_for(const Task& task) const;
  void lend_workspace(dsplan_launch& what) const;
  [[nodiscard]] std::vector<dsplan_tensor> held(std::span<const std::optional<TensorAt>> tensors) const;

  const RankPlan& plan_;
  const RunSettings& settings_;
  Device& device_;
  const RankMemory& memory_;
  Launcher& launcher_;
  Values& values_;
  const Text& text_;
  std::vector<Indexed<NodeId, std::uint32_t>> draws_;  // By graph.
  std::vector<Indexed<NodeId, bool>> on_parts_;        // By graph; empty: no layer is shared.
  std::int64_t micro_batches_ = 0;                     // Begun since the run began.
  BufferId workspace_ = kNoBuffer;
  std::vector<double> losses_;
};

}  // namespace dsplan::exec
