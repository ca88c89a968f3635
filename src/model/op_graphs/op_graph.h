// From an op-graph file to an operator graph: every name resolved, every shape inferred, every operator written as the
// nodes that PyTorch's eager code would run, and each tensor let go of where a Python program would (interface.md,
// "Op-graph"; docs/op-graphs.md lists the operators).
#pragma once

#include <string>
#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "core/op_graph.h"
#include "core/training.h"

namespace dsplan {

// The tensors of the file are parameters of `model`, which has one module for each operator; `trainable` is
// requires_grad, the dtype is that of the graph's tensor.
struct BuiltOpGraph {
  ModelSpec model;
  Graph graph;
  Checkpointing checkpoint;
  Indexed<TensorId, std::string> names;  // As in the file; empty for what an operator makes inside.
  bool has_gradient = false;             // An output requires a gradient.
  std::vector<Diagnostic> warnings;
};

// Refused, all faults together, each at its place: unknown operators and attributes (with the nearest name), shapes and
// dtypes that do not fit, names that are not there, made later or twice, cycles, results beyond 63 bits; what PyTorch
// itself refuses (in-place on a leaf or on what a node saved, checkpoints that cannot have a gradient, ...), with its
// reason; and by name what is not modelled yet.
[[nodiscard]] BuiltOpGraph build_op_graph(const OpGraph& file);

}  // namespace dsplan
