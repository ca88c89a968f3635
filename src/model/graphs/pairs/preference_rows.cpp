// TRL 1.9.0: trainer/dpo_trainer.py (_compute_loss), trainer/utils.py (selective_log_softmax, entropy_from_logits). Of
// what it computes for its logs the entropy is there, which copies all logits; the rest is smaller, later, and left
// out.
#include <algorithm>
#include <vector>

#include "model/graphs/graphs.h"
#include "model/graphs/pairs/preference.h"
#include "model/graphs/trl.h"

namespace dsplan {
namespace {

constexpr std::int64_t kEntropyRows = 128;

// What a model says of the pairs: its logits, and what becomes of them.
struct Spoken {
  TensorId logits = kNone;
  TensorId part = kNone;
  TensorId per_token = kNone;
  TensorId sums = kNone;
  Halves halves;
};

// selective_log_softmax of fp32: what was chosen less the logarithm of the sum of all, which is taken row by row.
TensorId selected_log_probs(GraphBuilder& g, TensorId part, TensorId labels) {
  const Shape all = g.shape(part);
  const std::int64_t rows = all.dims[0];
  const Shape column{rows, all.dims[1], 1};
  const TensorId places = g.view(labels, column);
  const TensorId selected = g.make(Op::Gather, column, DType::Float32, {part, places}, true);
  const std::vector<Shape> each(static_cast<std::size_t>(rows), Shape{all.dims[1], all.dims[2]});
  std::vector<TensorId> sums;
  const std::vector<TensorId> single = g.split(Op::Unbind, part, each, 0);
  for (const TensorId row : single) {
    sums.push_back(g.make(Op::LogSumExp, Shape{all.dims[1]}, DType::Float32, {row}, true));
  }
  for (const TensorId row : single) g.drop({row});
  const TensorId stacked = g.cat(sums, 0);
  const TensorId totals = g.view(stacked, column);
  const TensorId difference = g.binary(Op::Sub, selected, totals);
  for (const TensorId sum : sums) g.drop({sum});
  g.drop({stacked, totals, selected, places});
  const TensorId squeezed = g.view(difference, g.shape(labels));
  g.drop({difference});
  return squeezed;
}

Spoken speak(GraphBuilder& g, const Answering& answering, const PairBatch& batch, TensorId labels, TensorId counted) {
  Spoken said;
  said.logits = whole_logits(g, answering, batch);
  const std::int64_t rows = g.shape(labels).dims[0];
  said.part = g.slice(said.logits, 1, 0, g.shape(labels).dims[1]);
  const TensorId log_probs = selected_log_probs(g, said.part, labels);
  const TensorId ignored = g.make(Op::Equal, g.shape(labels), DType::Bool, {counted});
  said.per_token = g.in_place(Op::MaskedFillInPlace, log_probs, ignored);
  g.drop({ignored, log_probs});
  said.sums = g.make(Op::SumDim, Shape{rows}, DType::Float32, {said.per_token}, true);
  said.halves = halves_of(g, said.sums);
  return said;
}

void forget_spoken(GraphBuilder& g, const Spoken& said) {
  g.drop({said.halves.chosen, said.halves.rejected, said.sums, said.per_token, said.part, said.logits});
}

// entropy_from_logits, of which the loss knows nothing.
void weigh_entropy(GraphBuilder& g, TensorId part) {
  g.set_grad_enabled(false);
  const Shape all = g.shape(part);
  const TensorId copied = g.copy(part);
  const std::int64_t rows = all.dims[0] * all.dims[1];
  const TensorId flat = g.view(copied, Shape{rows, all.dims[2]});
  std::vector<TensorId> entropies;
  TensorId before = kNone;
  for (std::int64_t at = 0; at < rows; at += kEntropyRows) {
    const std::int64_t length = std::min(kEntropyRows, rows - at);
    const TensorId chunk = g.slice(flat, 0, at, length);
    const TensorId log_probs = g.unary(Op::LogSoftmax, chunk);
    if (before != kNone) g.drop({before});
    before = log_probs;
    const TensorId probabilities = g.unary(Op::Exp, log_probs);
    const TensorId product = g.binary(Op::Mul, probabilities, log_probs);
    g.drop({probabilities});
    const TensorId sum = g.make(Op::SumDim, Shape{length}, DType::Float32, {product});
    g.drop({product});
    entropies.push_back(g.unary(Op::Neg, sum));
    g.drop({sum, chunk});
  }
  g.drop({before, flat, copied});
  for (const TensorId one : entropies) g.drop({one});
  g.set_grad_enabled(true);
}

}  // namespace

Graph rowwise_preference_model(GraphBuilder& g, const Answering& answering) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const PairBatch batch{g.batch_input(shape, DType::Int64), g.batch_input(shape, DType::Int64),
                        g.batch_input(shape, DType::Int64)};
  g.set_batch({batch.ids, batch.ones, batch.told});
  const Shape next{shape.dims[0], shape.dims[1] - 1};
  const TensorId labels = g.view(batch.ids, next, {step_narrow(1, 1, next.dims[1])});
  const TensorId counted = g.view(batch.told, next, {step_narrow(1, 1, next.dims[1])});
  const Spoken own = speak(g, answering, batch, labels, counted);
  Spoken other;
  {
    const GraphBuilder::Reference reference(g);
    other = speak(g, answering, batch, labels, counted);
  }
  const MarginLoss margin = margin_loss(g, own.halves, other.halves);
  weigh_entropy(g, own.part);
  drop_margin(g, margin);
  g.drop({labels, counted});
  forget_spoken(g, own);
  forget_spoken(g, other);
  return g.finish(margin.loss);
}

}  // namespace dsplan
