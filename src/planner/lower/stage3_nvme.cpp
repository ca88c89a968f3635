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
void Stage3Runtime::partition_into_file(Piece& of, BufferId whole) {
  const ParameterId id = id_of(of);
  const Range to = files_->take(id, in_model_dtype(of.part));
  emitter_.begin();
  emitter_.read(whole);
  emitter_.write(to.buffer, to.offset, to.bytes);
  if (Recording* recording = emitter_.recording(); recording != nullptr) {
    const std::int64_t from = std::min(of.elements, checked_mul(of.part, rank()));
    const std::int64_t real = std::min(of.part, of.elements - from);
    recording->reads({{whole, in_model_dtype(from), in_model_dtype(real)}});
  }
  emitter_.compute("partition parameter");
  emitter_.release(whole, Reason::LastUse);
  files_->write(id);
  files_->give_back(id);
}

// What was in a file stays there as well, and is not read again.
void Stage3Runtime::move_to_flat(Piece& of) {
  of.in_flat = true;
  const Range to{flat_, in_model_dtype(of.offset), in_model_dtype(of.part), dtype()};
  if (of.own == kNoBuffer) return files_->read_into(id_of(of), to, true);
  emitter_.begin();
  emitter_.read(of.own);
  emitter_.write(to.buffer, to.offset, to.bytes);
  emitter_.compute("move partition to flat buffer");
  emitter_.release(std::exchange(of.own, kNoBuffer), Reason::LastUse);
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
BufferId Stage3Runtime::master_from_pieces(const SubGroup& group) {
  const DType type = training().master_dtype;
  const BufferId made = emitter_.allocate(in_master_dtype(group.elements), type, Role::Optimizer, "master weights",
                                          kNone, false, optimizer_away() ? Space::Pageable : Space::Device);
  for (std::size_t at = group.begin; at < group.end; ++at) {
    const Piece& of = piece(trained_[at].id);
    read_missing({trained_[at].id});
    const Range to{made, in_master_dtype(of.offset - group.offset), in_master_dtype(of.part), type};
    copy(partition_range(of), to, "cast to master");
    drop_read(trained_[at].id);
  }
  return made;
}

// _create_fp32_partitions, of what does not lie in the flat buffer or goes to NVMe.
void Stage3Runtime::initialise_swapped_masters() {
  const auto write = [&](const std::vector<OptimizerSwapper::Source>& sources) {
    optimizer_->initialise(sources, [&](const Range& from, const Range& to) { copy(from, to, "cast to master"); });
  };
  std::vector<OptimizerSwapper::Source> flat;
  BufferId before = kNoBuffer;
  for (SubGroup& group : groups_) {
    if (group.in_flat) {
      const Range from{flat_, in_model_dtype(group.offset), in_model_dtype(group.elements), dtype()};
      if (swapped(group)) flat.push_back({index_of(group), from});
      continue;
    }
    const BufferId made = master_from_pieces(group);
    if (before != kNoBuffer) emitter_.release(std::exchange(before, kNoBuffer), Reason::PythonFrame);
    if (!swapped(group)) {
      group.master = made;
      continue;
    }
    write({{index_of(group), {made, Bytes(0), emitter_.size(made), training().master_dtype}}});
    before = made;
  }
  if (!flat.empty()) write(flat);
  if (before != kNoBuffer) emitter_.release(before, Reason::PythonFrame);
}

Stage3Runtime::Range Stage3Runtime::master_of(const SubGroup& group) const {
  if (swapped(group)) return optimizer_->master(index_of(group));
  return {group.master, Bytes(0), in_master_dtype(group.elements), training().master_dtype};
}

// Where the partition lies in memory.
Stage3Runtime::Range Stage3Runtime::partition_range(const Piece& of) const {
  if (of.in_flat) return {flat_, in_model_dtype(of.offset), in_model_dtype(of.part), dtype()};
  if (of.own == kNoBuffer) return files_->buffer(id_of(of));
  return {of.own, Bytes(0), in_model_dtype(of.part), dtype()};
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
  std::vector<Range> from;
  for (std::size_t at = group.begin; at < group.end; ++at) {
    const Piece& of = piece(trained_[at].id);
    Range part = master_of(group);
    part.offset += in_master_dtype(of.offset - group.offset);
    part.bytes = in_master_dtype(of.part);
    if (!of.in_file) {
      copy(part, partition_range(of), "copy master to partitions");
      continue;
    }
    in_files.push_back(trained_[at].id);
    from.push_back(part);
  }
  files_->write_updates(in_files, from, [&](const Range& a, const Range& b) { copy(a, b, "cast to partitions"); });
}

void Stage3Runtime::swap_out_gradients() {
  for (const auto& [group, gradients] : swapped_gradients_) optimizer_->swap_out_gradients(group, gradients);
  for (const auto& [group, gradients] : std::exchange(swapped_gradients_, {})) {
    for (const OptimizerSwapper::Gradient& gradient : gradients) {
      emitter_.release(gradient.tensor, Reason::PythonFrame);
    }
  }
}

void Stage3Runtime::promise_updates() {
  for (const SubGroup& group : groups_) {
    const BufferId master = swapped(group) ? optimizer_->master_file(index_of(group)) : group.master;
    if (master != kNoBuffer) emitter_.promise_update(master, Bytes(0), emitter_.size(master));
  }
  for (const Leaf& leaf : trained_) {
    const Piece& of = piece(leaf.id);
    if (of.in_file) {
      emitter_.promise_update(files_->file(leaf.id), Bytes(0), emitter_.size(files_->file(leaf.id)));
    } else {
      const Range range = partition_range(of);
      emitter_.promise_update(range.buffer, range.offset, range.bytes);
    }
  }
}

}  // namespace dsplan
