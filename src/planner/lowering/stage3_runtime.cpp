// ZeRO-3 (DeepSpeed runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py), without
// offload, at the level of gather, use, release, reduce and step: each module gathers its own parameters when it is
// entered and lets go of them when it is left; prefetching and the reuse window are not modelled yet.
//
// Each parameter is cut on its own: P = ceil(n / W) elements per rank, A = W * P gathered. Trained partitions lie in
// one flat buffer, their gradients in another that is never freed.
#include <algorithm>

#include "core/error.h"
#include "planner/lowering/runtime_base.h"

namespace dsplan {
namespace {

class Stage3Runtime final : public RuntimeBase {
 public:
  Stage3Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter), pieces_(model.parameters.size()), active_module_(model.modules.size()) {
    own_.resize(model.modules.size());
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      const Parameter& parameter = model.parameters[at];
      const ParameterId id = parameter.tied_to == kNone ? static_cast<ParameterId>(at) : parameter.tied_to;
      own_[static_cast<std::size_t>(parameter.module)].push_back(id);
    }
    lay_out();
  }

  void initialise() override {
    // zero.Init: a module's parameters are whole until its constructor returns, then broadcast and cut.
    for (const Leaf& leaf : leaves_) partition(leaf);
    if (trained_.empty()) return;
    gather_partitions_in_one_buffer();
    gradients_ = emitter_.allocate(storage(Elements(partition_), training().grad_accum_dtype),
                                   training().grad_accum_dtype, Role::Gradients, "gradient partitions", kNone, true);
    bucket_ = emitter_.allocate(storage(zero().reduce_bucket_size, training().communication_dtype),
                                training().communication_dtype, Role::RuntimeBuffers, "gradient bucket", kNone, true);
    create_masters();
    for (const SubGroup& group : groups_) {
      if (group.master != kNoBuffer) emitter_.promise_update(group.master, Bytes(0), emitter_.size(group.master));
    }
    for (const Leaf& leaf : trained_) {
      const Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
      emitter_.promise_update(flat_, in_model_dtype(piece.offset), in_model_dtype(piece.part));
    }
    // initialize_optimizer_states: a gradient of the largest sub-group, dropped at the end.
    std::int64_t largest = 0;
    for (const SubGroup& group : groups_) largest = std::max(largest, group.elements);
    const BufferId zeros = emitter_.allocate(in_master_dtype(largest), training().master_dtype, Role::Temporaries,
                                             "zero gradients of initialize_optimizer_states");
    emitter_.mark_scratch(zeros);
    emitter_.begin();
    emitter_.write(zeros);
    emitter_.compute("zero gradients");
    emitter_.release(zeros, Reason::PythonFrame);
    // create_reduce_and_remove_grad_hooks: a hook can only be put on a parameter that is whole.
    for (const Leaf& leaf : trained_) {
      Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
      gather({leaf.id});
      emitter_.mark_scratch(piece.full);
      release_full(piece);
    }
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const Piece& piece = pieces_[static_cast<std::size_t>(parameter)];
    DSPLAN_CHECK(piece.full != kNoBuffer, "a parameter is used while it is partitioned: " +
                                              model_.parameters[static_cast<std::size_t>(parameter)].name);
    return {piece.full, Bytes(0), in_model_dtype(piece.elements)};
  }

  // PostBackwardFunctionModule (parameter_offload.py), on the tensors that a module is called with.
  [[nodiscard]] bool wraps_input(ModuleId module) const override {
    return !own_[static_cast<std::size_t>(module)].empty();
  }
  void forward_begins() override { complete_ = forwards_++ > 0; }
  void backward_begins(bool) override {}

  void enter(ModuleId module, Pass) override {
    const auto at = static_cast<std::size_t>(module);
    if (own_[at].empty()) return;
    std::vector<ParameterId> missing;
    for (ParameterId parameter : own_[at]) {
      Piece& piece = pieces_[static_cast<std::size_t>(parameter)];
      if (!active_module_[at]) ++piece.users;
      if (piece.full == kNoBuffer) missing.push_back(parameter);
    }
    active_module_[at] = true;
    if (!missing.empty()) gather(missing);
  }

