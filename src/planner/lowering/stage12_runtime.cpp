// ZeRO-1 and ZeRO-2 (DeepSpeed runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer), without offload.
//
// One flat 16-bit buffer per rank holds all trained parameters, padded to 2 * W elements and cut into W equal
// partitions; master copy and optimizer state cover the rank's own partition. Gradients travel through a bucket of
// `reduce_bucket_size` elements: copied in as they become ready, all-reduced when the next one does not fit, and those
// that touch the rank's partition are kept in one tensor (grads_in_partition).
#include <algorithm>
#include <optional>

#include "core/error.h"
#include "planner/lowering/runtime_base.h"

namespace dsplan {
namespace {

class Stage12Runtime final : public RuntimeBase {
 public:
  Stage12Runtime(const Job& job, const ModelSpec& model, std::int64_t rank, Emitter& emitter)
      : RuntimeBase(job, model, rank, emitter),
        whole_(model.parameters.size(), kNoBuffer),
        held_(model.parameters.size(), kNoBuffer) {
    DSPLAN_CHECK(training().grad_accum_dtype == dtype(), "accumulation in another dtype is another optimizer");
    lay_out();
  }

  void initialise() override {
    for (const Leaf& leaf : leaves_) whole_[at(leaf.id)] = load_whole(leaf, "parameter");
    broadcast_parameters();
    if (trained_.empty()) return;
    // Flattening: originals and flat buffer coexist, then the parameters become views.
    flat_ = emitter_.allocate(in_model_dtype(padded_), dtype(), Role::Parameters, "flat parameters");
    emitter_.begin();
    for (const Leaf& leaf : trained_) emitter_.read(whole_[at(leaf.id)]);
    emitter_.write(flat_);
    emitter_.compute("flatten parameters");
    for (const Leaf& leaf : trained_) {
      emitter_.release(whole_[at(leaf.id)], Reason::PythonFrame);
      whole_[at(leaf.id)] = kNoBuffer;
    }
    create_master();
    emitter_.promise_update(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
    emitter_.promise_update(master_, Bytes(0), emitter_.size(master_));
    // initialize_optimizer_states: zero gradients for every group at once, dropped at the end.
    const BufferId zeros = emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Temporaries,
                                             "zero gradients of initialize_optimizer_states");
    emitter_.mark_scratch(zeros);
    emitter_.begin();
    emitter_.write(zeros);
    emitter_.compute("zero gradients");
    emitter_.release(zeros, Reason::PythonFrame);
  }

  [[nodiscard]] ParameterPlace place(ParameterId parameter) const override {
    const std::int32_t index = trained_index_[at(parameter)];
    if (index < 0 || whole_[at(parameter)] != kNoBuffer) {
      return {whole_[at(parameter)], Bytes(0), emitter_.size(whole_[at(parameter)])};
    }
    const auto i = static_cast<std::size_t>(index);
    return {flat_, in_model_dtype(offset_[i]), in_model_dtype(trained_[i].elements)};
  }

  void backward_begins(bool boundary) override {
    boundary_ = boundary;
    if (zero().stage == 2) kept_in_this_backward_ = kNoBuffer;
  }

  void gradient_ready(ParameterId parameter, BufferId gradient) override {
    gradient = accumulate(parameter, gradient);
    const bool now = zero().stage == 2 || (boundary_ && zero().overlap_comm);
    if (!now) {
      held_[at(parameter)] = gradient;
      return;
    }
    put_in_bucket(static_cast<std::size_t>(trained_index_[at(parameter)]), gradient);
  }

  void backward_ends(bool boundary) override {
    if (zero().stage == 1) {
      if (!boundary) return;
      // Without overlap the gradients are walked in parameter order after backward (reduce_gradients).
      for (std::size_t i = 0; i < trained_.size(); ++i) {
        BufferId& gradient = held_[at(trained_[i].id)];
        if (gradient != kNoBuffer) put_in_bucket(i, std::exchange(gradient, kNoBuffer));
      }
    }
    flush();
    for (BufferId& bucket : buckets_) {
      if (bucket != kNoBuffer) emitter_.release(std::exchange(bucket, kNoBuffer), Reason::RuntimeBucket);
    }
    add_to_accumulated();
  }

