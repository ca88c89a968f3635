// The catalogue: losses.
#include <algorithm>
#include <bit>

#include "model/catalogue_rules.h"

namespace dsplan::rules {
namespace {

// A loss of each element is reduced afterwards, outside the operator that made it.
Bytes each(const Writer& w) { return w.bytes_in(0); }

}  // namespace

// The scalar result and total_weight; backward fills a dense N x V gradient (NLLLoss.cu).
void nll_loss(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.output();
  w.extra(0, storage(Elements(1), w.out().dtype), w.out().dtype, Visibility::Dispatch);
  w.kernel();
  w.save_extra(0, "_saved_total_weight");
  w.gradient(0);
}

// (input - target).abs() and its reduction: the difference is kept, and its sign made in backward
// (torch/nn/functional.py; Loss.cpp, l1_loss).
void l1_loss(Writer& w) {
  const DType dtype = w.in(0).dtype;
  w.extra(0, each(w), dtype, Visibility::Dispatch);
  w.kernel();
  if (w.node().reduction != Reduction::None) {
    w.forward_temporary(each(w), dtype);
    w.kernel();
  }
  w.output();
  w.kernel();
  w.save_extra(0, "_saved_self");
  if (!w.node().requires_grad) return;
  std::uint8_t divided = 0;
  if (w.node().reduction == Reduction::Mean) divided = w.temporary(each(w), dtype);
  const std::uint8_t sign = w.temporary(each(w), dtype);
  if (w.needs(0)) {
    w.gradient(0);
  } else {
    w.temporary(each(w), dtype);
  }
  if (!w.needs(1)) return;
  if (w.node().reduction == Reduction::Mean) w.drop(divided);
  w.drop(sign);
  w.gradient(1);
}

void pair_loss(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.output();
  w.kernel();
  w.gradient(0);
  w.gradient(1);
}

void binary_cross_entropy(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.output();
  w.kernel();
  w.gradient(0);
}

// (1 - target) * input - log_sigmoid(input), and its reduction, below the dispatcher; backward works in place on
// sigmoid(input) (Loss.cpp, binary_cross_entropy_with_logits).
void binary_cross_entropy_with_logits(Writer& w) {
  const DType dtype = w.in(0).dtype;
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_target");
  w.forward_temporary(each(w), dtype, Visibility::Kernel);
  w.kernel();
  if (w.node().reduction != Reduction::None) {
    w.forward_temporary(each(w), dtype, Visibility::Kernel);
    w.kernel();
  }
  w.output();
  w.kernel();
  w.gradient(0);
}

// xlogy(target, target) - target * input and its reduction (Loss.cpp, kl_div). The product keeps the target.
void kl_div(Writer& w) {
  const DType dtype = w.in(0).dtype;
  w.save_input(1, "_saved_self");
  const std::uint8_t entropy = w.forward_temporary(each(w), dtype);
  w.kernel();
  const std::uint8_t product = w.forward_temporary(each(w), dtype);
  w.kernel();
  if (w.node().reduction != Reduction::None) {
    w.forward_temporary(each(w), dtype);
    w.kernel();
    w.forward_drop(entropy);
    w.forward_drop(product);
  }
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  if (w.node().reduction == Reduction::Mean) {
    const std::uint8_t divided = w.temporary(each(w), dtype);
    w.temporary(each(w), dtype);
    w.drop(divided);
  } else {
    w.temporary(each(w), dtype);
  }
  w.gradient(0);
}

// Liger's: the gradients are made in the forward, chunk by chunk over one buffer of logits, which become their own
// gradient; backward hands them out as they are, once the loss's gradient is found to be one
// (liger_kernel/ops/fused_linear_cross_entropy.py, without a bias, reduction mean or sum). Inputs: hidden state [N, H],
// weight [V, H], target [N].
void fused_linear_cross_entropy(Writer& w) {
  const std::int64_t rows = w.in(0).shape.dims[0];
  const std::int64_t hidden = std::max<std::int64_t>(1, w.in(0).shape.dims[1]);
  const std::int64_t vocabulary = w.in(1).shape.dims[0];
  const std::int64_t widening = std::max<std::int64_t>(1, div_ceil(Elements(vocabulary), hidden).value());
  const auto wished = static_cast<std::uint64_t>(div_ceil(Elements(rows), widening).value());
  const std::int64_t chunk = std::min(rows, static_cast<std::int64_t>(std::bit_ceil(wished)));
  const DType dtype = w.in(0).dtype;
  w.extra(0, w.bytes_in(0), dtype, Visibility::Dispatch);
  w.kernel();
  if (w.needs(1)) {
    w.extra(1, w.bytes_in(1), w.in(1).dtype, Visibility::Dispatch);
    w.kernel();
  }
  const std::uint8_t losses = w.forward_temporary(storage(Elements(rows), DType::Float32), DType::Float32);
  w.kernel();
  const std::uint8_t mask = w.forward_temporary(storage(Elements(rows), DType::Bool), DType::Bool);
  w.kernel();
  const std::uint8_t count = w.forward_temporary(storage(Elements(1), DType::Int64), DType::Int64);
  w.kernel();
  w.forward_drop(count);
  const std::uint8_t logits = w.forward_temporary(storage(Shape{chunk, vocabulary}.elements(), dtype), dtype);
  w.kernel();
  w.forward_drop(logits);
  w.output();
  w.kernel();
  w.forward_drop(mask);
  w.forward_drop(losses);
  w.save_extra(0, "_saved_tensors");
  if (w.needs(1)) w.save_extra(1, "_saved_tensors");
  w.hand_out(0);
  w.hand_out(1);
  if (!w.node().requires_grad) return;
  w.temporary(storage(Elements(1), DType::Float32), DType::Float32);
}

}  // namespace dsplan::rules
