// ZeRO-1 and ZeRO-2: how a full bucket is reduced, by the flags (stage_1_and_2.py, average_tensor).
#include "planner/lower/stage12_runtime.h"

#include <algorithm>

namespace dsplan {
namespace {

constexpr std::int64_t kEveryone = -1;

}  // namespace

// all_reduce of `slices` of `tensor`: in place; through a concatenation; or one reduce per owner.
void Stage12Runtime::reduce(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices) {
  emitter_.wait(reduce_stream(), kComputeStream);
  emitter_.wait(kComputeStream, reduce_stream());
  const OnStream stream(emitter_, reduce_stream());
  if (!zero().reduce_scatter) return reduce_whole(tensor, elements, slices);
  const auto mine = [&](const Slice& slice) { return slice.owner == rank(); };
  if (sums_partition_ && std::any_of(slices.begin(), slices.end(), mine)) open_sums();
  if (zero().use_multi_rank_bucket_allreduce) return reduce_in_groups(tensor, slices, kEveryone);
  for (std::int64_t owner : owners_in_order(slices)) {
    std::vector<Slice> own;
    std::copy_if(slices.begin(), slices.end(), std::back_inserter(own),
                 [&](const Slice& slice) { return slice.owner == owner; });
    synchronize();  // allreduce_and_copy.
    reduce_in_groups(tensor, own, owner);
  }
}

// gradient_reduction_w_predivide.
void Stage12Runtime::reduce_whole(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices) {
  BufferId result = tensor;
  if (training().communication_dtype != staged_) {
    result = cast_for_communication(tensor, Bytes(0), staged(elements), elements);
    collective(Collective::AllReduce, training().communication_dtype, emitter_.size(result));
    if (!sums_partition_) {
      emitter_.begin();
      emitter_.read(result);
      emitter_.write(tensor, Bytes(0), staged(elements));
      emitter_.compute("copy reduced gradients back");
    }
  } else {
    emitter_.begin();
    emitter_.read(tensor, Bytes(0), staged(elements));
    emitter_.write(tensor, Bytes(0), staged(elements));
    collective(Collective::AllReduce, staged_, staged(elements));
  }
  for (const Slice& slice : slices) {
    if (sums_partition_ && slice.owner == rank()) {
      open_sums();
      add_to_sums(result, result == tensor ? staged_ : training().communication_dtype, slice.begin, slice);
    }
  }
  if (result != tensor) emitter_.release(result, Reason::PythonFrame);
}

// A group is closed once it is larger than the bucket.
void Stage12Runtime::reduce_in_groups(BufferId tensor, const std::vector<Slice>& slices, std::int64_t owner) {
  std::vector<Slice> group;
  std::int64_t count = 0;
  for (const Slice& slice : slices) {
    group.push_back(slice);
    count += slice.count;
    if (count <= zero().reduce_bucket_size.value()) continue;
    reduce_group(tensor, group, owner);
    group.clear();
    count = 0;
  }
  if (!group.empty()) reduce_group(tensor, group, owner);
}

// What is sent, in another dtype; the work that sends it is begun.
BufferId Stage12Runtime::cast_for_communication(BufferId source, Bytes offset, Bytes bytes, std::int64_t count) {
  const DType type = training().communication_dtype;
  const BufferId cast =
      emitter_.allocate(storage(Elements(count), type), type, Role::RuntimeBuffers, "gradients in communication dtype");
  emitter_.begin();
  emitter_.read(source, offset, bytes);
  emitter_.write(cast);
  emitter_.compute("cast gradients");
  emitter_.begin();
  emitter_.read(cast);
  emitter_.write(cast);
  return cast;
}

// allreduce_bucket, and the copy of what this rank owns. Flattening a single contiguous tensor is a view: only several
// slices are concatenated. In another communication dtype the copy that was sent is what is read afterwards, since
// 0.19.8, and the concatenation goes at once; before, the copy went and the concatenation was read.
void Stage12Runtime::reduce_group(BufferId tensor, const std::vector<Slice>& group, std::int64_t owner) {
  std::int64_t count = 0;
  for (const Slice& slice : group) count += slice.count;
  BufferId source = tensor;
  const bool joins = group.size() > 1;
  const bool casts = training().communication_dtype != staged_;
  const Bytes begin = joins ? Bytes(0) : staged(group[0].begin);
  if (joins) {
    source = emitter_.allocate(staged(count), staged_, Role::RuntimeBuffers, "joined gradients");
    if (casts) emitter_.mark_scratch(source);
    emitter_.begin();
    for (const Slice& slice : group) emitter_.read(tensor, staged(slice.begin), staged(slice.count));
    emitter_.write(source);
    emitter_.compute("concatenate gradients");
  }
  BufferId result = source;
  if (casts) {
    result = cast_for_communication(source, begin, staged(count), count);
  } else {
    emitter_.begin();
    emitter_.read(source, begin, staged(count));
    emitter_.write(source, begin, staged(count));
  }
  const DType type = casts ? training().communication_dtype : staged_;
  if (emitter_.recording() != nullptr && owner != kEveryone) emitter_.recording()->root(owner);
  collective(owner == kEveryone ? Collective::AllReduce : Collective::Reduce, type, storage(Elements(count), type));
  // With sums in fp32 nobody reads what is copied back.
  if (casts && !sums_partition_ && (owner == kEveryone || owner == rank())) {
    emitter_.begin();
    emitter_.read(result);
    emitter_.write(source, begin, staged(count));
    emitter_.compute("copy reduced gradients back");
  }
  if (casts && joins && training().deepspeed >= kSumsOfPartition) emitter_.release(source, Reason::PythonFrame);
  if (casts && training().deepspeed < kSumsOfPartition)
    emitter_.release(std::exchange(result, source), Reason::PythonFrame);
  std::int64_t position = result == tensor ? group[0].begin : 0;
  for (const Slice& slice : group) {
    if (slice.owner == rank()) {
      const DType held = result == source ? staged_ : type;
      if (sums_partition_) {
        add_to_sums(result, held, position, slice);
      } else if (result != tensor && joins) {
        emitter_.begin();
        emitter_.read(result, storage(Elements(position), held), storage(Elements(slice.count), held));
        emitter_.write(tensor, staged(slice.begin), staged(slice.count));
        emitter_.compute("copy reduced gradients back");
      }
    }
    position += slice.count;
  }
  if (result != tensor) emitter_.release(result, Reason::PythonFrame);
}

// contiguous_gradients off (buffered_reduce_fallback): the pending gradients are joined, all-reduced and copied back,
// whoever owns them; a single one is reduced where it is. Those of this rank's parameters stay as they are.
void Stage12Runtime::reduce_apart() {
  wait_for_reductions();
  const OnStream stream(emitter_, reduce_stream());
  const bool joins = entries_.size() > 1;
  const bool casts = training().communication_dtype != staged_;
  BufferId source = entries_[0].own;
  if (joins) {
    source = emitter_.allocate(staged(filled_), staged_, Role::RuntimeBuffers, "joined gradients");
    if (casts) emitter_.mark_scratch(source);
    emitter_.begin();
    for (const Entry& entry : entries_) emitter_.read(entry.own);
    emitter_.write(source);
    emitter_.compute("concatenate gradients");
  }
  BufferId result = source;
  if (casts) {
    result = cast_for_communication(source, Bytes(0), staged(filled_), filled_);
  } else {
    emitter_.begin();
    emitter_.read(source);
    emitter_.write(source);
  }
  collective(Collective::AllReduce, casts ? training().communication_dtype : staged_, emitter_.size(result));
  if (casts && joins) emitter_.release(source, Reason::PythonFrame);
  // Copies into gradients of other ranks' parameters are left out: nobody reads them.
  const auto mine = [&](const Entry& entry) { return kept_offset_[entry.parameter] >= 0; };
  if ((casts || joins) && std::any_of(entries_.begin(), entries_.end(), mine)) {
    emitter_.begin();
    emitter_.read(result);
    for (const Entry& entry : entries_) {
      if (mine(entry)) emitter_.write(entry.own);
    }
    if (Recording* recording = emitter_.recording()) {
      const DType type = casts ? training().communication_dtype : staged_;
      std::vector<ByteRange> reads;
      for (const Entry& entry : entries_) {
        if (!mine(entry)) continue;
        const std::int64_t elements = trained_[entry.parameter].elements;
        reads.push_back({result, storage(Elements(entry.offset), type), storage(Elements(elements), type)});
      }
      recording->reads(std::move(reads));
    }
    emitter_.compute("copy reduced gradients back");
  }
  if (casts || joins) emitter_.release(result, Reason::PythonFrame);
  for (const Entry& entry : entries_) {
    if (mine(entry)) {
      arrived_.emplace_back(entry.parameter, entry.own);
    } else if (zero().stage == 2 && zero().overlap_comm) {
      previous_.push_back(entry.own);
    } else {
      let_go(entry.parameter, entry.own);
    }
  }
}

void Stage12Runtime::synchronize() {
  if (!zero().overlap_comm) return;
  for (const StreamId on : {kComputeStream, reduce_stream()}) emitter_.wait(kHostWaits, on);
}

// The host waits for the device; only then gradients of other ranks' parameters go that never entered a bucket
// (_clear_previous_reduced_grads).
void Stage12Runtime::wait_for_reductions() {
  synchronize();
  for (BufferId gradient : std::exchange(previous_, {})) emitter_.release(gradient, Reason::GradientHeld);
}

std::vector<std::int64_t> Stage12Runtime::owners_in_order(const std::vector<Slice>& slices) {
  std::vector<std::int64_t> owners;
  for (const Slice& slice : slices) {
    if (std::find(owners.begin(), owners.end(), slice.owner) == owners.end()) owners.push_back(slice.owner);
  }
  return owners;
}

}  // namespace dsplan
