// ZeRO-3 with the optimizer or the parameters on the host (stage3.py, partition_parameters.py, ops/adam/cpu_adam.py).
// Copies between host and device are work of the one stream; when the real ones overlap is not known here.
#include "planner/lower/stage3_offload.h"

#include <algorithm>
#include <utility>

#include "planner/lower/stage3_runtime.h"

namespace dsplan {
namespace {

// stage3.py, _constant_buffered_norm2.
constexpr std::int64_t kNormElements = 250'000'000;

}  // namespace

std::optional<std::string> stage3_offload_obstacle(const Training& training) {
  const Zero& zero = training.zero;
  const bool nvme =
      zero.offload_optimizer.device == OffloadDevice::Nvme || zero.offload_param.device == OffloadDevice::Nvme;
  // The shard is made on a device that PyTorch does not know.
  if (zero.offload_param.device == OffloadDevice::Nvme && zero.hpz_partition_size > 1) {
    return "parameter offload to NVMe with secondary shards (hpZ), which DeepSpeed cannot make either";
  }
  // Before, its buffers came from PyTorch's pool.
  if (nvme && training.deepspeed < Version{0, 19, 4}) return "offload to NVMe before DeepSpeed 0.19.4";
  return std::nullopt;
}

// accelerator/abstract_accelerator.py, pin_memory: a tensor is made in pageable memory and then copied.
Variable Stage3Runtime::make_on_host(Bytes bytes, DType type, const What& what, bool pinned, ParameterId parameter) {
  if (!pinned) return eager_.empty(bytes, type, what, parameter, Space::Pageable);
  const Variable source =
      eager_.empty(bytes, type, {what.role, "tensor before it is pinned", ""}, kNone, Space::Pageable);
  source.mark_scratch();
  Variable made = eager_.empty(bytes, type, what, parameter, Space::Pinned);
  eager_.zero(source, "pin tensor");
  return made;
}

// _create_param_groups_fp16_flat_cpu_memory and _move_to_flat_buffer: one buffer, pinned whatever pin_memory says. Of
// partitions on NVMe it has room for no more than max_in_cpu, and takes whole sub-groups.
void Stage3Runtime::gather_partitions_on_host() {
  const std::int64_t elements = flat_elements();
  if (elements > 0) {
    flat_ = make_on_host(in_model_dtype(elements), dtype(),
                         {Role::Parameters, "parameter partitions",
                          "zero/stage3.py, _create_fp16_partitions_with_defragmentation", elements < partition_},
                         /*pinned=*/true);
  } else {
    Variable none = eager_.empty(in_model_dtype(1), dtype(),
                                 {Role::Parameters, "empty flat buffer",
                                  "zero/stage3.py, _create_param_groups_fp16_flat_cpu_memory", /*capacity=*/true},
                                 kNone, Space::Pageable);
    none.mark_scratch();
    (void)none.hand_over();  // It stays.
  }
  for (const SubGroup& group : groups_) {
    if (!group.in_flat) continue;
    for (std::size_t at = group.begin; at < group.end; ++at) move_to_flat(piece(trained_[at].id));
  }
  reserve_for_updates();
}

// to(device, fp32) and a clone, wherever the optimizer is. Where that changes neither device nor dtype it is the
// partitions themselves. The cast of the sub-group before is let go of before the clone.
void Stage3Runtime::create_master_elsewhere(SubGroup& group, Variable& cast) {
  const Space space = group.away ? Space::Pageable : Space::Device;
  const DType type = training().master_dtype;
  const bool crosses = group.away != parameters_away();
  Part weights = in_flat(group);
  Variable made;
  if (crosses || type != dtype()) {
    made =
        eager_.empty(in_master_dtype(group.elements), type,
                     {Role::Temporaries, "master weights before the clone", "zero/stage3.py, _create_fp32_partitions"},
                     kNone, space);
    eager_.copy_across(made, weights, "cast to master");
    weights = made;
  }
  cast = std::move(made);
  group.master = eager_.clone(weights, {Role::Optimizer, "master weights", "zero/stage3.py, _create_fp32_partitions"},
                              "clone master", kNone, space);
}

// initialize_optimizer_states: the gradient that the optimizer on the host will be given. Zeros stay where this rank
// has nothing but padding. A pinned block of the sub-group before serves again, a pageable one goes when this is there.
void Stage3Runtime::create_host_gradient(SubGroup& group, Variable& passing) {
  const bool pins = zero().offload_optimizer.pin_memory;
  if (pins) passing.reset();
  group.gradient = make_on_host(
      in_master_dtype(group.elements), training().master_dtype,
      {Role::Gradients, "gradient in master dtype", "zero/stage3.py, _offload_grad_partition_at_boundary"}, pins);
  if (group.away) group.gradient.mark_scratch();
  eager_.zero(group.gradient, "zero gradients");
  passing.reset();
  if (!group.away) create_device_gradient(group, passing);
}

// grad_partitions_flat_buffer lies where the optimizer does.
Variable Stage3Runtime::make_gradient_partitions() {
  const DType kept = training().grad_accum_dtype;
  const Bytes bytes = storage(Elements(partition_), kept);
  What what{Role::Gradients, "gradient partitions", "zero/stage3.py, initialize_gradient_partitioning_data_structures"};
  if (!optimizer_away()) {
    what.capacity = true;
    return eager_.empty(bytes, kept, what);
  }
  Variable made = make_on_host(bytes, kept, what, zero().offload_optimizer.pin_memory);
  made.mark_scratch();  // Sums are sent to the host even where the step takes them from the device.
  eager_.zero(made, "zero gradient partitions");
  return made;
}

// ds_tensor.to(device), before a gather; None where it is there already.
Variable Stage3Runtime::bring(const Piece& of, bool secondary) {
  if (!parameters_away()) return {};
  return eager_.clone(
      sent(of, secondary),
      {Role::RuntimeBuffers, "partition on the device", "zero/partition_parameters.py, _all_gather_dtype"},
      "copy partition to device");
}

// NoGatherHandle: what a single rank brings is the parameter; nothing is to be brought where it lies on the device.
void Stage3Runtime::bring_whole(ParameterId id) {
  Piece& of = piece(id);
  of.aliased = !parameters_away();
  if (of.aliased) return;
  make_full(id, of.elements);
  eager_.copy(of.full, partition(of), "copy partition to device");
}

// partition_grads: each gradient goes to the host and is looked at on the device. A rank that has nothing but padding
// of a parameter passes it over. A source that was padded is passed on whole.
void Stage3Runtime::offload_gradients(const std::vector<Part>& sources) {
  const DType kept = training().grad_accum_dtype;
  for (std::size_t at = 0; at < entries_.size(); ++at) {
    const Piece& of = piece_of(entries_[at]);
    std::int64_t elements = real(of).elements;
    if (elements == 0) continue;
    const Bytes part = storage(Elements(of.part), kept);
    if (emitter_.size(sources[at].buffer) == part) elements = of.part;
    const Part source(sources[at].buffer, sources[at].offset, storage(Elements(elements), kept));
    const Variable gradient = accumulate_on_host(entries_[at], source);
    if (boundary_) pass_boundary(entries_[at], gradient);
  }
  swap_out_gradients();
}

// Returns the sum on the device: in the first micro-batch a copy of what went to the host, later what goes there.
Variable Stage3Runtime::accumulate_on_host(const Entry& entry, const Part& source) {
  const Part sum(gradients_.id(), in_gradients(piece_of(entry)).offset, source.bytes);
  if (!accumulating_) eager_.copy(sum, source, "copy gradient to host");
  Variable made =
      eager_.empty(source.bytes, training().grad_accum_dtype,
                   {Role::RuntimeBuffers, "gradient partition back on the device", "zero/stage3.py, partition_grads"});
  if (!boundary_ && !accumulating_) made.mark_scratch();
  eager_.copy(made, sum, "copy gradient to device");
  if (!accumulating_) return made;
  eager_.add(made, source, "add to gradient partition");
  eager_.copy(sum, made, "copy gradient to host");
  return made;
}

// _offload_grad_partition_at_boundary: the norm, and what the optimizer is given.
void Stage3Runtime::pass_boundary(const Entry& entry, const Variable& gradient) {
  measure_at_boundary(entry, gradient);
  const DType type = training().master_dtype;
  const auto group =
      std::find_if(groups_.begin(), groups_.end(), [&](const SubGroup& g) { return entry.parameter < g.end; });
  Variable cast = gradient.share();
  if (training().grad_accum_dtype != type) {
    cast = eager_.cast(
        gradient, type,
        {Role::RuntimeBuffers, "gradient in master dtype", "zero/stage3.py, _offload_grad_partition_at_boundary"},
        "cast gradient");
  }
  const Bytes place = in_master_dtype(piece_of(entry).offset - group->offset);
  const Bytes bytes = eager_.bytes_of(cast);
  if (!swapped(*group)) {
    return eager_.copy(Part(group->gradient.id(), place, bytes), cast, "copy gradient to the optimizer");
  }
  const std::size_t number = index_of(*group);
  auto of = std::find_if(swapped_gradients_.begin(), swapped_gradients_.end(),
                         [&](const auto& one) { return one.first == number; });
  if (of == swapped_gradients_.end()) {
    swapped_gradients_.emplace_back(number, std::vector<OptimizerSwapper::Gradient>());
    of = std::prev(swapped_gradients_.end());
  }
  of->second.push_back({place, bytes, std::move(cast)});
}

// _constant_buffered_norm2.
void Stage3Runtime::measure_at_boundary(const Entry& entry, const Variable& gradient) {
  const DType kept = training().grad_accum_dtype;
  const std::int64_t elements = eager_.bytes_of(gradient).value() / bytes_per_element(kept);
  for (std::int64_t from = 0; from < elements; from += kNormElements) {
    const Elements count(std::min(kNormElements, elements - from));
    const Variable wide =
        eager_.empty(storage(count, DType::Float64), DType::Float64,
                     {Role::RuntimeBuffers, "gradient norm", "zero/stage3.py, _constant_buffered_norm2"});
    wide.mark_scratch();
    Work norm =
        eager_.work().read(Part(gradient.id(), storage(Elements(from), kept), storage(count, kept))).write(wide);
    record_squares(trained_[entry.parameter].id);
    norm.run(Body::SquareSum, "gradient norm");
  }
  norms_.push_back(eager_.empty(Bytes(8), DType::Float64,
                                {Role::Temporaries, "gradient norm", "zero/stage3.py, _constant_buffered_norm2"}));
  norms_.back().mark_scratch();
  eager_.zero(norms_.back(), "gradient norm");  // Each chunk's squares have been added up already.
}

// The scan is over the sums on the host; norms were taken at the boundary, and are added up for each sub-group
// (complete_grad_norm_calculation_for_cpu_offload).
void Stage3Runtime::measure_on_host() {
  if (dtype() == DType::Float16) scan_overflow();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    control_all_reduce(Bytes(4), "gradient norm of a sub-group");
  }
}