  void exit(ModuleId module, Pass) override {
    const auto at = static_cast<std::size_t>(module);
    if (!active_module_[at]) return;
    active_module_[at] = false;
    for (ParameterId parameter : own_[at]) {
      Piece& piece = pieces_[static_cast<std::size_t>(parameter)];
      if (--piece.users > 0 || (complete_ && piece.persistent)) continue;
      emitter_.release(std::exchange(piece.full, kNoBuffer), Reason::ModuleExit);
    }
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    const auto index = static_cast<std::size_t>(trained_index_[static_cast<std::size_t>(parameter)]);
    const std::int64_t elements = trained_[index].elements;
    const std::int64_t limit = zero().reduce_bucket_size.value();
    if (filled_ + elements > limit) flush();
    if (elements > limit) {
      entries_.push_back({index, 0, gradient});
      filled_ += elements;
      return;
    }
    const Bytes offset = storage(Elements(filled_), training().communication_dtype);
    const Bytes bytes = storage(Elements(elements), training().communication_dtype);
    emitter_.begin();
    emitter_.read(gradient);
    emitter_.write(bucket_, offset, bytes);
    emitter_.compute("copy gradient to bucket");
    emitter_.release(gradient, Reason::GradientHeld);
    entries_.push_back({index, filled_, kNoBuffer});
    filled_ += elements;
  }

  void backward_ends(bool boundary) override {
    flush();
    accumulating_ = !boundary;
  }

  void step(bool first) override {
    for (const Leaf& leaf : leaves_) release_full(pieces_[static_cast<std::size_t>(leaf.id)]);
    if (!trained_.empty()) {
      measure_gradients();
      for (SubGroup& group : groups_) update(group, first);
    }
    // Persistent parameters come back one by one, in place for the next step.
    for (const Leaf& leaf : leaves_) {
      if (pieces_[static_cast<std::size_t>(leaf.id)].persistent) gather({leaf.id});
    }
  }

 private:
  struct Piece {
    std::int64_t elements = 0;
    std::int64_t part = 0;    // P.
    std::int64_t offset = 0;  // In the flat partition; trained parameters only.
    bool persistent = false;
    bool trained = false;
    BufferId own = kNoBuffer;   // Frozen: the partition's own tensor.
    BufferId full = kNoBuffer;  // Gathered.
    std::int32_t users = 0;     // Modules that have entered and not left.
  };
  struct SubGroup {
    std::size_t begin = 0;  // Indices into trained_.
    std::size_t end = 0;
    std::int64_t offset = 0;
    std::int64_t elements = 0;
    BufferId master = kNoBuffer;  // kNoBuffer: the parameters themselves.
    std::vector<BufferId> state;
  };
  struct Entry {
    std::size_t parameter;
    std::int64_t offset;
    BufferId own;
  };

