// TRL 1.9.0: trainer/dpo_trainer.py (_compute_loss), trainer/utils.py (selective_log_softmax, entropy_from_logits),
// trainer/kto_trainer.py. Of what they compute for their logs there is what copies logits: the entropy, and of KTO
// their means; the rest is smaller, later, and left out.
#include <algorithm>
#include <vector>

#include "model/graphs/builder.h"
#include "model/graphs/pairs/preference.h"
#include "model/graphs/pairs/tagged.h"
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
  if (of_pairs(g.options().loss)) said.halves = halves_of(g, said.sums);
  return said;
}

void drop_spoken(GraphBuilder& g, const Spoken& said) {
  if (said.halves.chosen != kNone) g.drop({said.halves.chosen, said.halves.rejected});
  g.drop({said.sums, said.per_token, said.part, said.logits});
}

// entropy_from_logits, of which the loss knows nothing.
void weigh_entropy(GraphBuilder& g, TensorId part) {
  g.set_grad_enabled(false);
  const Shape all = g.shape(part);
  const TensorId copied = all.dims[0] == 1 ? g.keep(part) : g.copy(part);
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

// The loss "ipo": squares of what the means of both rows differ by.
MarginLoss squared_margin(GraphBuilder& g, const Halves& own, const Halves& reference, TensorId told) {
  MarginLoss made;
  made.ratios.chosen = g.binary(Op::Sub, own.chosen, reference.chosen);
  made.ratios.rejected = g.binary(Op::Sub, own.rejected, reference.rejected);
  made.difference = g.binary(Op::Sub, made.ratios.chosen, made.ratios.rejected);
  const Halves masks = halves_of(g, told);
  const Shape pairs = g.shape(made.ratios.chosen);
  const auto mean = [&](TensorId ratio, TensorId mask) {
    const TensorId length = g.make(Op::SumDim, pairs, DType::Int64, {mask});
    const TensorId least = g.make(Op::Clamp, pairs, DType::Float32, {length}, false, 1);
    g.drop({length});
    const TensorId made_of = g.make(Op::Div, pairs, DType::Float32, {ratio, least}, true);
    g.drop({least});
    return made_of;
  };
  const TensorId chosen = mean(made.ratios.chosen, masks.chosen);
  const TensorId rejected = mean(made.ratios.rejected, masks.rejected);
  const TensorId apart = g.binary(Op::Sub, chosen, rejected);
  const TensorId less = g.unary(Op::SubScalar, apart, 0);
  made.losses = g.unary(Op::PowScalar, less, 2);
  g.drop({less});
  const TensorId sum = g.make(Op::SumDim, Shape{}, DType::Float32, {made.losses}, true);
  const TensorId weighted = g.unary(Op::MulScalar, sum, 1);
  g.drop({sum});
  made.loss = g.unary(Op::AddScalar, weighted);
  g.drop({weighted});
  made.others = {apart, chosen, rejected, masks.chosen, masks.rejected};
  return made;
}

struct RowsBatch {
  PairBatch own;
  TensorId labels = kNone;  // Ids and what counts, each a place later.
  TensorId counted = kNone;
};
RowsBatch shifted_rows(GraphBuilder& g, const PairBatch& own) {
  const Shape& shape = g.shape(own.ids);
  const Shape next{shape.dims[0], shape.dims[1] - 1};
  return {own, g.view(own.ids, next, {step_narrow(1, 1, next.dims[1])}),
          g.view(own.told, next, {step_narrow(1, 1, next.dims[1])})};
}

// _compute_kl_logps: the sums alone.
TensorId divergent_sums(GraphBuilder& g, const Answering& answering, const RowsBatch& other) {
  const GraphBuilder::Unrecorded unrecorded(g);
  const Spoken said = speak(g, answering, other.own, other.labels, other.counted);
  const TensorId sums = g.keep(said.sums);
  drop_spoken(g, said);
  return sums;
}

// What KTOTrainer makes for its logs of all logits: the rows of each side, and of them the mean over all words for each
// token, for which they are copied once more. All of it lives until the trainer returns, as do numbers of a side.
std::vector<TensorId> mean_logits(GraphBuilder& g, TensorId part, const TaggedSides& sides, TensorId counted) {
  std::vector<TensorId> held;
  const auto number = [&](DType dtype) { held.push_back(g.filled(Shape{}, dtype, 0)); };
  for (const DType dtype : {DType::Int64, DType::Int64, DType::Float32, DType::Int64}) number(dtype);
  std::vector<TensorId> logits;
  std::vector<TensorId> masks;
  for (const TaggedSide* side : {&sides.chosen, &sides.rejected}) logits.push_back(picked_rows(g, part, *side));
  for (const TaggedSide* side : {&sides.chosen, &sides.rejected}) masks.push_back(picked_rows(g, counted, *side));
  for (std::size_t at = 0; at < logits.size(); ++at) {
    const TensorId flags = g.cast(masks[at], DType::Bool);
    const Shape all = g.shape(logits[at]);
    const Shape flat{all.dims[0] * all.dims[1], all.dims[2]};
    const TensorId chosen = g.make(Op::MaskedRows, flat, DType::Float32, {logits[at], flags});
    const TensorId means = g.make(Op::SumDim, Shape{flat.dims[0]}, DType::Float32, {chosen});
    g.drop({chosen, flags, means});
    number(DType::Float32);
    number(DType::Int64);
  }
  held.insert(held.end(), logits.begin(), logits.end());
  held.insert(held.end(), masks.begin(), masks.end());
  return held;
}

}  // namespace

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

