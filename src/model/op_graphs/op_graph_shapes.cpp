// Op-graphs: views, parts, joins and copies of tensors. A view is one wherever PyTorch makes one; reshape copies where
// the strides do not allow a view.
#include <algorithm>
#include <utility>

#include "model/op_graphs/op_graph_call.h"

#include "core/format.h"

namespace dsplan::op_graph_rules {
namespace {

// "shape" with at most one -1, resolved for as many elements as input 0 has.
Shape asked_shape(OpCall& call) {
  const std::vector<std::int64_t> dims = call.wholes("shape");
  if (dims.size() > Shape::kMostDims) {
    call.refuse_key("shape", formatted("{} dimensions; at most {} are modelled", dims.size(), Shape::kMostDims));
  }
  Shape shape;
  std::int64_t known = 1;
  std::size_t open = Shape::kMostDims;
  const std::int64_t elements = call.shape(0).elements().value();
  const auto mismatch = [&] {
    call.refuse_key("shape", formatted("shape {} does not hold the {} elements of \"{}\"", shape.text(), elements,
                                       call.op.inputs[0].text));
  };
  for (std::int64_t dim : dims) {
    if (dim == -1 && open == Shape::kMostDims) {
      open = shape.rank;
    } else if (dim < 1) {
      call.refuse_key("shape", formatted("a dimension must be at least 1, not {}", dim), "one may be -1");
    }
    shape.dims[shape.rank++] = dim;
    if (dim != -1 && __builtin_mul_overflow(known, dim, &known)) mismatch();
  }
  if (open < Shape::kMostDims) {
    if (elements % known != 0) mismatch();
    shape.dims[open] = elements / known;
    known = elements;
  }
  if (known != elements) mismatch();
  return shape;
}

Tensors reshaped(OpCall& call, const Shape& to, bool may_copy) {
  const TensorId x = call.in[0];
  Strides strides;
  if (view_strides(call.w.shape(x), call.w.strides(x), to, strides)) {
    if (may_copy && to == call.w.shape(x)) return {x};  // reshape to the same shape is an alias of its own.
    return {call.w.view(Op::View, x, to, strides)};
  }
  if (!may_copy) {
    call.refuse(
        "view size is not compatible with input tensor's size and stride (at least one dimension spans across "
        "two contiguous subspaces)",
        "reshape copies then");
  }
  const TensorId copy = call.w.copied(x);
  const TensorId out = call.w.view(Op::View, copy, to, contiguous_strides(to));
  call.w.drop(copy);
  return {out};
}

Tensors joined(OpCall& call, Op op, Shape shape) {
  const bool floating = is_floating(call.dtype(0));
  call.shape_in_bounds(shape);
  return {call.w.make(op, shape, call.dtype(0), call.in, floating)};
}

// [begin, end) of a dimension of length `length`, as Python's slices.
std::pair<std::int64_t, std::int64_t> bounds(OpCall& call, std::int64_t length) {
  const auto clipped = [&](std::int64_t at) {
    if (at < 0) at += length;
    return std::clamp<std::int64_t>(at, 0, length);
  };
  const std::int64_t begin = clipped(call.whole("start", INT64_MIN + length, INT64_MAX, 0));
  if (call.attributes.has("length")) return {begin, begin + call.whole("length", 1, length - begin, std::nullopt)};
  return {begin, clipped(call.whole("end", INT64_MIN + length, INT64_MAX, length))};
}

Tensors parts(OpCall& call, std::size_t dim, const std::vector<std::int64_t>& sizes) {
  if (sizes.size() != call.op.outputs.size()) {
    call.refuse(formatted("{} gives {} tensors, and {} names stand under \"outputs\"", call.op.op.text, sizes.size(),
                          call.op.outputs.size()));
  }
  std::vector<Shape> shapes(sizes.size(), call.shape(0));
  for (std::size_t i = 0; i < sizes.size(); ++i) shapes[i].dims[dim] = sizes[i];
  const std::vector<Strides> strides(sizes.size(), call.w.strides(call.in[0]));
  Tensors made = call.w.views(Op::Split, call.in[0], shapes, strides);
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return made;
}

std::vector<std::int64_t> cut(std::int64_t length, std::int64_t size) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t at = 0; at < length; at += size) sizes.push_back(std::min(size, length - at));
  return sizes;
}

