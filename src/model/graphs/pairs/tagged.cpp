// LLaMA-Factory 0.9.5: train/kto/trainer.py; kto_loss of TRL 0.24.0. Rows are desirable or not, as their tags say: the
// first half is taken as such. What the trainer computes for its logs is left out.
#include "model/graphs/pairs/tagged.h"

#include <array>
#include <vector>

#include "model/graphs/builder.h"
#include "model/graphs/pairs/preference.h"

namespace dsplan {
namespace {

struct TaggedBatch {
  PairBatch own;
  PairBatch other;  // Whose completions are another row's.
  TensorId tags = kNone;
};

// What `forward` returns.
struct SaidOfRows {
  TensorId logits = kNone;
  TensorId sums = kNone;
  TensorId means = kNone;
};

// forward, on a copy of the whole batch.
SaidOfRows say_rows(GraphBuilder& g, const Answering& answering, const TaggedBatch& batch, bool other) {
  std::vector<TensorId> copies;
  for (const PairBatch& one : {batch.own, batch.other}) {
    for (const TensorId tensor : {one.ids, one.ones, one.told}) copies.push_back(g.copy(tensor));
  }
  copies.push_back(g.copy(batch.tags));
  const std::size_t first = other ? 3 : 0;
  const PairBatch given{copies[first], copies[first + 1], copies[first + 2]};
  SaidOfRows said;
  said.logits = whole_logits(g, answering, given);
  const RowSums sums = sums_of(g, said.logits, given.told);
  said.sums = sums.log_probs;
  said.means = g.make(Op::Div, g.shape(sums.log_probs), DType::Float32, {sums.log_probs, sums.lengths}, true);
  g.drop({sums.lengths});
  for (const TensorId one : copies) g.drop({one});
  return said;
}

// What concatenated_forward returns. Nothing of rows of which there are none.
struct TaggedAnswer {
  Sides logits;
  Sides sums;
  TensorId kl = kNone;
  TensorId means = kNone;  // Of desirable rows.
  std::vector<TensorId> held;
};

TaggedAnswer ask_tagged(GraphBuilder& g, const Answering& answering, const TaggedBatch& batch) {
  const SaidOfRows own = say_rows(g, answering, batch, false);
  SaidOfRows other;
  {
    const GraphBuilder::Unrecorded unrecorded(g);
    other = say_rows(g, answering, batch, true);
  }
  g.drop({other.logits});
  TaggedAnswer answer;
  answer.kl = other.sums;
  const auto opposite = [&](TensorId x) {
    const TensorId flags = g.make(Op::BitwiseNot, g.shape(batch.tags), DType::Bool, {batch.tags});
    const TensorId picked = flagged_rows(g, x, flags, undesirable_rows(g));
    if (picked == kNone) {
      answer.held.push_back(flags);  // By the node that has picked nothing.
    } else {
      g.drop({flags});
    }
    return picked;
  };
  const std::int64_t desirable = desirable_rows(g);
  answer.logits.chosen = flagged_rows(g, own.logits, batch.tags, desirable);
  answer.sums.chosen = flagged_rows(g, own.sums, batch.tags, desirable);
  answer.logits.rejected = opposite(own.logits);
  answer.sums.rejected = opposite(own.sums);
  answer.means = flagged_rows(g, own.means, batch.tags, desirable);
  g.drop({own.logits, own.sums, own.means, other.means});
  return answer;
}

void drop_sides(GraphBuilder& g, const Sides& sides) {
  for (const TensorId one : {sides.chosen, sides.rejected}) {
    if (one != kNone) g.drop({one});
  }
}

}  // namespace

std::int64_t desirable_rows(const GraphBuilder& g) { return (g.options().micro_batch + 1) / 2; }
std::int64_t undesirable_rows(const GraphBuilder& g) { return g.options().micro_batch / 2; }

TensorId flagged_rows(GraphBuilder& g, TensorId x, TensorId flags, std::int64_t count) {
  if (count == 0) return kNone;
  Shape shape = g.shape(x);
  shape.dims[0] = count;
  return g.make(Op::MaskedRows, shape, g.dtype(x), {x, flags}, true);
}

TensorId divergence(GraphBuilder& g, TensorId own, TensorId other) {
  const TensorId difference = g.binary(Op::Sub, own, other);
  const TensorId mean = g.make(Op::SumDim, Shape{}, DType::Float32, {difference});
  g.drop({difference});
  const TensorId of_all = g.make(Op::SumDim, Shape{}, DType::Float32, {mean});
  g.drop({mean});
  const TensorId kl = g.make(Op::Clamp, Shape{}, DType::Float32, {of_all}, false, 0);
  g.drop({of_all});
  return kl;
}

// 1 - sigmoid(beta * (ratio - kl)), or of (kl - ratio); beta * ratio for the logs.
SideLoss side_loss(GraphBuilder& g, TensorId own, TensorId reference, TensorId kl, bool chosen) {
  SideLoss made;
  made.ratio = g.binary(Op::Sub, own, reference);
  const TensorId less = chosen ? g.binary(Op::Sub, made.ratio, kl) : g.binary(Op::Sub, kl, made.ratio);
  const TensorId scaled = g.unary(Op::MulScalar, less, 1);
  g.drop({less});
  const TensorId likely = g.unary(Op::Sigmoid, scaled);
  g.drop({scaled});
  made.losses = g.unary(Op::Neg, likely);
  g.drop({likely});
  g.set_grad_enabled(false);
  made.rewards = g.unary(Op::MulScalar, made.ratio, 1);
  g.set_grad_enabled(true);
  return made;
}

// cat((weight * chosen, weight * rejected)), then nanmean, which keeps what it is given.
TensorId tagged_loss(GraphBuilder& g, const SideLoss& chosen, const SideLoss& rejected) {
  std::vector<TensorId> weighted;
  for (const SideLoss* side : {&chosen, &rejected}) {
    if (side->losses != kNone) weighted.push_back(g.unary(Op::MulScalar, side->losses, 1));
  }
  const TensorId losses = weighted.size() == 2 ? g.cat(weighted, 0) : g.copy(weighted.front());
  for (const TensorId one : weighted) g.drop({one});
  return losses;
}

TensorId picked_rows(GraphBuilder& g, TensorId x, const TaggedSide& side) {
  Shape shape = g.shape(x);
  shape.dims[0] = side.rows;
  return g.make(Op::IndexSelect, shape, g.dtype(x), {x, side.places}, true);
}

TaggedSides tagged_sides(GraphBuilder& g, TensorId tags) {
  const auto side_of = [&](TensorId flags, std::int64_t rows) {
    TaggedSide side;
    side.rows = rows;
    if (rows == 0) return side;
    const TensorId found = g.make(Op::NonZero, Shape{rows, 1}, DType::Int64, {flags});
    side.places = g.view(found, Shape{rows});
    g.drop({found});
    return side;
  };
  TaggedSides sides;
  sides.chosen = side_of(tags, desirable_rows(g));
  const TensorId opposite = g.make(Op::BitwiseNot, g.shape(tags), DType::Bool, {tags});
  sides.rejected = side_of(opposite, undesirable_rows(g));
  g.drop({opposite});
  return sides;
}

void TaggedSides::take_own(GraphBuilder& g, TensorId sums) {
  for (TaggedSide* side : {&chosen, &rejected}) {
    if (side->rows > 0) side->sums = picked_rows(g, sums, *side);
  }
}

void TaggedSides::take_reference(GraphBuilder& g, TensorId sums) {
  for (TaggedSide* side : {&chosen, &rejected}) {
    if (side->rows > 0) side->reference = picked_rows(g, sums, *side);
  }
}

TensorId TaggedSides::weigh(GraphBuilder& g, TensorId kl) {
  for (TaggedSide* side : {&chosen, &rejected}) {
    if (side->rows > 0) side->loss = side_loss(g, side->sums, side->reference, kl, side == &chosen);
  }
  return tagged_loss(g, chosen.loss, rejected.loss);
}

void TaggedSides::drop(GraphBuilder& g) const {
  for (const TaggedSide* side : {&chosen, &rejected}) {
    if (side->rows == 0) continue;
    g.drop({side->places, side->sums, side->reference, side->loss.ratio, side->loss.losses, side->loss.rewards});
  }
}

TensorId mean_of_numbers(GraphBuilder& g, TensorId losses) {
  const TensorId numbers = g.make(Op::Equal, g.shape(losses), DType::Bool, {losses});
  const TensorId count = g.make(Op::SumDim, Shape{}, DType::Int64, {numbers});
  g.drop({numbers});
  const TensorId kept = g.unary(Op::PowScalar, losses, 1);
  const TensorId sum = g.make(Op::SumDim, Shape{}, DType::Float32, {kept}, true);
  g.drop({kept});
  const TensorId mean = g.make(Op::Div, Shape{}, DType::Float32, {sum, count}, true);
  g.drop({sum, count});
  return mean;
}

Graph whole_tagged_model(GraphBuilder& g, const Answering& answering) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  TaggedBatch batch;
  batch.own = rows_of_batch(g, shape);
  batch.other = rows_of_batch(g, shape);
  batch.tags = g.batch_input(Shape{shape.dims[0]}, DType::Bool);
  g.set_batch(
      {batch.own.ids, batch.own.ones, batch.own.told, batch.other.ids, batch.other.ones, batch.other.told, batch.tags});
  const TaggedAnswer own = ask_tagged(g, answering, batch);
  TaggedAnswer reference;
  {
    const GraphBuilder::Reference asked(g);
    reference = ask_tagged(g, answering, batch);
  }
  drop_sides(g, reference.logits);
  for (const TensorId one : reference.held) g.drop({one});
  g.drop({reference.means});
  const TensorId kl = divergence(g, own.kl, reference.kl);
  const SideLoss chosen = side_loss(g, own.sums.chosen, reference.sums.chosen, kl, true);
  const SideLoss rejected =
      own.sums.rejected == kNone ? SideLoss() : side_loss(g, own.sums.rejected, reference.sums.rejected, kl, false);
  const TensorId losses = tagged_loss(g, chosen, rejected);
  const TensorId loss = mean_of_numbers(g, losses);
  g.drop({losses, kl, own.kl, reference.kl, own.means});
  for (const SideLoss* side : {&chosen, &rejected}) {
    if (side->losses != kNone) g.drop({side->ratio, side->losses, side->rewards});
  }
  drop_sides(g, own.sums);
  drop_sides(g, reference.sums);
  drop_sides(g, own.logits);
  for (const TensorId one : own.held) g.drop({one});
  forget_all_but(g, loss);
  return g.finish(loss);
}

}  // namespace dsplan
