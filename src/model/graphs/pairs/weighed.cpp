// LLaMA-Factory 0.9.6.dev0, src/llamafactory/v1: compute_log_probs and fit of core/base_trainer.py, compute_loss of
// trainers/sft_trainer.py. The batch is moved to the device in forward, labels and weights twice, and all of it goes
// with the variables of these functions.
#include <vector>

#include "model/graphs/pairs/preference.h"

namespace dsplan {
namespace {

// -cross_entropy(logits[..., :-1, :], labels[..., 1:], reduction="none") of one row, [1, S - 1]. The model's own loss,
// for which nobody asks, and the logits in both dtypes stay until it returns.
TensorId log_probs_of(GraphBuilder& g, const Told& told, TensorId labels) {
  const Shape all = g.shape(told.logits);
  const Shape next{all.dims[0], all.dims[1] - 1};
  const Shape flat{all.dims[0] * (all.dims[1] - 1)};
  const TensorId wide = g.cast(told.logits, DType::Float32);
  const TensorId targets = g.view(labels, flat, {step_narrow(1, 1, next.dims[1]), step_reshape(flat)});
  const TensorId part = g.slice(wide, 1, 0, next.dims[1]);
  const TensorId rows = g.view(part, Shape{flat.dims[0], all.dims[2]});
  g.drop({part});
  const TensorId log_softmax = g.unary(Op::LogSoftmax, rows);
  const TensorId losses = g.nll_loss(log_softmax, targets, Reduction::None).first;
  g.drop({log_softmax});
  const TensorId seen = g.view(losses, next);
  g.drop({losses});
  const TensorId negated = g.unary(Op::Neg, seen);
  g.drop({seen, rows, targets, wide, told.logits, told.loss});
  return negated;
}

// (-log_probs * weights).sum() / (weights.sum() + 1e-6)
TensorId weighed_mean(GraphBuilder& g, TensorId log_probs, TensorId weights) {
  const TensorId losses = g.unary(Op::Neg, log_probs);
  const TensorId weighed = g.binary(Op::Mul, losses, weights);
  g.drop({losses});
  const TensorId total = g.make(Op::SumDim, Shape{}, DType::Float32, {weighed}, true);
  g.drop({weighed});
  const TensorId sum = g.make(Op::SumDim, Shape{}, DType::Float32, {weights});
  const TensorId divisor = g.unary(Op::AddScalar, sum, 1);
  g.drop({sum});
  const TensorId mean = g.make(Op::Div, Shape{}, DType::Float32, {total, divisor}, true);
  g.drop({total, divisor});
  return mean;
}

// loss * tokens * ranks / all tokens, numbers of Python's.
TensorId scaled(GraphBuilder& g, TensorId loss) {
  const TensorId by_tokens = g.unary(Op::MulScalar, loss, 1);
  const TensorId by_ranks = g.unary(Op::MulScalar, by_tokens, 1);
  g.drop({by_tokens});
  const TensorId made = g.unary(Op::DivScalar, by_ranks, 1);
  g.drop({by_ranks, loss});
  return made;
}

}  // namespace

Graph weighed_model(GraphBuilder& g, const std::function<Told(const WeighedBatch& batch)>& telling) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const TensorId weights = g.batch_input(shape, DType::Float32);
  WeighedBatch batch;
  batch.rows = rows_of_batch(g, shape);
  batch.weights = g.batch_input(shape, DType::Float32);
  batch.positions = g.batch_input(shape, DType::Int64);
  const TensorId labels = g.batch_input(shape, DType::Int64);
  const std::vector<TensorId> all{weights,       batch.rows.ids,  batch.rows.ones, batch.rows.told,
                                  batch.weights, batch.positions, labels};
  g.set_batch(all, all);
  const Shape next{shape.dims[0], shape.dims[1] - 1};
  const TensorId later = g.view(weights, next, {step_narrow(1, 1, next.dims[1])});
  g.enter_model({&batch.weights});
  const Told told = telling(batch);
  g.drop({told.last});
  g.exit_model();
  const TensorId log_probs = log_probs_of(g, told, labels);
  const TensorId loss = weighed_mean(g, log_probs, later);
  g.drop({log_probs, later});
  const TensorId made = scaled(g, loss);
  forget_all_but(g, made);
  return g.finish(made);
}

}  // namespace dsplan
