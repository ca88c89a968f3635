// ZeRO-3: gradients through the bucket and the reduction into their partitions (stage3.py, and
// runtime/comm/coalesced_collectives.py).
#include <algorithm>
#include <utility>

#include "planner/lower/stage3_runtime.h"

namespace dsplan {
namespace {

constexpr std::size_t kOngoingReductions = 2;  // max_param_reduce_events.

}  // namespace

// A leaf module's gradients wait until all of its backward is over.
void Stage3Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  if (leaf_of_[static_cast<std::size_t>(parameter)] != kNone) {
    accumulate(piece(parameter).held, gradient);
    return;
  }
  reduce_ready(static_cast<std::size_t>(trained_index_[static_cast<std::size_t>(parameter)]), gradient);
}

// reduce_leaf_module_grads, in the optimizer's order.
void Stage3Runtime::reduce_leaf(ModuleId module) {
  for (std::size_t index = 0; index < trained_.size(); ++index) {
    const ParameterId id = trained_[index].id;
    if (leaf_of_[static_cast<std::size_t>(id)] != module || piece(id).held == kNoBuffer) continue;
    reduce_ready(index, std::exchange(piece(id).held, kNoBuffer));
  }
}

void Stage3Runtime::reduce_ready(std::size_t index, BufferId gradient) {
  const std::int64_t elements = trained_[index].elements;
  const std::int64_t limit = zero().reduce_bucket_size.value();
  if (filled_ > 0 && filled_ + elements > limit) flush();
  emitter_.wait(reduce_stream(), kComputeStream);
  if (bucket_ == kNoBuffer || filled_ + elements > limit) {
    entries_.push_back({index, 0, gradient});
    filled_ += elements;
    return;
  }
  const Bytes offset = storage(Elements(filled_), training().communication_dtype);
  const Bytes bytes = storage(Elements(elements), training().communication_dtype);
  const OnStream stream(emitter_, reduce_stream());
  emitter_.begin();
  emitter_.read(gradient);
  emitter_.write(bucket_, offset, bytes);
  emitter_.compute("copy gradient to bucket");
  emitter_.release(gradient, Reason::GradientHeld);
  entries_.push_back({index, filled_, kNoBuffer});
  filled_ += elements;
}

void Stage3Runtime::backward_ends(bool boundary) {
  for (std::size_t module = 0; module < model_.modules.size(); ++module) {
    if (coordinator_.module(static_cast<ModuleId>(module)).leaf) reduce_leaf(static_cast<ModuleId>(module));
  }
  flush();
  emitter_.wait(kHostWaits, reduce_stream());
  reductions_.clear();
  coordinator_.end_backward();
  apply();
  accumulating_ = !boundary;
}

void Stage3Runtime::flush() {
  if (entries_.empty()) return;
  if (reductions_.size() > kOngoingReductions) {
    emitter_.await(reductions_.front(), kHostWaits);
    reductions_.pop_front();
  }
  const OnStream stream(emitter_, reduce_stream());
  if (!zero().reduce_scatter && bucket_ != kNoBuffer && filled_ <= zero().reduce_bucket_size.value()) {
    reduce_in_bucket();
  } else {
    reduce_scattered();
  }
  reductions_.push_back(emitter_.signal(reduce_stream()));
}

const Stage3Runtime::Piece& Stage3Runtime::piece_of(const Entry& entry) const {
  return piece(trained_[entry.parameter].id);
}

std::int64_t Stage3Runtime::real_part(const Entry& entry) const {
  const Piece& of = piece_of(entry);
  return std::clamp<std::int64_t>(of.elements - checked_mul(of.part, rank()), 0, of.part);
}

