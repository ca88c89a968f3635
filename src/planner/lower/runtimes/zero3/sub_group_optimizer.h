// The optimizer of one sub-group: its master weights, its states, and the gradient that they are updated with, on the
// device, on the host, or passing through the host's memory from files (DeepSpeed runtime/zero/stage3.py).
#pragma once

#include <memory>
#include <vector>

#include "planner/lower/eager.h"
#include "planner/lower/runtimes/zero3/gradient_partitions.h"
#include "planner/lower/runtimes/zero3/optimizer_swapper.h"
#include "planner/lower/runtimes/zero3/partition_home.h"
#include "planner/lower/runtimes/zero3/sharding.h"

namespace dsplan {

class SubGroupOptimizer {
 public:
  SubGroupOptimizer(const Training& training, const SubGroup& group, PartitionHome& home, Emitter& emitter);
  virtual ~SubGroupOptimizer() noexcept(false) = default;

  // _create_fp32_partitions: a clone of `weights`, or of their cast; or a tensor that is there already.
  void create_master(const Part& weights, Variable& cast);
  void take_master(Variable made) { master_ = std::move(made); }
  // initialize_optimizer_states. `passing`: the host's copy of a gradient of the device, until the next one is there.
  virtual void initialise(Variable& passing);
  // _offload_grad_partition_at_boundary: what the update will be given, at an offset of the sub-group.
  virtual void take_gradient(Bytes offset, Variable gradient);
  // _prepare_sub_group, _optimizer_step, _release_sub_group.
  virtual void prepare() {}
  virtual void step(bool first) = 0;
  virtual void release() {}

  [[nodiscard]] virtual Part master() const;
  // Where the master stays, which each step writes; None: nowhere.
  [[nodiscard]] virtual const Variable& stored() const { return master_; }

 protected:
  [[nodiscard]] virtual Space space() const = 0;
  [[nodiscard]] DType type() const { return training_.master_dtype; }
  [[nodiscard]] Bytes bytes() const { return storage(Elements(group_.elements), type()); }
  [[nodiscard]] std::vector<StateTensor> states() const;
  void create_states();
  void update(const Part& gradient, Label work);

  const Training& training_;
  const SubGroup& group_;
  PartitionHome& home_;
  Eager eager_;
  Variable master_;
  Variable gradient_;  // In the master's dtype.
  std::vector<Variable> state_;
};

// The only optimizer, with the gradients on the device.
class DeviceOptimizer final : public SubGroupOptimizer {
 public:
  DeviceOptimizer(const Training& training, const SubGroup& group, PartitionHome& home,
                  const GradientPartitions& gradients, Emitter& emitter)
      : SubGroupOptimizer(training, group, home, emitter), gradients_(gradients) {}
  void prepare() override;
  void step(bool first) override;
  void release() override { gradient_.reset(Reason::GradientHeld); }

 private:
  [[nodiscard]] Space space() const override { return Space::Device; }
  void unscale_and_clip();
  const GradientPartitions& gradients_;
};

// DeepSpeedCPUAdam's.
class HostOptimizer : public SubGroupOptimizer {
 public:
  using SubGroupOptimizer::SubGroupOptimizer;
  void initialise(Variable& passing) override;
  void step(bool first) override;

 protected:
  [[nodiscard]] Space space() const override { return Space::Pageable; }
  void make_gradient(Variable& passing);
};

// Of the optimizer that works on the device beside the host's, offload_optimizer's `ratio` (Twin-Flow, ZeRO-Offload++).
// Gradients take the way over the host's sums all the same, and are copied from there.
class BackupOptimizer final : public HostOptimizer {
 public:
  // `placeholder`: what that optimizer was made with, until it is given its first sub-group.
  BackupOptimizer(const Training& training, const SubGroup& group, PartitionHome& home, Variable& placeholder,
                  Emitter& emitter)
      : HostOptimizer(training, group, home, emitter), placeholder_(placeholder) {}
  void initialise(Variable& passing) override;
  void step(bool first) override;

 private:
  [[nodiscard]] Space space() const override { return Space::Device; }
  Variable& placeholder_;
};

// On NVMe.
class SwappedOptimizer final : public SubGroupOptimizer {
 public:
  SwappedOptimizer(const Training& training, const SubGroup& group, PartitionHome& home, OptimizerSwapper& swapper,
                   Emitter& emitter)
      : SubGroupOptimizer(training, group, home, emitter), swapper_(swapper) {}
  void initialise(Variable& passing) override;
  void take_gradient(Bytes offset, Variable gradient) override;
  void step(bool first) override;
  [[nodiscard]] Part master() const override { return swapper_.master(group_.number); }
  [[nodiscard]] const Variable& stored() const override { return swapper_.master_file(group_.number); }

 private:
  [[nodiscard]] Space space() const override { return Space::Nvme; }
  OptimizerSwapper& swapper_;
};

// torch.optim.AdamW in its multi-tensor form has been the device's optimizer beside the host's since 0.13.3 (#5138),
// before that FusedAdam.
[[nodiscard]] inline bool has_torch_backup(const Training& training) { return training.deepspeed >= Version{0, 13, 3}; }

}  // namespace dsplan
