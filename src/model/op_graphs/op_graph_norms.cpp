// Op-graphs: softmax, normalisations and losses; those that PyTorch or transformers write out of other operators stand
// here as those.
#include "model/op_graphs/op_graph_call.h"

#include "core/format.h"

namespace dsplan::op_graph_rules {
namespace {

Shape last_of(OpCall& call, std::size_t i) {
  const Shape& shape = call.shape(i);
  if (shape.rank == 0) call.refuse_input(i, "a scalar has no last dimension");
  return Shape{shape.dims[shape.rank - 1U]};
}

}  // namespace

// fp16 to fp32 is one kernel on CUDA; to any other dtype there is a cast first, a node of its own
// (aten/src/ATen/native/SoftMax.cpp, softmax).
TensorId softmax_of(OpCall& call, Op op, TensorId x, std::size_t dim, DType to) {
  const bool fused = call.w.dtype(x) == DType::Float16 && to == DType::Float32;
  const TensorId operand = fused ? x : call.w.cast(x, to);
  const TensorId out = call.w.make(op, call.w.shape(x), to, {operand});
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  call.w.drop_if_other(operand, x);
  return out;
}

Tensors softmax(OpCall& call, Op op) {
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, -1);
  const DType to = call.dtype_named("dtype").value_or(call.dtype(0));
  if (!is_floating(to)) call.floating(0);
  return {softmax_of(call, op, call.in[0], dim, to)};
}

// Over the last dimension, with a weight and a bias or neither.
Tensors layer_norm(OpCall& call, Op op) {
  call.floating(0);
  const Shape features = last_of(call, 0);
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    call.same_dtype(0, i);
    if (call.shape(i) != features) {
      call.refuse_input(i, formatted("Expected weight to be of same shape as normalized_shape, but got {} and {}",
                                     call.shape(i).text(), features.text()));
    }
  }
  (void)call.number("eps", 1e-5);
  if (call.in.size() != 3) call.not_modelled("layer_norm without weight and bias");
  return {call.w.make(op, call.shape(0), call.dtype(0), call.in)};
}

namespace {

// transformers' RMSNorm: the mean square in fp32, the result cast back before the weight.
TensorId written_rms_norm(OpCall& call) {
  const TensorId x = call.in[0];
  const TensorId wide = call.w.cast(x, DType::Float32);
  const TensorId squared = call.w.unary(Op::PowScalar, wide, 2);
  Shape one = call.w.shape(x);
  one.dims[one.rank - 1U] = 1;
  const TensorId variance = call.w.make(Op::MeanLast, one, DType::Float32, {squared});
  call.w.drop(squared);
  const TensorId shifted = call.w.unary(Op::AddScalar, variance);
  const TensorId root = call.w.unary(Op::Rsqrt, shifted);
  call.w.drop(shifted);
  const TensorId scaled = call.w.make(Op::Mul, call.w.shape(x), DType::Float32, {wide, root});
  call.w.drop(root);
  call.w.drop_if_other(wide, x);
  const TensorId narrow = call.w.cast(scaled, call.w.dtype(x));
  const TensorId out = call.w.make(Op::Mul, call.w.shape(x), call.w.dtype(x), {call.in[1], narrow});
  call.w.drop_if_other(narrow, scaled);
  call.w.drop(scaled);
  call.w.drop(variance);
  return out;
}

}  // namespace

Tensors rms_norm(OpCall& call, Op op) {
  call.floating(0);
  const Shape features = last_of(call, 0);
  if (call.in.size() == 2) call.same_dtype(0, 1);
  if (call.in.size() == 2 && call.shape(1) != features) {
    call.refuse_input(1, formatted("the weight of {} features has shape {}", features.text(), call.shape(1).text()));
  }
  (void)call.number("eps", 1e-6);
  const std::string how = call.choice("implementation", {"fused", "huggingface"}, "fused");
  if (how == "huggingface" && call.in.size() == 1) call.refuse("transformers' rms_norm has a weight");
  if (how == "huggingface") return {written_rms_norm(call)};
  return {call.w.make(op, call.shape(0), call.dtype(0), call.in)};
}

Tensors group_norm(OpCall& call, Op op) {
  call.floating(0);
  const Shape& x = call.shape(0);
  if (x.rank < 2) call.refuse_input(0, "group_norm needs a tensor with at least 2 dimensions");
  const std::int64_t groups = call.whole("num_groups", 1, INT64_MAX, std::nullopt);
  if (x.dims[1] % groups != 0) {
    call.refuse_key("num_groups", "Expected number of channels in input to be divisible by num_groups");
  }
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    call.same_dtype(0, i);
    if (call.shape(i) != Shape{x.dims[1]}) call.refuse_input(i, "a weight and a bias have one number per channel");
  }
  const TensorId out = call.w.make(op, x, call.dtype(0), call.in);
  call.w.latest().number = static_cast<double>(groups);
  return {out};
}

