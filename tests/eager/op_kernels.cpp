// The operators with a kernel of their own: products, attention, norms, embedding, loss.
#include <algorithm>

#include "eager/op.h"

namespace eager {
namespace {

std::int64_t up_to(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// embedding_backward_cuda_kernel (native/cuda/EmbeddingBackwardKernel.cu) behind a sort (native/cuda/Embedding.cu),
// where cub takes nothing: no device is named.
Tensor sorted_gradient(const Sizes& table, std::int64_t n, DType dtype) {
  const auto numbers = [](std::int64_t count) { return empty({count}, DType::Int64); };
  const Tensor sorted = numbers(n);
  const Tensor original = numbers(n);
  numbers(n).reset();  // The range that is sorted beside.
  Tensor gradient = empty(table, dtype);
  const std::int64_t most = std::min(n, table[0]);
  const Tensor segment_offsets = numbers(n);
  const Tensor count = numbers(1);
  numbers(n).reset();  // unique_by_key's values.
  const Tensor partials = numbers(most);
  const Tensor partial_offsets = numbers(most);
  const Tensor all = numbers(1);
  const std::int64_t parts = n / 10 + most;
  const Tensor part_offsets = numbers(parts);
  const Tensor sums = empty({parts, table[1]}, DType::Float32);
  return gradient;
}

}  // namespace

// embedding_dense_backward; more than 3,072 indices are sorted first (native/cuda/Embedding.cu).
Tensor embedding(const Tensor& weight, const Tensor& ids) {
  const Doing doing("embedding");
  const auto node = make_node("embedding", {weight});
  if (node) node->saved.emplace_back(ids);
  Sizes sizes = ids->sizes;
  sizes.push_back(weight->size(-1));
  Tensor out = empty(sizes, weight->dtype);
  if (node) {
    const Sizes table = weight->sizes;
    node->backward = [table](Tensors& g, Tensors& saved) -> Tensors {
      const std::int64_t n = saved[0]->elements();
      if (n <= 3072) return {empty(table, g[0]->dtype)};
      return {sorted_gradient(table, n, g[0]->dtype)};
    };
  }
  set_history(out, node);
  return out;
}

// Per row mean and rstd in fp32 (native/cuda/layer_norm_kernel.cu).
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Doing doing("layer norm");
  const auto node = make_node("layer norm", {x, weight, bias});
  if (node) {
    node->saved.emplace_back(x);
    node->saved.emplace_back(weight);
    node->saved.emplace_back(bias);
  }
  Tensor out = empty_like(x);
  const Tensor mean = empty({x->elements() / x->size(-1)}, DType::Float32);
  const Tensor rstd = empty({x->elements() / x->size(-1)}, DType::Float32);
  if (node) {
    node->backward = [](Tensors& g, Tensors& saved) -> Tensors {
      Tensor dx = empty_like(g[0]);
      Tensor dweight = empty(saved[1]->sizes, saved[1]->dtype);
      Tensor dbias = empty(saved[1]->sizes, saved[1]->dtype);
      return {dx, dweight, dbias};
    };
    node->saved.emplace_back(mean);
    node->saved.emplace_back(rstd);
  }
  set_history(out, node);
  return out;
}

// The second operand's gradient comes first; it is laid out as that operand.
Tensor mm(const Tensor& a, const Tensor& b) {
  const Doing doing("mm");
  const auto node = make_node("mm", {a, b});
  if (node) {
    if (wants(*node, 1)) node->saved.emplace_back(a);
    if (wants(*node, 0)) node->saved.emplace_back(b);
    const Sizes left = a->sizes;
    const Sizes right = b->sizes;
    const bool first = wants(*node, 0);
    const bool second = wants(*node, 1);
    const bool flipped = !is_contiguous(*b);
    node->backward = [=](Tensors& g, Tensors&) -> Tensors {
      Tensors made(2);
      if (second) {
        made[1] = flipped ? transposed(empty({right[1], right[0]}, g[0]->dtype), 0, 1) : empty(right, g[0]->dtype);
      }
      if (first) made[0] = empty(left, g[0]->dtype);
      return made;
    };
  }
  Tensor out = empty({a->size(0), b->size(1)}, a->dtype);
  set_history(out, node);
  return out;
}

// First operand, second operand; the bias receives the incoming gradient, which is summed afterwards.
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b) {
  const Doing doing("addmm");
  const auto node = make_node("addmm", {bias, a, b});
  if (node) {
    if (wants(*node, 2)) node->saved.emplace_back(a);
    if (wants(*node, 1)) node->saved.emplace_back(b);
    const Sizes left = a->sizes;
    const Sizes right = b->sizes;
    node->backward = [left, right](Tensors& g, Tensors&) -> Tensors {
      Tensor da = empty(left, g[0]->dtype);
      Tensor db = empty(right, g[0]->dtype);
      return {g[0], da, db};
    };
  }
  Tensor out = empty({a->size(0), b->size(1)}, a->dtype);
  set_history(out, node);
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight) {
  const Tensor transposed_weight = t(weight);
  const Tensor rows = view(x, {x->elements() / x->size(-1), x->size(-1)});
  const Tensor product = mm(rows, transposed_weight);
  Sizes sizes = x->sizes;
  sizes.back() = weight->size(0);
  return view(product, sizes);
}

