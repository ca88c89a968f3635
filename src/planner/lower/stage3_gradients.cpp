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
  reduce_ready(static_cast<std::size_t>(trained_index_[static_cast<std::size_t>(parameter)]),
               Variable(emitter_, gradient, Reason::GradientHeld));
}

// reduce_leaf_module_grads, in the optimizer's order.
void Stage3Runtime::reduce_leaf(ModuleId module) {
  for (std::size_t index = 0; index < trained_.size(); ++index) {
    const ParameterId id = trained_[index].id;
    if (leaf_of_[static_cast<std::size_t>(id)] != module || piece(id).held == kNoBuffer) continue;
    reduce_ready(index, Variable(emitter_, std::exchange(piece(id).held, kNoBuffer), Reason::GradientHeld));
  }
}

// reduce_independent_p_g_buckets_and_remove_grads.
void Stage3Runtime::reduce_ready(std::size_t index, Variable gradient) {
  const std::int64_t elements = trained_[index].elements;
  const std::int64_t limit = zero().reduce_bucket_size.value();
  if (filled_ > 0 && filled_ + elements > limit) flush();
  emitter_.wait(reduce_stream(), kComputeStream);
  if (!bucket_ || filled_ + elements > limit) {
    entries_.push_back({index, 0, std::move(gradient)});
  } else {
    const OnStream stream(emitter_, reduce_stream());
    entries_.push_back({index, filled_, {}});
    eager_.copy(in_bucket(entries_.back()), gradient, "copy gradient to bucket");
    gradient.reset();
  }
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
  if (!zero().reduce_scatter && bucket_ && filled_ <= zero().reduce_bucket_size.value()) {
    reduce_in_bucket();
  } else {
    reduce_scattered();
  }
  reductions_.push_back(emitter_.signal(reduce_stream()));
}

const Stage3Runtime::Piece& Stage3Runtime::piece_of(const Entry& entry) const {
  return piece(trained_[entry.parameter].id);
}

Part Stage3Runtime::in_gradients(const Piece& of) const {
  const DType kept = training().grad_accum_dtype;
  return {gradients_.id(), storage(Elements(of.offset), kept), storage(Elements(of.part), kept)};
}

Part Stage3Runtime::in_bucket(const Entry& entry) const {
  const DType sent = training().communication_dtype;
  return {bucket_.id(), storage(Elements(entry.offset), sent),
          storage(Elements(trained_[entry.parameter].elements), sent)};
}

// __avg_scatter_contiguous_grads: the bucket is all-reduced where it lies; the product with the factor that was divided
// out before, which is 1, is a tensor of its own. Partitions that reach behind their parameter's end are made anew,
// zeros behind it.
void Stage3Runtime::reduce_in_bucket() {
  const DType sent = training().communication_dtype;
  const DType kept = training().grad_accum_dtype;
  Part sum(bucket_.id(), Bytes(0), storage(Elements(filled_), sent));
  Work reduce = eager_.work().read(sum).write(sum);
  if (world() > 1) {
    reduce.collective(Collective::AllReduce, sent, sum.bytes);
  } else {
    reduce.run(Body::Copy, "local copy");
  }
  Variable made;
  const auto derive = [&](DType type, Label label) {
    made = eager_.cast(sum, type, {Role::RuntimeBuffers, label, "zero/stage3.py"}, label);
    sum = made;
  };
  if (world() > 1) derive(sent, "scaled gradients");
  if (sent != kept) derive(kept, "gradients in accumulation dtype");
  std::vector<Part> sources;
  std::vector<Variable> padded;
  for (const Entry& entry : entries_) {
    const Piece& of = piece_of(entry);
    const Real mine = real(of);
    sources.emplace_back(sum.buffer, storage(Elements(entry.offset + mine.from), kept),
                         storage(Elements(mine.elements), kept));
    if (mine.elements == of.part) continue;
    padded.push_back(eager_.empty(storage(Elements(of.part), kept), kept,
                                  {Role::RuntimeBuffers, "padded gradient", "zero/stage3.py"}));
    eager_.copy(padded.back(), sources.back(), "pad gradient");
    sources.back() = padded.back();
  }
  add_to_partition(sources);
  let_go(padded);
  made.reset();
  clear_entries();
}

// __avg_scatter_grads: by id, each padded to A, interleaved by rank.
void Stage3Runtime::reduce_scattered() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.parameter < b.parameter; });
  const DType type = training().communication_dtype;
  std::int64_t part = 0;
  for (const Entry& entry : entries_) part += piece_of(entry).part;
  std::vector<Variable> uncast = cast_own_gradients();
  const Entry& first = entries_.front();
  const bool direct = entries_.size() == 1 && trained_[first.parameter].elements % world() == 0;
  const Bytes all = storage(Elements(checked_mul(part, world())), type);
  Part tensor = first.own ? Part(first.own) : in_bucket(first);
  Variable interleaved;
  if (!direct) {
    interleaved = eager_.empty(
        all, type,
        {Role::RuntimeBuffers, "interleaved gradients", "comm/coalesced_collectives.py, reduce_scatter_coalesced"});
    interleave(interleaved);
    tensor = interleaved;
  }
  const Part mine(tensor.buffer, tensor.offset + storage(Elements(checked_mul(part, rank())), type),
                  storage(Elements(part), type));
  eager_.reduce_scatter(mine, Part(tensor.buffer, tensor.offset, all), world());
  take_scattered(mine, std::move(interleaved));
  clear_entries();
  let_go(uncast);
}

