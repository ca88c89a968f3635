// Operators as eager PyTorch runs them on a GPU: what they save before and after the kernel, what they allocate and in
// which order. Sources: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp, aten/src/ATen/native.
#pragma once

#include "eager/autograd.h"

namespace eager {

// Elementwise, one or two operands.
[[nodiscard]] Tensor to(const Tensor& x, DType dtype);  // The same tensor if nothing changes.
[[nodiscard]] Tensor add(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor mul(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor add_scalar(const Tensor& x);
[[nodiscard]] Tensor mul_scalar(const Tensor& x);
[[nodiscard]] Tensor neg(const Tensor& x);
// Another tensor; its gradient is that of the first.
[[nodiscard]] Tensor clone(const Tensor& x);
[[nodiscard]] Tensor pow_scalar(const Tensor& x);
[[nodiscard]] Tensor rsqrt(const Tensor& x);
[[nodiscard]] Tensor tanh(const Tensor& x);
[[nodiscard]] Tensor silu(const Tensor& x);
[[nodiscard]] Tensor dropout(const Tensor& x, double p);

// Views.
[[nodiscard]] Tensor view(const Tensor& x, Sizes sizes);
[[nodiscard]] Tensor transpose(const Tensor& x, int a, int b);
[[nodiscard]] Tensor t(const Tensor& x);
[[nodiscard]] Tensor slice_last(const Tensor& x, std::int64_t begin, std::int64_t count);
[[nodiscard]] Tensors split_last(const Tensor& x, std::int64_t width);
[[nodiscard]] Tensor cat_last(const Tensor& a, const Tensor& b);

[[nodiscard]] Tensor mean_last(const Tensor& x);
[[nodiscard]] Tensor embedding(const Tensor& weight, const Tensor& ids);
[[nodiscard]] Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias);
[[nodiscard]] Tensor mm(const Tensor& a, const Tensor& b);
[[nodiscard]] Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b);
// nn.functional.linear without bias.
[[nodiscard]] Tensor linear(const Tensor& x, const Tensor& weight);
// What DeepSpeed puts in its place under stage 3 (runtime/zero/linear.py): one Python function, saving its arguments.
[[nodiscard]] Tensor linear_stage3(const Tensor& x, const Tensor& weight);

[[nodiscard]] Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool drops);
[[nodiscard]] Tensor memory_efficient_attention(const Tensor& q, const Tensor& k, const Tensor& v);

[[nodiscard]] Tensor log_softmax(const Tensor& x);
[[nodiscard]] Tensor nll_loss(const Tensor& x, const Tensor& target);

// An identity whose backward calls `then` first and passes the gradient on (a Python autograd function).
[[nodiscard]] Tensor on_backward(const Tensor& x, const char* name, std::function<void()> then);

}  // namespace eager
