#include "core/graph.h"

namespace dsplan {

const char* name(Op op) {
  switch (op) {
    case Op::Input: return "input";
    case Op::Embedding: return "embedding";
    case Op::Linear: return "linear";
    case Op::Matmul: return "matmul";
    case Op::View: return "view";
    case Op::Slice: return "slice";
    case Op::Split: return "split";
    case Op::Contiguous: return "contiguous";
    case Op::Cat: return "cat";
    case Op::Cast: return "to";
    case Op::Add: return "add";
    case Op::Mul: return "mul";
    case Op::Neg: return "neg";
    case Op::AddScalar: return "add_scalar";
    case Op::MulScalar: return "mul_scalar";
    case Op::DivScalar: return "div_scalar";
    case Op::PowScalar: return "pow";
    case Op::Rsqrt: return "rsqrt";
    case Op::Tanh: return "tanh";
    case Op::Cos: return "cos";
    case Op::Sin: return "sin";
    case Op::Silu: return "silu";
    case Op::Gelu: return "gelu";
    case Op::MeanLast: return "mean";
    case Op::SumDim: return "sum";
    case Op::Div: return "div";
    case Op::Softmax: return "softmax";
    case Op::LayerNorm: return "layer_norm";
    case Op::Dropout: return "dropout";
    case Op::Attention: return "scaled_dot_product_attention";
    case Op::LogSoftmax: return "log_softmax";
    case Op::NllLoss: return "nll_loss";
    case Op::Pad: return "pad";
    case Op::Arange: return "arange";
    case Op::FloorDivScalar: return "floor_divide";
    case Op::TopK: return "topk";
    case Op::Sort: return "sort";
    case Op::Index: return "index";
    case Op::IndexPut: return "index_put";
    case Op::MaskedFill: return "masked_fill";
    case Op::MaskedFillInPlace: return "masked_fill_";
    case Op::Sub: return "sub";
    case Op::NotEqual: return "ne";
    case Op::Equal: return "eq";
    case Op::All: return "all";
    case Op::GreaterEqual: return "ge";
    case Op::Histogram: return "histc";
    case Op::CumSum: return "cumsum";
    case Op::GroupedMatmul: return "grouped_mm";
    case Op::Custom: return "custom";
  }
  return "?";
}

std::optional<Op> operator_named(std::string_view text) {
  for (std::size_t at = 0; at < kOps; ++at) {
    if (text == name(static_cast<Op>(at))) return static_cast<Op>(at);
  }
  return std::nullopt;
}

}  // namespace dsplan
