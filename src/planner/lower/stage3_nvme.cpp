// ZeRO-3 with partitions or the optimizer on NVMe: which of them lie in files, and how they come from there
// (stage3.py, partition_parameters.py; the buffers are ParameterSwapper's and OptimizerSwapper's).
#include <algorithm>
#include <utility>

#include "planner/lower/stage3_runtime.h"

namespace dsplan {

// _create_param_groups_fp16_flat_cpu_memory.
std::int64_t Stage3Runtime::flat_elements() const {
  if (!parameters_in_files()) return partition_;
  return std::min(partition_, zero().offload_param.max_in_cpu.value());
}

void Stage3Runtime::lay_out_files() {
  if (parameters_in_files()) {
    files_.emplace(zero(), dtype(), pieces_.size(), emitter_);
    for (const Leaf& leaf : leaves_) {
      Piece& of = piece(leaf.id);
      of.in_file = files_->swaps(in_model_dtype(of.part));
    }
    for (SubGroup& group : groups_) {
      group.in_flat = group.offset + group.elements <= flat_elements();
      if (!group.in_flat) continue;
      for (std::size_t at = group.begin; at < group.end; ++at) piece(trained_[at].id).in_file = false;
    }
  }
  if (zero().offload_optimizer.device != OffloadDevice::Nvme || trained_.empty()) return;
  std::vector<Bytes> groups;
  for (const SubGroup& group : groups_) groups.push_back(in_master_dtype(group.elements));
  optimizer_.emplace(training(), groups, emitter_);
}

void Stage3Runtime::make_optimizer_buffers() {
  if (optimizer_) optimizer_->make_buffers();
}

// _partition_param: through a buffer into the file, where the sub-group may take it from again.
void Stage3Runtime::partition_into_file(Piece& of, Variable whole) {
  const ParameterId id = id_of(of);
  cut_into(files_->take(id, in_model_dtype(of.part)), of, whole);
  whole.reset();
  files_->write(id);
  files_->give_back(id);
}

// What was in a file stays there as well, and is not read again.
void Stage3Runtime::move_to_flat(Piece& of) {
  of.in_flat = true;
  const Part to = partition(of);
  if (!of.own) return files_->read_into(id_of(of), to, true);
  eager_.copy(to, of.own, "move partition to flat buffer");
  of.own.reset();
}

// reserve_partitioned_swap_space, of the sub-group with the most elements, whichever lie in files. What is passed are
// the whole parameters' sizes (param.ds_numel), as many times what one rank writes as there are ranks.
void Stage3Runtime::reserve_for_updates() {
  if (std::all_of(groups_.begin(), groups_.end(), [](const SubGroup& group) { return group.in_flat; })) return;
  const auto most = std::max_element(groups_.begin(), groups_.end(),
                                     [](const SubGroup& a, const SubGroup& b) { return a.elements < b.elements; });
  Bytes bytes;
  for (std::size_t at = most->begin; at < most->end; ++at) {
    bytes += files_->aligned(in_model_dtype(piece(trained_[at].id).elements));
  }
  files_->reserve_for_updates(bytes);
}

// _swap_in_sub_group_to_flat_buffer: a tensor that becomes the master, or its source.
Variable Stage3Runtime::master_from_pieces(const SubGroup& group) {
  Variable made = eager_.empty(in_master_dtype(group.elements), training().master_dtype,
                               {Role::Optimizer, "master weights", "zero/stage3.py, _create_fp32_partitions"}, kNone,
                               optimizer_away() ? Space::Pageable : Space::Device);
  for (std::size_t at = group.begin; at < group.end; ++at) {
    const Piece& of = piece(trained_[at].id);
    read_missing({trained_[at].id});
    eager_.copy_across(Part(made.id(), in_master_dtype(of.offset - group.offset), in_master_dtype(of.part)),
                       partition(of), "cast to master");
    drop_read(trained_[at].id);
  }
  return made;
}

// _create_fp32_partitions, of what does not lie in the flat buffer or goes to NVMe.
void Stage3Runtime::initialise_swapped_masters() {
  std::vector<OptimizerSwapper::Weights> flat;
  Variable before;
  for (SubGroup& group : groups_) {
    if (group.in_flat) {
      if (swapped(group)) flat.push_back({index_of(group), in_flat(group)});
      continue;
    }
    Variable made = master_from_pieces(group);
    before.reset();
    if (!swapped(group)) {
      group.master = std::move(made);
      continue;
    }
    optimizer_->initialise({{index_of(group), made}});
    before = std::move(made);
  }
  if (!flat.empty()) optimizer_->initialise(flat);
}

Part Stage3Runtime::master_of(const SubGroup& group) const {
  if (swapped(group)) return optimizer_->master(index_of(group));
  return {group.master.id(), Bytes(0), in_master_dtype(group.elements)};
}

// Where the partition lies in memory.
Part Stage3Runtime::partition(const Piece& of) const {
  if (of.in_flat) return {flat_.id(), in_model_dtype(of.offset), in_model_dtype(of.part)};
  if (!of.own) return files_->buffer(id_of(of));
  return {of.own.id(), Bytes(0), in_model_dtype(of.part)};
}

// _ensure_availability_of_partitioned_params.
void Stage3Runtime::read_missing(const std::vector<ParameterId>& list) {
  for (ParameterId id : list) {
    if (piece(id).in_file && !files_->has_buffer(id)) files_->read(id);
  }
}

void Stage3Runtime::drop_read(ParameterId id) {
  if (piece(id).in_file && files_->has_buffer(id)) files_->give_back(id);
}

// _partitioned_params_swap_out: first what lies in memory, then the files.
void Stage3Runtime::write_partitions(const SubGroup& group) {
  std::vector<ParameterId> in_files;
  std::vector<Part> from;
  for (std::size_t at = group.begin; at < group.end; ++at) {
    const Piece& of = piece(trained_[at].id);
    Part part = master_of(group);
    part.offset += in_master_dtype(of.offset - group.offset);
    part.bytes = in_master_dtype(of.part);
    if (!of.in_file) {
      eager_.copy_across(partition(of), part, "copy master to partitions");
      continue;
    }
    in_files.push_back(trained_[at].id);
    from.push_back(part);
  }
  files_->write_updates(in_files, from);
}

void Stage3Runtime::swap_out_gradients() {
  for (const auto& [group, gradients] : swapped_gradients_) optimizer_->swap_out_gradients(group, gradients);
  for (auto& [group, gradients] : swapped_gradients_) {
    for (OptimizerSwapper::Gradient& gradient : gradients) gradient.tensor.reset();
  }
  swapped_gradients_.clear();
}

void Stage3Runtime::promise_updates() {
  const auto promise = [&](const Part& part) {
    emitter_.promise_update(part.buffer, part.offset, eager_.bytes_of(part));
  };
  for (const SubGroup& group : groups_) {
    if (const Variable& master = swapped(group) ? optimizer_->master_file(index_of(group)) : group.master) {
      promise(master);
    }
  }
  for (const Leaf& leaf : trained_) {
    const Piece& of = piece(leaf.id);
    promise(of.in_file ? Part(files_->file(leaf.id)) : partition(of));
  }
}

}  // namespace dsplan