  void step(bool first) override {
    if (trained_.empty()) return;
    measure_gradients();
    const BufferId gradient = own_gradient();
    if (first) create_flat_state(partition_, state_);
    emitter_.begin();
    emitter_.read(master_);
    emitter_.read(gradient);
    read_all(state_);
    emitter_.write(master_);
    write_all(state_);
    emitter_.compute("optimizer update");
    const Bytes begin = in_model_dtype(checked_mul(rank(), partition_));
    const Bytes size = in_model_dtype(partition_);
    emitter_.begin();
    emitter_.read(master_);
    emitter_.write(flat_, begin, size);
    emitter_.compute("copy master to parameters");
    emitter_.release(gradient, Reason::GradientHeld);
    if (world() == 1) return;
    emitter_.begin();
    emitter_.read(flat_, begin, size);
    emitter_.write(flat_);
    emitter_.communicate(Collective::AllGather, dtype(), in_model_dtype(padded_));
  }

 private:
  struct Entry {
    std::size_t parameter;  // Index into trained_.
    std::int64_t offset;    // In the bucket.
    BufferId own;           // kNoBuffer: in the bucket; else the gradient's own tensor (contiguous_gradients off).
  };
  // Part of a gradient that one rank owns.
  struct Slice {
    std::int64_t owner;
    std::int64_t begin;  // Elements, in the tensor that is being reduced.
    std::int64_t count;
  };

  [[nodiscard]] static std::size_t at(ParameterId parameter) { return static_cast<std::size_t>(parameter); }

  // Order in the flat buffer (round-robin re-orders it), offsets, padding to 2 * W (nccl_start_alignment_factor).
  void lay_out() {
    if (zero().round_robin_gradients) {
      std::vector<Leaf> order;
      for (std::int64_t r = 0; r < world(); ++r) {
        for (std::size_t i = static_cast<std::size_t>(r); i < trained_.size(); i += static_cast<std::size_t>(world())) {
          order.push_back(trained_[i]);
        }
      }
      trained_ = std::move(order);
      for (std::size_t i = 0; i < trained_.size(); ++i)
        trained_index_[at(trained_[i].id)] = static_cast<std::int32_t>(i);
    }
    std::int64_t sum = 0;
    for (const Leaf& leaf : trained_) {
      offset_.push_back(sum);
      sum = checked_add(sum, leaf.elements);
    }
    padded_ = round_up(Elements(sum), checked_mul(2, world())).value();
    partition_ = padded_ / world();
    const std::int64_t first = rank() * partition_;
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      const bool mine = offset_[i] < first + partition_ && offset_[i] + trained_[i].elements > first;
      kept_offset_.push_back(mine ? kept_ : -1);
      if (!mine) continue;
      const std::int64_t from = std::max(offset_[i], first);
      const std::int64_t to = std::min(offset_[i] + trained_[i].elements, first + partition_);
      largest_fragment_ = std::max(largest_fragment_, to - from);
      ++fragments_;
      kept_ += trained_[i].elements;
    }
  }

  void broadcast_parameters() {
    if (world() == 1) return;
    for (const Leaf& leaf : leaves_) {
      const BufferId buffer = whole_[at(leaf.id)];
      emitter_.begin();
      emitter_.read(buffer);
      emitter_.write(buffer);
      emitter_.communicate(Collective::Broadcast, dtype(), emitter_.size(buffer));
    }
  }