Graph rowwise_tagged_model(GraphBuilder& g, const Answering& answering) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const PairBatch first = rows_of_batch(g, shape);
  const PairBatch second = rows_of_batch(g, shape);
  const TensorId tags = g.batch_input(Shape{shape.dims[0]}, DType::Bool);
  g.set_batch({first.ids, first.ones, first.told, second.ids, second.ones, second.told, tags});
  const RowsBatch own = shifted_rows(g, first);
  const RowsBatch other = shifted_rows(g, second);
  const TensorId kl_own = divergent_sums(g, answering, other);
  const Spoken said = speak(g, answering, own.own, own.labels, own.counted);
  TaggedSides sides = tagged_sides(g, tags);
  sides.take_own(g, said.sums);
  Spoken reference;
  TensorId kl_reference = kNone;
  {
    const GraphBuilder::Reference asked(g);
    kl_reference = divergent_sums(g, answering, other);
    reference = speak(g, answering, own.own, own.labels, own.counted);
    sides.take_reference(g, reference.sums);
  }
  const TensorId kl = divergence(g, kl_own, kl_reference);
  const TensorId losses = sides.weigh(g, kl);
  weigh_entropy(g, said.part);
  g.set_grad_enabled(false);
  const TensorId entropy = g.filled(g.shape(own.counted), DType::Float32, 0);
  const std::vector<TensorId> copies = mean_logits(g, said.part, sides, own.counted);
  g.set_grad_enabled(true);
  const TensorId loss = mean_of_numbers(g, losses);
  for (const TensorId one : copies) g.drop({one});
  sides.drop(g);
  g.drop({losses, entropy, kl, kl_own, kl_reference, own.labels, own.counted, other.labels, other.counted});
  drop_spoken(g, said);
  drop_spoken(g, reference);
  return g.finish(loss);
}

Graph rowwise_preference_model(GraphBuilder& g, const Answering& answering) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const PairBatch batch = rows_of_batch(g, shape);
  g.set_batch({batch.ids, batch.ones, batch.told});
  const auto [whole, labels, counted] = shifted_rows(g, batch);
  const Spoken own = speak(g, answering, batch, labels, counted);
  Spoken other;
  {
    const GraphBuilder::Reference reference(g);
    other = speak(g, answering, batch, labels, counted);
  }
  const MarginLoss margin = g.options().loss == Loss::IpoRows ? squared_margin(g, own.halves, other.halves, batch.told)
                                                              : margin_loss(g, own.halves, other.halves);
  weigh_entropy(g, own.part);
  drop_margin(g, margin);
  g.drop({labels, counted});
  drop_spoken(g, own);
  drop_spoken(g, other);
  return g.finish(margin.loss);
}

}  // namespace dsplan
