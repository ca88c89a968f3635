// deepspeed.checkpointing.checkpoint on the tape: a reentrant checkpoint whose floating-point arguments may lose their
// storage between forward and backward, for whoever holds the same tensor.
#include <algorithm>

#include "core/error.h"
#include "planner/lower/tape.h"

namespace dsplan {
namespace {

bool is_floating_point(DType dtype) {
  return dtype == DType::Float64 || dtype == DType::Float32 || dtype == DType::Float16 || dtype == DType::BFloat16;
}

}  // namespace

bool Tape::is_stored(const Region& region, TensorId tensor) const {
  return region.deepspeed && deepspeed_->empties() && is_floating_point(graph_.tensor(tensor).dtype) &&
         graph_.storage_of(tensor).parameter == kNone;
}

// Autograd knows it as a view, which keeps its base whatever becomes of its data (torch/csrc/autograd/variable.h,
// DifferentiableViewMeta).
bool Tape::is_view(TensorId tensor) const {
  const NodeId producer = graph_.tensor(tensor).producer;
  if (producer == kNone || !graph_.tensor(tensor).requires_grad) return false;
  return recipes_.entry(producer).alias || graph_.node(producer).op == Op::AllReduce;
}

void Tape::store_arguments(Region& region) {
  if (!region.deepspeed) return;
  DSPLAN_CHECK(deepspeed_ != nullptr, "a checkpoint of DeepSpeed's without its buffers");
  std::size_t position = 0;
  for (TensorId tensor : region.arguments) {
    if (!is_stored(region, tensor)) continue;
    region.stored.push_back(deepspeed_->store(buffer_of(tensor), position++));
  }
  deepspeed_->arguments_stored();
}

// arg.data = torch.empty([]): all that hold the tensor, the checkpoint among them, now hold four bytes.
void Tape::empty_arguments(Region& region) {
  std::size_t at = 0;
  for (TensorId tensor : region.arguments) {
    if (!is_stored(region, tensor)) continue;
    deepspeed_->stored(buffer_of(tensor), region.stored[at], at, graph_.tensor(tensor).shape.rank);
    ++at;
  }
  std::size_t held = 0;
  for (TensorId tensor : region.arguments) {
    if (graph_.storage_of(tensor).parameter != kNone) continue;
    const std::size_t slot = held++;
    if (!is_stored(region, tensor)) continue;
    const BufferId whole = buffer_of(tensor);
    if (is_view(tensor)) {
      emitter_.retain(whole);
      region.bases.push_back(whole);
    }
    const BufferId empty = emitter_.allocate(Bytes(4), DType::Float32, Role::Activations, "emptied argument");
    emitter_.mark_scratch(empty);
    emitter_.begin();
    emitter_.write(empty);
    emitter_.compute("empty");
    swap_storage(region, slot, tensor, empty);
    for (std::int64_t drops = drops_after(region.end, tensor); drops > 0; --drops) {
      emitter_.retain(empty);
      emitter_.release(whole, Reason::PythonFrame);
    }
  }
}

void Tape::restore_arguments(Region& region) {
  if (!region.deepspeed) return;
  deepspeed_->backward_begins();
  const auto swap_each = [&](auto with) {
    std::size_t at = 0;
    std::size_t held = 0;
    for (TensorId tensor : region.arguments) {
      if (graph_.storage_of(tensor).parameter != kNone) continue;
      const std::size_t slot = held++;
      if (is_stored(region, tensor)) swap_storage(region, slot, tensor, with(at++, slot, tensor));
    }
  };
  swap_each([&](std::size_t at, std::size_t, TensorId) { return deepspeed_->restore(region.stored[at]); });
  region.stored.clear();
  if (!deepspeed_->gathers()) return;
  swap_each([&](std::size_t, std::size_t slot, TensorId tensor) {
    return deepspeed_->gather(region.closure[slot], graph_.tensor(tensor).dtype);
  });
}

// `with` has one reference, which becomes the checkpoint's. A leaf is the same tensor, held by its AccumulateGrad.
void Tape::swap_storage(Region& region, std::size_t slot, TensorId tensor, BufferId with) {
  BufferId& closure = region.closure[slot];
  const BufferId before = closure;
  closure = with;
  for (BufferId& leaf : leaves_) {
    if (leaf != before) continue;
    leaf = with;
    emitter_.retain(with);
    emitter_.release(before, Reason::AutogradGraph);
  }
  buffer_of(tensor) = with;
  if (records()) values_[static_cast<std::size_t>(tensor)] = emitter_.recording()->placed(with, Bytes(0), tensor);
  emitter_.release(before, Reason::CheckpointFrame);
}

// How many of Python's variables still hold the tensor when the program has come to `at`.
std::int64_t Tape::drops_after(std::uint32_t at, TensorId tensor) const {
  std::int64_t drops = 0;
  for (std::uint32_t next = at + 1; next < graph_.program.size(); ++next) {
    const Instruction& instruction = graph_.program[next];
    if (instruction.kind != Instruction::Kind::Drop) continue;
    if (graph_.tensor(instruction.id).storage != graph_.tensor(tensor).storage) continue;
    if (instruction.id != tensor) {
      throw Refusal("--checkpoint-impl", "a view of an argument that DeepSpeed's checkpoint empties outlives it",
                    "not modelled yet");
    }
    ++drops;
  }
  return drops;
}

}  // namespace dsplan
