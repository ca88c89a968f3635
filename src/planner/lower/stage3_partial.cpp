// ZeRO-3 with a part of the optimizer on the host, offload_optimizer's `ratio` (Twin-Flow, ZeRO-Offload++): some
// sub-groups keep master, gradient and states on the device, where an optimizer of their own updates them (stage3.py,
// _create_fp32_partitions, initialize_optimizer_states, _optimizer_step). Gradients take the way over the host's sums
// all the same, and are copied from there to where their sub-group is updated.
#include <utility>

#include "planner/lower/stage3_runtime.h"

namespace dsplan {
namespace {

// Until 0.18.0 (#7559) the host had the first sub-groups, since then it has the last.
constexpr Version kDeviceFirst{0, 18, 0};
// torch.optim.AdamW in its multi-tensor form since 0.13.3 (#5138), before that FusedAdam.
constexpr Version kTorchBackup{0, 13, 3};

}  // namespace

// subgroup_to_device; int() of a double, as Python has it.
void Stage3Runtime::divide_groups() {
  if (!optimizer_away()) return;
  const double ratio = zero().offload_optimizer.ratio;
  const auto count = static_cast<double>(groups_.size());
  const auto of_device = static_cast<std::size_t>((1 - ratio) * count);
  const auto of_host = static_cast<std::size_t>(ratio * count);
  for (SubGroup& group : groups_) {
    group.away = training().deepspeed < kDeviceFirst ? index_of(group) < of_host : index_of(group) >= of_device;
  }
}

// The backup optimizer is made with a parameter of one element, which it has until it is given a sub-group.
void Stage3Runtime::make_backup() {
  if (!partial()) return;
  const auto make = [&](DType type) {
    Variable made = eager_.empty(Bytes(bytes_per_element(type)), type,
                                 {Role::Temporaries, "parameter of the backup optimizer",
                                  "zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__"});
    made.mark_scratch();
    Work work = eager_.work();
    if (backup_) work.read(backup_);
    work.write(made).run(Body::Clear, "parameter of the backup optimizer");
    backup_ = std::move(made);
  };
  make(DType::Float32);
  if (dtype() != DType::Float32) make(dtype());
  if (training().deepspeed >= kTorchBackup) return;
  Variable flag = eager_.empty(Bytes(4), DType::Int32, {Role::Temporaries, "overflow buffer of FusedAdam", ""});
  flag.mark_scratch();
  eager_.zero(flag, "zero overflow buffer");
  (void)flag.hand_over();  // It stays.
}

// A copy of the zeros that were made on the host, which the variable holds until the next sub-group's are there.
void Stage3Runtime::create_device_gradient(SubGroup& group, Variable& passing) {
  passing = std::move(group.gradient);
  group.gradient = eager_.empty(
      in_master_dtype(group.elements), training().master_dtype,
      {Role::Gradients, "gradient for the device's optimizer", "zero/stage3.py, initialize_optimizer_states"});
  group.gradient.mark_scratch();
  eager_.copy(group.gradient, passing, "copy gradient to device");
}

void Stage3Runtime::update_here(SubGroup& group, bool first) {
  backup_.reset();
  if (first) create_state(group, Space::Device);
  Variable root;
  if (training().deepspeed >= kTorchBackup) {
    root = eager_.empty(in_master_dtype(group.elements), training().master_dtype,
                        {Role::Temporaries, "square root of exp_avg_sq", "torch/optim/adam.py, _multi_tensor_adam"});
    root.mark_scratch();
    eager_.zero(root, "square root of exp_avg_sq");  // The update does the arithmetic.
  }
  update_master(group, group.gradient, "optimizer update");
  root.reset();
  copy_to_partitions(group);
}

}  // namespace dsplan
