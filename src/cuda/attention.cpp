// Attention's operator: its tensors, checked and seen as its kernels read them.
#include "cuda/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dsplan::cuda {
namespace {

Heads by_head(const dsplan_tensor& tensor) {
  return {static_cast<unsigned char*>(tensor.data),
          dtype_of(tensor),
          tensor.strides[0],
          tensor.strides[1],
          tensor.strides[2],
          tensor.strides[3]};
}

// [B, S, H, D] in memory.
Heads by_token(const dsplan_tensor& tensor) {
  Heads heads = by_head(tensor);
  std::swap(heads.head, heads.token);
  return heads;
}

bool is_flash(const Args& args) {
  return static_cast<AttentionKernel>(args.integer(DSPLAN_ATTENTION)) == AttentionKernel::Flash;
}

const std::int64_t* integers_of(const dsplan_tensor& tensor) { return static_cast<const std::int64_t*>(tensor.data); }

Attention problem_of(const Args& args, const dsplan_tensor& q, const dsplan_tensor& k, const dsplan_tensor& v,
                     const dsplan_tensor* bias) {
  expect(q.rank == 4 && k.rank == 4 && v.rank == 4, "attention takes four dimensions");
  expect_dims(v, std::array{k.dims[0], k.dims[1], k.dims[2], v.dims[3]}, "the values");
  Attention a;
  a.batch = q.dims[0];
  a.heads = q.dims[1];
  a.kv_heads = k.dims[1];
  a.queries = q.dims[2];
  a.keys = k.dims[2];
  a.width = q.dims[3];
  a.values = v.dims[3];
  expect(a.width <= kMostWidth && a.values <= kMostWidth, "heads wider than 256");
  expect(a.heads % a.kv_heads == 0, "heads do not divide into groups");
  a.scale = exec::host::attention_scale(args, a.width - args.integer(DSPLAN_PADDING));
  a.causal = !args.flag(DSPLAN_FLAG_FULL_ATTENTION) && bias == nullptr;
  a.q = by_head(q);
  a.k = by_head(k);
  a.v = by_head(v);
  a.p = args.number();
  a.random = {args.random().key, args.random().first_sample};
  a.of_sample = a.batch * a.heads * a.queries * a.keys / std::max<std::int64_t>(1, args.random().samples);
  if (bias != nullptr) {
    a.bias_columns = last_of(*bias);
    expect(a.bias_columns >= a.keys, "the bias has fewer columns than keys");
    const std::array dims{a.batch, a.heads, a.queries, a.bias_columns};
    a.bias = exec::host::broadcast(*bias, dims);
  }
  return a;
}

// Flash keeps what decides dropout on the device, as its kernel keeps the state of its generator.
void keep_random(const Args& args, const Queue& queue, Attention& a) {
  expect_count(args.extra(1), 2, "the random state");
  expect_count(args.extra(2), 1, "the random state");
  put_integer(queue, args.extra(1), 0, static_cast<std::int64_t>(args.random().key));
  put_integer(queue, args.extra(1), 1, args.random().first_sample);
  put_integer(queue, args.extra(2), 0, 0);
  a.kept_random = integers_of(args.extra(1));
}

void forward(const Args& args, const Queue& queue) {
  Attention a = problem_of(args, args.in(0), args.in(1), args.in(2), args.has_in(3) ? &args.in(3) : nullptr);
  expect_dims(args.output(), std::array{a.batch, a.heads, a.queries, a.values}, "the output");
  if (is_flash(args)) keep_random(args, queue, a);
  a.out = by_head(args.output());
  if (const dsplan_tensor* lse = args.find(SlotKind::Extra, 0)) {
    expect(lse->rank == 3 && lse->dims[0] == a.batch && lse->dims[1] == a.heads && lse->dims[2] >= a.queries,
           "the log-sum-exp has other dimensions");
    fill(queue, *lse, std::numeric_limits<double>::infinity());
    a.lse = strided(*lse);
    a.lse_rows = last_of(*lse);
  }
  attention_forward(queue, a);
}

const dsplan_tensor& gradient_or_temporary(const Args& args, std::size_t i, std::size_t& next) {
  if (args.needs(i)) return args.gradient(i);
  return args.temporary(next++);
}

// Of a gradient for each of the query's heads [B, S, H, D], the sum over each group.
void sum_groups(const Queue& queue, const dsplan_tensor& expanded, const dsplan_tensor& to) {
  const std::int64_t own = to.dims[1];
  dsplan_tensor from = expanded;  // -> [B, own, group, S, D].
  from.rank = 5;
  const std::array dims{expanded.dims[0], own, expanded.dims[2] / own, expanded.dims[1], expanded.dims[3]};
  const std::array strides{expanded.strides[0], expanded.strides[2] * dims[2], expanded.strides[2], expanded.strides[1],
                           expanded.strides[3]};
  std::copy(dims.begin(), dims.end(), from.dims);
  std::copy(strides.begin(), strides.end(), from.strides);
  dsplan_tensor target = to;
  target.rank = 5;
  const std::array target_dims{to.dims[0], own, std::int64_t{1}, to.dims[2], to.dims[3]};
  const std::array target_strides{to.strides[0], to.strides[1], std::int64_t{0}, to.strides[2], to.strides[3]};
  std::copy(target_dims.begin(), target_dims.end(), target.dims);
  std::copy(target_strides.begin(), target_strides.end(), target.strides);
  sum_to(queue, from, target);
}

// What the memory-efficient kernel does not do itself in wide types: gradient times output, and room for its sums, of
// which the last part makes them.
bool is_preparation(const Args& args) {
  const dsplan_tensor& q = args.saved_in(0);
  if (is_flash(args) || dtype_of(q) == DType::BFloat16 || dtype_of(q) == DType::Float16) return false;
  return args.part() < (q.dims[1] > 1 && q.dims[2] > 1 ? 3U : 2U);
}

void prepare(const Args& args, const Queue& queue) {
  if (args.part() > 0) return fill(queue, args.latest(), 0);
  map(queue, arithmetic_of(dtype_of(args.latest())), args.latest(),
      {Function::Mul, {&args.gradient_of(), &args.saved_out(0)}});
}

void backward(const Args& args, const Queue& queue) {
  if (is_preparation(args)) return prepare(args, queue);
  const dsplan_tensor* bias = args.integer(DSPLAN_INPUTS) > 3 ? &args.saved_in(3) : nullptr;
  Attention a = problem_of(args, args.saved_in(0), args.saved_in(1), args.saved_in(2), bias);
  if (is_flash(args)) a.kept_random = integers_of(args.saved_extra(1));
  a.out = by_head(args.saved_out(0));
  a.lse = strided(args.saved_extra(0));
  a.lse_rows = last_of(args.saved_extra(0));
  // Temporaries stand in the order in which they are made: copies of gradient and output first.
  std::size_t next = exec::host::copies_by_token(args);
  const dsplan_tensor& q = gradient_or_temporary(args, 0, next);
  const dsplan_tensor& k = gradient_or_temporary(args, 1, next);
  const dsplan_tensor& v = gradient_or_temporary(args, 2, next);
  // The memory-efficient kernel's last part finds the sums made, and perhaps copied, before.
  if (args.part() > 0) next += args.part() - 1;
  const dsplan_tensor& delta = args.temporary(next++);
  expect_dims(q, dims_of(args.saved_in(0)), "the gradient of queries");
  expect_dims(k, dims_of(args.saved_in(1)), "the gradient of keys");
  expect_dims(v, dims_of(args.saved_in(2)), "the gradient of values");
  expect(delta.rank == 3 && last_of(delta) >= a.queries, "the sums are too few");
  AttentionGradients g;
  g.incoming = by_head(args.gradient_of());
  g.q = by_head(q);
  g.delta = strided(delta);
  g.delta_rows = last_of(delta);
  fill(queue, delta, 0);
  const dsplan_tensor* expanded_k = nullptr;
  const dsplan_tensor* expanded_v = nullptr;
  if (is_flash(args)) {
    const dsplan_tensor& accumulated = args.temporary(next++);
    expect(accumulated.dims[1] >= a.queries && accumulated.dims[2] == a.heads && accumulated.dims[3] >= a.width,
           "the accumulated gradient is too small");
    fill(queue, accumulated, 0);
    g.accumulated = by_token(accumulated);
    expanded_k = args.find(SlotKind::Temporary, next++);
    expanded_v = args.find(SlotKind::Temporary, next++);
  }
  g.expanded = expanded_k != nullptr;
  expect(g.expanded || !is_flash(args) || a.heads == a.kv_heads, "grouped heads without gradients of their own");
  g.k = g.expanded ? by_token(*expanded_k) : by_head(k);
  g.v = g.expanded ? by_token(*expanded_v) : by_head(v);
  attention_backward(queue, a, g);
  if (!g.expanded) return;
  sum_groups(queue, *expanded_k, k);
  sum_groups(queue, *expanded_v, v);
}

}  // namespace

bool run_attention(const Args& args, const Queue& queue) {
  if (args.op() != Op::Attention) return false;
  args.backward() ? backward(args, queue) : forward(args, queue);
  return true;
}

}  // namespace dsplan::cuda