  // Partitions, persistence (parameter_offload.py, mark_persistent_parameters) and sub-groups.
  void lay_out() {
    std::int64_t persistent = 0;
    for (const Leaf& leaf : leaves_) {
      Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
      piece.elements = leaf.elements;
      piece.part = div_ceil(Elements(leaf.elements), world()).value();
      piece.trained = leaf.trainable;
      if (leaf.trainable) {
        piece.offset = partition_;
        partition_ = checked_add(partition_, piece.part);
        largest_part_ = std::max(largest_part_, piece.part);
      }
      if (checked_add(leaf.elements, persistent) > zero().model_persistence_threshold.value()) continue;
      if (leaf.elements > zero().param_persistence_threshold.value()) continue;
      piece.persistent = true;
      persistent += leaf.elements;
    }
    SubGroup group;
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      group.elements += pieces_[static_cast<std::size_t>(trained_[i].id)].part;
      group.end = i + 1;
      if (group.elements < zero().sub_group_size.value() && i + 1 < trained_.size()) continue;
      groups_.push_back(group);
      group = SubGroup{i + 1, i + 1, group.offset + group.elements, 0, kNoBuffer, {}};
    }
  }

  void partition(const Leaf& leaf) {
    Piece& piece = pieces_[static_cast<std::size_t>(leaf.id)];
    const BufferId whole = load_whole(leaf, "whole parameter");
    if (world() > 1) {
      emitter_.begin();
      emitter_.read(whole);
      emitter_.write(whole);
      emitter_.communicate(Collective::Broadcast, dtype(), emitter_.size(whole));
    }
    piece.own =
        emitter_.allocate(in_model_dtype(piece.part), dtype(), Role::Parameters, "parameter partition", leaf.id);
    emitter_.begin();
    emitter_.read(whole);
    emitter_.write(piece.own);
    emitter_.compute("partition parameter");
    emitter_.release(whole, Reason::LastUse);
  }

  // zero/utils.py, defragment: through the host, so that old and new never coexist on the device.
  void gather_partitions_in_one_buffer() {
    std::vector<BufferId> parts;
    for (const Leaf& leaf : trained_) {
      parts.push_back(std::exchange(pieces_[static_cast<std::size_t>(leaf.id)].own, kNoBuffer));
    }
    const BufferId staging = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Parameters,
                                               "staging of parameter partitions", kNone, false, Space::Pageable);
    emitter_.begin();
    read_all(parts);
    emitter_.write(staging);
    emitter_.compute("copy partitions to host");
    for (BufferId part : parts) emitter_.release(part, Reason::LastUse);
    flat_ = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Parameters, "parameter partitions");
    emitter_.begin();
    emitter_.read(staging);
    emitter_.write(flat_);
    emitter_.compute("copy partitions to device");
    emitter_.release(staging, Reason::LastUse);
  }

  // to(fp32) and then a clone, the cast before last being let go of by the next; nothing where parameters and master
  // share their dtype.
  void create_masters() {
    if (training().master_dtype == dtype()) return;
    BufferId before = kNoBuffer;
    for (SubGroup& group : groups_) {
      const BufferId cast = create_master(group);
      if (before != kNoBuffer) emitter_.release(before, Reason::PythonFrame);
      before = cast;
    }
    if (before != kNoBuffer) emitter_.release(before, Reason::PythonFrame);
  }

  // The cast is still there.
  BufferId create_master(SubGroup& group) {
    const BufferId cast = emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Temporaries,
                                            "master weights before the clone");
    emitter_.begin();
    emitter_.read(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
    emitter_.write(cast);
    emitter_.compute("cast to master");
    group.master =
        emitter_.allocate(in_master_dtype(group.elements), training().master_dtype, Role::Optimizer, "master weights");
    emitter_.begin();
    emitter_.read(cast);
    emitter_.write(group.master);
    emitter_.compute("clone master");
    return cast;
  }

  void release_full(Piece& piece) {
    if (piece.full != kNoBuffer) emitter_.release(std::exchange(piece.full, kNoBuffer), Reason::RuntimeBucket);
  }

  void read_partition(const Piece& piece) {
    if (piece.trained) {
      emitter_.read(flat_, in_model_dtype(piece.offset), in_model_dtype(piece.part));
    } else {
      emitter_.read(piece.own);
    }
  }

  // One collective per call. A single parameter is used in place; several are copied out of the flat buffer, which
  // lives until the module that asked starts.
  void gather(const std::vector<ParameterId>& parameters) {
    std::int64_t aligned = 0;
    for (ParameterId id : parameters) {
      aligned = checked_add(aligned, checked_mul(pieces_[static_cast<std::size_t>(id)].part, world()));
    }
    const bool single = parameters.size() == 1;
    const BufferId flat =
        emitter_.allocate(in_model_dtype(aligned), dtype(), Role::RuntimeBuffers,
                          single ? "gathered parameter" : "gather buffer", single ? parameters[0] : kNone);
    emitter_.begin();
    for (ParameterId id : parameters) read_partition(pieces_[static_cast<std::size_t>(id)]);
    emitter_.write(flat);
    collective(Collective::AllGather, dtype(), in_model_dtype(aligned));
    if (single) {
      pieces_[static_cast<std::size_t>(parameters[0])].full = flat;
      return;
    }
    for (ParameterId id : parameters) {
      Piece& piece = pieces_[static_cast<std::size_t>(id)];
      piece.full =
          emitter_.allocate(in_model_dtype(piece.elements), dtype(), Role::RuntimeBuffers, "gathered parameter", id);
    }
    emitter_.begin();
    emitter_.read(flat);
    for (ParameterId id : parameters) emitter_.write(pieces_[static_cast<std::size_t>(id)].full);
    emitter_.compute("copy gathered parameters");
    emitter_.release(flat, Reason::LastUse);
  }

  void flush() {
    if (entries_.empty()) return;
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.parameter < b.parameter; });  // By ds_id.
    const DType type = training().communication_dtype;
    std::int64_t part = 0;
    for (const Entry& entry : entries_) part += piece_of(entry).part;
    const BufferId uncast = cast_own_gradient();
    const Entry& first = entries_.front();
    const bool direct = entries_.size() == 1 && trained_[first.parameter].elements % world() == 0;
    const BufferId source = first.own == kNoBuffer ? bucket_ : first.own;
    const BufferId tensor = direct ? source
                                   : emitter_.allocate(storage(Elements(checked_mul(part, world())), type), type,
                                                       Role::RuntimeBuffers, "interleaved gradients");
    const Bytes start = direct ? storage(Elements(first.offset), type) : Bytes(0);
    if (!direct) join(tensor);
    const Bytes whole = storage(Elements(checked_mul(part, world())), type);
    const Bytes mine = start + storage(Elements(checked_mul(part, rank())), type);
    const Bytes share = storage(Elements(part), type);
    reduce(tensor, start, whole, mine, share);
    add_to_partition(tensor, mine);
    if (!direct) emitter_.release(tensor, Reason::LastUse);
    for (const Entry& entry : entries_) {
      if (entry.own == kNoBuffer) continue;
      emitter_.release(entry.own, uncast == kNoBuffer ? Reason::GradientHeld : Reason::PythonFrame);
    }
    if (uncast != kNoBuffer) emitter_.release(uncast, Reason::GradientHeld);
    entries_.clear();
    filled_ = 0;
  }

  // A gradient that is larger than the bucket never entered it, and is cast by itself where the communication dtype
  // differs. Returns the gradient that the cast stands in for; both live until the reduction is over.
  BufferId cast_own_gradient() {
    Entry& entry = entries_.front();  // Alone: whatever comes next flushes it first.
    const DType type = training().communication_dtype;
    if (entry.own == kNoBuffer || type == dtype()) return kNoBuffer;
    const BufferId cast = emitter_.allocate(storage(Elements(trained_[entry.parameter].elements), type), type,
                                            Role::RuntimeBuffers, "gradients in communication dtype");
    emitter_.begin();
    emitter_.read(entry.own);
    emitter_.write(cast);
    emitter_.compute("cast gradients");
    return std::exchange(entry.own, cast);
  }

  [[nodiscard]] const Piece& piece_of(const Entry& entry) const {
    return pieces_[static_cast<std::size_t>(trained_[entry.parameter].id)];
  }

  // Each gradient padded to A, interleaved by rank.
  void join(BufferId tensor) {
    emitter_.begin();
    for (const Entry& entry : entries_) {
      if (entry.own != kNoBuffer) {
        emitter_.read(entry.own);
      } else {
        emitter_.read(bucket_, storage(Elements(entry.offset), training().communication_dtype),
                      storage(Elements(trained_[entry.parameter].elements), training().communication_dtype));
      }
    }
    emitter_.write(tensor);
    emitter_.compute("interleave gradients");
  }

  void reduce(BufferId tensor, Bytes start, Bytes whole, Bytes mine, Bytes share) {
    emitter_.begin();
    emitter_.read(tensor, start, whole);
    if (zero().reduce_scatter) {
      emitter_.write(tensor, mine, share);
      collective(Collective::ReduceScatter, training().communication_dtype, whole);
    } else {
      emitter_.write(tensor, start, whole);
      collective(Collective::AllReduce, training().communication_dtype, whole);
    }
  }

  void add_to_partition(BufferId tensor, Bytes mine) {
    const DType type = training().grad_accum_dtype;
    Bytes offset = mine;
    emitter_.begin();
    for (const Entry& entry : entries_) {
      const Bytes bytes = storage(Elements(piece_of(entry).part), training().communication_dtype);
      emitter_.read(tensor, offset, bytes);
      offset += bytes;
    }
    for (const Entry& entry : entries_) {
      const Piece& piece = piece_of(entry);
      if (accumulating_) {
        emitter_.read(gradients_, storage(Elements(piece.offset), type), storage(Elements(piece.part), type));
      }
    }
    for (const Entry& entry : entries_) {
      const Piece& piece = piece_of(entry);
      emitter_.write(gradients_, storage(Elements(piece.offset), type), storage(Elements(piece.part), type));
    }
    emitter_.compute(accumulating_ ? "add to gradient partitions" : "copy to gradient partitions");
  }

  // fp16 scans the whole gradient buffer (a mask and an absolute copy); the norm takes one partition at a time.
  void measure_gradients() {
    const std::int64_t accumulate = bytes_per_element(training().grad_accum_dtype);
    if (dtype() == DType::Float16) {
      scratch(Bytes(checked_mul(partition_, accumulate + 1)), DType::UInt8, "overflow scan");
      control_all_reduce(Bytes(1), "overflow flag");
    }
    scratch(storage(Elements(largest_part_), DType::Float64), DType::Float64, "gradient norm");
    for (std::size_t i = 0; i < groups_.size(); ++i) control_all_reduce(Bytes(8), "gradient norm");
  }

  void scratch(Bytes bytes, DType type, Label label) {
    const BufferId buffer = emitter_.allocate(bytes, type, Role::Temporaries, label);
    emitter_.mark_scratch(buffer);
    emitter_.begin();
    emitter_.read(gradients_);
    emitter_.write(buffer);
    emitter_.compute(label);
    emitter_.release(buffer, Reason::LastUse);
  }

  void update(SubGroup& group, bool first) {
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
    if (first) create_flat_state(group.elements, group.state);
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
    emitter_.compute("optimizer update");
    if (group.master != kNoBuffer) {
      emitter_.begin();
      emitter_.read(group.master);
      emitter_.write(flat_, in_model_dtype(group.offset), in_model_dtype(group.elements));
      emitter_.compute("copy master to partitions");
    }
    if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
  }

  BufferId cast_gradient(const SubGroup& group, BufferId flat, Bytes from, Bytes bytes) {
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

  std::vector<Piece> pieces_;                  // By ParameterId.
  std::vector<std::vector<ParameterId>> own_;  // By module: its own parameters, ties resolved.
  std::vector<bool> active_module_;
  std::vector<SubGroup> groups_;
  std::int64_t partition_ = 0;  // S.
  std::int64_t largest_part_ = 0;
  BufferId flat_ = kNoBuffer;
  BufferId gradients_ = kNoBuffer;
  BufferId bucket_ = kNoBuffer;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  std::int32_t forwards_ = 0;
  bool complete_ = false;      // The trace: recorded during the first forward, complete from the second on.
  bool accumulating_ = false;  // A later micro-batch adds to the partitions; the first overwrites them.
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_stage3_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                     Emitter& emitter) {
  return std::make_unique<Stage3Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
