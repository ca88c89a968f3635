#include "planner/lower/autograd/recomputation.h"

#include <algorithm>
#include <utility>

#include "planner/lower/eager.h"

namespace dsplan {

std::vector<TensorId> Recomputation::run_function(const Checkpoint& checkpoint) {
  return run(checkpoint.begin, checkpoint.end, checkpoint.reentrant ? NodeId(kNone) : checkpoint.last_saver,
             !checkpoint.reentrant);
}

std::vector<TensorId> Recomputation::run(std::uint32_t begin, std::uint32_t end, NodeId last_saver, bool detaches) {
  forward_.begin_recompute(detaches);
  entered_.clear();
  for (std::uint32_t at = begin; at <= end; ++at) {
    const Instruction& instruction = on_.graph.program[at];
    const bool last = stops_early_ && last_saver != kNone && instruction.kind == Instruction::Kind::Run &&
                      instruction.node() == last_saver;
    if (instruction.kind == Instruction::Kind::Enter) entered_.push_back(instruction.module());
    if (instruction.kind == Instruction::Kind::Exit) entered_.pop_back();
    if (last && !on_.recipes.entry(instruction.node()).saves_after_kernel) {
      forward_.stop_before(instruction.node());
      break;
    }
    forward_.run(at, at + 1, true);
    if (last) break;
  }
  return forward_.end_recompute();
}

void Recomputation::ask(Checkpoint& checkpoint, NodeId node) {
  CheckpointPart* const part = part_of(on_.graph, checkpoint.parts, node);
  if (part == nullptr && !checkpoint.recomputed) unpack(checkpoint, node);
  if (part != nullptr && !part->recomputed) unpack(checkpoint, *part);
}

void Recomputation::has_run(Checkpoint& checkpoint, NodeId node) {
  CheckpointPart* const part = part_of(on_.graph, checkpoint.parts, node);
  if (part != nullptr && part->first_saver == node) forget(on_, *part);
}

void Recomputation::unpack(Checkpoint& checkpoint, NodeId asking) {
  checkpoint.recomputed = true;
  std::vector<BufferId> handed;  // Variables of the call.
  if (!checkpoint.packed.empty()) {
    handed = on_.packed->unpack_arguments(checkpoint.arguments, std::exchange(checkpoint.packed, {}), asking);
  }
  Emitter& emitter = on_.emitter;
  const Pass before = emitter.pass();
  const ModuleId module = emitter.module();
  emitter.at(Pass::Recompute, module);
  unwind(run_function(checkpoint), checkpoint.forgotten);
  for (const BufferId buffer : handed) {
    if (buffer != kNoBuffer) emitter.release(buffer, Reason::CheckpointFrame);
  }
  emitter.at(before, module);
}

// And with the frames goes what they alone would have forgotten later on.
void Recomputation::unwind(const std::vector<TensorId>& alive, const std::vector<NodeId>& forgotten) {
  for (auto at = alive.rbegin(); at != alive.rend(); ++at) {
    on_.emitter.release(on_.storages.of(*at), Reason::PythonFrame);
  }
  for (const NodeId node : forgotten) on_.storages.release_saved(node);
  on_.storages.release_attributes_within();
  for (auto at = entered_.rbegin(); at != entered_.rend(); ++at) on_.emitter.exit(*at, true);
}

void Recomputation::unpack(Checkpoint& checkpoint, CheckpointPart& part) {
  part.recomputed = true;
  Emitter& emitter = on_.emitter;
  const Pass before = emitter.pass();
  const ModuleId module = emitter.module();
  emitter.at(Pass::Recompute, module);
  if (!part.by_keyword && !checkpoint.recomputed) run_layer(checkpoint);
  emitter.at(Pass::Recompute, module);
  bring_back(on_, part);
  unwind(run(part.begin, part.end, part.last_saver, true), {});
  if (!part.by_keyword) forget(on_, part);  // They were variables of the call.
  emitter.at(before, module);
}

// Nothing that runs here is saved but what parts are given by position: their own checkpoints are in force. A frame of
// these holds what is given by keyword as long as the graph that is made here lives.
void Recomputation::run_layer(Checkpoint& checkpoint) {
  checkpoint.recomputed = true;
  forward_.begin_recompute(true);
  entered_.clear();
  std::vector<CheckpointPart> frames;
  const auto by_position = [](const CheckpointPart& part) { return !part.by_keyword; };
  const auto last = std::find_if(checkpoint.parts.rbegin(), checkpoint.parts.rend(), by_position);
  auto part = checkpoint.parts.begin();
  for (std::uint32_t at = checkpoint.begin; at <= last->begin; ++at) {
    if (part != checkpoint.parts.end() && at == part->begin) {
      CheckpointPart& frame = part->by_keyword ? frames.emplace_back(*part) : *part;
      if (part->by_keyword) frame.held.clear();  // Those of the forward.
      if (part->last_saver != kNone) hold(on_, frame);
      ++part;
    }
    if (at == last->begin) break;
    const Instruction& instruction = on_.graph.program[at];
    if (instruction.kind == Instruction::Kind::Enter) entered_.push_back(instruction.module());
    if (instruction.kind == Instruction::Kind::Exit) entered_.pop_back();
    forward_.run(at, at + 1, false);
  }
  unwind(forward_.end_recompute(), {});
  for (CheckpointPart& frame : frames) forget(on_, frame);
}

// An output of which nobody asked anything: the node's backward is given zeros (torch/csrc/autograd/custom_function.h,
// set_materialize_grads).
void Recomputation::materialise(TensorId output) {
  const Tensor& tensor = on_.graph.tensor(output);
  if (!tensor.requires_grad) return;
  const What what{Role::Temporaries, "gradient of an output", "torch/csrc/autograd/python_function.cpp"};
  Variable zeros = Eager(on_.emitter).zeros(on_.graph.bytes(output), tensor.dtype, what, "zeros");
  gradients_.of(output) = {zeros.hand_over(), true};
}

// Its arguments are the gradients of its outputs, and its frame holds them and the outputs made again until the engine
// within has come back (CheckpointFunction.backward).
void Recomputation::begin_nested(Checkpoint& checkpoint) {
  Emitter& emitter = on_.emitter;
  const auto has_come = [&](TensorId output) { return gradients_.of(output).buffer != kNoBuffer; };
  if (std::none_of(checkpoint.outputs.begin(), checkpoint.outputs.end(), has_come)) return;
  for (const std::vector<TensorId>* outputs : {&checkpoint.outputs, &checkpoint.returned}) {
    for (TensorId output : *outputs) {
      if (!has_come(output)) materialise(output);
      const BufferId gradient = gradients_.of(output).buffer;
      if (gradient == kNoBuffer) continue;
      emitter.retain(gradient);
      checkpoint.incoming.push_back(gradient);
    }
  }
  checkpoint.nested = true;
  checkpoints_.restore_arguments(checkpoint);
  emitter.at(Pass::Recompute, emitter.module());
  const std::vector<TensorId> alive = run_function(checkpoint);
  emitter.at(Pass::Backward, emitter.module());
  // The function returns: what it hands out lives on in the frame, its own variables do not.
  for (TensorId tensor : alive) {
    const std::vector<TensorId>& outputs = checkpoint.outputs;
    if (std::find(outputs.begin(), outputs.end(), tensor) != outputs.end()) {
      checkpoint.recomputed_outputs.push_back(tensor);
      emitter.mark_scratch(on_.storages.of(tensor));  // The engine starts from it and need not look at what it holds.
    } else {
      emitter.release(on_.storages.of(tensor), Reason::PythonFrame);
    }
  }
  gradients_.begin_nested(checkpoint);
}

void Recomputation::end_nested(Checkpoint& checkpoint) {
  if (!checkpoint.nested) return;
  checkpoint.nested = false;
  Emitter& emitter = on_.emitter;
  // The frame goes, then the engine releases what the node had saved.
  for (TensorId tensor : checkpoint.recomputed_outputs) {
    emitter.mark_scratch(on_.storages.of(tensor));  // Nobody need read what is made a second time.
    emitter.release(on_.storages.of(tensor), Reason::PythonFrame);
  }
  for (BufferId buffer : checkpoint.incoming) emitter.release(buffer, Reason::AutogradGraph);
  for (std::uint32_t at = checkpoint.begin; at < checkpoint.end; ++at) {  // With the frame goes the graph within.
    const Instruction& instruction = on_.graph.program[at];
    if (instruction.kind == Instruction::Kind::Run) on_.storages.release_saved(instruction.node());
  }
  on_.storages.release_attributes_within();
  checkpoint.recomputed_outputs.clear();
  checkpoint.incoming.clear();
  checkpoints_.release_arguments(checkpoint);
  gradients_.end_nested(checkpoint);
}

}  // namespace dsplan
