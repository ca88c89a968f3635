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
  let_go(norms_);
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
  const Space space = optimizer_away() ? Space::Pageable : Space::Device;
  const auto make = [&](DType type, const Variable& from, Body body, Label label, Source source) {
    Variable made =
        eager_.empty(storage(Elements(partition_), type), type, {Role::Temporaries, label, source}, kNone, space);
    made.mark_scratch();
    eager_.work().read(from).write(made).run(body, label);
    return made;
  };
  {
    const OnStream stream(emitter_, reduce_stream());
    Variable absolute = make(training().grad_accum_dtype, gradients_, Body::Copy, "absolute gradients", "");
    Variable scan = make(DType::Bool, absolute, Body::OverflowScan, "overflow scan", "zero/stage3.py, has_overflow");
    absolute.reset();
    scan.reset();
    scan = make(DType::Bool, gradients_, Body::OverflowScan, "overflow scan", "zero/stage3.py, has_overflow");
  }
  emitter_.wait(kComputeStream, reduce_stream());
  control_all_reduce(Bytes(1), "overflow flag");
}

// get_grad_norm_direct: one partition at a time in fp64, then all the norms and their squares.
void Stage3Runtime::measure_norm(const SubGroup& group) {
  for (std::size_t index = group.begin; index < group.end; ++index) {
    const Piece& of = piece(trained_[index].id);
    const Variable wide = eager_.empty(storage(Elements(of.part), DType::Float64), DType::Float64,
                                       {Role::Temporaries, "gradient norm", "zero/stage3.py, get_grad_norm_direct"});
    wide.mark_scratch();
    Work norm = eager_.work().read(in_gradients(of)).write(wide);
    record_squares(trained_[index].id);
    norm.run(Body::SquareSum, "gradient norm");
  }
  {
    const Bytes norms = storage(Elements(static_cast<std::int64_t>(group.end - group.begin)), DType::Float64);
    const Variable stacked = eager_.empty(norms, DType::Float64, {Role::Temporaries, "gradient norms", ""});
    stacked.mark_scratch();
    eager_.zero(stacked, "stack norms");
    const Variable squares = eager_.empty(norms, DType::Float64, {Role::Temporaries, "gradient norms", ""});
    squares.mark_scratch();
    eager_.work().read(stacked).write(squares).run(Body::Clear, "square norms");
  }
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
  Part gradient(gradients_.id(), storage(Elements(group.offset), accumulate),
                storage(Elements(group.elements), accumulate));
  Variable made;  // None: the partition itself serves.
  if (group.end - group.begin > 1) {
    made = eager_.clone(gradient, {Role::Temporaries, "flat gradient", "zero/stage3.py, step"}, "flatten gradient");
    gradient = made;
  }
  if (accumulate != training().master_dtype) {
    made = eager_.cast(gradient, training().master_dtype,
                       {Role::Temporaries, "gradient in master dtype", "zero/stage3.py, step"}, "cast gradient");
    gradient = made;
  }
  print("After prepare optimizer sub group " + number);
  if (first) create_state(group, Space::Device);
  update_master(group, gradient, "optimizer update");
  copy_to_partitions(group);
  print("Before release optimizer sub group " + number);
  made.reset(Reason::GradientHeld);
  print("After release optimizer sub group " + number);
}

// stage3_gather_16bit_weights_on_model_save (engine.py, _zero3_consolidated_16bit_state_dict): every rank gathers one
// module's own parameters at a time, rank 0 copies them to the host and sends them out again, and all cut them anew.
bool Stage3Runtime::saves() const { return zero().gather_16bit_weights_on_model_save; }

void Stage3Runtime::save() {
  coordinator_.release_all();
  apply();
  std::vector<Variable> host;
  std::vector<bool> saved(pieces_.size(), false);
  for (std::size_t module = 0; module < model_.modules.size(); ++module) {
    std::vector<ParameterId> own = coordinator_.module(static_cast<ModuleId>(module)).own;
    std::sort(own.begin(), own.end());
    if (!own.empty()) save_module(own, host, saved);
  }
  drop_secondary();
  gather_persistent();
  let_go(host);
}

void Stage3Runtime::save_module(const std::vector<ParameterId>& list, std::vector<Variable>& host,
                                std::vector<bool>& saved) {
  gather_in_place(list);
  const auto whole = [&](ParameterId id) {
    const ParameterPlace at = place(id);
    return Part(at.buffer, at.offset, at.bytes);
  };
  for (ParameterId id : list) {
    if (rank() != 0 || saved[static_cast<std::size_t>(id)]) continue;
    saved[static_cast<std::size_t>(id)] = true;  // A tied weight is there under its other name.
    host.push_back(eager_.empty(in_model_dtype(piece(id).elements), dtype(), {Role::Parameters, "weight to save", ""},
                                id, Space::Pageable));
    host.back().mark_scratch();
    eager_.copy(host.back(), whole(id), "copy weight to host");
  }
  for (ParameterId id : list) eager_.broadcast(whole(id), 0, world());
  for (ParameterId id : list) {
    Piece& of = piece(id);
    if (inside() > 1) make_secondary(of, Part(of.full.id(), of.full_offset, in_model_dtype(aligned(of))));
    if (of.full) cut_again(of);
    of.aliased = false;
    of.full.reset();
    drop_read(id);
  }
}

// _partition_param, has_been_updated: this rank's part of what it holds, padding as it was.
void Stage3Runtime::cut_again(Piece& of) {
  const Real mine = real(of);
  eager_.copy(partition(of),
              Part(of.full.id(), of.full_offset + in_model_dtype(mine.from), in_model_dtype(mine.elements)),
              "partition parameter");
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