// __avg_scatter_contiguous_grads: the bucket is all-reduced where it lies; the product with the factor that was divided
// out before, which is 1, is a tensor of its own. Partitions that reach behind their parameter's end are made anew,
// zeros behind it.
void Stage3Runtime::reduce_in_bucket() {
  const DType sent = training().communication_dtype;
  const DType kept = training().grad_accum_dtype;
  const Bytes whole = storage(Elements(filled_), sent);
  emitter_.begin();
  emitter_.read(bucket_, Bytes(0), whole);
  emitter_.write(bucket_, Bytes(0), whole);
  collective(Collective::AllReduce, sent, whole);
  BufferId reduced = bucket_;
  const auto derive = [&](DType type, Label label) {
    const BufferId made = emitter_.allocate(storage(Elements(filled_), type), type, Role::RuntimeBuffers, label);
    emitter_.begin();
    emitter_.read(reduced, Bytes(0), reduced == bucket_ ? whole : emitter_.size(reduced));
    emitter_.write(made);
    emitter_.compute(label);
    if (reduced != bucket_) emitter_.release(reduced, Reason::PythonFrame);
    reduced = made;
  };
  if (world() > 1) derive(sent, "scaled gradients");
  if (sent != kept) derive(kept, "gradients in accumulation dtype");
  std::vector<Source> sources;
  std::vector<BufferId> made;
  for (const Entry& entry : entries_) {
    const Piece& of = piece_of(entry);
    const std::int64_t from = entry.offset + std::min(checked_mul(of.part, rank()), of.elements);
    const std::int64_t real = real_part(entry);
    sources.push_back({reduced, storage(Elements(from), kept), storage(Elements(real), kept)});
    if (real == of.part) continue;
    const Bytes padded = storage(Elements(of.part), kept);
    made.push_back(emitter_.allocate(padded, kept, Role::RuntimeBuffers, "padded gradient"));
    emitter_.begin();
    emitter_.read(reduced, sources.back().offset, sources.back().bytes);
    emitter_.write(made.back());
    emitter_.compute("pad gradient");
    sources.back() = {made.back(), Bytes(0), padded};
  }
  add_to_partition(sources);
  if (reduced != bucket_) made.push_back(reduced);
  for (BufferId buffer : made) emitter_.release(buffer, Reason::PythonFrame);
  clear_entries();
}

// __avg_scatter_grads: by id, each padded to A, interleaved by rank.
void Stage3Runtime::reduce_scattered() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.parameter < b.parameter; });
  const DType type = training().communication_dtype;
  std::int64_t part = 0;
  for (const Entry& entry : entries_) part += piece_of(entry).part;
  const std::vector<BufferId> uncast = cast_own_gradients();
  const Entry& first = entries_.front();
  const bool direct = entries_.size() == 1 && trained_[first.parameter].elements % world() == 0;
  const Bytes whole = storage(Elements(checked_mul(part, world())), type);
  BufferId tensor = first.own == kNoBuffer ? bucket_ : first.own;
  if (!direct) {
    tensor = emitter_.allocate(whole, type, Role::RuntimeBuffers, "interleaved gradients");
    join(tensor);
  }
  const Bytes start = direct ? storage(Elements(first.offset), type) : Bytes(0);
  const Bytes mine = start + storage(Elements(checked_mul(part, rank())), type);
  emitter_.begin();
  emitter_.read(tensor, start, whole);
  emitter_.write(tensor, mine, storage(Elements(part), type));
  collective(Collective::ReduceScatter, type, whole);
  take_scattered(tensor, mine, !direct);
  clear_entries();
  for (BufferId gradient : uncast) emitter_.release(gradient, Reason::GradientHeld);
}

// What belongs to this rank, in the dtype of the sum. Nothing but padding is a tensor of nothing. `tensor` is let go of
// if it is only for this, as soon as casts stand in for all of it.
void Stage3Runtime::take_scattered(BufferId tensor, Bytes mine, bool drop) {
  const DType type = training().communication_dtype;
  const DType kept = training().grad_accum_dtype;
  std::vector<Source> sources;
  std::vector<BufferId> casts;
  for (const Entry& entry : entries_) {
    const Bytes all = storage(Elements(piece_of(entry).part), type);
    sources.push_back({tensor, mine, all});
    mine += all;
    const std::int64_t real = real_part(entry);
    if (type == kept || real == 0) continue;
    const Bytes bytes = storage(Elements(real), kept);
    casts.push_back(emitter_.allocate(bytes, kept, Role::RuntimeBuffers, "gradient in accumulation dtype"));
    emitter_.begin();
    emitter_.read(tensor, sources.back().offset, all);
    emitter_.write(casts.back());
    if (emitter_.recording() != nullptr) {
      emitter_.recording()->reads({{tensor, sources.back().offset, storage(Elements(real), type)}});
    }
    emitter_.compute("cast gradient");
    sources.back() = {casts.back(), Bytes(0), bytes};
  }
  const bool replaced = casts.size() == entries_.size();
  if (drop && replaced) emitter_.release(tensor, Reason::LastUse);
  add_to_partition(sources);
  for (BufferId buffer : casts) emitter_.release(buffer, Reason::PythonFrame);
  if (drop && !replaced) emitter_.release(tensor, Reason::PythonFrame);
}

