// The operator graph of one training forward, as the framework's eager code would issue it: operators in program
// order, module boundaries, and the points at which Python lets go of a tensor. Made by model/graphs, read by
// planner/lower.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/model.h"
#include "core/units.h"

namespace dsplan {

using TensorId = Id<struct TensorTag>;
using StorageId = Id<struct StorageTag>;
using NodeId = Id<struct NodeTag>;

// PyTorch's names where it has one.
enum class Op : std::uint8_t {
  Input,  // Comes from the batch; no kernel.

  // Views and joins.
  View,        // view, transpose, permute, reshape without a copy, unsqueeze, alias: shares the storage.
  Detach,      // Shares the storage, and autograd ends there.
  Expand,      // A view with repeated elements: its gradient is summed.
  Slice,       // One slice of a dimension: shares the storage; backward makes a zero-filled full tensor.
  Select,      // One index of a dimension, which goes: likewise.
  Split,       // Several consecutive slices from one call (split, chunk): backward is one cat.
  Unbind,      // Every index of a dimension, from one call: backward is one stack.
  Unfold,      // nn.functional.unfold: the patches of an image as columns, a copy.
  Contiguous,  // clone, contiguous or reshape that copies.
  Cat,
  Stack,
  Pad,  // With a constant.
  Roll,
  Flip,
  Repeat,
  RepeatInterleave,  // By one number.
  Tril,
  Triu,
  Cast,  // to(dtype), when the dtype differs.

  // Elementwise, of two tensors.
  Add,
  Sub,
  Mul,
  Div,
  Maximum,
  Minimum,
  Where,       // Condition, then both choices.
  MaskedFill,  // Out of place.
  MaskedFillInPlace,
  CopyInto,    // Part of the first, along Node::axis from element Node::number on, becomes the second.
  AddInto,     // In place: to what of the first lies from element Node::number of Node::axis on, the second is added.
  Prelu,       // Input and weight.
  Polar,       // Of angles: complex numbers of size one, as pairs in a last dimension.
  ComplexMul,  // Of such pairs.
  Addcmul,     // The first plus a number times the product of the others.

  // Elementwise, of a tensor and a number.
  AddScalar,
  SubScalar,
  MulScalar,
  DivScalar,
  PowScalar,
  FloorDivScalar,
  Clamp,  // Node::bounds says which bounds there are.

  // Elementwise, of one tensor.
  Neg,  // With Node::number, what is taken from: number - x.
  Abs,
  Exp,
  Expm1,
  Log,
  Sqrt,
  Rsqrt,
  Reciprocal,
  Sin,
  Cos,
  Tanh,
  Sigmoid,
  LogSigmoid,
  Relu,
  LeakyRelu,
  Elu,
  Gelu,
  Silu,
  Softplus,
  Mish,
  Hardswish,
  Glu,  // Half of the last dimension gates the other half.

  // Reductions and scans.
  SumDim,    // Over any dimensions, or all of them. Where one dimension goes, Node::number is which.
  MeanLast,  // Over any dimensions, or all of them.
  Amax,      // Values only, over any dimensions; backward shares among equals.
  Amin,
  Max,  // With two outputs (values, indices) over one dimension, with one over all.
  Min,
  Norm,  // Node::number is its order.
  Std,
  Var,
  Prod,
  LogSumExp,
  CumSum,
  CumProd,

  // Picking elements.
  Embedding,
  Index,  // x[indices] along the first dimensions, or with one tensor of indices along Node::axis.
  IndexSelect,
  IndexPut,  // Out of autograd: inverse permutation.
  IndexAdd,  // In place: input, index, source, whose rows are added to those that the index names.
  NonZero,   // The places of what is not zero, a number for each dimension. How many there are is the output's shape.
  Gather,
  Scatter,        // Of a tensor of values: input, index, source.
  ScatterAdd,     // Input, index, source.
  MaskedRows,     // Input and flags over its first dimensions: what is flagged, one after the other. All count.
  MaskedPut,      // In place: of the first, what the second flags becomes the third, one after the other.
  MaskedScatter,  // Input, flags, source, whose elements take the places that are flagged, in turn.
  TopK,
  Sort,

