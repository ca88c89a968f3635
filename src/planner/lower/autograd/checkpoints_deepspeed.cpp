// deepspeed.checkpointing.checkpoint on the tape: a reentrant checkpoint whose floating-point arguments may lose their
// storage between forward and backward, for whoever holds the same tensor.
#include "core/error.h"
#include "planner/lower/autograd/checkpoints.h"
#include "planner/lower/eager.h"

namespace dsplan {
namespace {

bool is_floating_point(DType dtype) {
  return dtype == DType::Float64 || dtype == DType::Float32 || dtype == DType::Float16 || dtype == DType::BFloat16;
}

}  // namespace

bool Checkpoints::is_stored(const Checkpoint& checkpoint, TensorId tensor) const {
  return checkpoint.deepspeed && deepspeed_->empties() && is_floating_point(graph_.tensor(tensor).dtype) &&
         graph_.storage_of(tensor).parameter == kNone;
}

// Autograd knows it as a view, which keeps its base whatever becomes of its data (torch/csrc/autograd/variable.h,
// DifferentiableViewMeta).
bool Checkpoints::is_view(TensorId tensor) const {
  const NodeId producer = graph_.tensor(tensor).producer;
  if (producer == kNone || !graph_.tensor(tensor).requires_grad) return false;
  return on_.recipes.entry(producer).alias || graph_.node(producer).op == Op::AllReduce;
}

void Checkpoints::store_arguments(Checkpoint& checkpoint) {
  if (!checkpoint.deepspeed) return;
  DSPLAN_CHECK(deepspeed_ != nullptr, "a checkpoint of DeepSpeed's without its buffers");
  std::size_t position = 0;
  for (TensorId tensor : checkpoint.arguments) {
    if (!is_stored(checkpoint, tensor)) continue;
    checkpoint.stored.push_back(deepspeed_->store(on_.storages.of(tensor), position++));
  }
  deepspeed_->arguments_stored();
}

// arg.data = torch.empty([]): all that hold the tensor, the checkpoint among them, now hold four bytes.
void Checkpoints::empty_arguments(Checkpoint& checkpoint) {
  std::size_t at = 0;
  for (TensorId tensor : checkpoint.arguments) {
    if (!is_stored(checkpoint, tensor)) continue;
    deepspeed_->stored(on_.storages.of(tensor), checkpoint.stored[at], at, graph_.tensor(tensor).shape.rank);
    ++at;
  }
  std::size_t held = 0;
  for (TensorId tensor : checkpoint.arguments) {
    if (graph_.storage_of(tensor).parameter != kNone) continue;
    const std::size_t slot = held++;
    if (!is_stored(checkpoint, tensor)) continue;
    const BufferId whole = on_.storages.of(tensor);
    if (is_view(tensor)) {
      emitter_.retain(whole);
      checkpoint.bases.push_back(whole);
    }
    Variable empty =
        Eager(emitter_).empty(Bytes(4), DType::Float32,
                              {Role::Activations, "emptied argument",
                               "activation_checkpointing/checkpointing.py, get_partitioned_activations_for_backward"});
    emitter_.mark_scratch(empty.id());
    Eager(emitter_).zero(empty, "empty");
    const BufferId left = empty.hand_over();
    swap_storage(checkpoint, slot, tensor, left);
    for (std::int64_t drops = drops_after(checkpoint.end, tensor); drops > 0; --drops) {
      emitter_.retain(left);
      emitter_.release(whole, Reason::PythonFrame);
    }
  }
}

void Checkpoints::restore_arguments(Checkpoint& checkpoint) {
  if (!checkpoint.deepspeed) return;
  deepspeed_->backward_begins();
  const auto swap_each = [&](auto with) {
    std::size_t at = 0;
    std::size_t held = 0;
    for (TensorId tensor : checkpoint.arguments) {
      if (graph_.storage_of(tensor).parameter != kNone) continue;
      const std::size_t slot = held++;
      if (is_stored(checkpoint, tensor)) swap_storage(checkpoint, slot, tensor, with(at++, slot, tensor));
    }
  };
  swap_each([&](std::size_t at, std::size_t, TensorId) { return deepspeed_->restore(checkpoint.stored[at]); });
  checkpoint.stored.clear();
  if (!deepspeed_->gathers()) return;
  swap_each([&](std::size_t, std::size_t slot, TensorId tensor) {
    return deepspeed_->gather(checkpoint.closure[slot], graph_.tensor(tensor).dtype);
  });
}

// `with` has one reference, which becomes the checkpoint's. A leaf is the same tensor, held by its AccumulateGrad.
void Checkpoints::swap_storage(Checkpoint& checkpoint, std::size_t slot, TensorId tensor, BufferId with) {
  const BufferId before = std::exchange(checkpoint.closure[slot], with);
  on_.storages.replace_leaf(before, with);
  on_.storages.of(tensor) = with;
  if (on_.recording) on_.recording->place(tensor, with);
  emitter_.release(before, Reason::CheckpointFrame);
}

// How many of Python's variables still hold the tensor when the program has come to `at`.
std::int64_t Checkpoints::drops_after(std::uint32_t at, TensorId tensor) const {
  std::int64_t drops = 0;
  for (std::uint32_t next = at + 1; next < graph_.program.size(); ++next) {
    const Instruction& instruction = graph_.program[next];
    if (instruction.kind != Instruction::Kind::Drop) continue;
    if (graph_.tensor(instruction.tensor()).storage != graph_.tensor(tensor).storage) continue;
    if (instruction.tensor() != tensor) {
      throw Refusal("--checkpoint-impl", "a view of an argument that DeepSpeed's checkpoint empties outlives it",
                    "not modelled yet");
    }
    ++drops;
  }
  return drops;
}

}  // namespace dsplan