void needs_rank(OpCall& call, std::size_t least) {
  if (call.shape(0).rank >= least) return;
  call.refuse_input(
      0, formatted("{} needs a tensor with at least {} dimension{}", call.op.op.text, least, least == 1 ? "" : "s"));
}

}  // namespace

Tensors view(OpCall& call, Op) { return reshaped(call, asked_shape(call), false); }
Tensors reshape(OpCall& call, Op) { return reshaped(call, asked_shape(call), true); }

Tensors flatten(OpCall& call, Op) {
  const Shape& from = call.shape(0);
  const std::size_t first = call.dimension("start_dim", from.rank, 0);
  const std::size_t last = call.dimension("end_dim", from.rank, -1);
  if (first > last) call.refuse("flatten() has invalid args: start_dim cannot come after end_dim");
  Shape to;
  std::int64_t merged = 1;
  for (std::size_t i = 0; i < from.rank; ++i) {
    merged *= from.dims[i];
    if (i >= first && i < last) continue;
    to.dims[to.rank++] = merged;
    merged = 1;
  }
  if (from.rank == 0) to = Shape{1};
  return reshaped(call, to, true);
}

Tensors transpose(OpCall& call, Op) {
  Shape shape = call.shape(0);
  Strides strides = call.w.strides(call.in[0]);
  std::size_t a = 0;
  std::size_t b = 1;
  if (call.op.op.text == "t") {
    if (shape.rank != 2) call.refuse_input(0, "t() expects a tensor with 2 dimensions");
  } else {
    a = call.dimension("dim0", shape.rank, std::nullopt);
    b = call.dimension("dim1", shape.rank, std::nullopt);
  }
  std::swap(shape.dims[a], shape.dims[b]);
  std::swap(strides[a], strides[b]);
  return {call.w.view(Op::View, call.in[0], shape, strides)};
}

Tensors permute(OpCall& call, Op) {
  const Shape& from = call.shape(0);
  const std::vector<std::int64_t> order = call.wholes("dims");
  if (order.size() != from.rank) {
    call.refuse_key("dims", formatted("{} dimensions for a tensor with {}", order.size(), from.rank));
  }
  (void)call.dimensions("dims", from.rank);  // Refuses what is out of range or named twice.
  Shape shape = from;
  Strides strides{};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto at = static_cast<std::size_t>(order[i] < 0 ? order[i] + from.rank : order[i]);
    shape.dims[i] = from.dims[at];
    strides[i] = call.w.strides(call.in[0])[at];
  }
  return {call.w.view(Op::View, call.in[0], shape, strides)};
}

Tensors squeeze(OpCall& call, Op) {
  const Shape& from = call.shape(0);
  const std::vector<bool> chosen = call.dimensions("dim", from.rank);
  Shape shape;
  Strides strides{};
  for (std::size_t i = 0; i < from.rank; ++i) {
    if (chosen[i] && from.dims[i] == 1) continue;
    strides[shape.rank] = call.w.strides(call.in[0])[i];
    shape.dims[shape.rank++] = from.dims[i];
  }
  return {call.w.view(Op::View, call.in[0], shape, strides)};
}

Tensors unsqueeze(OpCall& call, Op) {
  const Shape& from = call.shape(0);
  if (from.rank == Shape::kMostDims) call.not_modelled("a tensor with more than six dimensions");
  const std::size_t dim = call.dimension("dim", from.rank + 1U, std::nullopt);
  Shape shape = from;
  Strides strides = call.w.strides(call.in[0]);
  for (std::size_t i = from.rank; i > dim; --i) {
    shape.dims[i] = shape.dims[i - 1];
    strides[i] = strides[i - 1];
  }
  shape.dims[dim] = 1;
  strides[dim] = dim < from.rank ? from.dims[dim] * call.w.strides(call.in[0])[dim] : 1;
  ++shape.rank;
  return {call.w.view(Op::View, call.in[0], shape, strides)};
}

