// Checkpoints within a layer's checkpoint, both non-reentrant (torch/utils/checkpoint.py). The outer one's hooks see
// only what the inner ones save of their own: the tensors that a module is given by position (_NoopSaveInputs). Those
// by keyword lie in a dictionary, which the inner frame holds as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lower/autograd/tape_context.h"

namespace dsplan {

// A module of the layer.
struct CheckpointPart {
  std::uint32_t begin = 0;  // Instruction indices: Enter and Exit of the module.
  std::uint32_t end = 0;
  NodeId first_saver = kNone;
  NodeId last_saver = kNone;
  std::vector<TensorId> given;
  bool by_keyword = false;
  bool recomputed = false;
  // Given by keyword: from forward on. By position: from the layer's recomputation on.
  struct Held {
    TensorId tensor = kNone;
    BufferId buffer = kNoBuffer;
  };
  std::vector<Held> held;
};

// The calls within the layer between `begin` and `end`, in program order. All that saves lies in one of them.
[[nodiscard]] std::vector<CheckpointPart> parts_of_layer(const TapeContext& on, std::uint32_t begin, std::uint32_t end);
// That `node` runs in; nullptr: there are none.
[[nodiscard]] CheckpointPart* part_of(const Graph& graph, std::vector<CheckpointPart>& parts, NodeId node);

// The frame takes what its module is given, which is what those tensors are again at `bring_back`; and lets go of it.
void hold(TapeContext& on, CheckpointPart& part);
void bring_back(TapeContext& on, const CheckpointPart& part);
void forget(TapeContext& on, CheckpointPart& part);

}  // namespace dsplan
