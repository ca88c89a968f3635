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
BufferId Stage3Runtime::make_on_host(Bytes bytes, DType type, Role role, Label label, bool pinned,
                                     ParameterId parameter, bool capacity) {
  if (!pinned) return emitter_.allocate(bytes, type, role, label, parameter, capacity, Space::Pageable);
  const BufferId source =
      emitter_.allocate(bytes, type, role, "tensor before it is pinned", kNone, false, Space::Pageable);
  emitter_.mark_scratch(source);
  const BufferId made = emitter_.allocate(bytes, type, role, label, parameter, capacity, Space::Pinned);
  emitter_.begin();
  emitter_.write(source);
  emitter_.compute("pin tensor");
  emitter_.release(source, Reason::LastUse);
  return made;
}

// A blocking Tensor.copy_ that changes the dtype between host and device converts on the host, through a tensor of its
// own (torch: aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda).
void Stage3Runtime::copy_across(const Range& from, const Range& to, bool to_host, Label work) {
  BufferId staging = kNoBuffer;
  if (from.dtype != to.dtype) {
    const Range& like = to_host ? from : to;
    staging = emitter_.allocate(like.bytes, like.dtype, Role::Temporaries, "staging of a copy", kNone, false,
                                Space::Pageable);
    emitter_.begin();
    emitter_.read(from.buffer, from.offset, from.bytes);
    emitter_.write(staging);
    emitter_.compute(to_host ? "copy to host" : "convert on the host");
  }
  emitter_.begin();
  if (staging != kNoBuffer) {
    emitter_.read(staging);
  } else {
    emitter_.read(from.buffer, from.offset, from.bytes);
  }
  emitter_.write(to.buffer, to.offset, to.bytes);
  emitter_.compute(work);
  if (staging != kNoBuffer) emitter_.release(staging, Reason::LastUse);
}

// Between host and device, or within one of them.
void Stage3Runtime::copy(const Range& from, const Range& to, Label work) {
  const bool comes_from_device = emitter_.space(from.buffer) == Space::Device;
  const bool goes_to_device = emitter_.space(to.buffer) == Space::Device;
  if (comes_from_device != goes_to_device) return copy_across(from, to, comes_from_device, work);
  emitter_.begin();
  emitter_.read(from.buffer, from.offset, from.bytes);
  emitter_.write(to.buffer, to.offset, to.bytes);
  emitter_.compute(work);
}

// _create_param_groups_fp16_flat_cpu_memory and _move_to_flat_buffer: one buffer, pinned whatever pin_memory says. Of
// partitions on NVMe it has room for no more than max_in_cpu, and takes whole sub-groups.
void Stage3Runtime::gather_partitions_on_host() {
  const std::int64_t elements = flat_elements();
  if (elements > 0) {
    flat_ = make_on_host(in_model_dtype(elements), dtype(), Role::Parameters, "parameter partitions", true, kNone,
                         elements < partition_);
  } else {
    const BufferId none = emitter_.allocate(in_model_dtype(1), dtype(), Role::Parameters, "empty flat buffer", kNone,
                                            true, Space::Pageable);
    emitter_.mark_scratch(none);
  }
  for (const SubGroup& group : groups_) {
    if (!group.in_flat) continue;
    for (std::size_t at = group.begin; at < group.end; ++at) move_to_flat(piece(trained_[at].id));
  }
  reserve_for_updates();
}

// to(device, fp32) and a clone, wherever the optimizer is. Where that changes neither device nor dtype it is the
// partitions themselves. Returns the cast, which is still there; the one before is let go of before the clone.
BufferId Stage3Runtime::create_master_elsewhere(SubGroup& group) {
  const Space space = group.away ? Space::Pageable : Space::Device;
  const DType type = training().master_dtype;
  const Bytes bytes = in_master_dtype(group.elements);
  const Range from{flat_, in_model_dtype(group.offset), in_model_dtype(group.elements), dtype()};
  const bool crosses = group.away != parameters_away();
  BufferId cast = kNoBuffer;
  if (crosses || type != dtype()) {
    cast = emitter_.allocate(bytes, type, Role::Temporaries, "master weights before the clone", kNone, false, space);
    const Range to{cast, Bytes(0), bytes, type};
    if (crosses) {
      copy_across(from, to, group.away, "cast to master");
    } else {
      emitter_.begin();
      emitter_.read(from.buffer, from.offset, from.bytes);
      emitter_.write(cast);
      emitter_.compute("cast to master");
    }
  }
  if (cast_ != kNoBuffer) emitter_.release(std::exchange(cast_, kNoBuffer), Reason::PythonFrame);
  group.master = emitter_.allocate(bytes, type, Role::Optimizer, "master weights", kNone, false, space);
  emitter_.begin();
  if (cast != kNoBuffer) {
    emitter_.read(cast);
  } else {
    emitter_.read(from.buffer, from.offset, from.bytes);
  }
  emitter_.write(group.master);
  emitter_.compute("clone master");
  return cast;
}

