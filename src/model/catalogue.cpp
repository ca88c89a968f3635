#include "model/catalogue.h"

#include <array>

#include "core/error.h"
#include "model/catalogue_rules.h"

namespace dsplan {
namespace {

struct Row {
  Op op;
  void (*rule)(Writer&);
};

constexpr std::array<Row, kOps> kRows = {{
    {Op::Input, rules::without_gradient},
    {Op::View, rules::view},
    {Op::Detach, rules::view},
    {Op::Expand, rules::part},
    {Op::Slice, rules::part},
    {Op::Select, rules::part},
    {Op::Split, rules::part},
    {Op::Unbind, rules::part},
    {Op::Unfold, rules::unary},
    {Op::Contiguous, rules::passing},
    {Op::Cat, rules::cat},
    {Op::Stack, rules::cat},
    {Op::Pad, rules::without_gradient},
    {Op::Roll, rules::unary},
    {Op::Flip, rules::unary},
    {Op::Repeat, rules::unary},
    {Op::RepeatInterleave, rules::unary},
    {Op::Tril, rules::unary},
    {Op::Triu, rules::unary},
    {Op::Cast, rules::unary},
    {Op::Add, rules::add},
    {Op::Sub, rules::add},
    {Op::Mul, rules::multiply},
    {Op::Div, rules::divide},
    {Op::Maximum, rules::unary},
    {Op::Minimum, rules::unary},
    {Op::Where, rules::unary},
    {Op::MaskedFill, rules::masked_fill},
    {Op::MaskedFillInPlace, rules::masked_fill_in_place},
    {Op::Prelu, rules::unary},
    {Op::Addcmul, rules::unary},
    {Op::AddScalar, rules::passing},
    {Op::SubScalar, rules::passing},
    {Op::MulScalar, rules::unary},
    {Op::DivScalar, rules::unary},
    {Op::PowScalar, rules::power},
    {Op::FloorDivScalar, rules::without_gradient},
    {Op::Clamp, rules::unary_saving_input},
    {Op::Neg, rules::unary},
    {Op::Abs, rules::unary_saving_input},
    {Op::Exp, rules::unary_saving_result},
    {Op::Log, rules::unary_saving_input},
    {Op::Sqrt, rules::unary_saving_result},
    {Op::Rsqrt, rules::reciprocal_root},
    {Op::Reciprocal, rules::unary_saving_result},
    {Op::Sin, rules::unary_saving_input},
    {Op::Cos, rules::unary_saving_input},
    {Op::Tanh, rules::unary_saving_result},
    {Op::Sigmoid, rules::unary_saving_result},
    {Op::LogSigmoid, rules::unary_saving_input},
    {Op::Relu, rules::unary_saving_result},
    {Op::LeakyRelu, rules::unary_saving_input},
    {Op::Elu, rules::unary_saving_input},
    {Op::Gelu, rules::unary_saving_input},
    {Op::Silu, rules::unary_saving_input},
    {Op::Softplus, rules::unary_saving_input},
    {Op::Mish, rules::unary_saving_input},
    {Op::Hardswish, rules::unary_saving_input},
    {Op::Glu, rules::unary_saving_input},
    {Op::SumDim, rules::sum_dim},
    {Op::MeanLast, rules::unary},
    {Op::Amax, rules::unary_saving_input},
    {Op::Amin, rules::unary_saving_input},
    {Op::Max, rules::selection},
    {Op::Min, rules::selection},
    {Op::Norm, rules::unary_saving_input},
    {Op::Std, rules::unary_saving_input},
    {Op::Var, rules::unary_saving_input},
    {Op::Prod, rules::unary_saving_input},
    {Op::LogSumExp, rules::unary_saving_input},
    {Op::CumSum, rules::cumulative_sum},
    {Op::CumProd, rules::unary_saving_input},
    {Op::Embedding, rules::embedding},
    {Op::Index, rules::index},
    {Op::IndexSelect, rules::unary},
    {Op::IndexPut, rules::without_gradient},
    {Op::Gather, rules::unary},
    {Op::Scatter, rules::unary},
    {Op::ScatterAdd, rules::unary},
    {Op::TopK, rules::selection},
    {Op::Sort, rules::selection},
    {Op::Linear, rules::linear},
    {Op::Matmul, rules::matmul},
    {Op::Mm, rules::matmul},
    {Op::Bmm, rules::matmul},
    {Op::GroupedMatmul, rules::grouped_matmul},
    {Op::Conv2d, rules::unary},
    {Op::Attention, rules::attention},
    {Op::Softmax, rules::unary_saving_result},
    {Op::LogSoftmax, rules::unary_saving_result},
    {Op::LayerNorm, rules::layer_norm},
    {Op::GroupNorm, rules::unary},
    {Op::BatchNorm, rules::unary},
    {Op::RmsNorm, rules::unary},
    {Op::Dropout, rules::dropout},
    {Op::MaxPool2d, rules::unary},
    {Op::Interpolate, rules::unary},
    {Op::NllLoss, rules::nll_loss},
    {Op::L1Loss, rules::unary},
    {Op::MseLoss, rules::unary_saving_input},
    {Op::SmoothL1Loss, rules::unary},
    {Op::Bce, rules::unary},
    {Op::BceWithLogits, rules::unary},
    {Op::KlDiv, rules::unary},
    {Op::FusedLinearCrossEntropy, rules::unary},
    {Op::Arange, rules::without_gradient},
    {Op::NotEqual, rules::without_gradient},
    {Op::Equal, rules::without_gradient},
    {Op::All, rules::without_gradient},
    {Op::GreaterEqual, rules::without_gradient},
    {Op::Histogram, rules::without_gradient},
    {Op::Custom, rules::custom},
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
  leaves_reversed = false;
  in_place = false;
  alias = false;
}

void recipe_of(const Graph& graph, const Node& node, Recipe& recipe) {
  recipe.clear();
  Writer w(graph, node, recipe);
  kRows[static_cast<std::size_t>(node.op)].rule(w);
  if (!node.requires_grad) {
    recipe.saved.clear();
    recipe.backward.clear();
    recipe.passes = 0;
  }
}

std::int64_t forward_flops(const Graph& graph, const Node& node) {
  const auto elements = [&](TensorId id) { return graph.tensor(id).shape.elements().value(); };
  switch (node.op) {
    case Op::Linear:
    case Op::GroupedMatmul: {
      const Shape& x = graph.tensor(graph.input(node, 0)).shape;
      return checked_mul(2 * x.dims[x.rank - 1U], elements(graph.output(node)));
    }
    case Op::Matmul: {
      const Shape& a = graph.tensor(graph.input(node, 0)).shape;
      return checked_mul(2 * a.dims[a.rank - 1U], elements(graph.output(node)));
    }
    case Op::Attention: {
      // Two products; causal attention needs half of them, which is what the flash kernel does.
      const Shape& q = graph.tensor(graph.input(node, 0)).shape;
      return checked_mul(2 * q.dims[2], elements(graph.input(node, 0)));
    }
    case Op::View:
    case Op::Custom:
    case Op::Slice:
    case Op::Split:
    case Op::Input: return 0;
    default: return node.output_count == 0 ? 0 : elements(graph.output(node));
  }
}

Witness witness_of(Op) { return Witness::Read; }

std::string_view name(Witness witness) {
  switch (witness) {
    case Witness::Read: return "read";
    case Witness::Fake: return "fake";
    case Witness::Cuda: return "cuda";
  }
  return "?";
}

}  // namespace dsplan
