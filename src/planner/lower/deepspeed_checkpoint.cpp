#include "planner/lower/deepspeed_checkpoint.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace dsplan {
namespace {

constexpr std::uint64_t kStash = 2;
constexpr std::size_t kPool = 64;
constexpr Bytes kPage{4096};
constexpr Bytes kIndex{8};  // Of one element, int64.

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
  emitter_.wait(kCopyStream, kComputeStream);
  const OnStream stream(emitter_, kCopyStream);
  const BufferId host = host_buffer(argument);
  emitter_.begin();
  emitter_.read(argument);
  emitter_.write(host);
  emitter_.compute("copy argument to host");
  tracked_[token] = host;
  stash_[token] = {argument, emitter_.signal(kCopyStream)};
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
  return emitter_.allocate(emitter_.size(like), DType::UInt8, Role::Activations, "pinned copy of an argument", kNone,
                           false, Space::Pinned);
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
    emitter_.await(held->second.copied, kComputeStream);
    stash_.erase(held);
    emitter_.mark_scratch(host);  // The copy was for nothing.
    pool(host);
    return argument;
  }
  const BufferId argument = bring_back(host);
  emitter_.wait(kComputeStream, kCopyStream);
  pool(host);
  return argument;
}

BufferId ActivationOffload::bring_back(BufferId host) {
  const OnStream stream(emitter_, kCopyStream);
  const BufferId argument =
      emitter_.allocate(emitter_.size(host), DType::UInt8, Role::Activations, "argument of a checkpoint");
  emitter_.begin();
  emitter_.read(host);
  emitter_.write(argument);
  emitter_.compute("copy argument to device");
  return argument;
}

BufferId DeepSpeedCheckpoints::copy(BufferId from, Space space, Role role, Label label, Label work) {
  const BufferId made = emitter_.allocate(emitter_.size(from), DType::UInt8, role, label, kNone, false, space);
  emitter_.begin();
  emitter_.read(from);
  emitter_.write(made);
  emitter_.compute(work);
  return made;
}

// With a model-parallel size of 1 the slice is the whole argument, cloned. The first rank's slice stands for all.
BufferId DeepSpeedCheckpoints::partition_of(BufferId argument) {
  const Bytes bytes = div_floor(emitter_.size(argument), ranks_);
  const BufferId part =
      emitter_.allocate(bytes, emitter_.dtype(argument), Role::Activations, "partition of an argument");
  emitter_.begin();
  emitter_.read(argument, Bytes(0), bytes);
  emitter_.write(part);
  if (Recording* recording = emitter_.recording(); recording != nullptr) {
    recording->reads({{argument, bytes * recording->tensor_rank(), bytes}});
  }
  emitter_.compute("clone");
  return part;
}

// gather_partitioned_activations: this rank's slice is copied to its place in zeros of the whole size, of which nobody
// reads one, and the others' are gathered around it.
BufferId DeepSpeedCheckpoints::gather(BufferId part, DType dtype) {
  const Bytes share = emitter_.size(part);
  const BufferId whole = emitter_.allocate(share * ranks_, dtype, Role::Activations, "argument of a checkpoint");
  emitter_.begin();
  emitter_.read(part);
  emitter_.write(whole, Bytes(0), share);
  Recording* recording = emitter_.recording();
  const Bytes place = recording == nullptr ? Bytes(0) : share * recording->tensor_rank();
  if (recording != nullptr) recording->writes({{whole, place, share}});
  emitter_.compute("copy partition to its place");
  emitter_.begin();
  emitter_.read(whole, Bytes(0), share);
  emitter_.write(whole);
  if (recording != nullptr) recording->reads({{whole, place, share}});
  emitter_.communicate(Collective::AllGather, dtype, emitter_.size(whole), TrafficKind::Data, Group::TensorParallel);
  return whole;
}

DeepSpeedCheckpoints::Stored DeepSpeedCheckpoints::store(BufferId argument, std::size_t position) {
  Stored one;
  if (config_.partition) {
    const BufferId part = partition_of(argument);
    arguments_stored();
    if (config_.contiguous) {
      one.kept = take_slot(part, position);
      frame_ = part;
    } else if (config_.cpu) {
      one.kept = copy(part, Space::Pageable, Role::Activations, "argument on the host", "copy argument to host");
      emitter_.release(part, Reason::PythonFrame);
    } else {
      one.kept = part;
    }
  } else if (config_.cpu && !asynchronous_) {
    one.kept = copy(argument, Space::Pageable, Role::Activations, "argument on the host", "copy argument to host");
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
    for (std::int64_t i = 0; i < config_.number_checkpoints; ++i) {
      slots.buffers.push_back(emitter_.allocate(emitter_.size(part), DType::UInt8, Role::RuntimeBuffers,
                                                "contiguous checkpoint", kNone, true, space));
    }
  }
  DSPLAN_CHECK(slots.taken < slots.buffers.size(), "more checkpoints than slots, which resolve refuses");
  const BufferId slot = slots.buffers[slots.taken++];
  const std::int64_t pages = (emitter_.size(part).value() + kPage.value() - 1) / kPage.value();
  const BufferId index =
      emitter_.allocate(kIndex * pages, DType::Int64, Role::Temporaries, "index of pages", kNone, false, space);
  emitter_.mark_scratch(index);
  emitter_.begin();
  emitter_.write(index);
  emitter_.compute("touch pages");
  emitter_.release(index, Reason::LastUse);
  emitter_.begin();
  emitter_.read(part);
  emitter_.write(slot);
  emitter_.compute("copy argument to slot");
  emitter_.retain(slot);
  return slot;
}

void DeepSpeedCheckpoints::note_sizes(Stored& one, std::size_t position, std::size_t rank) {
  const std::int64_t count = config_.contiguous ? config_.number_checkpoints : 1;
  if (config_.contiguous && slots_[position].sizes != kNoBuffer) {
    one.sizes = slots_[position].sizes;
    return emitter_.retain(one.sizes);
  }
  one.sizes = emitter_.allocate(kIndex * (static_cast<std::int64_t>(rank) * count), DType::Int64, Role::Activations,
                                "sizes of arguments", kNone, true, Space::Pageable);
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
  const BufferId argument =
      copy(kept, Space::Device, Role::Activations, "argument of a checkpoint", "copy argument to device");
  emitter_.release(kept, Reason::LastUse);
  return argument;
}

void DeepSpeedCheckpoints::forget(Stored& one) {
  if (one.sizes != kNoBuffer) emitter_.release(one.sizes, Reason::CheckpointFrame);
  if (one.token != 0) emitter_.release(engine_.restore(one.token), Reason::CheckpointFrame);
  if (one.token == 0 && one.kept != kNoBuffer) emitter_.release(one.kept, Reason::CheckpointFrame);
  one = {};
}

}  // namespace dsplan
