#include "model/catalogue/catalogue.h"

#include <array>

#include "core/error.h"
#include "core/format.h"
#include "model/catalogue/rules.h"
#include "model/recorded.h"

namespace dsplan {
namespace {

// How many floating-point operations the forward takes.
enum class Flops : std::uint8_t {
  Nothing,
  Outputs,
  Inputs,
  Product,
  Convolution,
  Triangle,
  Attention,
  LinearLoss,
  Adapted
};

struct Row {
  Op op;
  void (*rule)(Writer&);
  Pattern pattern;
  Flops flops;
  Witness witness;
  const char* source;
  Version since = {};
};

constexpr std::array<Row, kOps> kRows = {{
    {Op::Input, rules::without_gradient, {}, Flops::Nothing, Witness::Read, "the training loop"},
    {Op::View, rules::view, {}, Flops::Nothing, Witness::Fake, "derivatives.yaml: view, transpose, permute"},
    {Op::Detach, rules::detach, {}, Flops::Nothing, Witness::Fake, "derivatives.yaml: detach"},
    {Op::Expand,
     rules::part,
     {},
     Flops::Nothing,
     Witness::Fake,
     "derivatives.yaml: expand; FunctionsManual.cpp: sum_to"},
    {Op::Slice, rules::part, {}, Flops::Nothing, Witness::Fake, "FunctionsManual.cpp: slice_backward"},
    {Op::Select, rules::part, {}, Flops::Nothing, Witness::Fake, "FunctionsManual.cpp: select_backward"},
    {Op::Split, rules::part, {}, Flops::Nothing, Witness::Fake, "FunctionsManual.cpp: split_backward"},
    {Op::Unbind, rules::part, {}, Flops::Nothing, Witness::Fake, "FunctionsManual.cpp: unbind_backward"},
    {Op::Unfold, rules::unfold, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: im2col"},
    {Op::Contiguous, rules::passing, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: clone"},
    {Op::Cat, rules::cat, {}, Flops::Outputs, Witness::Fake, "FunctionsManual.cpp: cat_tensors_backward"},
    {Op::Stack, rules::stack, {}, Flops::Outputs, Witness::Fake, "FunctionsManual.cpp: stack_tensors_backward"},
    {Op::Pad,
     rules::unary,
     {Keeps::Nothing, 0},
     Flops::Outputs,
     Witness::Fake,
     "FunctionsManual.cpp: constant_pad_nd_backward"},
    {Op::Roll, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: roll"},
    {Op::Flip, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: flip"},
    {Op::Repeat,
     rules::unary,
     {Keeps::Nothing, 0},
     Flops::Outputs,
     Witness::Fake,
     "FunctionsManual.cpp: repeat_backward"},
    {Op::RepeatInterleave,
     rules::repeat_interleave,
     {},
     Flops::Outputs,
     Witness::Fake,
     "Repeat.cpp: repeat_interleave"},
    {Op::Tril, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: tril"},
    {Op::Triu, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: triu"},
    {Op::Cast,
     rules::unary,
     {Keeps::Nothing, 0},
     Flops::Outputs,
     Witness::Fake,
     "FunctionsManual.cpp: _to_copy_backward"},
    {Op::Add, rules::add, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: add"},
    {Op::Sub, rules::subtract, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: sub"},
    {Op::Mul, rules::multiply, {}, Flops::Outputs, Witness::Fake, "FunctionsManual.cpp: mul_tensor_backward"},
    {Op::Div,
     rules::divide,
     {},
     Flops::Outputs,
     Witness::Fake,
     "FunctionsManual.cpp: div_tensor_self_grad, div_tensor_other_grad"},
    {Op::Maximum, rules::extremum, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: maximum"},
    {Op::Minimum, rules::extremum, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: minimum"},
    {Op::Where, rules::choose, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: where.self"},
    {Op::MaskedFill, rules::masked_fill, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: masked_fill"},
    {Op::MaskedFillInPlace,
     rules::masked_fill_in_place,
     {},
     Flops::Outputs,
     Witness::Fake,
     "derivatives.yaml: masked_fill_"},
    {Op::CopyInto,
     rules::copy_into,
     {},
     Flops::Outputs,
     Witness::Fake,
     "torch/csrc/autograd/functions/tensor.cpp: CopySlices"},
    {Op::AddInto,
     rules::add_into,
     {},
     Flops::Outputs,
     Witness::Fake,
     "torch/csrc/autograd/functions/tensor.cpp: CopySlices"},
    {Op::Prelu, rules::prelu, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: _prelu_kernel"},
    {Op::Polar, rules::polar, {}, Flops::Outputs, Witness::Fake, "UnaryOps.cpp: polar"},
    {Op::ComplexMul,
     rules::complex_multiply,
     {},
     Flops::Outputs,
     Witness::Fake,
     "FunctionsManual.cpp: mul_tensor_backward; ConjugateFallback.cpp"},
    {Op::Addcmul, rules::multiply_and_add, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: addcmul"},
    {Op::AddScalar, rules::passing, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: add.Scalar"},
    {Op::SubScalar, rules::passing, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: sub.Scalar"},
    {Op::MulScalar, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: mul.Scalar"},
    {Op::DivScalar, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: div.Scalar"},
    {Op::PowScalar, rules::power, {}, Flops::Outputs, Witness::Fake, "FunctionsManual.cpp: pow_backward"},
    {Op::FloorDivScalar, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: floor_divide"},
    {Op::Clamp, rules::clamp, {}, Flops::Outputs, Witness::Fake, "FunctionsManual.cpp: clamp_backward"},
    {Op::Neg, rules::unary, {Keeps::Nothing, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: neg"},
    {Op::Abs, rules::unary, {Keeps::Input, 1}, Flops::Outputs, Witness::Fake, "derivatives.yaml: abs"},
    {Op::Exp, rules::unary, {Keeps::Result, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: exp"},
    {Op::Expm1, rules::unary, {Keeps::Result, 1}, Flops::Outputs, Witness::Fake, "derivatives.yaml: expm1"},
    {Op::Log, rules::unary, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: log"},
    {Op::Sqrt, rules::unary, {Keeps::Result, 1}, Flops::Outputs, Witness::Fake, "derivatives.yaml: sqrt"},
    {Op::Rsqrt, rules::unary, {Keeps::Result, 2}, Flops::Outputs, Witness::Fake, "derivatives.yaml: rsqrt"},
    {Op::Reciprocal, rules::unary, {Keeps::Result, 2}, Flops::Outputs, Witness::Fake, "derivatives.yaml: reciprocal"},
    {Op::Sin, rules::unary, {Keeps::Input, 1}, Flops::Outputs, Witness::Fake, "derivatives.yaml: sin"},
    {Op::Cos, rules::unary, {Keeps::Input, 2}, Flops::Outputs, Witness::Fake, "derivatives.yaml: cos"},
    {Op::Tanh, rules::unary, {Keeps::Result, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: tanh"},
    {Op::Sigmoid, rules::unary, {Keeps::Result, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: sigmoid"},
    {Op::LogSigmoid,
     rules::unary,
     {Keeps::Input, 0},
     Flops::Outputs,
     Witness::Fake,
     "derivatives.yaml: log_sigmoid_forward"},
    {Op::Relu, rules::unary, {Keeps::Result, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: relu"},
    {Op::LeakyRelu, rules::activation_in_place, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: leaky_relu"},
    {Op::Elu, rules::activation_in_place, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: elu"},
    {Op::Gelu, rules::gelu, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: gelu"},
    {Op::Silu, rules::unary, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: silu"},
    {Op::Softplus, rules::unary, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: softplus"},
    {Op::Mish, rules::unary, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: mish"},
    {Op::Hardswish, rules::unary, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: hardswish"},
    {Op::Glu, rules::unary, {Keeps::Input, 0}, Flops::Outputs, Witness::Fake, "derivatives.yaml: glu"},
    {Op::SumDim, rules::sum_dim, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: sum_backward"},
    {Op::MeanLast,
     rules::mean,
     {Keeps::Nothing, 0},
     Flops::Inputs,
     Witness::Fake,
     "FunctionsManual.cpp: mean_backward"},
    {Op::Amax, rules::extreme_value, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: scale_grad_by_count"},
    {Op::Amin, rules::extreme_value, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: scale_grad_by_count"},
    {Op::Max,
     rules::largest,
     {},
     Flops::Inputs,
     Witness::Read,
     "FunctionsManual.cpp: evenly_distribute_backward, value_selecting_reduction_backward"},
    {Op::Min,
     rules::largest,
     {},
     Flops::Inputs,
     Witness::Read,
     "FunctionsManual.cpp: evenly_distribute_backward, value_selecting_reduction_backward"},
    {Op::Norm, rules::norm, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: linalg_vector_norm_backward"},
    {Op::Std, rules::deviation, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: std_backward"},
    {Op::Var, rules::variance, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: var_backward"},
    {Op::Prod, rules::product, {}, Flops::Inputs, Witness::Read, "FunctionsManual.cpp: prod_backward"},
    {Op::LogSumExp, rules::log_sum_exp, {}, Flops::Inputs, Witness::Fake, "FunctionsManual.cpp: logsumexp_backward"},
    {Op::CumSum, rules::cumulative_sum, {}, Flops::Outputs, Witness::Fake, "FunctionsManual.cpp: cumsum_backward"},
    {Op::CumProd,
     rules::cumulative_product,
     {},
     Flops::Outputs,
     Witness::Read,
     "FunctionsManual.cpp: cumprod_backward"},
    {Op::Embedding, rules::embedding, {}, Flops::Outputs, Witness::Fake, "Embedding.cu: embedding_dense_backward_cuda"},
    {Op::Index, rules::index, {}, Flops::Outputs, Witness::Read, "FunctionsManual.cpp: index_backward"},
    {Op::IndexSelect,
     rules::index_select,
     {},
     Flops::Outputs,
     Witness::Read,
     "TensorAdvancedIndexing.cpp: index_select_backward"},
    {Op::IndexPut, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "TensorAdvancedIndexing.cpp"},
    {Op::IndexAdd, rules::index_add, {}, Flops::Outputs, Witness::Read, "derivatives.yaml: index_add"},
    {Op::NonZero, rules::nonzero, {}, Flops::Nothing, Witness::Read, "Nonzero.cu: nonzero_cuda_out_impl"},
    {Op::Gather, rules::gather, {}, Flops::Outputs, Witness::Read, "TensorAdvancedIndexing.cpp: gather_backward"},
    {Op::Scatter, rules::scatter, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: scatter"},
    {Op::ScatterAdd, rules::scatter_add, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: scatter_add"},
    {Op::MaskedRows,
     rules::masked_rows,
     {},
     Flops::Nothing,
     Witness::Read,
     "Nonzero.cu: nonzero_cuda_out_impl; Indexing.cu: index_put_with_sort_kernel"},
    {Op::MaskedPut,
     rules::masked_put,
     {},
     Flops::Nothing,
     Witness::Read,
     "derivatives.yaml: index_put_; Nonzero.cu: nonzero_cuda_out_impl"},
    {Op::MaskedScatter,
     rules::masked_scatter,
     {},
     Flops::Outputs,
     Witness::Fake,
     "TensorAdvancedIndexing.cpp: masked_scatter, masked_scatter_backward"},
    {Op::TopK,
     rules::selection,
     {},
     Flops::Outputs,
     Witness::Read,
     "FunctionsManual.cpp: value_selecting_reduction_backward"},
    {Op::Sort,
     rules::sort,
     {},
     Flops::Outputs,
     Witness::Read,
     "FunctionsManual.cpp: value_selecting_reduction_backward"},
    {Op::Linear, rules::linear, {}, Flops::Product, Witness::Fake, "Linear.cpp: linear; derivatives.yaml: mm, addmm"},
    {Op::Matmul, rules::matmul, {}, Flops::Product, Witness::Fake, "LinearAlgebra.cpp: matmul; derivatives.yaml: bmm"},
    {Op::Mm, rules::matmul, {}, Flops::Product, Witness::Fake, "derivatives.yaml: mm"},
    {Op::Bmm, rules::stacked_product, {}, Flops::Product, Witness::Fake, "derivatives.yaml: bmm, baddbmm"},
    {Op::GroupedMatmul, rules::grouped_matmul, {}, Flops::Product, Witness::Fake, "derivatives.yaml: _grouped_mm"},
    {Op::Conv2d, rules::convolution, {}, Flops::Convolution, Witness::Fake, "Convolution.cpp: convolution_backward"},
    {Op::SolveTriangular,
     rules::solve_triangular,
     {},
     Flops::Triangle,
     Witness::Read,
     "FunctionsManual.cpp: linalg_solve_triangular_backward"},
    {Op::Attention,
     rules::attention,
     {},
     Flops::Attention,
     Witness::Fake,
     "attention.cu, attention_backward.cu; flash_api.cpp: mha_bwd; cudnn/MHA.cpp"},
    {Op::Softmax, rules::softmax, {}, Flops::Outputs, Witness::Fake, "SoftMax.cpp; derivatives.yaml: _softmax"},
    {Op::LogSoftmax, rules::softmax, {}, Flops::Outputs, Witness::Fake, "SoftMax.cpp; derivatives.yaml: _log_softmax"},
    {Op::LayerNorm, rules::layer_norm, {}, Flops::Outputs, Witness::Fake, "layer_norm_kernel.cu"},
    {Op::GroupNorm, rules::group_norm, {}, Flops::Outputs, Witness::Fake, "group_norm.cpp"},
    {Op::BatchNorm, rules::batch_norm, {}, Flops::Outputs, Witness::Fake, "Normalization.cpp: _batch_norm_impl_index"},
    {Op::RmsNorm,
     rules::rms_norm,
     {},
     Flops::Outputs,
     Witness::Fake,
     "layer_norm_kernel.cu: _fused_rms_norm_cuda",
     {2, 9, 0}},
    {Op::Dropout,
     rules::dropout,
     {},
     Flops::Outputs,
     Witness::Fake,
     "Dropout.cu: dropout_cuda; Dropout.cpp: _dropout_impl"},
    {Op::MaxPool2d, rules::max_pool, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: max_pool2d_with_indices"},
    {Op::AvgPool2d, rules::average_pool, {}, Flops::Inputs, Witness::Fake, "AveragePool2d.cu: avg_pool2d_backward"},
    {Op::Interpolate,
     rules::unary,
     {Keeps::Nothing, 0},
     Flops::Outputs,
     Witness::Fake,
     "derivatives.yaml: upsample_nearest2d, upsample_bilinear2d"},
    {Op::GridSample,
     rules::grid_sample,
     {},
     Flops::Outputs,
     Witness::Fake,
     "GridSampler.cu: grid_sampler_2d_backward_cuda"},
    {Op::NllLoss, rules::nll_loss, {}, Flops::Inputs, Witness::Fake, "NLLLoss.cu"},
    {Op::L1Loss, rules::l1_loss, {}, Flops::Inputs, Witness::Fake, "Loss.cpp: l1_loss"},
    {Op::MseLoss, rules::pair_loss, {}, Flops::Inputs, Witness::Fake, "derivatives.yaml: mse_loss"},
    {Op::SmoothL1Loss, rules::pair_loss, {}, Flops::Inputs, Witness::Fake, "derivatives.yaml: smooth_l1_loss"},
    {Op::Bce, rules::binary_cross_entropy, {}, Flops::Inputs, Witness::Fake, "derivatives.yaml: binary_cross_entropy"},
    {Op::BceWithLogits,
     rules::binary_cross_entropy_with_logits,
     {},
     Flops::Inputs,
     Witness::Read,
     "Loss.cpp: binary_cross_entropy_with_logits"},
    {Op::KlDiv, rules::kl_div, {}, Flops::Inputs, Witness::Fake, "Loss.cpp: kl_div"},
    {Op::FusedLinearCrossEntropy,
     rules::fused_linear_cross_entropy,
     {},
     Flops::LinearLoss,
     Witness::Read,
     "liger_kernel: ops/fused_linear_cross_entropy.py"},
    {Op::LigerRmsNorm, rules::liger_rms_norm, {}, Flops::Outputs, Witness::Read, "liger_kernel: ops/rms_norm.py"},
    {Op::LigerRotary, rules::liger_rotary, {}, Flops::Outputs, Witness::Read, "liger_kernel: ops/rope.py"},
    {Op::LigerSiluMul, rules::liger_silu_mul, {}, Flops::Outputs, Witness::Read, "liger_kernel: ops/swiglu.py"},
    {Op::AdaptedLinear,
     rules::adapted_linear,
     {},
     Flops::Adapted,
     Witness::Read,
     "axolotl: kernels/lora.py, LoRA_QKV, LoRA_O"},
    {Op::AdaptedGated, rules::adapted_gated, {}, Flops::Adapted, Witness::Read, "axolotl: kernels/lora.py, LoRA_MLP"},
    {Op::ChunkedLogProb,
     rules::chunked_log_prob,
     {},
     Flops::LinearLoss,
     Witness::Read,
     "trl: kernels/chunked_logprob.py"},
    {Op::CutCrossEntropy, rules::cut_cross_entropy, {}, Flops::LinearLoss, Witness::Read, "cut_cross_entropy: cce.py"},
    {Op::AllReduce, rules::all_reduce, {}, Flops::Outputs, Witness::Read, "Megatron-LM: tensor_parallel/mappings.py"},
    {Op::CopyToParallel,
     rules::copy_to_parallel,
     {},
     Flops::Nothing,
     Witness::Read,
     "Megatron-LM: tensor_parallel/mappings.py"},
    {Op::ParallelCrossEntropy,
     rules::parallel_cross_entropy,
     {},
     Flops::Inputs,
     Witness::Read,
     "Megatron-LM: tensor_parallel/cross_entropy.py"},
    {Op::SparseMixer,
     rules::sparse_mixer,
     {},
     Flops::Inputs,
     Witness::Read,
     "transformers: modeling_phimoe.py, PhimoeMultiplier"},
    {Op::Arange, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: arange"},
    {Op::Random, rules::without_gradient, {}, Flops::Outputs, Witness::Read, "derivatives.yaml: rand"},
    {Op::NotEqual, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: ne"},
    {Op::Equal, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: eq"},
    {Op::All, rules::without_gradient, {}, Flops::Inputs, Witness::Fake, "derivatives.yaml: all"},
    {Op::GreaterEqual, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: ge"},
    {Op::Greater, rules::without_gradient, {}, Flops::Outputs, Witness::Fake, "derivatives.yaml: gt"},
    {Op::Less, rules::without_gradient, {}, Flops::Outputs, Witness::Read, "derivatives.yaml: lt"},
    {Op::BitwiseOr, rules::without_gradient, {}, Flops::Outputs, Witness::Read, "derivatives.yaml: bitwise_or"},
    {Op::BitwiseNot, rules::without_gradient, {}, Flops::Outputs, Witness::Read, "derivatives.yaml: bitwise_not"},
    {Op::Histogram, rules::without_gradient, {}, Flops::Inputs, Witness::Fake, "derivatives.yaml: histc"},
    {Op::Custom, rules::custom, {}, Flops::Nothing, Witness::Read, "torch/csrc/autograd/custom_function.h"},
}};

// A missing row at the end would be {Op::Input, nullptr}. The pointers themselves are not compared: under sanitizers
// GCC does not take that for a constant expression.
constexpr bool each_operator_has_its_row() {
  for (std::size_t i = 0; i < kOps; ++i) {
    if (kRows[i].op != static_cast<Op>(i)) return false;
  }
  return true;
}
static_assert(each_operator_has_its_row(), "rows stand in the order of Op, one for each");

const Row& row_of(Op op) { return kRows[static_cast<std::size_t>(op)]; }

// What graph builders write as several nodes.
constexpr Composite kComposites[] = {
    {"rdiv_scalar", "reciprocal, mul_scalar"},
    {"rsub_scalar", "neg, add_scalar"},
    {"square", "pow (2)"},
    {"chunk", "split"},
    {"cross_entropy", "log_softmax, nll_loss"},
    {"cross_entropy of float32 logits", "to, log_softmax, nll_loss"},
    {"cross_entropy in chunks", "per chunk: slice, linear, to, log_softmax, nll_loss, add"},
    {"rms_norm before torch 2.9, and Hugging Face's", "to, pow, mean, add_scalar, rsqrt, mul, to, mul"},
    {"gelu_new", "mul_scalar, pow, mul_scalar, add, mul_scalar, tanh, add_scalar, mul"},
    {"swiglu", "silu, mul"},
    {"rotary embedding", "slice, slice, neg, cat, mul, mul, add"},
    {"repeat_kv", "expand, contiguous, view"},
    {"attention, eager", "matmul, mul_scalar, add, softmax (float32), to, dropout, contiguous, matmul, contiguous"},
    {"attention, math", "mul_scalar, mul_scalar, matmul, add, softmax, dropout, matmul"},
    {"addmm", "linear (direct)"},
};

}  // namespace

void Recipe::clear() {
  slots.clear();
  forward.clear();
  backward.clear();
  saved.clear();
  saves_after_kernel = false;
  passes = 0;
  passes_part = false;
  seen_through_view = 0;
  holds = 0;
  comes_empty = 0;
  not_whole = 0;
  shared_outputs = 0;
  passes_own = false;
  hands_out = 0;
  overwrites = 0;
  leaves_reversed = false;
  leaves_first = false;
  in_place = false;
  alias = false;
  unknown = nullptr;
}

void recipe_of(const Graph& graph, const Node& node, Recipe& recipe, const CatalogueOptions& options) {
  if (node.recorded != kNone) {
    recipe = graph.recorded->operators[static_cast<std::size_t>(node.recorded)].recipe;
    return;
  }
  recipe.clear();
  const Row& row = row_of(node.op);
  if (options.torch < row.since) {
    throw Refusal(formatted("torch {}", options.torch.text()),
                  formatted("has no operator \"{}\": it came with {}", name(node.op), row.since.text()));
  }
  Writer w(graph, node, recipe, row.pattern, options);
  row.rule(w);
  if (!node.requires_grad) {
    recipe.saved.clear();
    recipe.backward.clear();
    recipe.passes = 0;
    recipe.hands_out = 0;
    recipe.overwrites = 0;
  }
}

namespace {

std::int64_t adapted_flops(const Graph& graph, const Node& node) {
  const auto shape = [&](std::size_t i) -> const Shape& { return graph.tensor(graph.input(node, i)).shape; };
  const std::int64_t rows = shape(0).elements().value() / shape(0).dims[shape(0).rank - 1U];
  std::int64_t products = 0;  // Of each row.
  for (std::size_t i = node.input_count % 3U; i + 2 < node.input_count; i += 3) {
    const Shape& a = shape(i + 1);
    const Shape& b = shape(i + 2);
    products += a.dims[1] * b.dims[0] + a.dims[0] * (a.dims[1] + b.dims[0]);
  }
  return checked_mul(2 * rows, products);
}

}  // namespace

std::int64_t forward_flops(const Graph& graph, const Node& node) {
  const auto elements = [&](TensorId id) { return graph.tensor(id).shape.elements().value(); };
  const auto input = [&](std::size_t i) -> const Shape& { return graph.tensor(graph.input(node, i)).shape; };
  if (node.output_count == 0) return 0;
  const std::int64_t made = elements(graph.output(node));
  switch (row_of(node.op).flops) {
    case Flops::Nothing: return 0;
    case Flops::Outputs: return made;
    case Flops::Inputs: return elements(graph.input(node, 0));
    case Flops::Product: return checked_mul(2 * input(0).dims[input(0).rank - 1U], made);
    case Flops::Triangle: return checked_mul(input(0).dims[input(0).rank - 1U], made);
    case Flops::Convolution: return checked_mul(2 * (input(1).elements().value() / input(1).dims[0]), made);
    case Flops::Attention: {
      // Two products; causal attention needs half of them, which is what the flash kernel does.
      const std::int64_t causal = checked_mul(input(1).dims[2], elements(graph.input(node, 0)) + made);
      return node.full_attention ? checked_mul(2, causal) : causal;
    }
    // Logits, and both gradients.
    case Flops::LinearLoss: return checked_mul(checked_mul(6, input(0).elements().value()), input(1).dims[0]);
    case Flops::Adapted: return adapted_flops(graph, node);
  }
  return 0;
}

Bytes forward_bytes(const Graph& graph, const Node& node) {
  Bytes moved;
  if (row_of(node.op).flops == Flops::Nothing) return moved;
  for (TensorId id : graph.in(node)) moved += graph.bytes(id);
  for (TensorId id : graph.out(node)) moved += graph.bytes(id);
  return moved;
}

std::string_view flops_rule(Op op) {
  switch (row_of(op).flops) {
    case Flops::Nothing: return "0";
    case Flops::Outputs: return "out";
    case Flops::Inputs: return "in";
    case Flops::Product: return "2 k out";
    case Flops::Triangle: return "k out";
    case Flops::Convolution: return "2 (weight / channels) out";
    case Flops::Attention: return "4 Sk q, causal half";
    case Flops::LinearLoss: return "6 in V";
    case Flops::Adapted: return "2 rows (k out + r (k + out)) each";
  }
  return "?";
}

Witness witness_of(Op op) { return row_of(op).witness; }

Cost cost_of(Op op) {
  if (op == Op::Linear || op == Op::Mm) return Cost::Product;
  return row_of(op).flops == Flops::Attention ? Cost::Attention : Cost::Memory;
}
std::string_view source_of(Op op) { return row_of(op).source; }
Version since(Op op) { return row_of(op).since; }

std::span<const Composite> composites() { return kComposites; }

std::string_view name(Witness witness) {
  switch (witness) {
    case Witness::Read: return "read";
    case Witness::Fake: return "fake";
    case Witness::Cuda: return "cuda";
  }
  return "?";
}

}  // namespace dsplan