// In training: input, weight, bias, running mean, running variance. The running statistics are written in place.
Tensors batch_norm(OpCall& call, Op op) {
  call.floating(0);
  const Shape& x = call.shape(0);
  if (x.rank < 2) call.refuse_input(0, "batch_norm needs a tensor with at least 2 dimensions");
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    call.floating(i);
    if (call.shape(i) != Shape{x.dims[1]}) {
      call.refuse_input(i, formatted("{} channels, and shape {}", x.dims[1], call.shape(i).text()));
    }
    if (i > 2 && call.w.tensor(call.in[i]).requires_grad) call.refuse_input(i, "running statistics have no gradient");
  }
  (void)call.number("momentum", 0.1);
  (void)call.number("eps", 1e-5);
  return {call.w.make(op, x, call.dtype(0), call.in)};
}

namespace {

Reduction reduction_of(OpCall& call) {
  const std::string text = call.choice("reduction", {"none", "mean", "sum"}, "mean");
  return text == "none" ? Reduction::None : text == "sum" ? Reduction::Sum : Reduction::Mean;
}

}  // namespace

// Losses of two tensors of one shape.
Tensors loss(OpCall& call, Op op) {
  call.floating(0);
  call.same_dtype(0, 1);
  if (call.shape(0) != call.shape(1)) {
    call.refuse_input(1, formatted("a target of shape {} for {}", call.shape(1).text(), call.shape(0).text()));
  }
  const Reduction reduction = reduction_of(call);
  const TensorId out = call.w.make(op, reduction == Reduction::None ? call.shape(0) : Shape{}, call.dtype(0), call.in);
  call.w.latest().reduction = reduction;
  return {out};
}

namespace {

TensorId nll(OpCall& call, TensorId log_probabilities) {
  const Shape& rows = call.w.shape(log_probabilities);
  if (rows.rank != 2) call.not_modelled("a loss of anything but [rows, classes]");
  if (call.dtype(1) != DType::Int64) call.refuse_input(1, "the target holds classes: int64");
  if (call.shape(1) != Shape{rows.dims[0]}) {
    call.refuse_input(1, formatted("Expected input batch_size ({}) to match target batch_size ({})", rows.dims[0],
                                   call.shape(1).text()));
  }
  const Reduction reduction = reduction_of(call);
  const TensorId out = call.w.make(Op::NllLoss, reduction == Reduction::None ? Shape{rows.dims[0]} : Shape{},
                                   call.w.dtype(log_probabilities), {log_probabilities, call.in[1]});
  call.w.latest().reduction = reduction;
  return out;
}

}  // namespace

Tensors nll_loss(OpCall& call, Op) {
  call.floating(0);
  return {nll(call, call.in[0])};
}

// log_softmax, then nll_loss; "dtype": "float32" for cross_entropy(x.float(), ...) is an operator of its own: "to".
Tensors cross_entropy(OpCall& call, Op) {
  call.floating(0);
  if (call.shape(0).rank != 2) call.not_modelled("a loss of anything but [rows, classes]");
  const TensorId log_probabilities = softmax_of(call, Op::LogSoftmax, call.in[0], 1, call.dtype(0));
  const TensorId out = nll(call, log_probabilities);
  call.w.drop(log_probabilities);
  return {out};
}

// Liger's fused linear cross-entropy: hidden state [N, H], weight [V, H], target [N]; a mean or a sum.
Tensors fused_linear_cross_entropy(OpCall& call, Op op) {
  call.floating(0);
  call.same_dtype(0, 1);
  const Shape& x = call.shape(0);
  const Shape& weight = call.shape(1);
  if (x.rank != 2 || weight.rank != 2 || x.dims[1] != weight.dims[1]) {
    call.refuse_input(1, formatted("a weight of shape {} for rows of shape {}", weight.text(), x.text()));
  }
  if (call.dtype(2) != DType::Int64) call.refuse_input(2, "the target holds classes: int64");
  if (call.shape(2) != Shape{x.dims[0]}) call.refuse_input(2, "a target for each row");
  const Reduction reduction = reduction_of(call);
  if (reduction == Reduction::None) call.not_modelled("a loss for each row of Liger's operator");
  const TensorId out = call.w.make(op, Shape{}, call.dtype(0), call.in);
  call.w.latest().reduction = reduction;
  return {out};
}

}  // namespace dsplan::op_graph_rules