Tensor linear_stage3(const Tensor& x, const Tensor& weight) {
  const Doing doing("linear of stage 3");
  const auto node = make_node("linear of stage 3", {x, weight});
  Sizes sizes = x->sizes;
  sizes.back() = weight->size(0);
  Tensor out = empty(sizes, x->dtype);
  if (node) {
    const bool first = wants(*node, 0);
    const bool second = wants(*node, 1);
    node->backward = [first, second](Tensors& g, Tensors& saved) -> Tensors {
      Tensors made(2);
      if (first) made[0] = empty(saved[0]->sizes, g[0]->dtype);
      if (second) made[1] = empty({g[0]->size(-1), saved[0]->size(-1)}, g[0]->dtype);
      return made;
    };
    // A Python function packs what it saves after its forward has returned.
    node->saved.emplace_back(x);
    node->saved.emplace_back(weight);
  }
  set_history(out, node);
  return out;
}

namespace {

// q, k, v and the output lie as [B, S, H, D] and are seen as [B, H, S, D].
Tensor by_heads(const Tensor& like) {
  const Tensor made = empty({like->size(0), like->size(2), like->size(1), like->size(3)}, like->dtype);
  Tensor seen = transposed(made, 1, 2);
  seen->base.reset();  // Below autograd no view is recorded.
  return seen;
}

// Saved in the order of their names: key, query, value.
std::shared_ptr<Node> attention_node(const char* name, const Tensor& q, const Tensor& k, const Tensor& v) {
  auto node = make_node(name, {q, k, v});
  if (!node) return node;
  for (const Tensor& x : {k, q, v}) node->saved.emplace_back(x);
  return node;
}

void save_all(const std::shared_ptr<Node>& node, std::initializer_list<Tensor> tensors) {
  if (!node) return;
  for (const Tensor& x : tensors) node->saved.emplace_back(x);
}

}  // namespace

