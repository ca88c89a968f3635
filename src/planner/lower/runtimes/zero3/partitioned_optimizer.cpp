#include "planner/lower/runtimes/zero3/partitioned_optimizer.h"

#include <algorithm>
#include <utility>

namespace dsplan {

PartitionedOptimizer::PartitionedOptimizer(const Training& training, const Sharding& sharding, PartitionHome& home,
                                           const GradientPartitions& gradients, Emitter& emitter)
    : training_(training), sharding_(sharding), home_(home), eager_(emitter) {
  if (training.zero.offload_optimizer.device == OffloadDevice::Nvme && !sharding.groups().empty()) {
    std::vector<Bytes> bytes;
    for (const SubGroup& group : sharding.groups()) {
      bytes.push_back(storage(Elements(group.elements), training.master_dtype));
    }
    swapper_.emplace(training, bytes, emitter);
  }
  for (const SubGroup& group : sharding.groups()) groups_.push_back(make_group(group, gradients));
}

std::unique_ptr<SubGroupOptimizer> PartitionedOptimizer::make_group(const SubGroup& group,
                                                                    const GradientPartitions& gradients) {
  Emitter& emitter = eager_.emitter();
  if (!away()) return std::make_unique<DeviceOptimizer>(training_, group, home_, gradients, emitter);
  if (!group.away) return std::make_unique<BackupOptimizer>(training_, group, home_, placeholder_, emitter);
  if (swaps(group)) return std::make_unique<SwappedOptimizer>(training_, group, home_, *swapper_, emitter);
  return std::make_unique<HostOptimizer>(training_, group, home_, emitter);
}

// With inf_or_nan_tracker, where the optimizer is.
void PartitionedOptimizer::construct() {
  if (away() && training_.zero.offload_optimizer.ratio < 1) make_backup();
  overflow_tracker_ =
      eager_.empty(Bytes(1), DType::Bool,
                   {Role::Temporaries, "overflow tracker", "zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__"},
                   kNone, space());
  overflow_tracker_.mark_scratch();
  eager_.zero(overflow_tracker_, "zero overflow tracker");
}

// The backup optimizer is made with a parameter of one element, which it has until it is given a sub-group.
void PartitionedOptimizer::make_backup() {
  const auto make = [&](DType type) {
    Variable made = eager_.empty(Bytes(bytes_per_element(type)), type,
                                 {Role::Temporaries, "parameter of the backup optimizer",
                                  "zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__"});
    made.mark_scratch();
    Work work = eager_.work();
    if (placeholder_) work.read(placeholder_);
    work.write(made).run(Body::Clear, "parameter of the backup optimizer");
    placeholder_ = std::move(made);
  };
  make(DType::Float32);
  if (sharding_.trained_dtype() != DType::Float32) make(sharding_.trained_dtype());
  if (has_torch_backup(training_)) return;
  fused_overflow_ =
      eager_.empty(Bytes(4), DType::Int32, {Role::Temporaries, "overflow buffer of FusedAdam", kFusedAdamInit});
  fused_overflow_.mark_scratch();
  eager_.zero(fused_overflow_, "zero overflow buffer");
}

void PartitionedOptimizer::make_swap_buffers() {
  if (swapper_) swapper_->make_buffers();
}

void PartitionedOptimizer::create_masters() {
  Variable cast;  // Of the sub-group before.
  for (const SubGroup& group : sharding_.groups()) {
    if (group.in_flat && !swaps(group)) groups_[group.number]->create_master(home_.in_flat(group), cast);
  }
  create_masters_elsewhere();
}

// Of what does not lie in the flat buffer or goes to NVMe.
void PartitionedOptimizer::create_masters_elsewhere() {
  std::vector<OptimizerSwapper::Weights> flat;
  Variable before;
  for (const SubGroup& group : sharding_.groups()) {
    if (group.in_flat) {
      if (swaps(group)) flat.push_back({group.number, home_.in_flat(group)});
      continue;
    }
    Variable made = gather_master(group);
    before.reset();
    if (swaps(group)) {
      swapper_->initialise({{group.number, made}});
      before = std::move(made);
    } else {
      groups_[group.number]->take_master(std::move(made));
    }
  }
  if (!flat.empty()) swapper_->initialise(flat);
}

// _swap_in_sub_group_to_flat_buffer: a tensor that becomes the master, or its source.
Variable PartitionedOptimizer::gather_master(const SubGroup& group) {
  const DType type = training_.master_dtype;
  Variable made =
      eager_.empty(storage(Elements(group.elements), type), type,
                   {Role::Optimizer, "master weights", "zero/stage3.py, _create_fp32_partitions"}, kNone, space());
  for (std::size_t index = group.begin; index < group.end; ++index) {
    const ParameterId id = sharding_.trained()[index].id;
    const Shard& shard = sharding_.of(id);
    home_.read_missing({id});
    eager_.copy_across(
        Part(made.id(), storage(Elements(shard.offset - group.offset), type), storage(Elements(shard.part), type)),
        home_.partition(id), "cast to master");
    home_.drop(id);
  }
  return made;
}

// initialize_optimizer_states: a gradient of the largest sub-group, dropped at the end.
void PartitionedOptimizer::initialise_states() {
  std::int64_t largest = 0;
  for (const SubGroup& group : sharding_.groups()) largest = std::max(largest, group.elements);
  const Variable zeros = eager_.empty(storage(Elements(largest), training_.master_dtype), training_.master_dtype,
                                      {Role::Temporaries, "zero gradients of initialize_optimizer_states",
                                       "zero/stage3.py, initialize_optimizer_states"},
                                      kNone, space());
  zeros.mark_scratch();
  eager_.zero(zeros, "zero gradients");
  Variable passing;
  for (const auto& group : groups_) group->initialise(passing);
}

void PartitionedOptimizer::take_gradient(std::size_t index, const Variable& gradient) {
  const std::vector<SubGroup>& groups = sharding_.groups();
  const auto group = std::find_if(groups.begin(), groups.end(), [&](const SubGroup& one) { return index < one.end; });
  const DType type = training_.master_dtype;
  Variable cast = gradient.share();
  if (training_.grad_accum_dtype != type) {
    cast = eager_.cast(
        gradient, type,
        {Role::RuntimeBuffers, "gradient in master dtype", "zero/stage3.py, _offload_grad_partition_at_boundary"},
        "cast gradient");
  }
  const std::int64_t offset = sharding_.of_trained(index).offset - group->offset;
  groups_[group->number]->take_gradient(storage(Elements(offset), type), std::move(cast));
}

void PartitionedOptimizer::end_reduction() {
  if (swapper_) swapper_->gradients().swap_out_collected();
}

void PartitionedOptimizer::promise_updates() {
  for (const auto& group : groups_) {
    if (const Variable& stored = group->stored()) {
      eager_.emitter().promise_update(stored.id(), Bytes(0), eager_.bytes_of(stored));
    }
  }
}

}  // namespace dsplan
