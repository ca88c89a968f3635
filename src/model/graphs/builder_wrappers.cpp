// What the graph builder writes around operators where training is not plain: torch.autocast's casts of operands with
// its cache of weights, and Megatron's tensor parallelism (megatron/core/tensor_parallel), of which each call on one
// rank is what it stands beside.
#include <array>

#include "core/error.h"
#include "model/graphs/builder.h"

namespace dsplan {
namespace {

bool is_float(DType type) {
  return type == DType::Float32 || type == DType::BFloat16 || type == DType::Float16 || type == DType::Float64;
}

}  // namespace

// cached_cast in ATen/autocast_mode.cpp: the copy of an fp32 leaf that requires a gradient is made once.
TensorId GraphBuilder::lowered(TensorId x) {
  if (x == kNone || !options_->autocast || !autocast_enabled_) return x == kNone ? x : keep(x);
  const DType to = *options_->autocast;
  const Tensor& tensor = graph_.tensor(x);
  if (!is_float(tensor.dtype) || tensor.dtype == DType::Float64 || tensor.dtype == to) return keep(x);
  const ParameterId parameter = graph_.storage_of(x).parameter;
  // A reference's parameters are not frozen: nobody asks for their gradients.
  const bool asked = parameter != kNone && causal() == model_.reference;
  const bool leaf = parameter != kNone && tensor.producer == kNone && (tensor.requires_grad || asked);
  const bool cached = leaf && tensor.dtype == DType::Float32;
  if (!cached) return cast(x, to);
  TensorId& copy = autocast_cache_[static_cast<std::size_t>(parameter)];
  if (copy == kNone) copy = cast(x, to);
  return keep(copy);
}

TensorId GraphBuilder::widened(TensorId x) {
  if (x == kNone || !options_->autocast || !autocast_enabled_ || !is_float(dtype(x))) return x == kNone ? x : keep(x);
  return cast(x, DType::Float32);
}

void GraphBuilder::leave_autocast() {
  for (TensorId& copy : autocast_cache_) {
    if (copy != kNone) drop({copy});
    copy = kNone;
  }
}

std::vector<TensorId> adapted(GraphBuilder& g, Op op, std::span<const TensorId> inputs,
                              std::span<const std::int64_t> features, double number) {
  const NodeId node = g.add_node(op, inputs, true);
  g.graph_.nodes.back().number = number;
  std::vector<TensorId> made;
  for (const std::int64_t width : features) {
    Shape shape = g.shape(inputs[0]);
    shape.dims[shape.rank - 1U] = width;
    made.push_back(g.add_output(shape, g.dtype(inputs[0]), node));
  }
  g.run(node);
  return made;
}

std::vector<TensorId> chunked_log_probs(GraphBuilder& g, const std::array<TensorId, 4>& inputs, LogProbs outputs) {
  const NodeId node = g.add_node(Op::ChunkedLogProb, inputs, true);
  const DType computed = g.options_->autocast.value_or(g.dtype(inputs[0]));
  g.graph_.nodes.back().number = static_cast<double>(computed);
  const Shape rows{g.shape(inputs[0]).dims[0]};
  std::vector<TensorId> made;
  std::vector<DType> dtypes{DType::Float32};
  if (outputs != LogProbs::Alone) dtypes.push_back(DType::Float32);
  if (outputs == LogProbs::WithMean || outputs == LogProbs::WithBoth) dtypes.push_back(DType::Float32);
  if (outputs == LogProbs::WithLikeliest || outputs == LogProbs::WithBoth) dtypes.push_back(DType::Bool);
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    made.push_back(g.add_output(rows, dtypes[i], node));
    if (i > 1) g.graph_.tensors[made.back()].requires_grad = false;
  }
  g.run(node);
  return made;
}

TensorId copy_to_parallel(GraphBuilder& g, TensorId x) {
  if (!g.parallel()) return g.keep(x);
  const TensorId out = g.view(x, g.shape(x));
  g.graph_.nodes.back().op = Op::CopyToParallel;
  return out;
}

TensorId reduce_from_parallel(GraphBuilder& g, TensorId x) {
  if (!g.parallel()) return g.keep(x);
  return g.in_place(Op::AllReduce, x, kNone);
}

std::array<TensorId, 2> turned_in_place(GraphBuilder& g, const std::array<TensorId, 4>& inputs, int by_head) {
  const NodeId node = g.add_node(Op::LigerRotary, inputs, true);
  g.graph_.nodes.back().in_place = true;
  g.graph_.nodes.back().number = by_head;
  const bool requires_grad = g.graph_.nodes.back().requires_grad;
  std::array<TensorId, 2> turned{};
  for (std::size_t i = 0; i < turned.size(); ++i) {
    const TensorId x = inputs[i];
    turned[i] =
        g.output_of(node, g.add_tensor(g.shape(x), g.dtype(x), g.graph_.tensor(x).storage, requires_grad, node));
  }
  g.run(node);
  return turned;
}

std::pair<TensorId, TensorId> parallel_cross_entropy(GraphBuilder& g, TensorId logits, TensorId target) {
  DSPLAN_CHECK(g.parallel(), "one rank has all the words");
  const NodeId node = g.add_node(Op::ParallelCrossEntropy, std::array{logits, target}, true);
  const bool requires_grad = g.graph_.node(node).requires_grad;
  g.graph_.nodes.back().number = first_word(g);
  const Shape rows = g.shape(logits);
  TensorId softmax = kNone;
  if (g.dtype(logits) == DType::Float32) {
    g.graph_.nodes.back().in_place = true;
    softmax = g.output_of(node, g.add_tensor(rows, DType::Float32, g.graph_.tensor(logits).storage, false, node));
  } else {
    softmax = g.add_output(rows, DType::Float32, node);
    g.graph_.tensors[softmax].requires_grad = false;
  }
  const TensorId losses = g.add_output(g.shape(target), DType::Float32, node);
  DSPLAN_CHECK(g.graph_.tensor(losses).requires_grad == requires_grad, "the loss alone is part of autograd's graph");
  g.run(node);
  return {softmax, losses};
}

}  // namespace dsplan
