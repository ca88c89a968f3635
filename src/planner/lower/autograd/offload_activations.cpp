#include "planner/lower/autograd/offload_activations.h"

#include <utility>

#include "planner/lower/eager.h"

namespace dsplan {
namespace {

constexpr Bytes kLeast{1024};        // min_offload_size
constexpr std::uint64_t kStash = 5;  // max_fwd_stash_size
constexpr Source kPack = "trl/models/activation_offloading.py, pack_tensor";
constexpr Source kUnpack = "trl/models/activation_offloading.py, unpack_tensor";

// Whole buffers from one place to another. Nobody carries this out: the tensors of a program would move along.
void copy_whole(Emitter& emitter, BufferId to, BufferId from, Label work) {
  Work(emitter).read(Part(from)).write(Part(to)).run_unexecutable(work);
}

BufferId bring_back(Emitter& emitter, BufferId host, StreamId on) {
  const OnStream stream(emitter, on);
  Variable made = Eager(emitter).empty(emitter.size(host), emitter.dtype(host),
                                       {Role::Activations, "activation brought back", kUnpack});
  copy_whole(emitter, made.id(), host, "copy activation to device");
  return made.hand_over();
}

}  // namespace

OffloadActivations::OffloadActivations(Emitter& emitter, bool streams, const PlacementOptions& placed)
    : emitter_(emitter), streams_(streams), placed_(placed) {
  if (streams_) emitter_.use_streams();
}

// What no backward asked for is still tracked.
void OffloadActivations::enter() {
  for (auto& [id, one] : std::exchange(tracked_, {})) {
    if (one.buffer != kNoBuffer) emitter_.release(one.buffer, Reason::PythonFrame);
  }
  under_way_.clear();
  keys_.clear();
  newest_ = 0;
  node_ = kNone;
}

void OffloadActivations::exit() {
  if (!streams_) return;
  emitter_.wait_stream(kHostSync, kComputeStream);
  emitter_.wait_stream(kHostSync, kCopyStream);
  for (auto& [id, one] : std::exchange(leaving_, {})) emitter_.release(one.buffer, Reason::PythonFrame);
}

OffloadActivations::Key OffloadActivations::key_of(const HookedTensor& tensor) {
  if (!streams_ || tensor.buffer == kNoBuffer) return {0, tensor.dtype};  // Nothing lies there.
  placed_.go_on(written(emitter_));
  return {placed_.address(tensor.buffer).value() + tensor.offset, tensor.dtype};
}

std::uint64_t OffloadActivations::pack(const HookedTensor& tensor) {
  const std::uint64_t id = ++newest_;
  const Key key = key_of(tensor);
  const bool sent = under_way_.contains(key);
  if (sent || tensor.buffer == kNoBuffer || tensor.bytes < kLeast) {
    if (tensor.buffer != kNoBuffer) emitter_.retain(tensor.buffer);
    tracked_[id] = {tensor.buffer, false};
    if (sent) track(key, id);
    return id;
  }
  const BufferId source = source_of(tensor);
  if (streams_) let_go_before(id);
  send(id, source, tensor.repeated ? emitter_.size(source) : tensor.bytes, tensor.dtype);
  if (streams_) track(key, id);
  return id;
}

// What does not lie in one piece from its storage's beginning on is copied first. One reference.
BufferId OffloadActivations::source_of(const HookedTensor& tensor) {
  if (tensor.repeated || (tensor.contiguous && tensor.offset == 0)) {
    emitter_.retain(tensor.buffer);
    return tensor.buffer;
  }
  Variable made = Eager(emitter_).empty(tensor.bytes, tensor.dtype, {Role::Activations, "contiguous copy", kPack});
  copy_whole(emitter_, made.id(), tensor.buffer, "clone");
  return made.hand_over();
}

// Those that were sent long enough ago are waited for.
void OffloadActivations::let_go_before(std::uint64_t newest) {
  while (!leaving_.empty() && leaving_.begin()->first + kStash <= newest) {
    const auto [id, one] = *leaving_.begin();
    leaving_.erase(leaving_.begin());
    emitter_.wait_event(kComputeStream, one.copied);
    emitter_.release(one.buffer, Reason::PythonFrame);
    untrack(id);
  }
}

void OffloadActivations::send(std::uint64_t id, BufferId source, Bytes bytes, DType dtype) {
  if (streams_) emitter_.wait_stream(kCopyStream, kComputeStream);
  const OnStream stream(emitter_, streams_ ? kCopyStream : kComputeStream);
  Variable host = Eager(emitter_).empty(bytes, dtype, {Role::Activations, "pinned copy of an activation", kPack}, kNone,
                                        Space::Pinned);
  copy_whole(emitter_, host.id(), source, "copy activation to host");
  tracked_[id] = {host.hand_over(), true};
  if (streams_) {
    tell_uses(emitter_, source, false);
    leaving_[id] = {source, emitter_.record_event(kCopyStream)};
  } else {
    emitter_.release(source, Reason::PythonFrame);
  }
}

void OffloadActivations::track(const Key& key, std::uint64_t id) {
  under_way_[key] = id;
  keys_[id] = key;
}

// Another one may have taken the key over.
void OffloadActivations::untrack(std::uint64_t id) {
  const auto found = keys_.find(id);
  if (found == keys_.end()) return;
  const auto under_way = under_way_.find(found->second);
  if (under_way != under_way_.end() && under_way->second == id) under_way_.erase(under_way);
  keys_.erase(found);
}

BufferId OffloadActivations::unpack(std::uint64_t id, NodeId node) {
  const Tracked one = tracked_.at(id);
  tracked_.erase(id);
  BufferId found = one.buffer;
  if (one.on_host) {
    Hook hook{id, true, {}};
    if (streams_ && node != node_) {
      node_ = node;
      for (const BufferId leaf : std::exchange(graph_, {})) emitter_.release(leaf, Reason::AutogradGraph);
      for (const auto& [before, buffer] : brought_) hook.before.push_back(before);
    }
    if (const auto leaving = leaving_.find(id); leaving != leaving_.end()) {
      found = leaving->second.buffer;
      emitter_.retain(found);
      emitter_.mark_scratch(one.buffer);  // The copy was for nothing.
      hook.brought_back = false;
    } else {
      found = bring_back(emitter_, one.buffer, streams_ ? kCopyStream : kComputeStream);
    }
    if (streams_ && hook.brought_back) {
      emitter_.wait_stream(kComputeStream, kCopyStream);
      tell_uses(emitter_, found, false);
      emitter_.retain(found);
      brought_[id] = found;
    }
    if (streams_) hooks_.push_back(std::move(hook));
    emitter_.release(one.buffer, Reason::PythonFrame);
  }
  untrack(id);
  return found;
}

void OffloadActivations::node_returns() {
  for (const Hook& hook : std::exchange(hooks_, {})) run(hook);
}

// What somebody else holds beside the stash is left to him, and the allocator told that both streams use it
// (record_stream). All else stays until a later node has run.
void OffloadActivations::run(const Hook& hook) {
  const auto brought = brought_.find(hook.id);
  if (hook.brought_back && brought != brought_.end()) {
    if (emitter_.references(brought->second) > 1) {
      tell_uses(emitter_, brought->second, true);
      let_go_of(hook.id);
    } else {
      used_[hook.id] = emitter_.record_event(kComputeStream);
    }
  }
  let_go_before(newest_ + kStash);  // Backward has begun: all of them.
  for (const std::uint64_t before : hook.before) let_go_of(before);
}

void OffloadActivations::let_go_of(std::uint64_t brought) {
  if (const auto used = used_.find(brought); used != used_.end()) {
    emitter_.wait_event(kCopyStream, used->second);
    used_.erase(used);
  }
  const auto found = brought_.find(brought);
  if (found == brought_.end()) return;
  emitter_.release(found->second, Reason::PythonFrame);
  brought_.erase(found);
}

void OffloadActivations::hold_graph(std::vector<BufferId> leaves) {
  if (streams_) graph_.swap(leaves);
  for (const BufferId leaf : leaves) emitter_.release(leaf, Reason::AutogradGraph);
}

void OffloadActivations::backward_ends() {
  while (!brought_.empty()) let_go_of(brought_.begin()->first);
}

}  // namespace dsplan
