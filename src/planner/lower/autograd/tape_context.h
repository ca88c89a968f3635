// What the parts of a tape share: what is known of the graph, where its tensors lie, and what all of them write to.
#pragma once

#include <optional>
#include <vector>

#include "planner/lower/autograd/packed_tensors.h"
#include "planner/lower/autograd/tape_recording.h"
#include "planner/lower/autograd/workspaces.h"

namespace dsplan {

// One gradient on its way; whoever has it has one reference.
struct Gradient {
  BufferId buffer = kNoBuffer;
  bool whole = false;  // Dense and non-overlapping over its storage: not a slice or an expansion.
  // Seen through a tensor that keeps the one it was taken from: AccumulateGrad may steal it, but nobody adds to it in
  // place, because its storage is held twice (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace).
  bool view = false;
  // A tensor of its own over one stretch of its buffer: a leaf takes it, and so all of the buffer.
  bool stretch = false;
  ValueId value = kNoValue;  // For an executor.
  bool empty = false;        // It has come, without an element and without a buffer.
};

// Owned by the tape, which alone makes one; its parts refer to it.
struct TapeContext {
  TapeContext(const GraphFacts& of, Emitter& to, TrainingRuntime& around, const std::vector<BufferId>& module_buffers)
      : facts(of),
        graph(of.graph()),
        recipes(of.recipes()),
        emitter(to),
        runtime(around),
        storages(facts, to, around, module_buffers) {
    if (Recording* program = to.recording()) recording.emplace(facts, storages, around, to, *program);
  }
  TapeContext(const TapeContext&) = delete;
  TapeContext& operator=(const TapeContext&) = delete;

  // An all-reduce over the tensor-parallel ranks, in place. `largest`: of the largest instead of the sum.
  void all_reduce(BufferId buffer, bool largest = false) const {
    emitter.begin();
    emitter.read(buffer);
    emitter.write(buffer);
    if (Recording* program = emitter.recording(); program != nullptr && largest) program->largest();
    emitter.communicate(Collective::AllReduce, emitter.dtype(buffer), emitter.size(buffer), TrafficKind::Data,
                        Group::TensorParallel);
  }

  const GraphFacts& facts;
  const Graph& graph;
  const RecipeBook& recipes;
  Emitter& emitter;
  TrainingRuntime& runtime;
  Storages storages;
  std::optional<TapeRecording> recording;  // None: nobody executes what is lowered.
  Workspaces* workspaces = nullptr;        // None: none are placed.
  std::optional<PackedTensors> packed;     // None: no hooks stand between.
};

}  // namespace dsplan