// csrc/flash_attn/flash_api.cpp, mha_fwd and mha_bwd; two tensors of random state whether or not there is dropout,
// and with it the first of them made twice.
Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool drops) {
  const Doing doing("flash attention");
  const auto node = attention_node("flash attention", q, k, v);
  Tensor out = by_heads(q);
  const Tensor logsumexp = empty({q->size(0), q->size(1), q->size(2)}, DType::Float32);
  const Tensor state = empty({2}, DType::Int64);
  const Tensor unused = empty({1}, DType::Int64);
  if (drops) (void)empty({2}, DType::Int64);
  if (node) {
    node->backward = [](Tensors&, Tensors& saved) -> Tensors {
      const Tensor& key = saved[0];
      const Tensor& query = saved[1];
      const std::int64_t heads = query->size(1);
      const std::int64_t dimension = query->size(3);
      const std::int64_t rows = up_to(query->size(2), 128);
      Tensor dq = by_heads(query);
      Tensor dk = by_heads(key);
      Tensor dv = by_heads(saved[2]);
      const Tensor softmax_d = empty({query->size(0), heads, rows}, DType::Float32);
      const Tensor dq_accum =
          empty({query->size(0), rows, heads, up_to(dimension, dimension <= 128 ? 32 : 64)}, DType::Float32);
      Tensor dk_expanded;
      Tensor dv_expanded;
      if (key->size(1) != heads) {
        dk_expanded = empty({query->size(0), key->size(2), heads, dimension}, query->dtype);
        dv_expanded = empty({query->size(0), key->size(2), heads, dimension}, query->dtype);
      }
      return {dq, dk, dv};
    };
  }
  save_all(node, {logsumexp, out, state, unused});
  set_history(out, node);
  return out;
}

// native/transformers/cuda/attention.cu and attention_backward.cu, fp32. The workspace: 64 columns of 64 or 128 queries
// and 16 bytes beside them (mem_eff_attention/kernel_backward.h, GradQTempStorage).
Tensor memory_efficient_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Doing doing("memory-efficient attention");
  const auto node = attention_node("memory-efficient attention", q, k, v);
  const std::int64_t rows = up_to(q->size(2), 32);
  Tensor out = by_heads(q);
  const Tensor logsumexp = empty({node ? q->size(0) : 0, q->size(1), rows}, DType::Float32);  // Without gradients none.
  if (node) {
    node->backward = [](Tensors&, Tensors& saved) -> Tensors {
      const Tensor& query = saved[1];
      const std::int64_t heads = query->size(1);
      Tensor dq = by_heads(query);
      Tensor dk = by_heads(saved[0]);
      Tensor dv = by_heads(saved[2]);
      Tensor product = empty(query->sizes, DType::Float32);
      Tensor sum = empty({query->size(0), heads, query->size(2)}, DType::Float32);
      const Tensor delta = heads > 1 && query->size(2) > 1 ? empty(sum->sizes, DType::Float32) : sum;
      sum.reset();
      product.reset();
      const std::int64_t block = query->size(3) <= 64 ? 64 : 128;
      const std::int64_t blocks = (query->size(2) + block - 1) / block * ((query->size(3) + 63) / 64);
      const Tensor workspace = empty({query->size(0) * heads * blocks * (block * 64 * 4 + 16)}, DType::UInt8);
      return {dq, dk, dv};
    };
  }
  save_all(node, {logsumexp, out});
  set_history(out, node);
  return out;
}

Tensor log_softmax(const Tensor& x) {
  const Doing doing("log softmax");
  const auto node = make_node("log softmax", {x});
  Tensor out = empty_like(x);
  if (node) {
    node->backward = [](Tensors& g, Tensors&) -> Tensors { return {empty_like(g[0])}; };
    node->saved.emplace_back(out);
  }
  set_history(out, node);
  return out;
}

Tensor nll_loss(const Tensor& x, const Tensor& target) {
  const Doing doing("nll loss");
  const auto node = make_node("nll loss", {x});
  if (node) {
    node->saved.emplace_back(x);
    node->saved.emplace_back(target);
  }
  Tensor out = empty({}, x->dtype);
  const Tensor total_weight = empty({}, x->dtype);
  if (node) {
    node->backward = [](Tensors&, Tensors& saved) -> Tensors { return {empty_like(saved[0])}; };
    node->saved.emplace_back(total_weight);
  }
  set_history(out, node);
  return out;
}

}  // namespace eager
