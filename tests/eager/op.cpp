#include "eager/op.h"

namespace eager {
namespace {

// An elementwise operator of one tensor whose gradient is one new tensor. `saves`: its input, its result, or nothing.
enum class Saves { Nothing, Input, Result };
Tensor elementwise(const char* name, const Tensor& x, DType dtype, Saves saves) {
  const Doing doing(name);
  const auto node = make_node(name, {x});
  if (node && saves == Saves::Input) node->saved.emplace_back(x);
  Tensor out = empty_like(x, dtype);
  if (node) {
    const DType before = x->dtype;
    node->backward = [before](Tensors& g, Tensors&) -> Tensors { return {empty_like(g[0], before)}; };
    if (saves == Saves::Result) node->saved.emplace_back(out);
  }
  set_history(out, node);
  return out;
}

Sizes broadcast(const Sizes& a, const Sizes& b) {
  Sizes wide = a.size() >= b.size() ? a : b;
  const Sizes& narrow = a.size() >= b.size() ? b : a;
  const std::size_t lead = wide.size() - narrow.size();
  for (std::size_t at = 0; at < narrow.size(); ++at) wide[lead + at] = std::max(wide[lead + at], narrow[at]);
  return wide;
}

// In the layout of the first operand of full size.
Tensor broadcast_result(const Tensor& a, const Tensor& b) {
  const Sizes sizes = broadcast(a->sizes, b->sizes);
  if (a->sizes == sizes) return empty_like(a);
  if (b->sizes == sizes) return empty_like(b);
  return empty(sizes, a->dtype);
}

Tensors pass_on(Tensors& g, Tensors&) { return {g[0]}; }

}  // namespace

Tensor to(const Tensor& x, DType dtype) { return x->dtype == dtype ? x : elementwise("to", x, dtype, Saves::Nothing); }
Tensor mul_scalar(const Tensor& x) { return elementwise("mul scalar", x, x->dtype, Saves::Nothing); }
Tensor neg(const Tensor& x) { return elementwise("neg", x, x->dtype, Saves::Nothing); }
Tensor tanh(const Tensor& x) { return elementwise("tanh", x, x->dtype, Saves::Result); }
Tensor silu(const Tensor& x) { return elementwise("silu", x, x->dtype, Saves::Input); }

Tensor add_scalar(const Tensor& x) {
  const Doing doing("add scalar");
  const auto node = make_node("add scalar", {x});
  Tensor out = empty_like(x);
  if (node) node->backward = pass_on;
  set_history(out, node);
  return out;
}

Tensor clone(const Tensor& x) {
  const Doing doing("clone");
  const auto node = make_node("clone", {x});
  Tensor out = empty_like(x);
  if (node) node->backward = pass_on;
  set_history(out, node);
  return out;
}

Tensor add(const Tensor& a, const Tensor& b) {
  const Doing doing("add");
  const auto node = make_node("add", {a, b});
  Tensor out = broadcast_result(a, b);
  if (node) node->backward = [](Tensors& g, Tensors&) -> Tensors { return {g[0], g[0]}; };
  set_history(out, node);
  return out;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  const Doing doing("mul");
  const auto node = make_node("mul", {a, b});
  if (node) {
    if (wants(*node, 0)) node->saved.emplace_back(b);
    if (wants(*node, 1)) node->saved.emplace_back(a);
    const bool first = wants(*node, 0);
    const bool second = wants(*node, 1);
    node->backward = [first, second](Tensors& g, Tensors&) -> Tensors {
      Tensors made(2);
      if (first) made[0] = empty_like(g[0]);
      if (second) made[1] = empty_like(g[0]);
      return made;
    };
  }
  Tensor out = broadcast_result(a, b);
  set_history(out, node);
  return out;
}

// grad * (exponent * self.pow(exponent - 1)).
Tensor pow_scalar(const Tensor& x) {
  Tensor out = elementwise("pow", x, x->dtype, Saves::Input);
  if (out->grad_fn) {
    out->grad_fn->backward = [](Tensors& g, Tensors& saved) -> Tensors {
      const Tensor power = empty_like(saved[0]);
      const Tensor scaled = empty_like(power);
      return {empty_like(g[0])};
    };
  }
  return out;
}

// -0.5 * grad * result.pow(3).
Tensor rsqrt(const Tensor& x) {
  Tensor out = elementwise("rsqrt", x, x->dtype, Saves::Result);
  if (out->grad_fn) {
    out->grad_fn->backward = [](Tensors& g, Tensors& saved) -> Tensors {
      const Tensor cube = empty_like(saved[0]);
      const Tensor scaled = empty_like(g[0]);
      return {empty_like(scaled)};
    };
  }
  return out;
}

// native_dropout (native/cuda/Dropout.cu): the mask is made first.
Tensor dropout(const Tensor& x, double p) {
  if (p == 0) return x;
  const Doing doing("dropout");
  const auto node = make_node("dropout", {x});
  Tensor mask = empty_like(x, DType::Bool);
  Tensor out = empty_like(x);
  if (node) {
    node->backward = [](Tensors& g, Tensors&) -> Tensors { return {empty_like(g[0])}; };
    node->saved.emplace_back(mask);
  }
  set_history(out, node);
  return out;
}

Tensor view(const Tensor& x, Sizes sizes) {
  const auto node = make_node("view", {x});
  Tensor out = reshaped(x, sizes);
  if (node) {
    const Sizes before = x->sizes;
    node->backward = [before](Tensors& g, Tensors&) -> Tensors { return {reshaped(g[0], before)}; };
  }
  set_history(out, node);
  return out;
}

Tensor transpose(const Tensor& x, int a, int b) {
  const auto node = make_node("transpose", {x});
  Tensor out = transposed(x, a, b);
  if (node) node->backward = [a, b](Tensors& g, Tensors&) -> Tensors { return {transposed(g[0], a, b)}; };
  set_history(out, node);
  return out;
}

Tensor t(const Tensor& x) { return transpose(x, 0, 1); }

Tensor slice_last(const Tensor& x, std::int64_t, std::int64_t count) {
  const auto node = make_node("slice", {x});
  Sizes sizes = x->sizes;
  sizes.back() = count;
  Tensor out = strided_view(x, sizes, x->strides);
  if (node) {
    const Sizes before = x->sizes;
    // slice_backward: zeros of the whole, contiguous whatever the input was.
    node->backward = [before](Tensors& g, Tensors&) -> Tensors { return {empty(before, g[0]->dtype)}; };
  }
  set_history(out, node);
  return out;
}

Tensors split_last(const Tensor& x, std::int64_t width) {
  const auto node = make_node("split", {x});
  Sizes sizes = x->sizes;
  sizes.back() = width;
  Tensors parts;
  for (std::int64_t at = 0; at < x->size(-1); at += width) parts.push_back(strided_view(x, sizes, x->strides));
  if (node) {
    node->outputs = static_cast<std::uint32_t>(parts.size());
    const Sizes before = x->sizes;
    node->backward = [before](Tensors& g, Tensors&) -> Tensors { return {empty(before, g[0]->dtype)}; };
  }
  for (std::uint32_t at = 0; at < parts.size(); ++at) set_history(parts[at], node, at);
  return parts;
}

Tensor cat_last(const Tensor& a, const Tensor& b) {
  const Doing doing("cat");
  const auto node = make_node("cat", {a, b});
  Sizes sizes = a->sizes;
  sizes.back() += b->size(-1);
  Tensor out = empty(sizes, a->dtype);
  if (node) {
    const Sizes first = a->sizes;
    const Sizes second = b->sizes;
    node->backward = [first, second](Tensors& g, Tensors&) -> Tensors {
      return {strided_view(g[0], first, g[0]->strides), strided_view(g[0], second, g[0]->strides)};
    };
  }
  set_history(out, node);
  return out;
}

// The gradient is expanded, which takes nothing, and divided.
Tensor mean_last(const Tensor& x) {
  const Doing doing("mean");
  const auto node = make_node("mean", {x});
  Sizes sizes = x->sizes;
  sizes.back() = 1;
  Tensor out = empty(sizes, x->dtype);
  if (node) {
    const Sizes before = x->sizes;
    node->backward = [before](Tensors& g, Tensors&) -> Tensors { return {empty(before, g[0]->dtype)}; };
  }
  set_history(out, node);
  return out;
}

Tensor on_backward(const Tensor& x, const char* name, std::function<void()> then) {
  const auto node = make_node(name, {x});
  if (!node) return x;
  Tensor out = strided_view(x, x->sizes, x->strides);
  node->backward = [then = std::move(then)](Tensors& g, Tensors&) -> Tensors {
    then();
    return {g[0]};
  };
  set_history(out, node);
  return out;
}

}  // namespace eager