  // Products.
  Linear,  // y = x W^T (+ b); also GPT-2's Conv1D (addmm with W as [in, out]).
  Matmul,  // Batched product of two activations.
  Mm,      // Of two matrices.
  Bmm,
  // Rows of x against the 3-D weight that their group selects: [out, in], or with Node::number 1 [in, out].
  GroupedMatmul,
  Conv2d,
  SolveTriangular,  // Of a lower triangle with ones on its diagonal: system, right side.

  // Attention, normalisation, pooling, loss.
  Attention,   // The kernel is Node::attention.
  Softmax,     // Over one dimension; the dtype of the output may be wider than the input's.
  LogSoftmax,  // Likewise. Node::number 1: its input does not lie row by row.
  LayerNorm,
  GroupNorm,  // Node::number is how many groups.
  BatchNorm,  // In training. Input, weight, bias, running mean, running variance.
  RmsNorm,    // The fused operator.
  Dropout,
  MaxPool2d,
  AvgPool2d,
  Interpolate,  // Of four dimensions: nearest or bilinear.
  GridSample,   // A picture at places that a grid names. Only the picture takes a gradient.
  NllLoss,
  L1Loss,
  MseLoss,
  SmoothL1Loss,
  Bce,
  BceWithLogits,
  KlDiv,                    // The target is not a logarithm.
  FusedLinearCrossEntropy,  // Hidden state, weight, target.
  LigerRmsNorm,             // Hidden state, weight.
  // Queries, keys, cosines, sines: turned where they lie. Node::number: 1 where the queries' gradient comes head by
  // head, 2 where the keys' does, or their sum.
  LigerRotary,
  LigerSiluMul,  // Gate, up.
  // axolotl's functions of adapted projections of one input: that, its dropped form if there is one, and of each
  // projection weight, A and B. The gated form makes one output of gate, up and down. Node::number: that of a Linear.
  AdaptedLinear,
  AdaptedGated,
  // Hidden state, weight, target, bias: the logarithm of each target's probability; entropy, mean of logits and whether
  // the target is the likeliest, as far as there are outputs. Node::number is the dtype of the products.
  ChunkedLogProb,
  CutCrossEntropy,  // Hidden state, weight, labels, the places of those whose next one counts.

  // Megatron's tensor parallelism: each sums over the ranks that share a layer.
  AllReduce,             // The input itself, summed in place; the gradient passes.
  CopyToParallel,        // The input itself; its gradient is summed in place.
  ParallelCrossEntropy,  // Logits of this rank's part of the vocabulary, target; softmax, and the loss of each token.

  // transformers' PhimoeMultiplier: scores, their expert's share, which expert it is, all shares, what chance makes of
  // it, and which experts were left out. Only the scores take a gradient.
  SparseMixer,

