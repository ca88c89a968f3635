// LLaMA-Factory 0.9.5: train/dpo/trainer.py, get_batch_logps and nested_detach of train/trainer_utils.py; dpo_loss of
// TRL 0.24.0. What the trainer computes for its logs is left out: numbers, when nothing else is at its most.
#include "model/graphs/pairs/preference.h"

#include <vector>

#include "model/graphs/loss.h"
#include "model/graphs/trl.h"

namespace dsplan {
namespace {

// What concatenated_forward returns.
struct Answer {
  TensorId logits = kNone;
  Halves rows;               // Sums of log-probabilities.
  TensorId average = kNone;  // Of a token of the chosen rows.
};

// log_softmax over a part of each row, which the kernel wants in one piece, as of a single row it is; one number of
// each token.
TensorId chosen_log_probs(GraphBuilder& g, TensorId logits, TensorId targets) {
  const Shape all = g.shape(logits);
  const Shape column{all.dims[0], all.dims[1] - 1, 1};
  const TensorId part = g.slice(logits, 1, 0, all.dims[1] - 1);
  const TensorId whole = all.dims[0] == 1 ? g.keep(part) : g.copy(part);
  const TensorId log_probs = g.unary(Op::LogSoftmax, whole);
  g.drop({whole});
  const TensorId places = g.view(targets, column);
  const TensorId gathered = g.make(Op::Gather, column, DType::Float32, {log_probs, places}, true);
  const TensorId squeezed = g.view(gathered, g.shape(targets));
  g.drop({log_probs, places, gathered, part});
  return squeezed;
}

// concatenated_forward, on a copy of the batch.
Answer ask(GraphBuilder& g, const Answering& answering, const PairBatch& batch) {
  const PairBatch own{g.copy(batch.ids), g.copy(batch.ones), g.copy(batch.told)};
  Answer answer;
  answer.logits = whole_logits(g, answering, own);
  const RowSums sums = sums_of(g, answer.logits, own.told);
  answer.rows = halves_of(g, sums.log_probs);
  const Halves lengths = halves_of(g, sums.lengths);
  const TensorId chosen = answer.rows.chosen;
  answer.average = g.make(Op::Div, g.shape(chosen), DType::Float32, {chosen, lengths.chosen}, true);
  g.drop({lengths.chosen, lengths.rejected, sums.log_probs, sums.lengths, own.ids, own.ones, own.told});
  return answer;
}

// The same of a model without a reference, on the batch itself: the mean of each row.
Answer ask_alone(GraphBuilder& g, const Answering& answering, const PairBatch& batch) {
  Answer answer;
  answer.logits = whole_logits(g, answering, batch);
  const RowSums sums = sums_of(g, answer.logits, batch.told);
  const TensorId means = g.make(Op::Div, g.shape(sums.log_probs), DType::Float32, {sums.log_probs, sums.lengths}, true);
  answer.rows = halves_of(g, means);
  g.drop({sums.log_probs, sums.lengths, means});
  return answer;
}

// compute_reference_log_probs
Answer ask_reference(GraphBuilder& g, const Answering& answering, const PairBatch& batch) {
  const GraphBuilder::Reference reference(g);
  const Answer answer = ask(g, answering, batch);
  g.drop({answer.logits, answer.average});
  return answer;
}

// -logsigmoid(sign * beta * logits) * weight
TensorId one_side(GraphBuilder& g, TensorId logits) {
  const TensorId scaled = g.unary(Op::MulScalar, logits, 1);
  const TensorId logs = g.unary(Op::LogSigmoid, scaled);
  g.drop({scaled});
  const TensorId negated = g.unary(Op::Neg, logs);
  g.drop({logs});
  const TensorId weighted = g.unary(Op::MulScalar, negated, 1);
  g.drop({negated});
  return weighted;
}

// dpo_loss with the loss "sigmoid"; ratios and rewards are made for other losses and for the logs.
TensorId losses_of(GraphBuilder& g, const Answer& own, const Answer& other, std::vector<TensorId>& logged) {
  const auto ratio = [&](TensorId x, TensorId y) {
    const TensorId there = g.unary(Op::MulScalar, y, 1);
    const TensorId made = g.binary(Op::Sub, x, there);
    g.drop({there});
    return made;
  };
  const TensorId chosen = ratio(own.rows.chosen, other.rows.chosen);
  const TensorId rejected = ratio(own.rows.rejected, other.rows.rejected);
  const TensorId policy = g.binary(Op::Sub, own.rows.chosen, own.rows.rejected);
  const TensorId reference = g.binary(Op::Sub, other.rows.chosen, other.rows.rejected);
  const TensorId logits = g.binary(Op::Sub, policy, reference);
  const TensorId left = one_side(g, logits);
  const TensorId right = one_side(g, logits);
  const TensorId losses = g.binary(Op::Sub, left, right);
  g.drop({left, right, chosen, rejected, policy, reference, logits});
  for (const TensorId one : {chosen, rejected}) g.forget(one);
  for (const TensorId one : {other.rows.chosen, other.rows.rejected}) logged.push_back(g.unary(Op::MulScalar, one, 1));
  return losses;
}

// -logsigmoid(x)
TensorId negated_log_sigmoid(GraphBuilder& g, TensorId x) {
  const TensorId logs = g.unary(Op::LogSigmoid, x);
  const TensorId negated = g.unary(Op::Neg, logs);
  g.drop({logs});
  return negated;
}

// log1p(-exp(x)), its sum made before its logarithm is.
TensorId log_of_rest(GraphBuilder& g, TensorId x) {
  const TensorId likely = g.unary(Op::Exp, x);
  const TensorId negated = g.unary(Op::Neg, likely);
  g.drop({likely});
  const TensorId rest = g.unary(Op::AddScalar, negated, 1);
  g.drop({negated});
  const TensorId logs = g.unary(Op::Log, rest);
  g.drop({rest});
  return logs;
}

// odds_ratio_loss
TensorId odds_loss(GraphBuilder& g, const Halves& rows) {
  const TensorId odds = log_odds(g, rows, log_of_rest);
  const TensorId supervised = g.unary(Op::Neg, rows.chosen);
  const TensorId ratio = negated_log_sigmoid(g, odds);
  const TensorId weighted = g.unary(Op::MulScalar, ratio, 1);
  const TensorId losses = g.binary(Op::Add, supervised, weighted);
  g.drop({weighted, odds, supervised, ratio});
  return losses;
}

// simpo_loss
TensorId margin_loss_alone(GraphBuilder& g, const Halves& rows) {
  const TensorId ratio = g.binary(Op::Sub, rows.chosen, rows.rejected);
  const TensorId logits = g.unary(Op::SubScalar, ratio, 0);
  const TensorId scaled = g.unary(Op::MulScalar, logits, 1);
  const TensorId losses = negated_log_sigmoid(g, scaled);
  g.drop({scaled, ratio, logits});
  return losses;
}

// compute_loss where there is no reference: labels are taken out of the batch.
Graph model_alone(GraphBuilder& g, const Answering& answering) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const PairBatch batch = rows_of_batch(g, shape);
  g.set_batch({batch.ids, batch.ones, batch.told}, {batch.told});
  const Answer own = ask_alone(g, answering, batch);
  const TensorId losses =
      g.options().loss == Loss::OrpoLogits ? odds_loss(g, own.rows) : margin_loss_alone(g, own.rows);
  const TensorId loss = g.make(Op::SumDim, Shape{}, DType::Float32, {losses}, true);
  g.drop({losses, own.rows.chosen, own.rows.rejected, own.logits});
  return g.finish(loss);
}

}  // namespace

