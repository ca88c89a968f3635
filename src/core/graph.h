// The operator graph of one training forward, as the framework's eager code would issue it: operators in program
// order, module boundaries, and the points at which Python lets go of a tensor. Made by model/graphs, read by
// planner/lowering.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/model.h"
#include "core/units.h"

namespace dsplan {

using TensorId = std::int32_t;
using StorageId = std::int32_t;
using NodeId = std::int32_t;

// PyTorch's names where it has one.
enum class Op : std::uint8_t {
  Input,  // Comes from the batch; no kernel.
  Embedding,
  Linear,      // y = x W^T (+ b); also GPT-2's Conv1D (addmm with W as [in, out]).
  Matmul,      // Batched product of two activations.
  View,        // view, transpose, reshape without a copy, unsqueeze, expand, alias: shares the storage.
  Slice,       // One slice of a dimension: shares the storage; backward makes a zero-filled full tensor.
  Split,       // Several consecutive slices from one call (split, chunk): backward is one cat.
  Contiguous,  // clone, contiguous or reshape that copies.
  Cat,
  Cast,  // to(dtype), when the dtype differs.
  Add,
  Mul,
  Neg,
  AddScalar,
  MulScalar,
  DivScalar,
  PowScalar,
  Rsqrt,
  Tanh,
  Cos,
  Sin,
  Silu,
  Gelu,
  MeanLast,  // Mean over the last dimension, kept.
  SumDim,    // Sum over one dimension.
  Div,
  Softmax,  // Over the last dimension; `dtype` of the output may be wider than the input's.
  LayerNorm,
  Dropout,
  Attention,  // scaled_dot_product_attention; the kernel is Node::attention.
  LogSoftmax,
  NllLoss,
  Pad,
  Arange,
  FloorDivScalar,
  TopK,
  Sort,
  Index,       // x[indices] along dimension 0.
  IndexPut,    // Out of autograd: inverse permutation.
  MaskedFill,  // Out of place.
  MaskedFillInPlace,
  Sub,  // Integers only.
  NotEqual,
  Equal,
  All,
  GreaterEqual,
  Histogram,
  CumSum,
  GroupedMatmul,  // Rows of x against the 3-D weight that their group selects.
};
inline constexpr std::size_t kOps = static_cast<std::size_t>(Op::GroupedMatmul) + 1;
[[nodiscard]] const char* name(Op op);

struct Storage {
  Bytes bytes;
  ParameterId parameter = kNone;  // A parameter's own storage; not allocated by the graph.
  std::int32_t buffer = kNone;    // Index into ModelSpec::buffers: likewise.
};

struct Tensor {
  Shape shape;
  DType dtype = DType::Float32;
  StorageId storage = kNone;
  bool requires_grad = false;
  NodeId producer = kNone;  // kNone: a parameter, a buffer or an input.
};

enum class AttentionKernel : std::uint8_t { None, Flash, MemoryEfficient };

// How a Linear is written, which decides the order of its gradients and whether they are views.
enum class Product : std::uint8_t {
  Transposed,  // nn.functional.linear: mm or addmm with weight.t(), over a view of x with two dimensions.
  Direct,      // GPT-2's Conv1D: addmm with the weight as it is.
  Function,    // DeepSpeed's replacement of nn.functional.linear under stage 3 (runtime/zero/linear.py).
};

struct Node {
  static constexpr std::size_t kMostInputs = 4;
  static constexpr std::size_t kMostOutputs = 3;

  Op op = Op::Input;
  AttentionKernel attention = AttentionKernel::None;
  bool grad_enabled = true;               // False under no_grad.
  bool requires_grad = false;             // Has a backward node.
  Product product = Product::Transposed;  // Linear only.
  // View only: the gradient comes in a layout of which the input's shape is no view, so that reshape copies it.
  bool gradient_copied = false;
  std::uint8_t input_count = 0;
  std::uint8_t output_count = 0;
  std::int8_t axis = 0;
  ModuleId module = 0;
  double number = 0;  // p of dropout, exponent, ...
  std::array<TensorId, kMostInputs> inputs{};
  std::array<TensorId, kMostOutputs> outputs{};

  [[nodiscard]] std::span<const TensorId> in() const { return {inputs.data(), input_count}; }
  [[nodiscard]] std::span<const TensorId> out() const { return {outputs.data(), output_count}; }
};

struct Instruction {
  enum class Kind : std::uint8_t { Run, Drop, Enter, Exit, RegionBegins, RegionEnds };
  Kind kind = Kind::Run;
  std::int32_t id = 0;  // Node, tensor, module, or layer index.
};

// `program` is what runs; a RegionBegins/RegionEnds pair encloses one checkpointable layer, with the layer's index.
struct Graph {
  std::vector<Storage> storages;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
  std::vector<Instruction> program;
  TensorId loss = kNone;
  std::vector<TensorId> batch;  // The inputs that the training loop makes and holds.
  // By layer: what a checkpoint around it would hold, the hidden state first: its arguments, positional and by keyword.
  std::vector<std::vector<TensorId>> region_closures;

  [[nodiscard]] const Tensor& tensor(TensorId id) const { return tensors[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Storage& storage_of(TensorId id) const {
    return storages[static_cast<std::size_t>(tensor(id).storage)];
  }
  [[nodiscard]] const Node& node(NodeId id) const { return nodes[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Bytes bytes(TensorId id) const { return storage(tensor(id).shape.elements(), tensor(id).dtype); }
};

}  // namespace dsplan