  // The slice is cloned before it is cast; where there is nothing to cast the clone itself is the master.
  void create_master() {
    const Bytes begin = in_model_dtype(checked_mul(rank(), partition_));
    const bool cast = training().master_dtype != dtype();
    const BufferId clone =
        emitter_.allocate(in_model_dtype(partition_), dtype(), cast ? Role::Temporaries : Role::Optimizer,
                          cast ? "clone of the partition" : "master weights");
    emitter_.begin();
    emitter_.read(flat_, begin, in_model_dtype(partition_));
    emitter_.write(clone);
    emitter_.compute("clone partition");
    if (!cast) {
      master_ = clone;
      return;
    }
    master_ =
        emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Optimizer, "master weights");
    emitter_.begin();
    emitter_.read(clone);
    emitter_.write(master_);
    emitter_.compute("cast to master");
    emitter_.release(clone, Reason::LastUse);
  }

  // ZeRO-1 between boundaries: `.grad` accumulates in place.
  BufferId accumulate(ParameterId parameter, BufferId gradient) {
    const BufferId before = std::exchange(held_[at(parameter)], kNoBuffer);
    if (before == kNoBuffer) return gradient;
    emitter_.begin();
    emitter_.read(before);
    emitter_.read(gradient);
    emitter_.write(before);
    emitter_.compute("accumulate gradient");
    emitter_.release(gradient, Reason::AutogradGraph);
    return before;
  }

  void put_in_bucket(std::size_t parameter, BufferId gradient) {
    const std::int64_t elements = trained_[parameter].elements;
    const std::int64_t limit = zero().reduce_bucket_size.value();
    if (filled_ + elements > limit) {
      flush();
      if (zero().overlap_comm && zero().contiguous_gradients) active_ = 1 - active_;
    }
    if (elements > limit) {
      reduce_large(parameter, gradient);
      return;
    }
    if (!zero().contiguous_gradients) {
      entries_.push_back({parameter, filled_, gradient});
      filled_ += elements;
      return;
    }
    open_buckets();
    const BufferId bucket = buckets_[active_];
    emitter_.begin();
    emitter_.read(gradient);
    emitter_.write(bucket, in_model_dtype(filled_), in_model_dtype(elements));
    emitter_.compute("copy gradient to bucket");
    emitter_.release(gradient, Reason::GradientHeld);
    entries_.push_back({parameter, filled_, kNoBuffer});
    filled_ += elements;
  }

