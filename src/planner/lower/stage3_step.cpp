// ZeRO-3: overflow scan, norm and the update, one sub-group at a time.
#include <algorithm>
#include <utility>

#include "planner/lower/stage3_runtime.h"

namespace dsplan {

void Stage3Runtime::step(bool first) {
  print("In step before checking overflow");
  coordinator_.release_all();
  apply();
  if (!trained_.empty()) {
    measure_gradients();
    for (SubGroup& group : groups_) update(group, first);
  }
  for (BufferId norm : std::exchange(norms_, {})) emitter_.release(norm, Reason::PythonFrame);
  gather_persistent();
  drop_secondary();
  print("After zero_optimizer step");
  let_go_of_norms();
}

// Persistent parameters come back one by one, in place for the next step.
void Stage3Runtime::gather_persistent() {
  gather_in_place(persistent_);
  // Without any nothing in DeepSpeed makes the gathers to come wait for what the step wrote: they are made to here.
  emitter_.wait(gather_stream(), kComputeStream);
  for (ParameterId id : persistent_) coordinator_.made_available(id);
}

void Stage3Runtime::measure_gradients() {
  if (optimizer_away()) return measure_on_host();
  if (dtype() == DType::Float16) scan_overflow();
  for (const SubGroup& group : groups_) measure_norm(group);
  hold_norms(DType::Float64, groups_.size());
}

// has_overflow, fp16 only: isinf of the whole gradient buffer, which compares absolute values, then isnan, where
// that buffer is.
void Stage3Runtime::scan_overflow() {
  const DType kept = training().grad_accum_dtype;
  const Space space = optimizer_away() ? Space::Pageable : Space::Device;
  const auto make = [&](DType type, BufferId from, Label label) {
    const BufferId made =
        emitter_.allocate(storage(Elements(partition_), type), type, Role::Temporaries, label, kNone, false, space);
    emitter_.mark_scratch(made);
    emitter_.begin();
    emitter_.read(from);
    emitter_.write(made);
    emitter_.compute(label);
    return made;
  };
  {
    const OnStream stream(emitter_, reduce_stream());
    const BufferId absolute = make(kept, gradients_, "absolute gradients");
    const BufferId infinite = make(DType::Bool, absolute, "overflow scan");
    emitter_.release(absolute, Reason::LastUse);
    emitter_.release(infinite, Reason::LastUse);
    emitter_.release(make(DType::Bool, gradients_, "overflow scan"), Reason::LastUse);
  }
  emitter_.wait(kComputeStream, reduce_stream());
  control_all_reduce(Bytes(1), "overflow flag");
}

// get_grad_norm_direct: one partition at a time in fp64, then all the norms and their squares.
void Stage3Runtime::measure_norm(const SubGroup& group) {
  const DType kept = training().grad_accum_dtype;
  for (std::size_t index = group.begin; index < group.end; ++index) {
    const Piece& of = piece(trained_[index].id);
    const BufferId wide = emitter_.allocate(storage(Elements(of.part), DType::Float64), DType::Float64,
                                            Role::Temporaries, "gradient norm");
    emitter_.mark_scratch(wide);
    emitter_.begin();
    emitter_.read(gradients_, storage(Elements(of.offset), kept), storage(Elements(of.part), kept));
    emitter_.write(wide);
    emitter_.as(Body::SquareSum);
    record_squares(trained_[index].id);
    emitter_.compute("gradient norm");
    emitter_.release(wide, Reason::LastUse);
  }
  const Bytes norms = storage(Elements(static_cast<std::int64_t>(group.end - group.begin)), DType::Float64);
  const auto make = [&] {
    const BufferId made = emitter_.allocate(norms, DType::Float64, Role::Temporaries, "gradient norms");
    emitter_.mark_scratch(made);
    return made;
  };
  const BufferId stacked = make();
  emitter_.begin();
  emitter_.write(stacked);
  emitter_.as(Body::Clear);
  emitter_.compute("stack norms");
  const BufferId squares = make();
  emitter_.begin();
  emitter_.read(stacked);
  emitter_.write(squares);
  emitter_.as(Body::Clear);
  emitter_.compute("square norms");
  emitter_.release(squares, Reason::PythonFrame);
  emitter_.release(stacked, Reason::PythonFrame);
  control_all_reduce(Bytes(8), "gradient norm");
}

void Stage3Runtime::update(SubGroup& group, bool first) {
  const auto number = std::to_string(&group - groups_.data());
  print("Before prepare optimizer sub group " + number);
  if (optimizer_away()) {
    print("After prepare optimizer sub group " + number);
    update_on_host(group, first);
    print("Before release optimizer sub group " + number);
    return print("After release optimizer sub group " + number);
  }
  const DType accumulate = training().grad_accum_dtype;
  const Bytes from = storage(Elements(group.offset), accumulate);
  const Bytes bytes = storage(Elements(group.elements), accumulate);
  BufferId gradient = kNoBuffer;  // kNoBuffer: the partition itself serves.
  if (group.end - group.begin > 1) {
    gradient = emitter_.allocate(bytes, accumulate, Role::Temporaries, "flat gradient");
    emitter_.begin();
    emitter_.read(gradients_, from, bytes);
    emitter_.write(gradient);
    emitter_.compute("flatten gradient");
  }
  if (accumulate != training().master_dtype) gradient = cast_gradient(group, gradient, from, bytes);
  print("After prepare optimizer sub group " + number);
  if (first) create_flat_state(group.elements, group.state);
  apply_update(group, gradient, from, bytes);
  print("Before release optimizer sub group " + number);
  if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
  print("After release optimizer sub group " + number);
}

void Stage3Runtime::apply_update(SubGroup& group, BufferId gradient, Bytes from, Bytes bytes) {
  emitter_.begin();
  if (group.master != kNoBuffer) {
    emitter_.read(group.master);
  } else {
    emitter_.read(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
  }
  if (gradient != kNoBuffer) {
    emitter_.read(gradient);
  } else {
    emitter_.read(gradients_, from, bytes);
  }
  read_all(group.state);
  if (group.master != kNoBuffer) {
    emitter_.write(group.master);
  } else {
    emitter_.write(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
  }
  write_all(group.state);
  emitter_.states_of_update(group.state.size());
  emitter_.compute("optimizer update");
  if (group.master != kNoBuffer) copy_to_partitions(group);
}

BufferId Stage3Runtime::cast_gradient(const SubGroup& group, BufferId flat, Bytes from, Bytes bytes) {
  const BufferId cast = emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Temporaries,
                                          "gradient in master dtype");
  emitter_.begin();
  if (flat != kNoBuffer) {
    emitter_.read(flat);
  } else {
    emitter_.read(gradients_, from, bytes);
  }
  emitter_.write(cast);
  emitter_.compute("cast gradient");
  if (flat != kNoBuffer) emitter_.release(flat, Reason::LastUse);
  return cast;
}

// stage3_gather_16bit_weights_on_model_save (engine.py, _zero3_consolidated_16bit_state_dict): every rank gathers one
// module's own parameters at a time, rank 0 copies them to the host and sends them out again, and all cut them anew.
bool Stage3Runtime::saves() const { return zero().gather_16bit_weights_on_model_save; }

void Stage3Runtime::save() {
  coordinator_.release_all();
  apply();
  std::vector<BufferId> host;
  std::vector<bool> saved(pieces_.size(), false);
  for (std::size_t module = 0; module < model_.modules.size(); ++module) {
    std::vector<ParameterId> own = coordinator_.module(static_cast<ModuleId>(module)).own;
    std::sort(own.begin(), own.end());
    if (!own.empty()) save_module(own, host, saved);
  }
  drop_secondary();
  gather_persistent();
  for (BufferId buffer : host) emitter_.release(buffer, Reason::PythonFrame);
}

void Stage3Runtime::save_module(const std::vector<ParameterId>& list, std::vector<BufferId>& host,
                                std::vector<bool>& saved) {
  gather_in_place(list);
  for (ParameterId id : list) {
    if (rank() != 0 || saved[static_cast<std::size_t>(id)]) continue;
    saved[static_cast<std::size_t>(id)] = true;  // A tied weight is there under its other name.
    host.push_back(emitter_.allocate(in_model_dtype(piece(id).elements), dtype(), Role::Parameters, "weight to save",
                                     id, false, Space::Pageable));
    emitter_.mark_scratch(host.back());
    emitter_.begin();
    const ParameterPlace whole = place(id);
    emitter_.read(whole.buffer, whole.offset, whole.bytes);
    emitter_.write(host.back());
    emitter_.compute("copy weight to host");
  }
  for (ParameterId id : list) {
    const ParameterPlace whole = place(id);
    if (world() == 1) continue;
    emitter_.begin();
    emitter_.read(whole.buffer, whole.offset, whole.bytes);
    emitter_.write(whole.buffer, whole.offset, whole.bytes);
    emitter_.communicate(Collective::Broadcast, dtype(), whole.bytes);
  }
  for (ParameterId id : list) {
    Piece& of = piece(id);
    if (inside() > 1) make_secondary(of);
    if (of.full != kNoBuffer) cut_again(of);
    of.aliased = false;
    release_full(of, Reason::PythonFrame);
    drop_read(id);
  }
}

// _partition_param, has_been_updated: this rank's part of what it holds, padding as it was.
void Stage3Runtime::cut_again(Piece& of) {
  const std::int64_t from = std::min(of.elements, checked_mul(of.part, rank()));
  const std::int64_t real = std::min(of.part, of.elements - from);
  emitter_.begin();
  emitter_.read(of.full, of.full_offset + in_model_dtype(from), in_model_dtype(real));
  const Range to = partition_range(of);
  emitter_.write(to.buffer, to.offset, to.bytes);
  emitter_.compute("partition parameter");
  if (of.in_file) files_->write(id_of(of));
}

// partitioned_param_profiler.py.
std::vector<FrameworkCount> Stage3Runtime::counts() const {
  std::vector<FrameworkCount> list;
  for (std::size_t at = 0; at < Coordinator::kCounters; ++at) {
    const Coordinator::Count& count = coordinator_.counts()[at];
    list.push_back({name(static_cast<Coordinator::Counter>(at)), count.count, count.elements});
  }
  return list;
}

}  // namespace dsplan
