// Op-graphs: products of matrices, convolution, attention. What PyTorch copies before a product stands here as a node:
// the copy is what the product saves.
#include <algorithm>
#include <array>
#include <utility>

#include "model/op_graphs/op_graph_call.h"

#include "core/format.h"

namespace dsplan::op_graph_rules {
namespace {

std::int64_t last(const Shape& shape) { return shape.dims[shape.rank - 1U]; }

Shape with_last(Shape shape, std::int64_t features) {
  shape.dims[shape.rank - 1U] = features;
  return shape;
}

// Whether x is seen as [everything else, last dimension] without a copy.
bool folds(const OpCall& call, TensorId x) {
  const Shape& shape = call.w.shape(x);
  Strides ignored;
  const Shape flat{shape.elements().value() / last(shape), last(shape)};
  return view_strides(shape, call.w.strides(x), flat, ignored);
}

void refuse_product(OpCall& call, std::size_t a, std::size_t b) {
  call.refuse_input(b, formatted("mat1 and mat2 shapes cannot be multiplied ({} and {})", call.shape(a).text(),
                                 call.shape(b).text()));
}

Shape matrix_of(OpCall& call, std::size_t i) {
  if (call.shape(i).rank == 2) return call.shape(i);
  call.refuse_input(
      i, formatted("\"{}\" must be a matrix, and has shape {}", call.op.inputs[i].text, call.shape(i).text()));
}

// x against the last two dimensions of a weight, rows folded; a copy where they do not fold.
TensorId folded(OpCall& call, TensorId x, std::initializer_list<TensorId> others, std::int64_t features,
                Product product) {
  const TensorId operand = call.w.shape(x).rank > 2 && !folds(call, x) ? call.w.copied(x) : x;
  Tensors inputs = {operand};
  inputs.insert(inputs.end(), others.begin(), others.end());
  const TensorId out = call.w.make(Op::Linear, with_last(call.w.shape(x), features), call.w.dtype(x), inputs);
  call.w.latest().product = product;
  call.w.drop_if_other(operand, x);
  return out;
}

// An operand of a batched product: expanded to the common batch, then reshaped to three dimensions, which copies where
// the strides do not allow a view (aten/src/ATen/native/LinearAlgebra.cpp, _matmul_impl).
TensorId batched(OpCall& call, TensorId x, const Shape& batch) {
  const Shape& from = call.w.shape(x);
  Shape shape = batch;
  Strides strides{};
  shape.dims[shape.rank++] = from.dims[from.rank - 2U];
  shape.dims[shape.rank++] = last(from);
  for (std::size_t i = 1; i <= from.rank; ++i) {
    const bool repeated = from.dims[from.rank - i] != shape.dims[shape.rank - i];
    strides[shape.rank - i] = repeated ? 0 : call.w.strides(x)[from.rank - i];
  }
  const bool expanded = shape.elements() != from.elements();
  const TensorId wide = expanded ? call.w.view(Op::Expand, x, shape, strides) : x;
  const Shape flat{batch.elements().value(), from.dims[from.rank - 2U], last(from)};
  Strides ignored;
  if (view_strides(shape, strides, flat, ignored)) return wide;
  const TensorId copy = call.w.make(Op::Contiguous, shape, call.w.dtype(x), {wide});
  call.w.drop_if_other(wide, x);
  return copy;
}

TensorId batched_product(OpCall& call, TensorId a, TensorId b) {
  const Shape left = call.w.shape(a);
  const Shape right = call.w.shape(b);
  Shape left_batch = left;
  Shape right_batch = right;
  left_batch.rank = static_cast<std::uint8_t>(left.rank - 2U);
  right_batch.rank = static_cast<std::uint8_t>(right.rank - 2U);
  for (Shape* batch : {&left_batch, &right_batch}) {
    std::fill(batch->dims.begin() + batch->rank, batch->dims.end(), 0);
  }
  const std::optional<Shape> batch = broadcast(left_batch, right_batch);
  if (!batch) {
    call.refuse(formatted("the batch dimensions of {} and {} do not broadcast", left.text(), right.text()));
  }
  const TensorId first = batched(call, a, *batch);
  const TensorId second = batched(call, b, *batch);
  Shape result = *batch;
  result.dims[result.rank++] = left.dims[left.rank - 2U];
  result.dims[result.rank++] = last(right);
  const TensorId out = call.w.make(Op::Matmul, result, call.w.dtype(a), {first, second});
  call.w.drop_if_other(first, a);
  call.w.drop_if_other(second, b);
  return out;
}

}  // namespace

// nn.functional.linear(x, weight, bias): addmm with a bias where the rows of x fold, else a product and an addition in
// place (aten/src/ATen/native/Linear.cpp).
Tensors linear(OpCall& call, Op) {
  call.floating(0);
  call.same_dtype(0, 1);
  const Shape weight = matrix_of(call, 1);
  if (call.shape(0).rank == 0 || last(call.shape(0)) != weight.dims[1]) refuse_product(call, 0, 1);
  if (call.shape(0).rank == 1) call.not_modelled("linear of a tensor with one dimension");
  const std::int64_t features = weight.dims[0];
  if (call.in.size() == 2) return {folded(call, call.in[0], {call.in[1]}, features, Product::Transposed)};
  call.same_dtype(0, 2);
  if (call.shape(2) != Shape{features}) {
    call.refuse_input(2, formatted("the bias of {} features has shape {}", features, call.shape(2).text()));
  }
  if (call.shape(0).rank == 2 || is_contiguous(call.shape(0), call.w.strides(call.in[0]))) {
    return {folded(call, call.in[0], {call.in[1], call.in[2]}, features, Product::Transposed)};
  }
  const TensorId product = folded(call, call.in[0], {call.in[1]}, features, Product::Transposed);
  const Tensors sum = {product, call.in[2]};
  const TensorId out = call.w.in_place(Op::Add, sum);
  call.w.drop(product);
  return {out};
}

// addmm(bias, mat1, mat2).
Tensors addmm(OpCall& call, Op) {
  call.floating(1);
  call.same_dtype(1, 2);
  call.same_dtype(1, 0);
  const Shape left = matrix_of(call, 1);
  const Shape right = matrix_of(call, 2);
  if (left.dims[1] != right.dims[0]) refuse_product(call, 1, 2);
  if (call.shape(0) != Shape{right.dims[1]}) call.not_modelled("addmm of anything but a row of biases");
  const TensorId out =
      call.w.make(Op::Linear, Shape{left.dims[0], right.dims[1]}, call.dtype(1), {call.in[1], call.in[2], call.in[0]});
  call.w.latest().product = Product::Direct;
  return {out};
}

Tensors mm(OpCall& call, Op op) {
  call.floating(0);
  call.same_dtype(0, 1);
  const Shape left = matrix_of(call, 0);
  const Shape right = matrix_of(call, 1);
  if (left.dims[1] != right.dims[0]) refuse_product(call, 0, 1);
  return {call.w.make(op, Shape{left.dims[0], right.dims[1]}, call.dtype(0), call.in)};
}

Tensors bmm(OpCall& call, Op op) {
  call.floating(0);
  call.same_dtype(0, 1);
  const Shape& left = call.shape(0);
  const Shape& right = call.shape(1);
  for (std::size_t i : {0U, 1U}) {
    if (call.shape(i).rank != 3) call.refuse_input(i, "batch1 and batch2 must have three dimensions");
  }
  if (left.dims[0] != right.dims[0] || left.dims[2] != right.dims[1]) refuse_product(call, 0, 1);
  return {call.w.make(op, Shape{left.dims[0], left.dims[1], right.dims[2]}, call.dtype(0), call.in)};
}

Tensors matmul(OpCall& call, Op) {
  call.floating(0);
  call.same_dtype(0, 1);
  const Shape& left = call.shape(0);
  const Shape& right = call.shape(1);
  if (left.rank < 2 || right.rank < 2) call.not_modelled("matmul with a vector");
  if (last(left) != right.dims[right.rank - 2U]) refuse_product(call, 0, 1);
  if (left.rank == 2 && right.rank == 2) return mm(call, Op::Mm);
  if (left.rank == 2) call.not_modelled("matmul of a matrix with a batch");
  // A batch against a matrix is one product of matrices, if the matrix needs a gradient or the batch folds
  // (LinearAlgebra.cpp, should_fold).
  const bool fold = right.rank == 2 && (call.w.tensor(call.in[1]).requires_grad || folds(call, call.in[0]));
  if (fold) return {folded(call, call.in[0], {call.in[1]}, last(right), Product::Direct)};
  return {batched_product(call, call.in[0], call.in[1])};
}

// torch._grouped_mm(x, weight, offs): group g takes the rows of x up to offs[g].
Tensors grouped_mm(OpCall& call, Op op) {
  if (call.dtype(0) != DType::BFloat16)
    call.refuse_input(0, "Expected mat_a to be Float32, BFloat16 or Float16 tensor", "modelled for bfloat16");
  call.same_dtype(0, 1);
  const Shape x = matrix_of(call, 0);
  const Shape& weight = call.shape(1);
  if (weight.rank != 3) call.not_modelled("grouped_mm of anything but rows with a weight of three dimensions");
  if (x.dims[1] != weight.dims[1]) refuse_product(call, 0, 1);
  if (call.dtype(2) != DType::Int32) call.refuse_input(2, "Offsets have to be int32");
  if (call.shape(2) != Shape{weight.dims[0]}) {
    call.refuse_input(2, formatted("{} groups have {} offsets", weight.dims[0], call.shape(2).text()));
  }
  return {call.w.make(op, Shape{x.dims[0], weight.dims[2]}, call.dtype(0), call.in)};
}

namespace {

// softmax(q k^T / sqrt(d)) in fp32, cast back, times v: transformers' eager attention.
TensorId eager_attention(OpCall& call, TensorId q, TensorId k, TensorId v) {
  Shape shape = call.w.shape(k);
  Strides strides = call.w.strides(k);
  std::swap(shape.dims[2], shape.dims[3]);
  std::swap(strides[2], strides[3]);
  const TensorId turned = call.w.view(Op::View, k, shape, strides);
  const TensorId raw = batched_product(call, q, turned);
  call.w.drop(turned);
  const TensorId scores = call.w.unary(Op::MulScalar, raw);
  call.w.drop(raw);
  const TensorId soft = softmax_of(call, Op::Softmax, scores, 3, DType::Float32);
  const TensorId weights = call.w.cast(soft, call.w.dtype(q));
  call.w.drop_if_other(soft, weights);
  call.w.drop(scores);  // The variable's old value, until the new one is there.
  const TensorId out = batched_product(call, weights, v);
  call.w.drop(weights);
  return out;
}

// 0 where a query may see a key, else minus infinity (attention.cpp, convert_boolean_attn_mask).
TensorId causal_mask(OpCall& call, const Shape& shape, DType dtype) {
  const TensorId ones = call.w.make(Op::Arange, shape, DType::Bool, {}, false);
  const TensorId lower = call.w.make(Op::Tril, shape, DType::Bool, {ones}, false);
  call.w.drop(ones);
  const TensorId zero = call.w.make(Op::Arange, Shape{}, dtype, {}, false);
  const TensorId infinity = call.w.make(Op::Arange, Shape{}, dtype, {}, false);
  const TensorId mask = call.w.make(Op::Where, shape, dtype, {lower, zero, infinity}, false);
  call.w.drop(zero);
  call.w.drop(infinity);
  call.w.drop(lower);
  return mask;
}

// Keys or values once for each query head.
TensorId for_each_head(OpCall& call, TensorId x, std::int64_t heads) {
  Shape shape = call.w.shape(x);
  if (shape.dims[1] == heads) return x;
  shape.dims[1] = heads;
  return call.w.make(Op::RepeatInterleave, shape, call.w.dtype(x), {x});
}

// aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math: half types in fp32, both factors
// scaled by the root, the mask added in place, a softmax that gives zeros to rows without a key. The weights are cast
// back though nobody asks for them.
TensorId math_attention(OpCall& call, bool causal, double dropout) {
  OpGraphWriter& w = call.w;
  const DType origin = call.dtype(0);
  const DType to = origin == DType::Float64 ? DType::Float64 : DType::Float32;
  const std::int64_t heads = call.shape(0).dims[1];
  std::array<TensorId, 3> wide{};
  for (std::size_t i = 0; i < 3; ++i) wide[i] = w.cast(call.in[i], to);
  const TensorId q = w.unary(Op::MulScalar, wide[0]);
  const TensorId mask = causal ? causal_mask(call, Shape{call.shape(0).dims[2], call.shape(1).dims[2]}, to) : kNone;
  const TensorId k = for_each_head(call, wide[1], heads);
  const TensorId v = for_each_head(call, wide[2], heads);
  Shape turned = w.shape(k);
  Strides strides = w.strides(k);
  std::swap(turned.dims[2], turned.dims[3]);
  std::swap(strides[2], strides[3]);
  const TensorId view = w.view(Op::View, k, turned, strides);
  const TensorId scaled = w.unary(Op::MulScalar, view);
  w.drop(view);
  TensorId scores = batched_product(call, q, scaled);
  w.drop(scaled);
  if (causal) {
    const TensorId masked = w.in_place(Op::Add, Tensors{scores, mask});
    w.drop(std::exchange(scores, masked));
  }
  TensorId weights = softmax_of(call, Op::Softmax, scores, 3, to);
  w.latest().safe = true;
  w.drop(scores);
  if (dropout > 0) w.drop(std::exchange(weights, w.unary(Op::Dropout, weights, dropout)));
  const TensorId unused = w.cast(weights, origin);
  const TensorId out = batched_product(call, weights, v);
  const TensorId result = w.cast(out, origin);
  w.drop_if_other(out, result);
  w.drop_if_other(unused, weights);
  w.drop(weights);
  if (causal) w.drop(mask);
  w.drop_if_other(v, wide[2]);
  w.drop_if_other(k, wide[1]);
  w.drop(q);
  for (std::size_t i = 0; i < 3; ++i) w.drop_if_other(wide[i], call.in[i]);
  return result;
}

}  // namespace

Tensors attention(OpCall& call, Op op) {
  call.floating(0);
  const std::string kernel = call.choice("kernel", {"flash", "mem-efficient", "cudnn", "eager", "math"}, "flash");
  const bool causal = call.flag("is_causal", false);
  for (std::size_t i = 0; i < 3; ++i) {
    call.same_dtype(0, i);
    if (call.shape(i).rank != 4) call.refuse_input(i, "attention is modelled for [batch, heads, sequence, head]");
  }
  const Shape q = call.shape(0);
  const Shape k = call.shape(1);
  if (k != call.shape(2)) call.not_modelled("attention whose keys and values differ in shape");
  if (q.dims[0] != k.dims[0] || q.dims[3] != k.dims[3] || q.dims[1] % k.dims[1] != 0) {
    call.refuse_input(1, formatted("keys {} do not fit queries {}", k.text(), q.text()));
  }
  const bool grouped = q.dims[1] != k.dims[1];
  if (grouped && !call.flag("enable_gqa", false)) call.refuse_input(1, "fewer key heads need \"enable_gqa\": true");
  const double dropout = call.number("dropout_p", 0.0);
  if (dropout < 0 || dropout >= 1) call.refuse_key("dropout_p", "dropout probability has to be between 0 and 1");
  if (kernel == "math") return {math_attention(call, causal, dropout)};
  if (dropout > 0) call.not_modelled(formatted("dropout in the {} kernel", kernel));
  if (kernel == "eager") {
    if (causal || grouped) call.not_modelled("eager attention with a mask or grouped heads");
    return {eager_attention(call, call.in[0], call.in[1], call.in[2])};
  }
  if (call.dtype(0) != DType::Float16 && call.dtype(0) != DType::BFloat16 && kernel != "mem-efficient") {
    call.refuse_input(0, formatted("the {} kernel takes half types only", kernel));
  }
  if (q.dims[2] != k.dims[2]) call.not_modelled("attention of queries to a longer or shorter sequence");
  if (q.dims[3] % 8 != 0) call.not_modelled("a head size that is no multiple of 8");
  const TensorId out = call.w.make(op, q, call.dtype(0), call.in);
  call.w.latest().attention = kernel == "flash"   ? AttentionKernel::Flash
                              : kernel == "cudnn" ? AttentionKernel::CuDnn
                                                  : AttentionKernel::MemoryEfficient;
  call.w.latest().full_attention = !causal;
  return {out};
}

}  // namespace dsplan::op_graph_rules