  // setup_buckets: at the first gradient of a backward, all of them, whatever the model's size.
  void open_buckets() {
    const std::size_t count = zero().overlap_comm ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) {
      if (buckets_[i] != kNoBuffer) continue;
      buckets_[i] = emitter_.allocate(storage(zero().reduce_bucket_size, dtype()), dtype(), Role::RuntimeBuffers,
                                      "gradient bucket", kNone, true);
    }
  }

  // Cuts [0, count) of a tensor whose element 0 is element `first` of parameter `parameter` by owner.
  void append_slices(std::size_t parameter, std::int64_t begin, std::vector<Slice>& slices) const {
    std::int64_t from = offset_[parameter];
    const std::int64_t end = from + trained_[parameter].elements;
    while (from < end) {
      const std::int64_t owner = from / partition_;
      const std::int64_t to = std::min(end, (owner + 1) * partition_);
      if (!slices.empty() && slices.back().owner == owner) {
        slices.back().count += to - from;  // Adjacent slices of one owner merge.
      } else {
        slices.push_back({owner, begin, to - from});
      }
      begin += to - from;
      from = to;
    }
  }

  // all_reduce of `slices` of `tensor`, by the flags: in place; through a concatenation; or one reduce per owner.
  void reduce(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices) {
    if (!zero().reduce_scatter) {
      reduce_in_place(tensor, 0, elements);
      return;
    }
    if (!zero().use_multi_rank_bucket_allreduce) {
      for (std::int64_t owner : owners_in_order(slices)) reduce_to_owner(tensor, slices, owner);
      return;
    }
    std::size_t from = 0;
    std::int64_t count = 0;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      count += slices[i].count;
      if (count > zero().reduce_bucket_size.value() || i + 1 == slices.size()) {
        reduce_group(tensor, slices, from, i + 1, count);
        from = i + 1;
        count = 0;
      }
    }
  }

  void reduce_in_place(BufferId tensor, std::int64_t begin, std::int64_t count) {
    const Bytes offset = in_model_dtype(begin);
    const Bytes bytes = in_model_dtype(count);
    if (training().communication_dtype != dtype()) {
      const BufferId cast = cast_for_communication(tensor, offset, bytes, count);
      emitter_.begin();
      emitter_.read(cast);
      emitter_.write(tensor, offset, bytes);
      emitter_.compute("copy reduced gradients back");
      emitter_.release(cast, Reason::LastUse);
      return;
    }
    emitter_.begin();
    emitter_.read(tensor, offset, bytes);
    emitter_.write(tensor, offset, bytes);
    collective(Collective::AllReduce, dtype(), bytes);
  }

  // Another communication dtype costs a copy of what is sent; the reduced copy is returned.
  BufferId cast_for_communication(BufferId tensor, Bytes offset, Bytes bytes, std::int64_t count) {
    const DType type = training().communication_dtype;
    const BufferId cast = emitter_.allocate(storage(Elements(count), type), type, Role::RuntimeBuffers,
                                            "gradients in communication dtype");
    emitter_.begin();
    emitter_.read(tensor, offset, bytes);
    emitter_.write(cast);
    emitter_.compute("cast gradients");
    emitter_.begin();
    emitter_.read(cast);
    emitter_.write(cast);
    collective(Collective::AllReduce, type, emitter_.size(cast));
    return cast;
  }

  // Flattening a single contiguous tensor is a view: only several slices are concatenated.
  void reduce_group(BufferId tensor, const std::vector<Slice>& slices, std::size_t from, std::size_t to,
                    std::int64_t count) {
    if (to - from == 1) {
      reduce_in_place(tensor, slices[from].begin, slices[from].count);
      return;
    }
    const BufferId joined = emitter_.allocate(in_model_dtype(count), dtype(), Role::RuntimeBuffers, "joined gradients");
    emitter_.begin();
    for (std::size_t i = from; i < to; ++i) {
      emitter_.read(tensor, in_model_dtype(slices[i].begin), in_model_dtype(slices[i].count));
    }
    emitter_.write(joined);
    emitter_.compute("concatenate gradients");
    reduce_in_place(joined, 0, count);
    std::int64_t begin = 0;
    for (std::size_t i = from; i < to; ++i) {
      if (slices[i].owner == rank()) {
        emitter_.begin();
        emitter_.read(joined, in_model_dtype(begin), in_model_dtype(slices[i].count));
        emitter_.write(tensor, in_model_dtype(slices[i].begin), in_model_dtype(slices[i].count));
        emitter_.compute("copy reduced gradients back");
      }
      begin += slices[i].count;
    }
    emitter_.release(joined, Reason::PythonFrame);
  }

  [[nodiscard]] static std::vector<std::int64_t> owners_in_order(const std::vector<Slice>& slices) {
    std::vector<std::int64_t> owners;
    for (const Slice& slice : slices) {
      if (std::find(owners.begin(), owners.end(), slice.owner) == owners.end()) owners.push_back(slice.owner);
    }
    return owners;
  }

  // One reduce per owner, over the concatenation of its slices (a view, where there is only one).
  void reduce_to_owner(BufferId tensor, const std::vector<Slice>& slices, std::int64_t owner) {
    std::vector<Slice> mine;
    std::int64_t count = 0;
    for (const Slice& slice : slices) {
      if (slice.owner != owner) continue;
      mine.push_back(slice);
      count += slice.count;
    }
    if (mine.size() == 1) {
      const Bytes offset = in_model_dtype(mine[0].begin);
      emitter_.begin();
      emitter_.read(tensor, offset, in_model_dtype(count));
      emitter_.write(tensor, offset, in_model_dtype(count));
      collective(Collective::Reduce, dtype(), in_model_dtype(count));
      return;
    }
    const BufferId joined = emitter_.allocate(in_model_dtype(count), dtype(), Role::RuntimeBuffers, "joined gradients");
    emitter_.begin();
    for (const Slice& slice : mine) emitter_.read(tensor, in_model_dtype(slice.begin), in_model_dtype(slice.count));
    emitter_.write(joined);
    emitter_.compute("concatenate gradients");
    emitter_.begin();
    emitter_.read(joined);
    emitter_.write(joined);
    collective(Collective::Reduce, dtype(), in_model_dtype(count));
    if (owner == rank()) {
      emitter_.begin();
      emitter_.read(joined);
      for (const Slice& slice : mine) emitter_.write(tensor, in_model_dtype(slice.begin), in_model_dtype(slice.count));
      emitter_.compute("copy reduced gradients back");
    }
    emitter_.release(joined, Reason::PythonFrame);
  }

  void flush() {
    if (entries_.empty()) return;
    const BufferId tensor = zero().contiguous_gradients ? buckets_[active_] : join_entries();
    std::vector<Slice> slices;
    for (const Entry& entry : entries_) append_slices(entry.parameter, entry.offset, slices);
    reduce(tensor, filled_, slices);
    for (const Entry& entry : entries_) {
      keep(entry.parameter, tensor, entry.offset);
    }
    if (!zero().contiguous_gradients) emitter_.release(tensor, Reason::RuntimeBucket);
    entries_.clear();
    filled_ = 0;
  }

  // contiguous_gradients off: the pending gradients themselves are concatenated when they are flushed.
  BufferId join_entries() {
    const BufferId joined =
        emitter_.allocate(in_model_dtype(filled_), dtype(), Role::RuntimeBuffers, "joined gradients");
    emitter_.begin();
    for (const Entry& entry : entries_) emitter_.read(entry.own);
    emitter_.write(joined);
    emitter_.compute("concatenate gradients");
    for (const Entry& entry : entries_) emitter_.release(entry.own, Reason::GradientHeld);
    return joined;
  }

  // A gradient larger than the bucket is reduced from its own storage.
  void reduce_large(std::size_t parameter, BufferId gradient) {
    if (zero().contiguous_gradients) open_buckets();
    std::vector<Slice> slices;
    append_slices(parameter, 0, slices);
    reduce(gradient, trained_[parameter].elements, slices);
    keep(parameter, gradient, 0);
    emitter_.release(gradient, Reason::GradientHeld);
  }

  // A parameter that touches this rank's partition leaves its whole gradient in grads_in_partition.
  void keep(std::size_t parameter, BufferId from, std::int64_t offset) {
    if (kept_offset_[parameter] < 0) return;
    if (kept_in_this_backward_ == kNoBuffer) {
      kept_in_this_backward_ =
          emitter_.allocate(in_model_dtype(kept_), dtype(), Role::Gradients, "gradients in partition");
      if (accumulated_ == kNoBuffer) accumulated_ = kept_in_this_backward_;
    }
    const Bytes bytes = in_model_dtype(trained_[parameter].elements);
    emitter_.begin();
    emitter_.read(from, in_model_dtype(offset), bytes);
    emitter_.write(kept_in_this_backward_, in_model_dtype(kept_offset_[parameter]), bytes);
    emitter_.compute("keep gradient in partition");
  }

  // ZeRO-2, later micro-batches: the second tensor is added into the first and freed.
  void add_to_accumulated() {
    if (kept_in_this_backward_ == kNoBuffer || kept_in_this_backward_ == accumulated_) return;
    emitter_.begin();
    emitter_.read(kept_in_this_backward_);
    emitter_.read(accumulated_);
    emitter_.write(accumulated_);
    emitter_.compute("add gradients in partition");
    emitter_.release(std::exchange(kept_in_this_backward_, kNoBuffer), Reason::LastUse);
  }

  // Overflow scan (fp16; bf16 where check_grad_overflow) and norm, each over one fragment at a time; what stands here
  // is the turn of the largest one. The scan makes an fp32 copy, two masks, their union and its fp32 form.
  void measure_gradients() {
    if (dtype() == DType::Float16 || (dtype() == DType::BFloat16 && training().check_grad_overflow)) {
      const std::int64_t per_element = dtype() == DType::Float32 ? 7 : 11;
      scratch(Bytes(checked_mul(largest_fragment_, per_element)), DType::UInt8, "overflow scan");
      control_all_reduce(Bytes(1), "overflow flag");
    }
    scratch(storage(Elements(largest_fragment_), DType::Float64), DType::Float64, "gradient norm");
    control_all_reduce(Bytes(4), "gradient norm");
  }

  void scratch(Bytes bytes, DType type, Label label) {
    if (bytes == Bytes(0)) return;
    const BufferId buffer = emitter_.allocate(bytes, type, Role::Temporaries, label);
    emitter_.mark_scratch(buffer);
    emitter_.begin();
    if (accumulated_ != kNoBuffer) emitter_.read(accumulated_);
    emitter_.write(buffer);
    emitter_.compute(label);
    emitter_.release(buffer, Reason::LastUse);
  }

  // This rank's gradient in master dtype: flattened with padding unless it is one whole tensor, then cast.
  BufferId own_gradient() {
    BufferId gradient = accumulated_;
    accumulated_ = kNoBuffer;
    kept_in_this_backward_ = kNoBuffer;
    const bool is_view = fragments_ == 1 && largest_fragment_ == partition_ && kept_ == partition_;
    if (!is_view || gradient == kNoBuffer) {
      const BufferId flat = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Temporaries, "flat gradient");
      emitter_.begin();
      if (gradient != kNoBuffer) emitter_.read(gradient);
      emitter_.write(flat);
      emitter_.compute("flatten gradient");
      if (training().master_dtype == dtype()) {
        if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
        return flat;
      }
      const BufferId cast = cast_to_master(flat);
      emitter_.release(flat, Reason::LastUse);
      if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
      return cast;
    }
    if (training().master_dtype == dtype()) return gradient;
    const BufferId cast = cast_to_master(gradient);
    emitter_.release(gradient, Reason::LastUse);
    return cast;
  }

  BufferId cast_to_master(BufferId flat) {
    const BufferId cast = emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Temporaries,
                                            "gradient in master dtype");
    emitter_.begin();
    emitter_.read(flat);
    emitter_.write(cast);
    emitter_.compute("cast gradient");
    return cast;
  }

  std::vector<BufferId> whole_;            // By ParameterId: parameters outside the flat buffer.
  std::vector<BufferId> held_;             // By ParameterId: `.grad` that waits for the boundary.
  std::vector<std::int64_t> offset_;       // By index into trained_: element offset in the flat buffer.
  std::vector<std::int64_t> kept_offset_;  // Offset in grads_in_partition; -1 if it does not touch this partition.
  std::int64_t padded_ = 0;
  std::int64_t partition_ = 0;
  std::int64_t kept_ = 0;  // Elements of grads_in_partition: G_r.
  std::int64_t largest_fragment_ = 0;
  std::int64_t fragments_ = 0;
  BufferId flat_ = kNoBuffer;
  BufferId master_ = kNoBuffer;
  std::vector<BufferId> state_;
  std::array<BufferId, 2> buckets_{kNoBuffer, kNoBuffer};
  std::size_t active_ = 0;
  std::vector<Entry> entries_;
  std::int64_t filled_ = 0;
  BufferId accumulated_ = kNoBuffer;            // grads_in_partition that the step will take.
  BufferId kept_in_this_backward_ = kNoBuffer;  // The one that this backward fills.
  bool boundary_ = true;
};

}  // namespace

std::unique_ptr<TrainingRuntime> make_stage12_runtime(const Job& job, const ModelSpec& model, std::int64_t rank,
                                                      Emitter& emitter) {
  return std::make_unique<Stage12Runtime>(job, model, rank, emitter);
}

}  // namespace dsplan