Tensors expand(OpCall& call, Op op) {
  const Shape& from = call.shape(0);
  const std::vector<std::int64_t> dims = call.wholes("shape");
  if (dims.size() > Shape::kMostDims || dims.size() < from.rank) {
    call.refuse_key("shape", formatted("{} dimensions for a tensor with {}", dims.size(), from.rank));
  }
  const std::size_t added = dims.size() - from.rank;
  Shape shape;
  Strides strides{};
  shape.rank = static_cast<std::uint8_t>(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::int64_t old = i < added ? 1 : from.dims[i - added];
    shape.dims[i] = dims[i] == -1 && i >= added ? old : dims[i];
    if (shape.dims[i] < 1 || (old != 1 && shape.dims[i] != old)) {
      call.refuse_key("shape", formatted("the expanded size ({}) must match the existing size ({}) at dimension {}",
                                         dims[i], old, i));
    }
    strides[i] = i < added || old != shape.dims[i] ? 0 : call.w.strides(call.in[0])[i - added];
  }
  call.shape_in_bounds(shape);
  const bool same = shape.elements() == from.elements();
  return {call.w.view(same ? Op::View : op, call.in[0], shape, strides)};
}

Tensors slice(OpCall& call, Op op) {
  needs_rank(call, 1);
  Shape shape = call.shape(0);
  const std::size_t dim = call.dimension("dim", shape.rank, 0);
  const auto [begin, end] = bounds(call, shape.dims[dim]);
  if (begin >= end) call.refuse(formatted("nothing lies from {} to {}", begin, end));
  shape.dims[dim] = end - begin;
  const TensorId out = call.w.view(op, call.in[0], shape, call.w.strides(call.in[0]));
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

Tensors select(OpCall& call, Op op) {
  needs_rank(call, 1);
  const Shape& from = call.shape(0);
  const std::size_t dim = call.dimension("dim", from.rank, 0);
  const std::int64_t length = from.dims[dim];
  (void)call.whole("index", -length, length - 1, 0);
  Shape shape;
  Strides strides{};
  for (std::size_t i = 0; i < from.rank; ++i) {
    if (i == dim) continue;
    strides[shape.rank] = call.w.strides(call.in[0])[i];
    shape.dims[shape.rank++] = from.dims[i];
  }
  const TensorId out = call.w.view(op, call.in[0], shape, strides);
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

Tensors split(OpCall& call, Op) {
  needs_rank(call, 1);
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, 0);
  const std::int64_t length = call.shape(0).dims[dim];
  const std::vector<std::int64_t> sizes = call.wholes("split_size");
  const bool one = call.attributes.find("split_size")->is(Value::Kind::Integer);
  std::int64_t sum = 0;
  for (std::int64_t size : sizes) {
    if (size < 1 || size > length) call.refuse_key("split_size", formatted("a part must be from 1 to {}", length));
    sum += size;
  }
  if (one) return parts(call, dim, cut(length, sizes[0]));
  if (sum != length) call.refuse_key("split_size", formatted("the parts add up to {}, not to {}", sum, length));
  return parts(call, dim, sizes);
}

Tensors chunk(OpCall& call, Op) {
  needs_rank(call, 1);
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, 0);
  const std::int64_t length = call.shape(0).dims[dim];
  const std::int64_t chunks = call.whole("chunks", 1, INT64_MAX, std::nullopt);
  return parts(call, dim, cut(length, length / chunks + (length % chunks != 0 ? 1 : 0)));
}

Tensors unbind(OpCall& call, Op op) {
  needs_rank(call, 1);
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, 0);
  const std::int64_t length = call.shape(0).dims[dim];
  if (length != static_cast<std::int64_t>(call.op.outputs.size())) {
    call.refuse(
        formatted("unbind gives {} tensors, and {} names stand under \"outputs\"", length, call.op.outputs.size()));
  }
  Shape shape;
  Strides strides{};
  for (std::size_t i = 0; i < call.shape(0).rank; ++i) {
    if (i == dim) continue;
    strides[shape.rank] = call.w.strides(call.in[0])[i];
    shape.dims[shape.rank++] = call.shape(0).dims[i];
  }
  const std::vector<Shape> shapes(call.op.outputs.size(), shape);
  return call.w.views(op, call.in[0], shapes, std::vector<Strides>(call.op.outputs.size(), strides));
}

Tensors contiguous(OpCall& call, Op) {
  const TensorId x = call.in[0];
  return {is_contiguous(call.w.shape(x), call.w.strides(x)) ? x : call.w.copied(x)};
}

// preserve_format: a dense tensor keeps its strides.
Tensors clone(OpCall& call, Op) {
  const TensorId x = call.in[0];
  const TensorId out = call.w.copied(x);
  if (is_dense(call.w.shape(x), call.w.strides(x))) call.w.set_layout(out, call.w.strides(x));
  return {out};
}

