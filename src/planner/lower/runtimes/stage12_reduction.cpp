#include "planner/lower/runtimes/stage12_reduction.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dsplan {
namespace {

constexpr std::int64_t kEveryone = -1;
constexpr Version kTellsUses{0, 19, 0};          // record_stream, in allreduce_and_copy.
constexpr Version kReducesOnItsStream{2, 8, 0};  // ProcessGroupNCCL takes the stream of the caller.

std::vector<std::int64_t> owners_in_order(const std::vector<GradientSlice>& slices) {
  std::vector<std::int64_t> owners;
  for (const GradientSlice& slice : slices) {
    if (std::find(owners.begin(), owners.end(), slice.owner) == owners.end()) owners.push_back(slice.owner);
  }
  return owners;
}

}  // namespace

void Stage12Reduction::average_tensor(BufferId tensor, std::int64_t elements,
                                      const std::vector<GradientSlice>& slices) {
  eager_.emitter().wait_stream(facts_.reduce_stream(), kComputeStream);
  eager_.emitter().wait_stream(kComputeStream, facts_.reduce_stream());
  const OnStream stream(eager_.emitter(), facts_.reduce_stream());
  if (!facts_.zero().reduce_scatter) return gradient_reduction_w_predivide(tensor, elements, slices);
  const auto mine = [&](const GradientSlice& slice) { return slice.owner == facts_.layout.rank; };
  if (facts_.sums_partition && std::any_of(slices.begin(), slices.end(), mine)) sums_.open();
  if (facts_.zero().use_multi_rank_bucket_allreduce) return allreduce_no_retain(tensor, slices, kEveryone);
  for (const std::int64_t owner : owners_in_order(slices)) {
    std::vector<GradientSlice> own;
    std::copy_if(slices.begin(), slices.end(), std::back_inserter(own),
                 [&](const GradientSlice& slice) { return slice.owner == owner; });
    synchronize();  // allreduce_and_copy.
    allreduce_no_retain(tensor, own, owner);
  }
}

void Stage12Reduction::gradient_reduction_w_predivide(BufferId tensor, std::int64_t elements,
                                                      const std::vector<GradientSlice>& slices) {
  const Part filled(tensor, Bytes(0), facts_.in_bucket(elements));
  Variable cast;
  if (casts()) {
    cast = cast_for_communication(filled);
    all_reduce(cast, eager_.emitter().size(cast.id()), kEveryone);
    if (!facts_.sums_partition) eager_.copy(filled, cast, "copy reduced gradients back");
  } else {
    all_reduce(filled, filled.bytes, kEveryone);
  }
  if (!facts_.sums_partition) return;
  for (const GradientSlice& slice : slices) {
    if (slice.owner != facts_.layout.rank) continue;
    sums_.open();
    sums_.add(cast ? cast.id() : tensor, slice.begin, slice);
  }
}

// A group is closed once it is larger than the bucket.
void Stage12Reduction::allreduce_no_retain(BufferId tensor, const std::vector<GradientSlice>& slices,
                                           std::int64_t owner) {
  std::vector<GradientSlice> group;
  std::int64_t count = 0;
  for (const GradientSlice& slice : slices) {
    group.push_back(slice);
    count += slice.count;
    if (count <= facts_.zero().reduce_bucket_size.value()) continue;
    allreduce_and_copy(tensor, group, owner);
    group.clear();
    count = 0;
  }
  if (!group.empty()) allreduce_and_copy(tensor, group, owner);
}

// allreduce_bucket, and the copy of what this rank owns. Flattening a single contiguous tensor is a view: only several
// slices are concatenated. In another communication dtype the copy that was sent is what is read afterwards, since
// 0.19.8, and the concatenation goes at once; before, the copy went and the concatenation was read.
void Stage12Reduction::allreduce_and_copy(BufferId tensor, const std::vector<GradientSlice>& group,
                                          std::int64_t owner) {
  std::int64_t count = 0;
  for (const GradientSlice& slice : group) count += slice.count;
  const bool joins = group.size() > 1;
  Variable joined;
  if (joins) {
    joined = room_to_join(count);
    Work join = eager_.work();
    for (const GradientSlice& slice : group) {
      join.read({tensor, facts_.in_bucket(slice.begin), facts_.in_bucket(slice.count)});
    }
    join.write(joined).run(Body::Copy, "concatenate gradients");
  }
  const Part source(joins ? joined.id() : tensor, joins ? Bytes(0) : facts_.in_bucket(group[0].begin),
                    facts_.in_bucket(count));
  Variable cast;
  if (casts()) {
    cast = cast_for_communication(source);
    all_reduce(cast, eager_.emitter().size(cast.id()), owner);
    // With sums in fp32 nobody reads what is copied back.
    if (!facts_.sums_partition && (owner == kEveryone || owner == facts_.layout.rank)) {
      eager_.copy(source, cast, "copy reduced gradients back");
    }
    (facts_.training.deepspeed >= kSumsOfPartition ? joined : cast).reset();
  } else {
    all_reduce(source, source.bytes, owner);
  }
  if (facts_.training.deepspeed >= kTellsUses) tell_slices(tensor, group, !joins && !casts());
  add_or_copy_own(cast ? cast.id() : source.buffer, tensor, joins, group);
}

