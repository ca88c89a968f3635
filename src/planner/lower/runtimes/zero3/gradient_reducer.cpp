#include "planner/lower/runtimes/zero3/gradient_reducer.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

constexpr std::size_t kOngoingReductions = 2;  // max_param_reduce_events.

}  // namespace

GradientReducer::GradientReducer(const Training& training, const Sharding& sharding, GradientPartitions& partitions,
                                 Emitter& emitter)
    : training_(training),
      sharding_(sharding),
      partitions_(partitions),
      eager_(emitter),
      stream_(training.zero.overlap_comm ? kReduceStream : kComputeStream) {}

void GradientReducer::make_bucket() {
  const DType sent = training_.communication_dtype;
  if (!training_.zero.contiguous_gradients) return;
  bucket_ = eager_.empty(
      storage(training_.zero.reduce_bucket_size, sent), sent,
      {Role::RuntimeBuffers, "gradient bucket", "zero/stage3.py, _setup_for_real_optimizer", /*capacity=*/true});
}

// reduce_independent_p_g_buckets_and_remove_grads.
void GradientReducer::reduce(std::size_t index, BufferId gradient) {
  Variable held(eager_.emitter(), gradient, Reason::GradientHeld);
  const std::int64_t elements = sharding_.of_trained(index).elements;
  const std::int64_t limit = training_.zero.reduce_bucket_size.value();
  if (filled_ > 0 && filled_ + elements > limit) flush();
  eager_.emitter().wait_stream(stream_, kComputeStream);
  if (!bucket_ || filled_ + elements > limit) {
    entries_.push_back({index, 0, std::move(held)});
  } else {
    const OnStream stream(eager_.emitter(), stream_);
    entries_.push_back({index, filled_, {}});
    eager_.copy(in_bucket(entries_.back()), held, "copy gradient to bucket");
    held.reset();
  }
  filled_ += elements;
}

void GradientReducer::finish() {
  flush();
  eager_.emitter().wait_stream(kHostSync, stream_);
  reductions_.clear();
}

void GradientReducer::flush() {
  if (entries_.empty()) return;
  if (reductions_.size() > kOngoingReductions) {
    eager_.emitter().wait_event(kHostSync, reductions_.front());
    reductions_.pop_front();
  }
  const OnStream stream(eager_.emitter(), stream_);
  if (!training_.zero.reduce_scatter && bucket_ && filled_ <= training_.zero.reduce_bucket_size.value()) {
    reduce_in_bucket();
  } else {
    reduce_scattered();
  }
  reductions_.push_back(eager_.emitter().record_event(stream_));
}

Part GradientReducer::in_bucket(const Entry& entry) const {
  const DType sent = training_.communication_dtype;
  return {bucket_.id(), storage(Elements(entry.offset), sent), storage(Elements(shard(entry).elements), sent)};
}

// __avg_scatter_contiguous_grads: the bucket is all-reduced where it lies; the product with the factor that was divided
// out before, which is 1, is a tensor of its own. Partitions that reach behind their parameter's end are made anew,
// zeros behind it.
void GradientReducer::reduce_in_bucket() {
  const DType sent = training_.communication_dtype;
  const DType kept = training_.grad_accum_dtype;
  Part sum(bucket_.id(), Bytes(0), storage(Elements(filled_), sent));
  Work reduce = eager_.work().read(sum).write(sum);
  if (sharding_.world() > 1) {
    reduce.collective(Collective::AllReduce, sent, sum.bytes);
  } else {
    reduce.run(Body::Copy, "local copy");
  }
  Variable made;
  const auto derive = [&](DType type, Label label) {
    made = eager_.cast(sum, type, {Role::RuntimeBuffers, label, "zero/stage3.py"}, label);
    sum = made;
  };
  if (sharding_.world() > 1) derive(sent, "scaled gradients");
  if (sent != kept) derive(kept, "gradients in accumulation dtype");
  std::vector<ReducedGradient> reduced;
  std::vector<Variable> padded;
  for (const Entry& entry : entries_) {
    const Shard& of = shard(entry);
    const ElementRange mine = sharding_.real(of);
    reduced.push_back({entry.index, Part(sum.buffer, storage(Elements(entry.offset + mine.from), kept),
                                         storage(Elements(mine.elements), kept))});
    if (mine.elements == of.part) continue;
    padded.push_back(eager_.empty(storage(Elements(of.part), kept), kept,
                                  {Role::RuntimeBuffers, "padded gradient", "zero/stage3.py"}));
    eager_.copy(padded.back(), reduced.back().part, "pad gradient");
    reduced.back().part = padded.back();
  }
  partitions_.take(std::move(reduced));
  let_go(padded);
  made.reset();
  clear_entries();
}

