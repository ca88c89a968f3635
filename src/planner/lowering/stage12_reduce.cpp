// ZeRO-1 and ZeRO-2: how a full bucket is reduced, by the flags.
#include "planner/lowering/stage12_runtime.h"

#include <algorithm>

namespace dsplan {

// all_reduce of `slices` of `tensor`, by the flags: in place; through a concatenation; or one reduce per owner.
void Stage12Runtime::reduce(BufferId tensor, std::int64_t elements, const std::vector<Slice>& slices) {
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

void Stage12Runtime::reduce_in_place(BufferId tensor, std::int64_t begin, std::int64_t count) {
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
BufferId Stage12Runtime::cast_for_communication(BufferId tensor, Bytes offset, Bytes bytes, std::int64_t count) {
  const DType type = training().communication_dtype;
  const BufferId cast =
      emitter_.allocate(storage(Elements(count), type), type, Role::RuntimeBuffers, "gradients in communication dtype");
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
void Stage12Runtime::reduce_group(BufferId tensor, const std::vector<Slice>& slices, std::size_t from, std::size_t to,
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

std::vector<std::int64_t> Stage12Runtime::owners_in_order(const std::vector<Slice>& slices) {
  std::vector<std::int64_t> owners;
  for (const Slice& slice : slices) {
    if (std::find(owners.begin(), owners.end(), slice.owner) == owners.end()) owners.push_back(slice.owner);
  }
  return owners;
}

// One reduce per owner, over the concatenation of its slices (a view, where there is only one).
void Stage12Runtime::reduce_to_owner(BufferId tensor, const std::vector<Slice>& slices, std::int64_t owner) {
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

}  // namespace dsplan
