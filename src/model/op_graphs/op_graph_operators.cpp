// The table of op-graph operators: PyTorch's name, how many tensors it takes, and the rule that writes it.
#include <algorithm>
#include <array>

#include "model/op_graphs/op_graph_call.h"

namespace dsplan {
namespace {

namespace r = op_graph_rules;
constexpr std::uint8_t kMany = Node::kMostInputs;

constexpr std::array kOperatorRows = {
    OpGraphRow{"neg", Op::Neg, 1, 1, r::unary, true},
    OpGraphRow{"abs", Op::Abs, 1, 1, r::unary, true},
    OpGraphRow{"exp", Op::Exp, 1, 1, r::unary, true},
    OpGraphRow{"log", Op::Log, 1, 1, r::unary, true},
    OpGraphRow{"sqrt", Op::Sqrt, 1, 1, r::unary, true},
    OpGraphRow{"rsqrt", Op::Rsqrt, 1, 1, r::unary, true},
    OpGraphRow{"reciprocal", Op::Reciprocal, 1, 1, r::unary, true},
    OpGraphRow{"sin", Op::Sin, 1, 1, r::unary, true},
    OpGraphRow{"cos", Op::Cos, 1, 1, r::unary, true},
    OpGraphRow{"tanh", Op::Tanh, 1, 1, r::unary, true},
    OpGraphRow{"sigmoid", Op::Sigmoid, 1, 1, r::unary, true},
    OpGraphRow{"logsigmoid", Op::LogSigmoid, 1, 1, r::unary, false},
    OpGraphRow{"relu", Op::Relu, 1, 1, r::unary, true},
    OpGraphRow{"leaky_relu", Op::LeakyRelu, 1, 1, r::unary, true},
    OpGraphRow{"elu", Op::Elu, 1, 1, r::unary, true},
    OpGraphRow{"gelu", Op::Gelu, 1, 1, r::unary, false},
    OpGraphRow{"silu", Op::Silu, 1, 1, r::unary, true},
    OpGraphRow{"softplus", Op::Softplus, 1, 1, r::unary, false},
    OpGraphRow{"mish", Op::Mish, 1, 1, r::unary, true},
    OpGraphRow{"hardswish", Op::Hardswish, 1, 1, r::unary, true},
    OpGraphRow{"glu", Op::Glu, 1, 1, r::glu, false},
    OpGraphRow{"add_scalar", Op::AddScalar, 1, 1, r::with_number, true},
    OpGraphRow{"sub_scalar", Op::SubScalar, 1, 1, r::with_number, true},
    OpGraphRow{"mul_scalar", Op::MulScalar, 1, 1, r::with_number, true},
    OpGraphRow{"div_scalar", Op::DivScalar, 1, 1, r::with_number, true},
    OpGraphRow{"rdiv_scalar", Op::Reciprocal, 1, 1, r::reversed, false},
    OpGraphRow{"rsub_scalar", Op::Neg, 1, 1, r::reversed, false},
    OpGraphRow{"pow", Op::PowScalar, 1, 1, r::power, true},
    OpGraphRow{"clamp", Op::Clamp, 1, 1, r::clamp, true},
    OpGraphRow{"add", Op::Add, 2, 2, r::binary, true},
    OpGraphRow{"sub", Op::Sub, 2, 2, r::binary, true},
    OpGraphRow{"mul", Op::Mul, 2, 2, r::binary, true},
    OpGraphRow{"div", Op::Div, 2, 2, r::binary, true},
    OpGraphRow{"maximum", Op::Maximum, 2, 2, r::binary, false},
    OpGraphRow{"minimum", Op::Minimum, 2, 2, r::binary, false},
    OpGraphRow{"eq", Op::Equal, 2, 2, r::comparison, false},
    OpGraphRow{"ne", Op::NotEqual, 2, 2, r::comparison, false},
    OpGraphRow{"ge", Op::GreaterEqual, 2, 2, r::comparison, false},
    OpGraphRow{"where", Op::Where, 3, 3, r::where, false},
    OpGraphRow{"masked_fill", Op::MaskedFill, 2, 2, r::masked_fill, true},
    OpGraphRow{"prelu", Op::Prelu, 2, 2, r::prelu, false},
    OpGraphRow{"addcmul", Op::Addcmul, 3, 3, r::addcmul, false},
    OpGraphRow{"dropout", Op::Dropout, 1, 1, r::dropout, true},
    OpGraphRow{"to", Op::Cast, 1, 1, r::to, false},
    OpGraphRow{"view", Op::View, 1, 1, r::view, false},
    OpGraphRow{"reshape", Op::View, 1, 1, r::reshape, false},
    OpGraphRow{"flatten", Op::View, 1, 1, r::flatten, false},
    OpGraphRow{"t", Op::View, 1, 1, r::transpose, false},
    OpGraphRow{"transpose", Op::View, 1, 1, r::transpose, false},
    OpGraphRow{"permute", Op::View, 1, 1, r::permute, false},
    OpGraphRow{"squeeze", Op::View, 1, 1, r::squeeze, false},
    OpGraphRow{"unsqueeze", Op::View, 1, 1, r::unsqueeze, false},
    OpGraphRow{"expand", Op::Expand, 1, 1, r::expand, false},
    OpGraphRow{"slice", Op::Slice, 1, 1, r::slice, false},
    OpGraphRow{"narrow", Op::Slice, 1, 1, r::slice, false},
    OpGraphRow{"select", Op::Select, 1, 1, r::select, false},
    OpGraphRow{"split", Op::Split, 1, 1, r::split, false},
    OpGraphRow{"chunk", Op::Split, 1, 1, r::chunk, false},
    OpGraphRow{"unbind", Op::Unbind, 1, 1, r::unbind, false},
    OpGraphRow{"contiguous", Op::Contiguous, 1, 1, r::contiguous, false},
    OpGraphRow{"clone", Op::Contiguous, 1, 1, r::clone, false},
    OpGraphRow{"detach", Op::Detach, 1, 1, r::detach, false},
    OpGraphRow{"cat", Op::Cat, 1, kMany, r::cat, false},
    OpGraphRow{"stack", Op::Stack, 1, kMany, r::stack, false},
    OpGraphRow{"pad", Op::Pad, 1, 1, r::pad, false},
    OpGraphRow{"repeat", Op::Repeat, 1, 1, r::repeat, false},
    OpGraphRow{"repeat_interleave", Op::RepeatInterleave, 1, 1, r::repeat_interleave, false},
    OpGraphRow{"roll", Op::Roll, 1, 1, r::same_shape_copy, false},
    OpGraphRow{"flip", Op::Flip, 1, 1, r::same_shape_copy, false},
    OpGraphRow{"tril", Op::Tril, 1, 1, r::same_shape_copy, false},
    OpGraphRow{"triu", Op::Triu, 1, 1, r::same_shape_copy, false},
    OpGraphRow{"linear", Op::Linear, 2, 3, r::linear, false},
    OpGraphRow{"addmm", Op::Linear, 3, 3, r::addmm, false},
    OpGraphRow{"mm", Op::Mm, 2, 2, r::mm, false},
    OpGraphRow{"bmm", Op::Bmm, 2, 2, r::bmm, false},
    OpGraphRow{"matmul", Op::Matmul, 2, 2, r::matmul, false},
    OpGraphRow{"conv2d", Op::Conv2d, 2, 3, r::conv2d, false},
    OpGraphRow{"grouped_mm", Op::GroupedMatmul, 3, 3, r::grouped_mm, false},
    OpGraphRow{"max_pool2d", Op::MaxPool2d, 1, 1, r::max_pool2d, false},
    OpGraphRow{"interpolate", Op::Interpolate, 1, 1, r::interpolate, false},
    OpGraphRow{"unfold", Op::Unfold, 1, 1, r::unfold, false},
    OpGraphRow{"scaled_dot_product_attention", Op::Attention, 3, 3, r::attention, false},
    OpGraphRow{"sum", Op::SumDim, 1, 1, r::reduce, false},
    OpGraphRow{"mean", Op::MeanLast, 1, 1, r::reduce, false},
    OpGraphRow{"amax", Op::Amax, 1, 1, r::reduce, false},
    OpGraphRow{"amin", Op::Amin, 1, 1, r::reduce, false},
    OpGraphRow{"norm", Op::Norm, 1, 1, r::reduce, false},
    OpGraphRow{"std", Op::Std, 1, 1, r::reduce, false},
    OpGraphRow{"var", Op::Var, 1, 1, r::reduce, false},
    OpGraphRow{"prod", Op::Prod, 1, 1, r::reduce, false},
    OpGraphRow{"logsumexp", Op::LogSumExp, 1, 1, r::reduce, false},
    OpGraphRow{"max", Op::Max, 1, 2, r::extremum, false},
    OpGraphRow{"min", Op::Min, 1, 2, r::extremum, false},
    OpGraphRow{"cumsum", Op::CumSum, 1, 1, r::scan, false},
    OpGraphRow{"cumprod", Op::CumProd, 1, 1, r::scan, false},
    OpGraphRow{"topk", Op::TopK, 1, 1, r::top_k, false},
    OpGraphRow{"sort", Op::Sort, 1, 1, r::sort, false},
    OpGraphRow{"embedding", Op::Embedding, 2, 2, r::embedding, false},
    OpGraphRow{"index", Op::Index, 2, 2, r::index_select, false},
    OpGraphRow{"index_select", Op::IndexSelect, 2, 2, r::index_select, false},
    OpGraphRow{"gather", Op::Gather, 2, 2, r::gather, false},
    OpGraphRow{"scatter", Op::Scatter, 3, 3, r::scatter, false},
    OpGraphRow{"scatter_add", Op::ScatterAdd, 3, 3, r::scatter, false},
    OpGraphRow{"softmax", Op::Softmax, 1, 1, r::softmax, false},
    OpGraphRow{"log_softmax", Op::LogSoftmax, 1, 1, r::softmax, false},
    OpGraphRow{"layer_norm", Op::LayerNorm, 1, 3, r::layer_norm, false},
    OpGraphRow{"rms_norm", Op::RmsNorm, 1, 2, r::rms_norm, false},
    OpGraphRow{"group_norm", Op::GroupNorm, 1, 3, r::group_norm, false},
    OpGraphRow{"batch_norm", Op::BatchNorm, 5, 5, r::batch_norm, false},
    OpGraphRow{"nll_loss", Op::NllLoss, 2, 2, r::nll_loss, false},
    OpGraphRow{"cross_entropy", Op::NllLoss, 2, 2, r::cross_entropy, false},
    OpGraphRow{"liger_fused_linear_cross_entropy", Op::FusedLinearCrossEntropy, 3, 3, r::fused_linear_cross_entropy,
               false},
    OpGraphRow{"l1_loss", Op::L1Loss, 2, 2, r::loss, false},
    OpGraphRow{"mse_loss", Op::MseLoss, 2, 2, r::loss, false},
    OpGraphRow{"smooth_l1_loss", Op::SmoothL1Loss, 2, 2, r::loss, false},
    OpGraphRow{"binary_cross_entropy", Op::Bce, 2, 2, r::loss, false},
    OpGraphRow{"binary_cross_entropy_with_logits", Op::BceWithLogits, 2, 2, r::loss, false},
    OpGraphRow{"kl_div", Op::KlDiv, 2, 2, r::loss, false},
};

}  // namespace

const OpGraphRow* find_op_graph_row(std::string_view name) {
  const auto found =
      std::find_if(kOperatorRows.begin(), kOperatorRows.end(), [&](const OpGraphRow& row) { return row.name == name; });
  return found == kOperatorRows.end() ? nullptr : &*found;
}

std::vector<std::string_view> op_graph_operators() {
  std::vector<std::string_view> names;
  for (const OpGraphRow& row : kOperatorRows) names.push_back(row.name);
  for (std::string_view name : {"checkpoint", "checkpoint_sequential", "custom"}) names.push_back(name);
  return names;
}

}  // namespace dsplan
