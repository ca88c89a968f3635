#include "planner/lower/autograd/tape.h"

#include <utility>

#include "planner/lower/eager.h"

namespace dsplan {

Tape::Tape(const GraphFacts& facts, const Checkpointing& checkpointing, Emitter& emitter, TrainingRuntime& runtime,
           const std::vector<BufferId>& module_buffers, const Hooks& hooked)
    : on_(facts, emitter, runtime, module_buffers),
      checkpoints_(on_, checkpointing),
      forward_(on_, checkpoints_),
      gradients_(on_, checkpoints_.all()),
      recomputation_(on_, checkpoints_, forward_, gradients_),
      backward_(on_, checkpoints_, gradients_, recomputation_) {
  if (hooked.hooks != nullptr) on_.packed.emplace(facts, on_.storages, *hooked.hooks, hooked.head);
}

void Tape::make_batch() {
  std::vector<BufferId> made;
  for (TensorId input : on_.graph.batch) {
    Variable tensor =
        Eager(on_.emitter).empty(on_.graph.bytes(input), on_.graph.tensor(input).dtype, {Role::Inputs, "batch"});
    Work copy(on_.emitter);
    copy.write(tensor);
    if (on_.recording) on_.recording->batch(made.size(), input, tensor.id());
    copy.run(Body::MakeBatch, "copy batch to device");
    on_.storages.of(input) = tensor.id();
    made.push_back(tensor.hand_over());
  }
  drop_batch();
  batch_ = std::move(made);
}

void Tape::drop_batch() {
  for (BufferId buffer : batch_) on_.emitter.release(buffer, Reason::Loop);
  batch_.clear();
}

void Tape::forward() {
  on_.emitter.at(Pass::Forward);
  std::uint32_t at = 0;
  for (Checkpoint& checkpoint : checkpoints_.all()) {
    forward_.run(at, checkpoint.begin, true);
    checkpoint.recomputed = false;
    checkpoints_.enter(checkpoint);
    at = checkpoint.begin;
    for (CheckpointPart& part : checkpoint.parts) {
      part.recomputed = false;
      forward_.run(at, part.begin, false);
      if (part.by_keyword && part.last_saver != kNone) hold(on_, part);
      at = part.begin;
    }
    forward_.run(at, checkpoint.end + 1, false);
    checkpoints_.leave(checkpoint);
    at = checkpoint.end + 1;
  }
  forward_.run(at, static_cast<std::uint32_t>(on_.graph.program.size()), true);
  for (const TensorId taken : on_.graph.taken) {
    const BufferId buffer = on_.storages.of(taken);
    on_.emitter.release(buffer, Reason::PythonFrame);
    std::erase(batch_, buffer);
  }
  if (on_.graph.loss != kNone) on_.emitter.rename(loss(), {Role::Inputs, "loss"});
  if (on_.recording) on_.recording->loss();
}

Variables Tape::outputs() {
  Variables held;
  on_.emitter.retain(loss());
  held.append(Variable(on_.emitter, loss(), Reason::Loop));
  for (TensorId output : on_.graph.held) held.append(Variable(on_.emitter, on_.storages.of(output), Reason::Loop));
  for (const Checkpoint& checkpoint : checkpoints_.all()) {
    for (BufferId bound : checkpoint.bound(on_.graph)) {
      on_.emitter.retain(bound);
      held.append(Variable(on_.emitter, bound, Reason::Loop));
    }
  }
  return held;
}

void Tape::drop_loss(Variables& outputs) {
  on_.emitter.release(loss(), Reason::Loop);
  if (on_.packed) on_.packed->loss_goes();
  if (outputs.empty()) on_.storages.release_leaves();
  for (BufferId leaf : on_.storages.take_leaves()) outputs.append(Variable(on_.emitter, leaf, Reason::Loop));
  for (Checkpoint& checkpoint : checkpoints_.all()) checkpoints_.forget(checkpoint);
}

void Tape::read_outputs() {
  for (TensorId output : on_.graph.outputs) on_.storages.read(output);
}

void Tape::drop_outputs() {
  for (TensorId output : on_.graph.outputs) {
    if (on_.graph.storage_of(output).parameter == kNone) on_.emitter.release(on_.storages.of(output), Reason::Loop);
  }
}

}  // namespace dsplan