// initialize_optimizer_states: the gradient that the optimizer on the host will be given. Zeros stay where this rank
// has nothing but padding. A pinned block of the sub-group before serves again, a pageable one goes when this is there.
void Stage3Runtime::create_host_gradient(SubGroup& group) {
  const bool pins = zero().offload_optimizer.pin_memory;
  if (pins) drop_passing();
  group.gradient = make_on_host(in_master_dtype(group.elements), training().master_dtype, Role::Gradients,
                                "gradient in master dtype", pins);
  if (group.away) emitter_.mark_scratch(group.gradient);
  emitter_.begin();
  emitter_.write(group.gradient);
  emitter_.compute("zero gradients");
  drop_passing();
  if (!group.away) create_device_gradient(group);
}

// grad_partitions_flat_buffer lies where the optimizer does.
BufferId Stage3Runtime::make_gradient_partitions() {
  const DType kept = training().grad_accum_dtype;
  const Bytes bytes = storage(Elements(partition_), kept);
  if (!optimizer_away()) {
    return emitter_.allocate(bytes, kept, Role::Gradients, "gradient partitions", kNone, true);
  }
  const BufferId made =
      make_on_host(bytes, kept, Role::Gradients, "gradient partitions", zero().offload_optimizer.pin_memory);
  // Sums are sent to the host even where the step takes them from the device.
  emitter_.mark_scratch(made);
  emitter_.begin();
  emitter_.write(made);
  emitter_.compute("zero gradient partitions");
  return made;
}

// ds_tensor.to(device), before a gather; kNoBuffer where it is there already.
BufferId Stage3Runtime::bring(const Piece& of, bool secondary) {
  if (!parameters_away()) return kNoBuffer;
  const Bytes bytes = secondary ? emitter_.size(of.secondary) : in_model_dtype(of.part);
  const BufferId made = emitter_.allocate(bytes, dtype(), Role::RuntimeBuffers, "partition on the device");
  emitter_.begin();
  read_partition(of, secondary);
  emitter_.write(made);
  emitter_.compute("copy partition to device");
  return made;
}

// NoGatherHandle: what a single rank brings is the parameter; nothing is to be brought where it lies on the device.
void Stage3Runtime::bring_whole(ParameterId id) {
  Piece& of = piece(id);
  of.aliased = !parameters_away();
  if (of.aliased) return;
  of.full = emitter_.allocate(in_model_dtype(of.elements), dtype(), Role::RuntimeBuffers, "gathered parameter", id);
  of.full_offset = Bytes(0);
  emitter_.begin();
  read_partition(of, false);
  emitter_.write(of.full);
  emitter_.compute("copy partition to device");
}

// partition_grads: each gradient goes to the host and is looked at on the device. A rank that has nothing but padding
// of a parameter passes it over. A source that was padded is passed on whole.
void Stage3Runtime::offload_gradients(const std::vector<Source>& sources) {
  const DType kept = training().grad_accum_dtype;
  for (std::size_t at = 0; at < entries_.size(); ++at) {
    const Entry& entry = entries_[at];
    std::int64_t elements = real_part(entry);
    if (elements == 0) continue;
    const std::int64_t part = piece_of(entry).part;
    if (emitter_.size(sources[at].buffer) == storage(Elements(part), kept)) elements = part;
    const BufferId gradient = accumulate_on_host(entry, sources[at].buffer, sources[at].offset, elements);
    if (boundary_) pass_boundary(entry, gradient, elements);
    emitter_.release(gradient, Reason::PythonFrame);
  }
  swap_out_gradients();
}

// Returns the sum on the device: in the first micro-batch a copy of what went to the host, later what goes there.
BufferId Stage3Runtime::accumulate_on_host(const Entry& entry, BufferId source, Bytes offset, std::int64_t elements) {
  const DType kept = training().grad_accum_dtype;
  const Bytes from = storage(Elements(piece_of(entry).offset), kept);
  const Bytes bytes = storage(Elements(elements), kept);
  const auto copy_to_host = [&](BufferId gradient, Bytes start) {
    emitter_.begin();
    emitter_.read(gradient, start, bytes);
    emitter_.write(gradients_, from, bytes);
    emitter_.compute("copy gradient to host");
  };
  if (!accumulating_) copy_to_host(source, offset);
  const BufferId made = emitter_.allocate(bytes, kept, Role::RuntimeBuffers, "gradient partition back on the device");
  if (!boundary_ && !accumulating_) emitter_.mark_scratch(made);
  emitter_.begin();
  emitter_.read(gradients_, from, bytes);
  emitter_.write(made);
  emitter_.compute("copy gradient to device");
  if (!accumulating_) return made;
  emitter_.begin();
  emitter_.read(made);
  emitter_.read(source, offset, bytes);
  emitter_.write(made);
  emitter_.compute("add to gradient partition");
  copy_to_host(made, Bytes(0));
  return made;
}

