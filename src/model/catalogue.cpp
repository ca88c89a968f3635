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
    {Op::Embedding, rules::embedding},
    {Op::Linear, rules::linear},
    {Op::Matmul, rules::matmul},
    {Op::View, rules::view},
    {Op::Slice, rules::part},
    {Op::Split, rules::part},
    {Op::Contiguous, rules::passing},
    {Op::Cat, rules::cat},
    {Op::Cast, rules::unary},
    {Op::Add, rules::add},
    {Op::Mul, rules::multiply},
    {Op::Neg, rules::unary},
    {Op::AddScalar, rules::passing},
    {Op::MulScalar, rules::unary},
    {Op::DivScalar, rules::unary},
    {Op::PowScalar, rules::power},
    {Op::Rsqrt, rules::reciprocal_root},
    {Op::Tanh, rules::unary_saving_result},
    {Op::Cos, rules::unary_saving_input},
    {Op::Sin, rules::unary_saving_input},
    {Op::Silu, rules::unary_saving_input},
    {Op::Gelu, rules::unary_saving_input},
    {Op::MeanLast, rules::unary},
    {Op::SumDim, rules::sum_dim},
    {Op::Div, rules::divide},
    {Op::Softmax, rules::unary_saving_result},
    {Op::LayerNorm, rules::layer_norm},
    {Op::Dropout, rules::dropout},
    {Op::Attention, rules::attention},
    {Op::LogSoftmax, rules::unary_saving_result},
    {Op::NllLoss, rules::nll_loss},
    {Op::Pad, rules::without_gradient},
    {Op::Arange, rules::without_gradient},
    {Op::FloorDivScalar, rules::without_gradient},
    {Op::TopK, rules::selection},
    {Op::Sort, rules::selection},
    {Op::Index, rules::index},
    {Op::IndexPut, rules::without_gradient},
    {Op::MaskedFill, rules::masked_fill},
    {Op::MaskedFillInPlace, rules::masked_fill_in_place},
    {Op::Sub, rules::without_gradient},
    {Op::NotEqual, rules::without_gradient},
    {Op::Equal, rules::without_gradient},
    {Op::All, rules::without_gradient},
    {Op::GreaterEqual, rules::without_gradient},
    {Op::Histogram, rules::without_gradient},
    {Op::CumSum, rules::cumulative_sum},
    {Op::GroupedMatmul, rules::grouped_matmul},
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