void Stage3Runtime::clear_entries() {
  for (const Entry& entry : entries_) {
    if (entry.own != kNoBuffer) emitter_.release(entry.own, Reason::GradientHeld);
  }
  entries_.clear();
  // 0.17.2 alone kept counting, so that every gradient behind the first full bucket went by itself (#7415).
  if (training().deepspeed != Version{0, 17, 2}) filled_ = 0;
}

// A gradient that never entered the bucket is cast by itself where the communication dtype differs. Returns the
// gradients that the casts stand in for; both live until the reduction is over.
std::vector<BufferId> Stage3Runtime::cast_own_gradients() {
  std::vector<BufferId> uncast;
  const DType type = training().communication_dtype;
  if (type == dtype()) return uncast;
  for (Entry& entry : entries_) {
    if (entry.own == kNoBuffer) continue;
    const BufferId cast = emitter_.allocate(storage(Elements(trained_[entry.parameter].elements), type), type,
                                            Role::RuntimeBuffers, "gradients in communication dtype");
    emitter_.begin();
    emitter_.read(entry.own);
    emitter_.write(cast);
    emitter_.compute("cast gradients");
    uncast.push_back(std::exchange(entry.own, cast));
  }
  return uncast;
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
  record_interleaved();
  emitter_.compute("interleave gradients");
}

// What goes to each rank in turn, parameter by parameter; what reaches behind a parameter's end is zero.
void Stage3Runtime::record_interleaved() {
  Recording* recording = emitter_.recording();
  if (recording == nullptr) return;
  const DType type = training().communication_dtype;
  std::vector<ByteRange> ranges;
  for (std::int64_t r = 0; r < world(); ++r) {
    for (const Entry& entry : entries_) {
      const Piece& of = piece_of(entry);
      const std::int64_t from = std::min(of.elements, checked_mul(of.part, r));
      const std::int64_t real = std::min(of.part, of.elements - from);
      const bool own = entry.own != kNoBuffer;
      const Bytes begin = storage(Elements((own ? 0 : entry.offset) + from), type);
      ranges.push_back({own ? entry.own : bucket_, begin, storage(Elements(real), type)});
      if (real < of.part) ranges.push_back({kNoBuffer, Bytes(0), storage(Elements(of.part - real), type)});
    }
  }
  recording->as(Body::Copy);
  recording->reads(std::move(ranges));
}

// Each source fills the real part of its partition; sums are in place.
void Stage3Runtime::record_partitions(const std::vector<Source>& sources) {
  Recording* recording = emitter_.recording();
  if (recording == nullptr) return;
  const DType kept = training().grad_accum_dtype;
  std::vector<ByteRange> reads;
  std::vector<ByteRange> writes;
  for (std::size_t at = 0; at < sources.size(); ++at) {
    const Piece& of = piece_of(entries_[at]);
    writes.push_back({gradients_, storage(Elements(of.offset), kept), storage(Elements(of.part), kept)});
    const bool any = real_part(entries_[at]) > 0;
    const Bytes bytes = any ? std::min(sources[at].bytes, writes.back().bytes) : Bytes(0);
    if (any) reads.push_back({sources[at].buffer, sources[at].offset, bytes});
    if (bytes < writes.back().bytes) reads.push_back({kNoBuffer, Bytes(0), writes.back().bytes - bytes});
  }
  recording->as(accumulating_ ? Body::Add : Body::Copy);
  recording->reads(std::move(reads));
  recording->writes(std::move(writes));
}

// One source for each entry.
void Stage3Runtime::add_to_partition(const std::vector<Source>& sources) {
  if (optimizer_away()) return offload_gradients(sources);
  const DType kept = training().grad_accum_dtype;
  emitter_.begin();
  for (const Source& source : sources) emitter_.read(source.buffer, source.offset, source.bytes);
  if (accumulating_) {
    for (const Entry& entry : entries_) {
      const Piece& of = piece_of(entry);
      emitter_.read(gradients_, storage(Elements(of.offset), kept), storage(Elements(of.part), kept));
    }
  }
  for (const Entry& entry : entries_) {
    const Piece& of = piece_of(entry);
    emitter_.write(gradients_, storage(Elements(of.offset), kept), storage(Elements(of.part), kept));
  }
  record_partitions(sources);
  emitter_.compute(accumulating_ ? "add to gradient partitions" : "copy to gradient partitions");
}

}  // namespace dsplan