// DeepSpeedCPUAdam.step on one sub-group, and the copy back.
void Stage3Runtime::update_on_host(SubGroup& group, bool first) {
  if (!group.away) return update_here(group, first);
  if (swapped(group)) {
    optimizer_->swap_in(index_of(group));
    optimizer_->update(index_of(group),
                       optimizer_state(training().optimizer, Shape{group.elements}, training().master_dtype, false));
    copy_to_partitions(group);
    return optimizer_->swap_out(index_of(group));
  }
  if (first) create_state(group, Space::Pageable);
  update_master(group, group.gradient, "optimizer update on the host");
  copy_to_partitions(group);
}

void Stage3Runtime::create_state(SubGroup& group, Space space) {
  for (const StateTensor& tensor :
       optimizer_state(training().optimizer, Shape{group.elements}, training().master_dtype, false)) {
    group.state.push_back(eager_.empty(tensor.bytes, tensor.dtype,
                                       {Role::Optimizer, tensor.label, maker_of_states(training())}, kNone, space));
  }
  if (!group.state.empty()) eager_.work().write(group.state).run(Body::Clear, "create optimizer state");
}

// Of a sub-group that has master and states to itself, wherever they are.
void Stage3Runtime::update_master(const SubGroup& group, const Part& gradient, Label work) {
  eager_.work()
      .read(group.master)
      .read(gradient)
      .read(group.state)
      .write(group.master)
      .write(group.state)
      .states(group.state.size())
      .run(Body::Update, work);
}

void Stage3Runtime::copy_to_partitions(const SubGroup& group) {
  if (!group.in_flat) return write_partitions(group);
  eager_.copy_across(in_flat(group), master_of(group), "copy master to partitions");
}

}  // namespace dsplan