PairBatch rows_of_batch(GraphBuilder& g, const Shape& shape) {
  const TensorId ids = g.batch_input(shape, DType::Int64);
  const TensorId ones = g.batch_input(shape, DType::Int64);
  return {ids, ones, g.batch_input(shape, DType::Int64)};
}

TensorId log_odds(GraphBuilder& g, const Halves& rows, TensorId (*log_of_rest)(GraphBuilder& g, TensorId x)) {
  const TensorId difference = g.binary(Op::Sub, rows.chosen, rows.rejected);
  const TensorId chosen = log_of_rest(g, rows.chosen);
  const TensorId rejected = log_of_rest(g, rows.rejected);
  const TensorId rests = g.binary(Op::Sub, chosen, rejected);
  g.drop({chosen, rejected});
  const TensorId odds = g.binary(Op::Sub, difference, rests);
  g.drop({difference, rests});
  return odds;
}

RowSums sums_of(GraphBuilder& g, TensorId logits, TensorId labels) {
  const std::int64_t rows = g.shape(labels).dims[0];
  const Shape next{rows, g.shape(labels).dims[1] - 1};
  const TensorId later = g.view(labels, next, {step_narrow(1, 1, next.dims[1])});
  TensorId targets = g.copy(later);
  g.drop({later});
  const TensorId mask = g.make(Op::NotEqual, next, DType::Bool, {targets}, false, kIgnoredLabel);
  const TensorId ignored = g.make(Op::Equal, next, DType::Bool, {targets}, false, kIgnoredLabel);
  const TensorId filled = g.in_place(Op::MaskedFillInPlace, targets, ignored);
  g.drop({ignored, targets});
  targets = filled;
  const TensorId per_token = chosen_log_probs(g, logits, targets);
  RowSums made;
  made.lengths = g.make(Op::SumDim, Shape{rows}, DType::Int64, {mask});
  const TensorId counted = g.binary(Op::Mul, per_token, mask);
  made.log_probs = g.make(Op::SumDim, Shape{rows}, DType::Float32, {counted}, true);
  g.drop({counted, per_token, mask, targets});
  return made;
}