  // Of integers and booleans.
  Arange,
  Random,  // No input: what chance gives.
  NotEqual,
  Equal,
  All,
  GreaterEqual,
  Greater,
  Less,
  BitwiseOr,
  BitwiseNot,
  Histogram,
  // The node of a torch.autograd.Function: its outputs were made before, without gradients. Or an operator that was
  // recorded (Node::recorded).
  Custom,
};
inline constexpr std::size_t kOps = static_cast<std::size_t>(Op::Custom) + 1;
[[nodiscard]] const char* name(Op op);
// The operator of that name, if there is one. What is written as several operators has no value of its own:
// docs/operators.md lists it with its parts.
[[nodiscard]] std::optional<Op> operator_named(std::string_view text);

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

// What the fused kernels are; attention written as operators of its own (eager, math) is not an Op::Attention.
enum class AttentionKernel : std::uint8_t { None, Flash, MemoryEfficient, CuDnn };

// Of a loss: None leaves one number for each element or row.
enum class Reduction : std::uint8_t { None, Mean, Sum };

// How a Linear is written, which decides the order of its gradients and whether they are views.
enum class Product : std::uint8_t {
  Transposed,  // nn.functional.linear: mm or addmm with weight.t(), over a view of x with two dimensions.
  Direct,      // GPT-2's Conv1D: addmm with the weight as it is.
  Function,    // DeepSpeed's replacement of nn.functional.linear under stage 3 (runtime/zero/linear.py).
};

// One step of a view: what happens to the dimensions that it starts from. An executor needs them; bytes do not.
struct ViewStep {
  enum class Kind : std::uint8_t {
    Reshape,  // To `shape`.
    Swap,     // Dimensions `a` and `b`.
    Narrow,   // Of dimension `a`: `length` from `start`.
    Repeat,   // Dimension `a`, of one element, stands for `length` of them.
  };
  Kind kind = Kind::Reshape;
  std::int8_t a = 0;
  std::int8_t b = 0;
  std::int64_t start = 0;
  std::int64_t length = 0;
  Shape shape;
};

[[nodiscard]] ViewStep step_reshape(Shape shape);
[[nodiscard]] ViewStep step_swap(std::int8_t a, std::int8_t b);
[[nodiscard]] ViewStep step_narrow(std::int8_t dim, std::int64_t start, std::int64_t length);
[[nodiscard]] ViewStep step_repeat(std::int8_t dim, std::int64_t times);

struct Node {
  // Inputs are named by bits of a word in recipes.
  static constexpr std::size_t kMostInputs = 64;
  static constexpr std::uint8_t kLowerBound = 1;
  static constexpr std::uint8_t kUpperBound = 2;
  static constexpr std::uint8_t kBothBounds = 3;

  Op op = Op::Input;
  AttentionKernel attention = AttentionKernel::None;
  bool grad_enabled = true;               // False under no_grad.
  bool requires_grad = false;             // Has a backward node.
  Product product = Product::Transposed;  // Linear only.
  // View: the gradient comes in a layout of which the input's shape is no view, so that reshape copies it. Conv2d: its
  // weight's gradient lies place by place, as its input does, and is copied to lie as the weight.
  bool gradient_copied = false;
  bool in_place = false;        // The output is input 0's storage, written anew.
  bool safe = false;            // Softmax only: rows of nothing but minus infinity give zeros.
  bool filled = false;          // Arange only: each element is `number`.
  bool full_attention = false;  // Attention only: each query sees every key; otherwise it is causal.
  // Attention: queries lie head by head, and so does what is made like them. Embedding: its gradient comes in a layout
  // of which rows are no view. LayerNorm: its input lies so. AvgPool2d: its gradient comes so.
  bool by_head = false;
  std::uint8_t padding = 0;               // Attention only: columns of each head, its last, that are zeros.
  Reduction reduction = Reduction::Mean;  // Losses only.
  std::uint8_t bounds = kBothBounds;      // Clamp only.
  std::int8_t axis = 0;
  std::uint16_t input_count = 0;
  std::uint16_t output_count = 0;
  std::uint32_t first_operand = 0;  // Into Graph::operands: the inputs, then the outputs.
  ModuleId module = 0;
  // p of dropout, exponent, epsilon of a norm, the number of `x + number`, ... Of an embedding: one more than the row
  // that takes no gradient, 0 where all do. Of arange: what it begins with.
  double number = 0;
  // Attention: of the scores; 0: one by the root of a head's width. Arange: of its steps; 0: one by one.
  double scale = 0;
  // View and Slice only: into Graph::view_steps. None: a plain reshape to the output's shape.
  std::uint32_t first_step = 0;
  std::uint32_t step_count = 0;
  // Custom only: what its forward saves. Bit i of `saved_inputs`: input i; of `saved_outputs`: output i.
  std::uint64_t saved_inputs = 0;
  std::uint64_t saved_outputs = 0;
  // Split and Unbind only: bit i: no gradient will come for output i, and zeros stand for it.
  std::uint64_t undefined_outputs = 0;
  // Custom only: its recipe was recorded, and is this one of Graph::recorded.
  std::int32_t recorded = kNone;
};

// aten.mm: with a bias it is addmm.
[[nodiscard]] inline bool is_plain_product(const Node& node) { return node.op == Op::Linear && node.input_count == 2; }

// Recipes that were recorded: model/recorded.h.
struct RecordedOperators;

struct Instruction {
  // Forget: the autograd node, of which no loss will ever ask a gradient, dies with the last that holds it. Read:
  // Python asks for the tensor's value, so that the host waits for what makes it. Keep: an attribute of the model holds
  // the tensor from here on, until the next forward gives it another. Share: a container that every region's function
  // is given takes the tensor, in the place of the one that an earlier run of this instruction gave it. Replaced: a
  // module's buffer, as the model was made with it, has another in its place from here on.
  enum class Kind : std::uint8_t {
    Run,
    Drop,
    Enter,
    Exit,
    RegionBegins,
    RegionEnds,
    Forget,
    Read,
    Keep,
    Share,
    Replaced,
  };
  Kind kind = Kind::Run;
  std::int32_t number = 0;  // Of what `kind` is about: a node (Run, Forget), a tensor (Drop, Read, Keep, Share,
                            // Replaced), a module, or a region.

