// Megatron's tensor parallelism as the graph builder writes it (megatron/core/tensor_parallel). On one rank each is
// what it stands beside.
#include "core/error.h"
#include "model/graphs/builder.h"

namespace dsplan {

TensorId GraphBuilder::copy_to_parallel(TensorId x) {
  if (!parallel()) return keep(x);
  const TensorId out = view(x, shape(x));
  graph_.nodes.back().op = Op::CopyToParallel;
  return out;
}

TensorId GraphBuilder::reduce_from_parallel(TensorId x) {
  if (!parallel()) return keep(x);
  return in_place(Op::AllReduce, x, kNone);
}

std::pair<TensorId, TensorId> GraphBuilder::parallel_cross_entropy(TensorId logits, TensorId target) {
  DSPLAN_CHECK(parallel(), "one rank has all the words");
  const NodeId node = add_node(Op::ParallelCrossEntropy, {logits, target}, true);
  const bool requires_grad = graph_.node(node).requires_grad;
  graph_.nodes.back().number = first_word();
  const Shape rows = shape(logits);
  TensorId softmax = kNone;
  if (dtype(logits) == DType::Float32) {
    graph_.nodes.back().in_place = true;
    softmax = output_of(node, add_tensor(rows, DType::Float32, graph_.tensor(logits).storage, false, node));
  } else {
    softmax = add_output(rows, DType::Float32, node);
    graph_.tensors[softmax].requires_grad = false;
  }
  const TensorId losses = add_output(shape(target), DType::Float32, node);
  DSPLAN_CHECK(graph_.tensor(losses).requires_grad == requires_grad, "the loss alone is part of autograd's graph");
  run(node);
  return {softmax, losses};
}

}  // namespace dsplan
