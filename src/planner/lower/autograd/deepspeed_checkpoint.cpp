#include "planner/lower/autograd/deepspeed_checkpoint.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

constexpr std::uint64_t kStash = 2;
constexpr std::size_t kPool = 64;
constexpr Bytes kHostPage{4096};
constexpr Bytes kIndexBytes{8};  // Of one element, int64.

constexpr Source kForward = "activation_checkpointing/checkpointing.py, CheckpointFunction.forward";
constexpr Source kPartitions = "activation_checkpointing/checkpointing.py, partition_activations";
constexpr Source kEmpties = "activation_checkpointing/checkpointing.py, get_partitioned_activations_for_backward";
constexpr Source kEngine = "activation_checkpointing/offload_activations.py, _ActivationOffloadEngine";
constexpr What kArgument{Role::Activations, "argument of a checkpoint",
                         "activation_checkpointing/checkpointing.py, CheckpointFunction.backward"};

}  // namespace

std::uint64_t ActivationOffload::offload(BufferId argument) {
  const std::uint64_t token = ++newest_;
  emitter_.retain(argument);
  kept_[token] = argument;
  if (kept_.size() > 1) {
    const auto [oldest, held] = *kept_.begin();
    kept_.erase(kept_.begin());
    start(oldest, held, token);
  }
  return token;
}

void ActivationOffload::start(std::uint64_t token, BufferId argument, std::uint64_t newest) {
  while (!stash_.empty() && stash_.begin()->first + kStash <= newest) {
    emitter_.release(stash_.begin()->second.argument, Reason::CheckpointFrame);
    stash_.erase(stash_.begin());
  }
  emitter_.wait_stream(kCopyStream, kComputeStream);
  const OnStream stream(emitter_, kCopyStream);
  const BufferId host = host_buffer(argument);
  Eager(emitter_).copy(host, argument, "copy argument to host");
  tracked_[token] = host;
  stash_[token] = {argument, emitter_.record_event(kCopyStream)};
}

// Pooled by shape and dtype; all arguments of a run have one size for each shape.
BufferId ActivationOffload::host_buffer(BufferId like) {
  const auto fits = std::find_if(pool_.rbegin(), pool_.rend(),
                                 [&](BufferId host) { return emitter_.size(host) == emitter_.size(like); });
  if (fits != pool_.rend()) {
    const BufferId host = *fits;
    pool_.erase(std::next(fits).base());
    return host;
  }
  const What what{Role::Activations, "pinned copy of an argument", kEngine};
  return emitter_.allocate(emitter_.size(like), DType::UInt8, what, kNone, Space::Pinned);
}

void ActivationOffload::pool(BufferId host) {
  if (pool_.size() >= kPool) return emitter_.release(host, Reason::PythonFrame);
  pool_.push_back(host);
}

BufferId ActivationOffload::restore(std::uint64_t token) {
  if (const auto held = kept_.find(token); held != kept_.end()) {
    const BufferId argument = held->second;
    kept_.erase(held);
    return argument;
  }
  const BufferId host = tracked_.at(token);
  tracked_.erase(token);
  if (const auto held = stash_.find(token); held != stash_.end()) {
    const BufferId argument = held->second.argument;
    emitter_.wait_event(kComputeStream, held->second.copied);
    stash_.erase(held);
    emitter_.mark_scratch(host);  // The copy was for nothing.
    pool(host);
    return argument;
  }
  const BufferId argument = bring_back(host);
  emitter_.wait_stream(kComputeStream, kCopyStream);
  pool(host);
  return argument;
}

BufferId ActivationOffload::bring_back(BufferId host) {
  const OnStream stream(emitter_, kCopyStream);
  Variable argument = Eager(emitter_).empty(emitter_.size(host), DType::UInt8, kArgument);
  Eager(emitter_).copy(argument, host, "copy argument to device");
  return argument.hand_over();
}

BufferId DeepSpeedCheckpoints::to_host(BufferId from) {
  Eager eager(emitter_);
  Variable made = eager.empty(emitter_.size(from), DType::UInt8, {Role::Activations, "argument on the host", kForward},
                              kNone, Space::Pageable);
  eager.copy(made, from, "copy argument to host");
  return made.hand_over();
}

// With a model-parallel size of 1 the slice is the whole argument, cloned. The first rank's slice stands for all.
Variable DeepSpeedCheckpoints::partition_of(BufferId argument) {
  const Bytes bytes = div_floor(emitter_.size(argument), ranks_);
  Variable part = Eager(emitter_).empty(bytes, emitter_.dtype(argument),
                                        {Role::Activations, "partition of an argument", kPartitions});
  Work clone(emitter_);
  clone.read({argument, Bytes(0), bytes}).write(part);
  clone.really_reads({{argument, bytes * tensor_rank(), bytes}}).run(Body::Copy, "clone");
  return part;
}

std::int64_t DeepSpeedCheckpoints::tensor_rank() const {
  const Recording* recording = emitter_.recording();
  return recording == nullptr ? 0 : recording->tensor_rank();
}

