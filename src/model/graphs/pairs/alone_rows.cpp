// TRL 1.9.0: experimental/orpo/orpo_trainer.py, experimental/cpo/cpo_trainer.py with the loss "simpo" and a supervised
// part. What they compute for their logs is left out: numbers, when nothing else is at its most.
#include <array>
#include <vector>

#include "model/graphs/loss.h"
#include "model/graphs/pairs/preference.h"
#include "model/graphs/trl.h"

namespace dsplan {
namespace {

// concatenated_inputs
PairBatch joined_rows(GraphBuilder& g, const PairBatch& chosen, const PairBatch& rejected) {
  const TensorId ids = g.cat({chosen.ids, rejected.ids}, 0);
  const TensorId ones = g.cat({chosen.ones, rejected.ones}, 0);
  return {ids, ones, g.cat({chosen.told, rejected.told}, 0)};
}

// x[:rows]
TensorId first_rows(GraphBuilder& g, TensorId x) { return g.slice(x, 0, 0, g.shape(x).dims[0] / 2); }
TensorId later_rows(GraphBuilder& g, TensorId x) {
  const std::int64_t rows = g.shape(x).dims[0] / 2;
  return g.slice(x, 0, rows, rows);
}

// contiguous() of what lies in one piece only where there is one row.
TensorId in_one_piece(GraphBuilder& g, TensorId x) { return g.shape(x).dims[0] == 1 ? g.keep(x) : g.copy(x); }

// cross_entropy_loss of the chosen rows.
TensorId supervised_part(GraphBuilder& g, TensorId logits, TensorId labels) {
  const TensorId given = first_rows(g, logits);
  const TensorId told = first_rows(g, labels);
  const Shape all = g.shape(given);
  const TensorId part = g.slice(given, 1, 0, all.dims[1] - 1);
  const TensorId whole = in_one_piece(g, part);
  g.drop({part});
  const TensorId later = g.slice(told, 1, 1, all.dims[1] - 1);
  const TensorId targets = in_one_piece(g, later);
  g.drop({later});
  const TensorId loss = class_loss(g, whole, targets);
  g.drop({whole, targets, given, told});
  return loss;
}

// get_batch_logps, of which one trainer fills in place what does not count.
TensorId row_numbers(GraphBuilder& g, TensorId logits, TensorId told) {
  const Shape all = g.shape(logits);
  const Shape next{all.dims[0], all.dims[1] - 1};
  const TensorId later = g.view(told, next, {step_narrow(1, 1, next.dims[1])});
  TensorId labels = g.copy(later);
  g.drop({later});
  const TensorId part = g.slice(logits, 1, 0, next.dims[1]);
  const TensorId mask = g.make(Op::NotEqual, next, DType::Bool, {labels}, false, kIgnoredLabel);
  const TensorId ignored = g.make(Op::Equal, next, DType::Bool, {labels}, false, kIgnoredLabel);
  const bool in_place = g.options().loss != Loss::OrpoRows;
  const TensorId filled = in_place ? g.in_place(Op::MaskedFillInPlace, labels, ignored)
                                   : g.make(Op::MaskedFill, next, DType::Int64, {labels, ignored});
  g.drop({ignored, labels});
  labels = filled;
  const TensorId log_probs = selected_log_probs(g, part, labels);
  const TensorId counted = g.binary(Op::Mul, log_probs, mask);
  const TensorId sums = g.make(Op::SumDim, Shape{next.dims[0]}, DType::Float32, {counted}, true);
  g.drop({counted});
  const TensorId lengths = g.make(Op::SumDim, Shape{next.dims[0]}, DType::Int64, {mask});
  const TensorId means = g.make(Op::Div, Shape{next.dims[0]}, DType::Float32, {sums, lengths}, true);
  g.drop({sums, lengths, log_probs, mask, part, labels});
  return means;
}

// log1mexp: both forms, of which each element takes one.
TensorId log_of_both(GraphBuilder& g, TensorId x) {
  const Shape shape = g.shape(x);
  const TensorId below = g.make(Op::Less, shape, DType::Bool, {x}, false, -0.6931471805599453);
  const auto form = [&] {
    const TensorId likely = g.unary(Op::Exp, x);
    const TensorId negated = g.unary(Op::Neg, likely);
    g.drop({likely});
    const TensorId logs = g.unary(Op::Log, negated);
    g.drop({negated});
    return logs;
  };
  const TensorId first = form();
  const TensorId second = form();
  const TensorId made = g.make(Op::Where, shape, DType::Float32, {below, first, second}, true);
  g.drop({below, first, second});
  return made;
}

struct Judged {
  TensorId loss = kNone;
  std::vector<TensorId> held;
};

// odds_ratio_loss, and policy_nll_loss - losses.mean()
Judged judge_odds(GraphBuilder& g, const Halves& rows, TensorId supervised) {
  const TensorId odds = log_odds(g, rows, log_of_both);
  const TensorId ratio = g.unary(Op::LogSigmoid, odds);
  const TensorId losses = g.unary(Op::MulScalar, ratio, 1);
  const TensorId mean = g.make(Op::SumDim, Shape{}, DType::Float32, {losses}, true);
  const TensorId loss = g.binary(Op::Sub, supervised, mean);
  g.drop({odds, ratio, mean});
  return {loss, {losses}};
}

// cpo_loss, and losses.mean() + cpo_alpha * policy_nll_loss
Judged judge_margin(GraphBuilder& g, const Halves& rows, TensorId supervised) {
  const TensorId ratio = g.binary(Op::Sub, rows.chosen, rows.rejected);
  const TensorId logits = g.unary(Op::SubScalar, ratio, 0);
  g.drop({ratio});
  const auto side = [&](bool negated) {
    const TensorId scaled = g.unary(Op::MulScalar, logits, 1);
    const TensorId logs = g.unary(Op::LogSigmoid, scaled);
    g.drop({scaled});
    const TensorId signed_logs = negated ? g.unary(Op::Neg, logs) : g.keep(logs);
    g.drop({logs});
    const TensorId weighted = g.unary(Op::MulScalar, signed_logs, 1);
    g.drop({signed_logs});
    return weighted;
  };
  const TensorId first = side(true);
  const TensorId second = side(false);
  const TensorId losses = g.binary(Op::Sub, first, second);
  g.drop({first, second, logits});
  const TensorId mean = g.make(Op::SumDim, Shape{}, DType::Float32, {losses}, true);
  const TensorId weighted = g.unary(Op::MulScalar, supervised, 1);
  const TensorId loss = g.binary(Op::Add, mean, weighted);
  g.drop({mean, weighted});
  return {loss, {losses}};
}

}  // namespace

Graph rowwise_model_alone(GraphBuilder& g, const Answering& answering) {
  const std::int64_t pairs = g.options().micro_batch / 2;
  const Shape shape{pairs, g.options().seq};
  const Shape prompt{pairs, prompt_length(g.options().seq)};
  const auto input = [&](const Shape& of) { return g.batch_input(of, DType::Int64); };
  const TensorId prompts = input(prompt);
  const TensorId prompt_ones = input(prompt);
  const PairBatch chosen = rows_of_batch(g, shape);
  const PairBatch rejected = rows_of_batch(g, shape);
  g.set_batch({prompts, prompt_ones, chosen.ids, chosen.ones, chosen.told, rejected.ids, rejected.ones, rejected.told});
  const PairBatch batch = joined_rows(g, chosen, rejected);
  const TensorId logits = whole_logits(g, answering, batch);
  const bool odds = g.options().loss == Loss::OrpoRows;
  TensorId labels = g.copy(odds ? batch.ids : batch.told);
  if (odds) {
    const TensorId seen = g.make(Op::Equal, g.shape(labels), DType::Bool, {batch.ones}, false, 1);
    const TensorId masked = g.make(Op::MaskedFill, g.shape(labels), DType::Int64, {labels, seen});
    g.drop({seen, labels});
    labels = masked;
  }
  const bool bare = g.options().loss == Loss::BareSimpoRows;
  const TensorId supervised = bare ? g.filled(Shape{}, DType::Float32, 0) : supervised_part(g, logits, labels);
  const TensorId means = row_numbers(g, logits, batch.told);
  const Halves sides{first_rows(g, means), later_rows(g, means)};
  const TensorId kept[] = {first_rows(g, logits), later_rows(g, logits)};
  g.drop({logits, means, labels, batch.ids, batch.ones, batch.told});
  const Judged judged = odds ? judge_odds(g, sides, supervised) : judge_margin(g, sides, supervised);
  g.drop({supervised, sides.chosen, sides.rejected});
  for (const TensorId one : judged.held) g.drop({one});
  for (const TensorId one : kept) g.drop({one});
  forget_all_but(g, judged.loss);
  return g.finish(judged.loss);
}

}  // namespace dsplan