void forget_all_but(GraphBuilder& g, TensorId loss) {
  const Graph& graph = g.graph();
  Indexed<NodeId, bool> leads(graph.nodes.size(), false);
  std::vector<NodeId> ahead{graph.tensor(loss).producer};
  while (!ahead.empty()) {
    const NodeId id = ahead.back();
    ahead.pop_back();
    if (id == kNone || leads[id]) continue;
    leads[id] = true;
    for (const TensorId input : graph.in(graph.node(id))) ahead.push_back(graph.tensor(input).producer);
  }
  for (const NodeId id : leads.ids()) {
    const Node& node = graph.node(id);
    if (!leads[id] && node.output_count > 0) g.forget(graph.output(node));
  }
}

TensorId whole_logits(GraphBuilder& g, const Answering& answering, const PairBatch& given) {
  g.enter_model();
  TensorId logits = answering(given.ids, given.ones);
  g.exit_model();
  g.leave_autocast();
  const auto becomes = [&](TensorId next) {
    g.drop({logits});
    logits = next;
  };
  if (g.options().outputs_to_fp32) becomes(g.cast(logits, DType::Float32));
  if (g.options().copies_outputs && g.graph().tensor(logits).requires_grad) becomes(g.copy(logits));
  becomes(g.cast(logits, DType::Float32));
  return logits;
}

Graph whole_preference_model(GraphBuilder& g, const Answering& answering) {
  if (without_reference(g.options().loss)) return model_alone(g, answering);
  const Shape shape{g.options().micro_batch, g.options().seq};
  const PairBatch batch = rows_of_batch(g, shape);
  g.set_batch({batch.ids, batch.ones, batch.told});
  const Answer own = ask(g, answering, batch);
  const Answer other = ask_reference(g, answering, batch);
  std::vector<TensorId> logged;
  const TensorId losses = losses_of(g, own, other, logged);
  const TensorId supervised = g.unary(Op::Neg, own.average);
  const TensorId loss = g.make(Op::SumDim, Shape{}, DType::Float32, {losses}, true);
  g.drop({losses, supervised, own.average, own.rows.chosen, own.rows.rejected, other.rows.chosen, other.rows.rejected,
          own.logits});
  for (const TensorId one : logged) g.drop({one});
  for (const TensorId one : {supervised, own.average}) g.forget(one);
  return g.finish(loss);
}

}  // namespace dsplan
