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
    const BufferId made =
        emitter_.allocate(Bytes(bytes_per_element(type)), type, Role::Temporaries, "parameter of the backup optimizer");
    emitter_.mark_scratch(made);
    emitter_.begin();
    if (backup_ != kNoBuffer) emitter_.read(backup_);
    emitter_.write(made);
    emitter_.as(Body::Clear);
    emitter_.compute("parameter of the backup optimizer");
    if (backup_ != kNoBuffer) emitter_.release(backup_, Reason::LastUse);
    backup_ = made;
  };
  make(DType::Float32);
  if (dtype() != DType::Float32) make(dtype());
  if (training().deepspeed >= kTorchBackup) return;
  const BufferId flag = emitter_.allocate(Bytes(4), DType::Int32, Role::Temporaries, "overflow buffer of FusedAdam");
  emitter_.mark_scratch(flag);
  emitter_.begin();
  emitter_.write(flag);
  emitter_.compute("zero overflow buffer");
}

// A copy of the zeros that were made on the host, which the variable holds until the next sub-group's are there.
void Stage3Runtime::create_device_gradient(SubGroup& group) {
  const DType type = training().master_dtype;
  const Bytes bytes = in_master_dtype(group.elements);
  passing_ = std::exchange(group.gradient,
                           emitter_.allocate(bytes, type, Role::Gradients, "gradient for the device's optimizer"));
  emitter_.mark_scratch(group.gradient);
  copy({passing_, Bytes(0), bytes, type}, {group.gradient, Bytes(0), bytes, type}, "copy gradient to device");
}

void Stage3Runtime::drop_passing() {
  if (passing_ != kNoBuffer) emitter_.release(std::exchange(passing_, kNoBuffer), Reason::PythonFrame);
}

void Stage3Runtime::update_here(SubGroup& group, bool first) {
  if (backup_ != kNoBuffer) emitter_.release(std::exchange(backup_, kNoBuffer), Reason::PythonFrame);
  if (first) create_flat_state(group.elements, group.state);
  BufferId root = kNoBuffer;
  if (training().deepspeed >= kTorchBackup) {
    root = emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Temporaries,
                             "square root of exp_avg_sq");
    emitter_.mark_scratch(root);
    emitter_.begin();
    emitter_.write(root);
    emitter_.as(Body::Clear);  // The update does the arithmetic.
    emitter_.compute("square root of exp_avg_sq");
  }
  update_master(group, "optimizer update");
  if (root != kNoBuffer) emitter_.release(root, Reason::PythonFrame);
  copy_to_partitions(group);
}

}  // namespace dsplan