Tensors detach(OpCall& call, Op op) {
  const NodeId node = call.w.begin(op, call.in, false);
  const TensorId out = call.w.add_alias(node, call.in[0], false);
  call.w.run(node);
  return {out};
}

Tensors cat(OpCall& call, Op op) {
  Shape shape = call.shape(0);
  needs_rank(call, 1);
  const std::size_t dim = call.dimension("dim", shape.rank, 0);
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    call.same_dtype(0, i);
    Shape other = call.shape(i);
    const std::int64_t length = other.rank == shape.rank ? other.dims[dim] : 0;
    if (other.rank == shape.rank) other.dims[dim] = shape.dims[dim];
    if (other != shape) {
      call.refuse_input(i, formatted("sizes of tensors must match except in dimension {}: {} and {}", dim,
                                     call.shape(0).text(), call.shape(i).text()));
    }
    shape.dims[dim] = checked_add(shape.dims[dim], length);
  }
  Tensors made = joined(call, op, shape);
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return made;
}

Tensors stack(OpCall& call, Op op) {
  const Shape& one = call.shape(0);
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    call.same_dtype(0, i);
    if (call.shape(i) != one) {
      call.refuse_input(i, formatted("stack takes tensors of one shape: {} and {}", one.text(), call.shape(i).text()));
    }
  }
  if (one.rank == Shape::kMostDims) call.not_modelled("a tensor with more than six dimensions");
  const std::size_t dim = call.dimension("dim", one.rank + 1U, 0);
  Shape shape = one;
  for (std::size_t i = one.rank; i > dim; --i) shape.dims[i] = shape.dims[i - 1];
  shape.dims[dim] = static_cast<std::int64_t>(call.in.size());
  ++shape.rank;
  return joined(call, op, shape);
}

// nn.functional.pad: pairs from the last dimension on.
Tensors pad(OpCall& call, Op op) {
  const std::vector<std::int64_t> pairs = call.wholes("pad");
  (void)call.number("value", 0.0);
  Shape shape = call.shape(0);
  if (pairs.size() % 2 != 0 || pairs.size() / 2 > shape.rank) {
    call.refuse_key("pad", "\"pad\" holds two numbers for each of the last dimensions");
  }
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    std::int64_t& dim = shape.dims[shape.rank - 1U - i / 2];
    if (pairs[i] < 0 || pairs[i + 1] < 0) call.not_modelled("a pad that cuts");
    dim = checked_add(dim, checked_add(pairs[i], pairs[i + 1]));
  }
  return joined(call, op, shape);
}

Tensors repeat(OpCall& call, Op op) {
  const std::vector<std::int64_t> sizes = call.wholes("repeats");
  const Shape& from = call.shape(0);
  if (sizes.size() < from.rank || sizes.size() > Shape::kMostDims) {
    call.refuse_key("repeats",
                    "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
                    "tensor");
  }
  Shape shape;
  shape.rank = static_cast<std::uint8_t>(sizes.size());
  const std::size_t added = sizes.size() - from.rank;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 1) call.refuse_key("repeats", formatted("a repetition must be at least 1, not {}", sizes[i]));
    shape.dims[i] = checked_mul(sizes[i], i < added ? 1 : from.dims[i - added]);
  }
  return joined(call, op, shape);
}

Tensors repeat_interleave(OpCall& call, Op op) {
  needs_rank(call, 1);
  Shape shape = call.shape(0);
  const std::size_t dim = call.dimension("dim", shape.rank, std::nullopt);
  shape.dims[dim] = checked_mul(shape.dims[dim], call.whole("repeats", 1, INT64_MAX, std::nullopt));
  return joined(call, op, shape);
}

// roll, flip, tril, triu: a copy of the same shape.
Tensors same_shape_copy(OpCall& call, Op op) {
  if (op == Op::Tril || op == Op::Triu) {
    needs_rank(call, 2);
    (void)call.whole("diagonal", INT64_MIN, INT64_MAX, 0);
  } else {
    (void)call.dimensions("dims", call.shape(0).rank);
    if (op == Op::Roll) (void)call.wholes("shifts");
  }
  return joined(call, op, call.shape(0));
}

}  // namespace dsplan::op_graph_rules
