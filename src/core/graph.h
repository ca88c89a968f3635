// The operator graph of one training forward, as the framework's eager code would issue it: operators in program
// order, module boundaries, and the points at which Python lets go of a tensor. Made by model/graphs, read by
// planner/lowering.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
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
  Custom,         // The node of a torch.autograd.Function: its outputs were made before, without gradients.
};
inline constexpr std::size_t kOps = static_cast<std::size_t>(Op::Custom) + 1;
[[nodiscard]] const char* name(Op op);
[[nodiscard]] std::optional<Op> operator_named(std::string_view name);

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
  // Inputs are named by bits of a word in recipes.
  static constexpr std::size_t kMostInputs = 64;

  Op op = Op::Input;
  AttentionKernel attention = AttentionKernel::None;
  bool grad_enabled = true;               // False under no_grad.
  bool requires_grad = false;             // Has a backward node.
  Product product = Product::Transposed;  // Linear only.
  // View only: the gradient comes in a layout of which the input's shape is no view, so that reshape copies it.
  bool gradient_copied = false;
  bool before_torch_2_7 = false;  // Attention only: the flash kernel as torch had it before 2.7.
  bool in_place = false;  // The output is input 0's storage, written anew.
  std::int8_t axis = 0;
  std::uint16_t input_count = 0;
  std::uint16_t output_count = 0;
  std::uint32_t first_operand = 0;  // Into Graph::operands: the inputs, then the outputs.
  ModuleId module = 0;
  double number = 0;  // p of dropout, exponent, ...
  // Custom only: what its forward saves. Bit i of `saved_inputs`: input i; of `saved_outputs`: output i.
  std::uint64_t saved_inputs = 0;
  std::uint64_t saved_outputs = 0;
};

struct Instruction {
  // Forget: the autograd node, of which no loss will ever ask a gradient, dies with the last that holds it.
  enum class Kind : std::uint8_t { Run, Drop, Enter, Exit, RegionBegins, RegionEnds, Forget };
  Kind kind = Kind::Run;
  std::int32_t id = 0;  // Node, tensor, module, or region index.
};

// What a checkpoint around a stretch of the program would hold. `arguments` are positional, the hidden state first;
// `keywords` come by name, bound to the function.
struct Region {
  std::vector<TensorId> arguments;
  std::vector<TensorId> keywords;
};

// `program` is what runs; a RegionBegins/RegionEnds pair encloses one stretch that can be checkpointed (in a model: a
// layer), with its index. Regions follow each other and do not nest.
struct Graph {
  std::vector<Storage> storages;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
  std::vector<TensorId> operands;  // A pool: each node's inputs, then its outputs.
  std::vector<Instruction> program;
  TensorId loss = kNone;          // A model's; an op-graph has `outputs` instead.
  std::vector<TensorId> outputs;  // What Python still holds when forward ends. Empty where there is a loss.
  std::vector<TensorId> batch;    // The inputs that the training loop makes and holds.
  std::vector<Region> regions;

  [[nodiscard]] std::span<const TensorId> in(const Node& node) const {
    return {operands.data() + node.first_operand, node.input_count};
  }
  [[nodiscard]] std::span<const TensorId> out(const Node& node) const {
    return {operands.data() + node.first_operand + node.input_count, node.output_count};
  }
  [[nodiscard]] TensorId input(const Node& node, std::size_t i) const { return operands[node.first_operand + i]; }
  [[nodiscard]] TensorId output(const Node& node, std::size_t i = 0) const {
    return operands[node.first_operand + node.input_count + i];
  }

  [[nodiscard]] const Tensor& tensor(TensorId id) const { return tensors[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Storage& storage_of(TensorId id) const {
    return storages[static_cast<std::size_t>(tensor(id).storage)];
  }
  [[nodiscard]] const Node& node(NodeId id) const { return nodes[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Bytes bytes(TensorId id) const { return storage(tensor(id).shape.elements(), tensor(id).dtype); }
};

}  // namespace dsplan