// __avg_scatter_grads: by id, each padded to A, interleaved by rank.
void GradientReducer::reduce_scattered() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.index < b.index; });
  const DType type = training_.communication_dtype;
  std::int64_t part = 0;
  for (const Entry& entry : entries_) part += shard(entry).part;
  std::vector<Variable> uncast = cast_own_gradients();
  const Entry& first = entries_.front();
  const bool direct = entries_.size() == 1 && shard(first).elements % sharding_.world() == 0;
  const Bytes all = storage(Elements(checked_mul(part, sharding_.world())), type);
  Part tensor = first.own ? Part(first.own) : in_bucket(first);
  Variable interleaved;
  Variables padding;
  if (!direct) {
    padding = make_padding();
    interleaved = eager_.empty(
        all, type,
        {Role::RuntimeBuffers, "interleaved gradients", "comm/coalesced_collectives.py, reduce_scatter_coalesced"});
    interleave(interleaved, padding);
    tensor = interleaved;
  }
  const Part mine(tensor.buffer, tensor.offset + storage(Elements(checked_mul(part, sharding_.rank())), type),
                  storage(Elements(part), type));
  eager_.reduce_scatter(mine, Part(tensor.buffer, tensor.offset, all), sharding_.world());
  padding.reset();
  take_scattered(mine, std::move(interleaved));
  clear_entries();
  let_go(uncast);
}

// What belongs to this rank, in the dtype of the sum. Nothing but padding is a tensor of nothing, which a cast makes
// anew. The interleaved tensor goes as soon as casts stand in for all of it.
void GradientReducer::take_scattered(Part mine, Variable interleaved) {
  const DType type = training_.communication_dtype;
  const DType kept = training_.grad_accum_dtype;
  std::vector<ReducedGradient> reduced;
  std::vector<Variable> casts;
  for (const Entry& entry : entries_) {
    const Shard& of = shard(entry);
    const Part part(mine.buffer, mine.offset, storage(Elements(of.part), type));
    mine.offset += part.bytes;
    reduced.push_back({entry.index, part});
    const std::int64_t elements = sharding_.real(of).elements;
    if (type == kept) continue;
    if (elements == 0) {
      reduced.back().part = {};
      continue;
    }
    casts.push_back(eager_.empty(storage(Elements(elements), kept), kept,
                                 {Role::RuntimeBuffers, "gradient in accumulation dtype", "zero/stage3.py"}));
    eager_.work()
        .read(part)
        .write(casts.back())
        .really_reads({{part.buffer, part.offset, storage(Elements(elements), type)}})
        .run(Body::Copy, "cast gradient");
    reduced.back().part = Part(casts.back().id(), Bytes(0), eager_.bytes_of(casts.back()));
  }
  if (type != kept) interleaved.reset();
  for (std::size_t i = 0; i < entries_.size(); ++i) reduced[i].own = std::move(entries_[i].own);
  partitions_.take(std::move(reduced));
  let_go(casts);
  interleaved.reset();
}

void GradientReducer::clear_entries() {
  for (Entry& entry : entries_) entry.own.reset();
  entries_.clear();
  // 0.17.2 alone kept counting, so that every gradient behind the first full bucket went by itself (#7415).
  if (training_.deepspeed != Version{0, 17, 2}) filled_ = 0;
}

// A gradient that never entered the bucket is cast by itself where the communication dtype differs. Returns the
// gradients that the casts stand in for; both live until the reduction is over.
std::vector<Variable> GradientReducer::cast_own_gradients() {
  std::vector<Variable> uncast;
  const DType type = training_.communication_dtype;
  if (type == sharding_.trained_dtype()) return uncast;
  for (Entry& entry : entries_) {
    if (!entry.own) continue;
    Variable cast =
        eager_.empty(storage(Elements(shard(entry).elements), type), type,
                     {Role::RuntimeBuffers, "gradients in communication dtype", "zero/stage3.py, __avg_scatter_grads"});
    eager_.copy(cast, entry.own, "cast gradients");
    uncast.push_back(std::move(entry.own));
    entry.own = Variable(eager_.emitter(), cast.hand_over(), Reason::GradientHeld);
  }
  return uncast;
}

