#include "core/graph.h"

#include <array>
#include <unordered_map>

namespace dsplan {
namespace {

struct NameRow {
  Op op;
  const char* name;
};

constexpr std::array<NameRow, kOps> kNames = {{
    {Op::Input, "input"},
    {Op::View, "view"},
    {Op::Detach, "detach"},
    {Op::Expand, "expand"},
    {Op::Slice, "slice"},
    {Op::Select, "select"},
    {Op::Split, "split"},
    {Op::Unbind, "unbind"},
    {Op::Unfold, "unfold"},
    {Op::Contiguous, "contiguous"},
    {Op::Cat, "cat"},
    {Op::Stack, "stack"},
    {Op::Pad, "pad"},
    {Op::Roll, "roll"},
    {Op::Flip, "flip"},
    {Op::Repeat, "repeat"},
    {Op::RepeatInterleave, "repeat_interleave"},
    {Op::Tril, "tril"},
    {Op::Triu, "triu"},
    {Op::Cast, "to"},
    {Op::Add, "add"},
    {Op::Sub, "sub"},
    {Op::Mul, "mul"},
    {Op::Div, "div"},
    {Op::Maximum, "maximum"},
    {Op::Minimum, "minimum"},
    {Op::Where, "where"},
    {Op::MaskedFill, "masked_fill"},
    {Op::MaskedFillInPlace, "masked_fill_"},
    {Op::CopyInto, "copy_into"},
    {Op::AddInto, "add_into"},
    {Op::Prelu, "prelu"},
    {Op::Polar, "polar"},
    {Op::ComplexMul, "complex_mul"},
    {Op::Addcmul, "addcmul"},
    {Op::AddScalar, "add_scalar"},
    {Op::SubScalar, "sub_scalar"},
    {Op::MulScalar, "mul_scalar"},
    {Op::DivScalar, "div_scalar"},
    {Op::PowScalar, "pow"},
    {Op::FloorDivScalar, "floor_divide"},
    {Op::Clamp, "clamp"},
    {Op::Neg, "neg"},
    {Op::Abs, "abs"},
    {Op::Exp, "exp"},
    {Op::Expm1, "expm1"},
    {Op::Log, "log"},
    {Op::Sqrt, "sqrt"},
    {Op::Rsqrt, "rsqrt"},
    {Op::Reciprocal, "reciprocal"},
    {Op::Sin, "sin"},
    {Op::Cos, "cos"},
    {Op::Tanh, "tanh"},
    {Op::Sigmoid, "sigmoid"},
    {Op::LogSigmoid, "logsigmoid"},
    {Op::Relu, "relu"},
    {Op::LeakyRelu, "leaky_relu"},
    {Op::Elu, "elu"},
    {Op::Gelu, "gelu"},
    {Op::Silu, "silu"},
    {Op::Softplus, "softplus"},
    {Op::Mish, "mish"},
    {Op::Hardswish, "hardswish"},
    {Op::Glu, "glu"},
    {Op::SumDim, "sum"},
    {Op::MeanLast, "mean"},
    {Op::Amax, "amax"},
    {Op::Amin, "amin"},
    {Op::Max, "max"},
    {Op::Min, "min"},
    {Op::Norm, "norm"},
    {Op::Std, "std"},
    {Op::Var, "var"},
    {Op::Prod, "prod"},
    {Op::LogSumExp, "logsumexp"},
    {Op::CumSum, "cumsum"},
    {Op::CumProd, "cumprod"},
    {Op::Embedding, "embedding"},
    {Op::Index, "index"},
    {Op::IndexSelect, "index_select"},
    {Op::IndexPut, "index_put"},
    {Op::IndexAdd, "index_add"},
    {Op::NonZero, "nonzero"},
    {Op::Gather, "gather"},
    {Op::Scatter, "scatter"},
    {Op::ScatterAdd, "scatter_add"},
    {Op::MaskedRows, "index_by_mask"},
    {Op::MaskedPut, "index_put_by_mask"},
    {Op::MaskedScatter, "masked_scatter"},
    {Op::TopK, "topk"},
    {Op::Sort, "sort"},
    {Op::Linear, "linear"},
    {Op::Matmul, "matmul"},
    {Op::Mm, "mm"},
    {Op::Bmm, "bmm"},
    {Op::GroupedMatmul, "grouped_mm"},
    {Op::Conv2d, "conv2d"},
    {Op::SolveTriangular, "solve_triangular"},
    {Op::Attention, "scaled_dot_product_attention"},
    {Op::Softmax, "softmax"},
    {Op::LogSoftmax, "log_softmax"},
    {Op::LayerNorm, "layer_norm"},
    {Op::GroupNorm, "group_norm"},
    {Op::BatchNorm, "batch_norm"},
    {Op::RmsNorm, "rms_norm"},
    {Op::Dropout, "dropout"},
    {Op::MaxPool2d, "max_pool2d"},
    {Op::AvgPool2d, "avg_pool2d"},
    {Op::Interpolate, "interpolate"},
    {Op::GridSample, "grid_sample"},
    {Op::NllLoss, "nll_loss"},
    {Op::L1Loss, "l1_loss"},
    {Op::MseLoss, "mse_loss"},
    {Op::SmoothL1Loss, "smooth_l1_loss"},
    {Op::Bce, "binary_cross_entropy"},
    {Op::BceWithLogits, "binary_cross_entropy_with_logits"},
    {Op::KlDiv, "kl_div"},
    {Op::FusedLinearCrossEntropy, "liger_fused_linear_cross_entropy"},
    {Op::LigerRmsNorm, "liger_rms_norm"},
    {Op::LigerRotary, "liger_rotary"},
    {Op::LigerSiluMul, "liger_silu_mul"},
    {Op::AdaptedLinear, "axolotl_lora_linear"},
    {Op::AdaptedGated, "axolotl_lora_mlp"},
    {Op::ChunkedLogProb, "trl_chunked_log_prob"},
    {Op::CutCrossEntropy, "cut_cross_entropy"},
    {Op::AllReduce, "all_reduce"},
    {Op::CopyToParallel, "copy_to_tensor_parallel"},
    {Op::ParallelCrossEntropy, "vocab_parallel_cross_entropy"},
    {Op::SparseMixer, "phimoe_multiplier"},
    {Op::Arange, "arange"},
    {Op::Random, "rand"},
    {Op::NotEqual, "ne"},
    {Op::Equal, "eq"},
    {Op::All, "all"},
    {Op::GreaterEqual, "ge"},
    {Op::Greater, "gt"},
    {Op::Less, "lt"},
    {Op::BitwiseOr, "bitwise_or"},
    {Op::BitwiseNot, "bitwise_not"},
    {Op::Histogram, "histc"},
    {Op::Custom, "custom"},
}};

constexpr bool each_operator_has_its_name() {
  for (std::size_t i = 0; i < kOps; ++i) {
    if (kNames[i].op != static_cast<Op>(i) || kNames[i].name == nullptr) return false;
  }
  return true;
}
static_assert(each_operator_has_its_name(), "names stand in the order of Op, one for each");

}  // namespace

ViewStep step_reshape(Shape shape) {
  ViewStep step;
  step.shape = shape;
  return step;
}

ViewStep step_swap(std::int8_t a, std::int8_t b) {
  ViewStep step;
  step.kind = ViewStep::Kind::Swap;
  step.a = a;
  step.b = b;
  return step;
}

ViewStep step_narrow(std::int8_t dim, std::int64_t start, std::int64_t length) {
  ViewStep step;
  step.kind = ViewStep::Kind::Narrow;
  step.a = dim;
  step.start = start;
  step.length = length;
  return step;
}

ViewStep step_repeat(std::int8_t dim, std::int64_t times) {
  ViewStep step;
  step.kind = ViewStep::Kind::Repeat;
  step.a = dim;
  step.length = times;
  return step;
}

const char* name(Op op) { return kNames[static_cast<std::size_t>(op)].name; }

std::optional<Op> operator_named(std::string_view text) {
  static const std::unordered_map<std::string_view, Op> kByName = [] {
    std::unordered_map<std::string_view, Op> made;
    for (const NameRow& row : kNames) made.emplace(row.name, row.op);
    return made;
  }();
  const auto found = kByName.find(text);
  return found == kByName.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace dsplan
