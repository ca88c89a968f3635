// One training step of any torch module as tools/export_graph.py recorded it: what it is made of, and the stream of its
// forward with what autograd saved and what each backward function made. io/module_graph.h reads and judges it,
// model/recorded.h makes a model and a graph of it.
//
// Storages are numbered: first those of the parameters, one for each parameter that is not tied, then the buffers', the
// batch's, and those that operators make, in order. Values are what gradients are taken of: outputs of operators that
// autograd knows, in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model.h"
#include "core/units.h"

namespace dsplan {

struct RecordedTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::Float32;
};

// How the gradient of one input comes out of an operator's backward function.
struct RecordedGradient {
  std::int32_t to = 0;  // A value; below 0: parameter -1 - to.
  // It is slot `from` of the function; kIncoming: the gradient of the first output.
  static constexpr std::int32_t kIncoming = -1;
  std::int32_t from = kIncoming;
  bool whole = true;  // It fills its storage without gaps, in the order of what it is the gradient of.
  bool view = false;  // It holds the tensor that it was taken from.
};

// Of a backward function: a slot is made or let go of, or the function has returned and the engine goes on.
struct RecordedStep {
  enum class Kind : std::uint8_t { Make, Drop, Return };
  Kind kind = Kind::Make;
  std::int32_t slot = 0;  // Drop.
  Bytes bytes;            // Make.
};

struct RecordedOut {
  std::int32_t storage = 0;
  RecordedTensor tensor;
};

struct RecordedOp {
  // Ask: Python takes a parameter in hand while the module that owns it is not called.
  enum class Kind : std::uint8_t { Run, Drop, Enter, Exit, Ask };
  Kind kind = Kind::Run;
  std::int32_t number = 0;  // Drop: a storage. Enter, Exit: a module. Ask: a parameter.
  std::string name;         // Run: PyTorch's.
  std::vector<Bytes> makes;
  std::vector<std::int32_t> reads;  // Storages.
  std::vector<RecordedOut> outs;
  bool differentiable = false;
  std::vector<std::int32_t> saves;  // Storages, as autograd packs them.
  bool saves_after_kernel = false;
  std::vector<RecordedGradient> gradients;
  std::vector<RecordedStep> backward;
};

struct RecordedModule {
  std::string path;
  std::string type;
};

struct RecordedParameter : RecordedTensor {
  std::int32_t tied_to = kNone;  // An earlier parameter.
  bool trainable = true;
  std::int32_t maker = kNone;  // The module whose constructor made it, where it is not the one that its name says.
  std::int32_t behind = 0;     // So many of that module's children are there before it.
};

struct ModuleGraph {
  std::string source;
  std::string torch;  // That recorded it.
  DType dtype = DType::Float32;
  std::int64_t micro_batch = 1;
  std::int64_t seq = 1;
  std::vector<RecordedModule> modules;  // Parents before children; the first is the root.
  std::vector<RecordedParameter> parameters;
  std::vector<RecordedTensor> buffers;
  std::vector<RecordedTensor> batch;
  std::vector<RecordedOp> ops;
  std::vector<RecordedOp> ops_stage3;  // With DeepSpeed's own linear function; empty: no linear layer is called.
  std::int32_t loss = 0;               // The value.
  std::int32_t loss_stage3 = 0;
};

}  // namespace dsplan