// A tensor of its own for each gap behind a parameter's end, until reduce_scatter_coalesced returns. Between two ranks
// at which one more gap begins, or has begun, each rank has the same ones.
Variables GradientReducer::make_padding() {
  const DType type = training_.communication_dtype;
  struct Gap {
    std::int64_t rank;  // The first whose part its parameter does not fill.
    Bytes there;
    Bytes behind;  // Of each rank behind that one.
  };
  std::vector<Gap> gaps;
  std::vector<std::int64_t> bounds{sharding_.world()};
  for (const Entry& entry : entries_) {
    const Shard& of = shard(entry);
    const std::int64_t rank = of.elements / of.part;
    gaps.push_back({rank, storage(Elements(of.part - of.elements % of.part), type), storage(Elements(of.part), type)});
    for (const std::int64_t bound : {rank, rank + 1}) bounds.push_back(std::min(bound, sharding_.world()));
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  Variables padding;
  for (std::size_t at = 0; at + 1 < bounds.size(); ++at) {
    std::vector<Bytes> sizes;
    for (const Gap& gap : gaps) {
      if (bounds[at] >= gap.rank) sizes.push_back(bounds[at] == gap.rank ? gap.there : gap.behind);
    }
    pad(sizes, bounds[at + 1] - bounds[at], padding);
  }
  return padding;
}

// For each of `ranks` tensors of these sizes.
void GradientReducer::pad(const std::vector<Bytes>& sizes, std::int64_t ranks, Variables& padding) {
  const DType type = training_.communication_dtype;
  const What what{Role::RuntimeBuffers, "padding of gradients",
                  "comm/coalesced_collectives.py, reduce_scatter_coalesced"};
  Emitter& emitter = eager_.emitter();
  const auto add = [&](BufferId made) {
    emitter.mark_scratch(made);
    padding.append(Variable(emitter, made));
  };
  const bool small = std::all_of(sizes.begin(), sizes.end(), [](Bytes one) { return one <= Bytes(kBlockBytes); });
  const std::size_t count = sizes.size() * static_cast<std::size_t>(ranks);
  if (allows_pieces(emitter) && small && count > 1) {
    add(allocate_pieces(emitter, count, sizes, type, what));
    return;
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (const Bytes size : sizes) add(emitter.allocate(size, type, what));
  }
}

// Each gradient padded to A, interleaved by rank. torch.cat copies what nobody has written of the padding: an executor
// leaves zeros there, so that here it is the copy's own scratch.
void GradientReducer::interleave(const Variable& tensor, const Variables& padding) {
  Work copy = eager_.work();
  for (const Entry& entry : entries_) copy.read(entry.own ? Part(entry.own) : in_bucket(entry));
  copy.write(tensor).write(padding.ids());
  copy.really_reads(interleaved()).really_writes({{tensor.id(), Bytes(0), eager_.bytes_of(tensor)}});
  copy.run(Body::Copy, "interleave gradients");
}

// What goes to each rank in turn, parameter by parameter; what reaches behind a parameter's end is zero.
std::vector<ByteRange> GradientReducer::interleaved() {
  std::vector<ByteRange> ranges;
  if (eager_.emitter().recording() == nullptr) return ranges;
  const DType type = training_.communication_dtype;
  for (std::int64_t r = 0; r < sharding_.world(); ++r) {
    for (const Entry& entry : entries_) {
      const Shard& of = shard(entry);
      const std::int64_t from = std::min(of.elements, checked_mul(of.part, r));
      const std::int64_t real = std::min(of.part, of.elements - from);
      const Bytes begin = storage(Elements((entry.own ? 0 : entry.offset) + from), type);
      ranges.push_back({entry.own ? entry.own.id() : bucket_.id(), begin, storage(Elements(real), type)});
      if (real < of.part) ranges.push_back({kNoBuffer, Bytes(0), storage(Elements(of.part - real), type)});
    }
  }
  return ranges;
}

}  // namespace dsplan
