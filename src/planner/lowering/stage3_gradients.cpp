// ZeRO-3: gradients through the bucket and the reduction into their partitions.
#include "planner/lowering/stage3_runtime.h"

#include <algorithm>
#include <utility>

namespace dsplan {

void Stage3Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
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

void Stage3Runtime::backward_ends(bool boundary) {
  flush();
  accumulating_ = !boundary;
}

void Stage3Runtime::flush() {
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
BufferId Stage3Runtime::cast_own_gradient() {
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

const Stage3Runtime::Piece& Stage3Runtime::piece_of(const Entry& entry) const {
  return pieces_[static_cast<std::size_t>(trained_[entry.parameter].id)];
}

// Each gradient padded to A, interleaved by rank.
void Stage3Runtime::join(BufferId tensor) {
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

void Stage3Runtime::reduce(BufferId tensor, Bytes start, Bytes whole, Bytes mine, Bytes share) {
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

void Stage3Runtime::add_to_partition(BufferId tensor, Bytes mine) {
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

}  // namespace dsplan