// _offload_grad_partition_at_boundary: the norm, and what the optimizer is given.
void Stage3Runtime::pass_boundary(const Entry& entry, BufferId gradient, std::int64_t elements) {
  const DType kept = training().grad_accum_dtype;
  const DType type = training().master_dtype;
  for (std::int64_t from = 0; from < elements; from += kNormElements) {
    const Elements count(std::min(kNormElements, elements - from));
    const BufferId wide =
        emitter_.allocate(storage(count, DType::Float64), DType::Float64, Role::RuntimeBuffers, "gradient norm");
    emitter_.mark_scratch(wide);
    emitter_.begin();
    emitter_.read(gradient, storage(Elements(from), kept), storage(count, kept));
    emitter_.write(wide);
    emitter_.as(Body::SquareSum);
    record_squares(trained_[entry.parameter].id);
    emitter_.compute("gradient norm");
    emitter_.release(wide, Reason::LastUse);
  }
  norms_.push_back(emitter_.allocate(Bytes(8), DType::Float64, Role::Temporaries, "gradient norm"));
  emitter_.mark_scratch(norms_.back());
  emitter_.begin();
  emitter_.write(norms_.back());
  emitter_.as(Body::Clear);  // Each chunk's squares have been added up already.
  emitter_.compute("gradient norm");

  const std::size_t index = entry.parameter;
  const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const SubGroup& g) { return index < g.end; });
  BufferId cast = gradient;
  if (kept != type) {
    cast = emitter_.allocate(in_master_dtype(elements), type, Role::RuntimeBuffers, "gradient in master dtype");
    emitter_.begin();
    emitter_.read(gradient);
    emitter_.write(cast);
    emitter_.compute("cast gradient");
  }
  const Bytes place = in_master_dtype(piece_of(entry).offset - group->offset);
  if (swapped(*group)) {
    if (cast == gradient) emitter_.retain(gradient);
    const std::size_t number = index_of(*group);
    auto of = std::find_if(swapped_gradients_.begin(), swapped_gradients_.end(),
                           [&](const auto& one) { return one.first == number; });
    if (of == swapped_gradients_.end()) of = swapped_gradients_.insert(of, {number, {}});
    of->second.push_back({place, in_master_dtype(elements), cast});
    return;
  }
  emitter_.begin();
  emitter_.read(cast);
  emitter_.write(group->gradient, place, in_master_dtype(elements));
  emitter_.compute("copy gradient to the optimizer");
  if (cast != gradient) emitter_.release(cast, Reason::LastUse);
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
  const std::vector<StateTensor> states =
      optimizer_state(training().optimizer, Shape{group.elements}, training().master_dtype, false);
  if (swapped(group)) {
    optimizer_->swap_in(index_of(group));
    optimizer_->update(index_of(group), states);
    copy_to_partitions(group);
    return optimizer_->swap_out(index_of(group));
  }
  if (first) {
    for (const StateTensor& tensor : states) {
      group.state.push_back(
          emitter_.allocate(tensor.bytes, tensor.dtype, Role::Optimizer, tensor.label, kNone, false, Space::Pageable));
    }
    emitter_.begin();
    write_all(group.state);
    emitter_.compute("create optimizer state");
  }
  update_master(group, "optimizer update on the host");
  copy_to_partitions(group);
}

// Of a sub-group that has master, gradient and states to itself, wherever they are.
void Stage3Runtime::update_master(const SubGroup& group, Label work) {
  emitter_.begin();
  emitter_.read(group.master);
  emitter_.read(group.gradient);
  read_all(group.state);
  emitter_.write(group.master);
  write_all(group.state);
  emitter_.states_of_update(group.state.size());
  emitter_.compute(work);
}

void Stage3Runtime::copy_to_partitions(const SubGroup& group) {
  if (!group.in_flat) return write_partitions(group);
  const Range to{flat_, in_model_dtype(group.offset), in_model_dtype(group.elements), dtype()};
  copy(master_of(group), to, "copy master to partitions");
}

}  // namespace dsplan