// What this rank owns of `reduced` is added to the sums, or copied to where it came from.
void Stage12Reduction::add_or_copy_own(BufferId reduced, BufferId tensor, bool joined,
                                       const std::vector<GradientSlice>& group) {
  const DType type = eager_.emitter().dtype(reduced);
  std::int64_t position = reduced == tensor ? group[0].begin : 0;
  for (const GradientSlice& slice : group) {
    if (slice.owner == facts_.layout.rank) {
      if (facts_.sums_partition) {
        sums_.add(reduced, position, slice);
      } else if (joined) {
        eager_.copy({tensor, facts_.in_bucket(slice.begin), facts_.in_bucket(slice.count)},
                    {reduced, storage(Elements(position), type), storage(Elements(slice.count), type)},
                    "copy reduced gradients back");
      }
    }
    position += slice.count;
  }
}

// Copies into gradients of other ranks' parameters are left out: nobody reads them.
void Stage12Reduction::buffered_reduce_fallback(const std::vector<SeparateGradient>& gradients, std::int64_t elements) {
  const OnStream stream(eager_.emitter(), facts_.reduce_stream());
  Variable joined;
  if (gradients.size() > 1) {
    joined = room_to_join(elements);
    Work join = eager_.work();
    for (const SeparateGradient& one : gradients) join.read(one.gradient);
    join.write(joined).run(Body::Copy, "concatenate gradients");
  }
  const BufferId source = joined ? joined.id() : gradients.front().gradient;
  Variable cast;
  if (casts()) cast = cast_for_communication({source, Bytes(0), facts_.in_bucket(elements)});
  const BufferId reduced = cast ? cast.id() : source;
  all_reduce(reduced, eager_.emitter().size(reduced), kEveryone);
  if (cast) joined.reset();
  std::vector<BufferId> own;
  std::vector<ByteRange> reads;
  const DType type = eager_.emitter().dtype(reduced);
  for (const SeparateGradient& one : gradients) {
    if (!one.mine) continue;
    own.push_back(one.gradient);
    reads.push_back({reduced, storage(Elements(one.offset), type), storage(Elements(one.elements), type)});
  }
  if (reduced == gradients.front().gradient || own.empty()) return;
  eager_.work().read(reduced).write(own).really_reads(std::move(reads)).run(Body::Copy, "copy reduced gradients back");
}

// Over all ranks, or to the owner alone; for a group of one rank a local copy stands in its place.
void Stage12Reduction::all_reduce(const Part& part, Bytes bytes, std::int64_t owner) {
  Work work = eager_.work();
  work.read(part).write(part);
  if (facts_.layout.ranks == 1) return work.run(Body::Copy, "local copy");
  const DType type = eager_.emitter().dtype(part.buffer);
  if (owner == kEveryone) return work.collective(Collective::AllReduce, type, bytes);
  work.root(owner).collective(Collective::Reduce, type, bytes);
}

Variable Stage12Reduction::cast_for_communication(const Part& part) {
  return eager_.cast(
      part, facts_.training.communication_dtype,
      {Role::RuntimeBuffers, "gradients in communication dtype", "zero/stage_1_and_2.py, allreduce_bucket"},
      "cast gradients");
}

Variable Stage12Reduction::room_to_join(std::int64_t elements) {
  Variable joined =
      eager_.empty(facts_.in_bucket(elements), facts_.bucket_dtype,
                   {Role::RuntimeBuffers, "joined gradients", "zero/stage_1_and_2.py, allreduce_and_scatter"});
  if (casts()) eager_.emitter().mark_scratch(joined.id());
  return joined;
}

// Offloading tells of each tensor (_record_gradient_stream), and so did NCCL while it had a stream of its own.
void Stage12Reduction::tell_no_use(BufferId tensor) {
  const bool told = facts_.offloads() || facts_.training.torch < kReducesOnItsStream;
  if (facts_.zero().overlap_comm && !told) tell_uses(eager_.emitter(), tensor, false);
}

void Stage12Reduction::tell_slices(BufferId tensor, const std::vector<GradientSlice>& group, bool sent_as_it_lies) {
  const auto mine = [&](const GradientSlice& slice) { return slice.owner == facts_.layout.rank; };
  if (sent_as_it_lies || std::any_of(group.begin(), group.end(), mine)) tell_uses(eager_.emitter(), tensor, true);
}

void Stage12Reduction::synchronize() {
  if (!facts_.zero().overlap_comm) return;
  for (const StreamId on : {kComputeStream, facts_.reduce_stream()}) eager_.emitter().wait_stream(kHostSync, on);
}

}  // namespace dsplan