// gather_partitioned_activations: this rank's slice is copied to its place in zeros of the whole size, of which nobody
// reads one, and the others' are gathered around it.
BufferId DeepSpeedCheckpoints::gather(BufferId part, DType dtype) {
  const Bytes share = emitter_.size(part);
  Variable whole = Eager(emitter_).empty(share * ranks_, dtype, kArgument);
  const Part first(whole.id(), Bytes(0), share);  // The first rank's place stands for all.
  const ByteRange place{whole.id(), share * tensor_rank(), share};
  Work(emitter_).read(part).write(first).really_writes({place}).run(Body::Copy, "copy partition to its place");
  Work gather(emitter_);
  gather.read(first).write(whole).really_reads({place});
  gather.collective(Collective::AllGather, dtype, emitter_.size(whole.id()), Group::TensorParallel);
  return whole.hand_over();
}

DeepSpeedCheckpoints::Stored DeepSpeedCheckpoints::store(BufferId argument, std::size_t position) {
  Stored one;
  if (config_.partition) {
    Variable part = partition_of(argument);
    arguments_stored();
    if (config_.contiguous) {
      one.kept = take_slot(part.id(), position);
      frame_ = part.hand_over();
    } else if (config_.cpu) {
      one.kept = to_host(part.id());
    } else {
      one.kept = part.hand_over();
    }
  } else if (config_.cpu && !asynchronous_) {
    one.kept = to_host(argument);
  }
  return one;
}

void DeepSpeedCheckpoints::arguments_stored() {
  if (frame_ != kNoBuffer) emitter_.release(frame_, Reason::PythonFrame);
  frame_ = kNoBuffer;
}

// All slots at the first checkpoint, each of that one's size. One element of each page is written to before the copy,
// by an index of int64.
BufferId DeepSpeedCheckpoints::take_slot(BufferId part, std::size_t position) {
  const Space space = config_.cpu ? Space::Pageable : Space::Device;
  if (position >= slots_.size()) slots_.resize(position + 1);
  Slots& slots = slots_[position];
  if (slots.buffers.empty()) {
    const What what{Role::RuntimeBuffers, "contiguous checkpoint", kPartitions, true};
    for (std::int64_t i = 0; i < config_.number_checkpoints; ++i) {
      slots.buffers.push_back(emitter_.allocate(emitter_.size(part), DType::UInt8, what, kNone, space));
    }
  }
  DSPLAN_CHECK(slots.taken < slots.buffers.size(), "more checkpoints than slots, which resolve refuses");
  const BufferId slot = slots.buffers[slots.taken++];
  const std::int64_t pages = div_ceil(emitter_.size(part).value(), kHostPage.value());
  Eager eager(emitter_);
  Variable index =
      eager.empty(kIndexBytes * pages, DType::Int64, {Role::Temporaries, "index of pages", kPartitions}, kNone, space);
  emitter_.mark_scratch(index.id());
  eager.work().write(index).run(Body::Nothing, "touch pages");
  index.reset(Reason::LastUse);
  eager.copy(slot, part, "copy argument to slot");
  emitter_.retain(slot);
  return slot;
}

void DeepSpeedCheckpoints::note_sizes(Stored& one, std::size_t position, std::size_t rank) {
  const std::int64_t count = config_.contiguous ? config_.number_checkpoints : 1;
  if (config_.contiguous && slots_[position].sizes != kNoBuffer) {
    one.sizes = slots_[position].sizes;
    return emitter_.retain(one.sizes);
  }
  one.sizes = emitter_.allocate(kIndexBytes * (static_cast<std::int64_t>(rank) * count), DType::Int64,
                                {Role::Activations, "sizes of arguments", kEmpties, true}, kNone, Space::Pageable);
  emitter_.mark_scratch(one.sizes);
  if (!config_.contiguous) return;
  slots_[position].sizes = one.sizes;
  emitter_.retain(one.sizes);
}

void DeepSpeedCheckpoints::stored(BufferId argument, Stored& one, std::size_t position, std::size_t rank) {
  if (config_.partition) note_sizes(one, position, rank);
  if (config_.cpu && !config_.partition && asynchronous_) one.token = engine_.offload(argument);
}

void DeepSpeedCheckpoints::backward_begins() {
  for (Slots& slots : slots_) {
    for (BufferId slot : slots.buffers) emitter_.release(slot, Reason::CheckpointFrame);
    if (slots.sizes != kNoBuffer) emitter_.release(slots.sizes, Reason::CheckpointFrame);
  }
  slots_.clear();
}

BufferId DeepSpeedCheckpoints::restore(Stored& one) {
  if (one.sizes != kNoBuffer) emitter_.release(one.sizes, Reason::CheckpointFrame);
  one.sizes = kNoBuffer;
  if (one.token != 0) return engine_.restore(one.token);
  const BufferId kept = std::exchange(one.kept, kNoBuffer);
  if (!config_.cpu) return kept;
  Variable argument = Eager(emitter_).empty(emitter_.size(kept), DType::UInt8, kArgument);
  Eager(emitter_).copy(argument, kept, "copy argument to device");
  emitter_.release(kept, Reason::LastUse);
  return argument.hand_over();
}

void DeepSpeedCheckpoints::forget(Stored& one) {
  if (one.sizes != kNoBuffer) emitter_.release(one.sizes, Reason::CheckpointFrame);
  if (one.token != 0) emitter_.release(engine_.restore(one.token), Reason::CheckpointFrame);
  if (one.token == 0 && one.kept != kNoBuffer) emitter_.release(one.kept, Reason::CheckpointFrame);
  one = {};
}

}  // namespace dsplan