// What belongs to this rank, in the dtype of the sum. Nothing but padding is a tensor of nothing. The interleaved
// tensor goes as soon as casts stand in for all of it.
void Stage3Runtime::take_scattered(Part mine, Variable interleaved) {
  const DType type = training().communication_dtype;
  const DType kept = training().grad_accum_dtype;
  std::vector<Part> sources;
  std::vector<Variable> casts;
  for (const Entry& entry : entries_) {
    const Piece& of = piece_of(entry);
    const Part part(mine.buffer, mine.offset, storage(Elements(of.part), type));
    mine.offset += part.bytes;
    sources.push_back(part);
    const std::int64_t elements = real(of).elements;
    if (type == kept || elements == 0) continue;
    casts.push_back(eager_.empty(storage(Elements(elements), kept), kept,
                                 {Role::RuntimeBuffers, "gradient in accumulation dtype", "zero/stage3.py"}));
    eager_.work()
        .read(part)
        .write(casts.back())
        .really_reads({{part.buffer, part.offset, storage(Elements(elements), type)}})
        .run(Body::Copy, "cast gradient");
    sources.back() = Part(casts.back().id(), Bytes(0), eager_.bytes_of(casts.back()));
  }
  if (casts.size() == entries_.size()) interleaved.reset();
  add_to_partition(sources);
  let_go(casts);
  interleaved.reset();
}

void Stage3Runtime::clear_entries() {
  for (Entry& entry : entries_) entry.own.reset();
  entries_.clear();
  // 0.17.2 alone kept counting, so that every gradient behind the first full bucket went by itself (#7415).
  if (training().deepspeed != Version{0, 17, 2}) filled_ = 0;
}

// A gradient that never entered the bucket is cast by itself where the communication dtype differs. Returns the
// gradients that the casts stand in for; both live until the reduction is over.
std::vector<Variable> Stage3Runtime::cast_own_gradients() {
  std::vector<Variable> uncast;
  const DType type = training().communication_dtype;
  if (type == dtype()) return uncast;
  for (Entry& entry : entries_) {
    if (!entry.own) continue;
    Variable cast =
        eager_.empty(storage(Elements(trained_[entry.parameter].elements), type), type,
                     {Role::RuntimeBuffers, "gradients in communication dtype", "zero/stage3.py, __avg_scatter_grads"});
    eager_.copy(cast, entry.own, "cast gradients");
    uncast.push_back(std::move(entry.own));
    entry.own = Variable(emitter_, cast.hand_over(), Reason::GradientHeld);
  }
  return uncast;
}

// Each gradient padded to A, interleaved by rank.
void Stage3Runtime::interleave(const Variable& tensor) {
  Work copy = eager_.work();
  for (const Entry& entry : entries_) copy.read(entry.own ? Part(entry.own) : in_bucket(entry));
  copy.write(tensor).really_reads(interleaved()).run(Body::Copy, "interleave gradients");
}

// What goes to each rank in turn, parameter by parameter; what reaches behind a parameter's end is zero.
std::vector<ByteRange> Stage3Runtime::interleaved() const {
  std::vector<ByteRange> ranges;
  if (emitter_.recording() == nullptr) return ranges;
  const DType type = training().communication_dtype;
  for (std::int64_t r = 0; r < world(); ++r) {
    for (const Entry& entry : entries_) {
      const Piece& of = piece_of(entry);
      const std::int64_t from = std::min(of.elements, checked_mul(of.part, r));
      const std::int64_t real = std::min(of.part, of.elements - from);
      const Bytes begin = storage(Elements((entry.own ? 0 : entry.offset) + from), type);
      ranges.push_back({entry.own ? entry.own.id() : bucket_.id(), begin, storage(Elements(real), type)});
      if (real < of.part) ranges.push_back({kNoBuffer, Bytes(0), storage(Elements(of.part - real), type)});
    }
  }
  return ranges;
}

// For an executor: each source fills the real part of its partition.
std::vector<ByteRange> Stage3Runtime::padded(const std::vector<Part>& sources) const {
  std::vector<ByteRange> reads;
  if (emitter_.recording() == nullptr) return reads;
  for (std::size_t at = 0; at < sources.size(); ++at) {
    const Piece& of = piece_of(entries_[at]);
    const bool any = real(of).elements > 0;
    const Bytes all = in_gradients(of).bytes;
    const Bytes bytes = any ? std::min(eager_.bytes_of(sources[at]), all) : Bytes(0);
    if (any) reads.push_back({sources[at].buffer, sources[at].offset, bytes});
    if (bytes < all) reads.push_back({kNoBuffer, Bytes(0), all - bytes});
  }
  return reads;
}

// partition_grads: one source for each entry; sums are in place.
void Stage3Runtime::add_to_partition(const std::vector<Part>& sources) {
  if (optimizer_away()) return offload_gradients(sources);
  Work add = eager_.work().read(sources);
  for (const Entry& entry : entries_) {
    if (accumulating_) add.read(in_gradients(piece_of(entry)));
  }
  for (const Entry& entry : entries_) add.write(in_gradients(piece_of(entry)));
  add.really_reads(padded(sources));
  if (accumulating_) {
    add.run(Body::Add, "add to gradient partitions");
  } else {
    add.run(Body::Copy, "copy to gradient partitions");
  }
}

}  // namespace dsplan