  Instruction(Kind what, NodeId of) : kind(what), number(of.number()) {}
  Instruction(Kind what, TensorId of) : kind(what), number(of.number()) {}
  Instruction(Kind what, std::int32_t of) : kind(what), number(of) {}
  [[nodiscard]] NodeId node() const { return NodeId(number); }
  [[nodiscard]] TensorId tensor() const { return TensorId(number); }
  [[nodiscard]] ModuleId module() const { return ModuleId(number); }
  [[nodiscard]] std::int32_t region() const { return number; }
};

// What a checkpoint around a stretch of the program would hold. `arguments` are positional, the hidden state first;
// `keywords` come by name, bound to the function.
struct Region {
  std::vector<TensorId> arguments;
  std::vector<TensorId> keywords;
  // Arguments that it returns as they came; and those that lie as no gradient of theirs does.
  std::vector<TensorId> returned;
  std::vector<TensorId> strided;
};

// `program` is what runs; a RegionBegins/RegionEnds pair encloses one stretch that can be checkpointed (in a model: a
// layer), with its index. Regions follow each other and do not nest.
struct Graph {
  Indexed<StorageId, Storage> storages;
  Indexed<TensorId, Tensor> tensors;
  Indexed<NodeId, Node> nodes;
  std::vector<TensorId> operands;    // A pool: each node's inputs, then its outputs.
  std::vector<ViewStep> view_steps;  // A pool.
  std::vector<Instruction> program;
  TensorId loss = kNone;          // A model's; an op-graph has `outputs` instead.
  std::vector<TensorId> outputs;  // What Python still holds when forward ends. Empty where there is a loss.
  std::vector<TensorId> batch;    // The inputs that the training loop makes and holds.
  std::vector<TensorId> taken;    // Those of them that forward takes out of the loop's dictionary, and lets go.
  std::vector<TensorId> held;     // Outputs beside the loss that it holds (LoopKind::Script).
  std::vector<Region> regions;
  // Tensors that requires_grad_(True) has made leaves, though nothing trained went into them.
  std::vector<TensorId> leaves;
  std::shared_ptr<const RecordedOperators> recorded;  // Null: none was.

  [[nodiscard]] std::span<const TensorId> in(const Node& node) const {
    return {operands.data() + node.first_operand, node.input_count};
  }
  [[nodiscard]] std::span<const TensorId> out(const Node& node) const {
    return {operands.data() + node.first_operand + node.input_count, node.output_count};
  }
  [[nodiscard]] std::span<const ViewStep> steps(const Node& node) const {
    return {view_steps.data() + node.first_step, node.step_count};
  }
  [[nodiscard]] TensorId input(const Node& node, std::size_t i) const { return operands[node.first_operand + i]; }
  [[nodiscard]] TensorId output(const Node& node, std::size_t i = 0) const {
    return operands[node.first_operand + node.input_count + i];
  }

  [[nodiscard]] const Tensor& tensor(TensorId id) const { return tensors[id]; }
  [[nodiscard]] const Storage& storage_of(TensorId id) const { return storages[tensor(id).storage]; }
  [[nodiscard]] const Node& node(NodeId id) const { return nodes[id]; }
  [[nodiscard]] Bytes bytes(TensorId id) const { return storage(tensor(id).shape.elements(), tensor(id).dtype); }
};

}  // namespace dsplan
