// TRL 1.16.0: trainer/utils.py (add_fused_lm_head), sft_trainer.py, dpo_trainer.py, reward_trainer.py. What the
// trainers compute for their logs afterwards is left out: numbers and rows of a few bytes, when nothing else is at its
// most.
#include "model/graphs/trl.h"

#include <vector>

#include "model/graphs/loss.h"
#include "model/graphs/pairs/tagged.h"

namespace dsplan {
namespace {

// FusedCausalLMOutput, as far as it is asked for.
struct Scored {
  TensorId log_probs = kNone;
  TensorId loss = kNone;
  TensorId mask = kNone;
  std::vector<TensorId> others;
  std::vector<TensorId> aside;  // Whose nodes no loss leads to: they die with the outputs.
};

// x.new_zeros(mask.shape).masked_scatter(mask, x)
TensorId put_back(GraphBuilder& g, TensorId mask, TensorId x) {
  const TensorId zeros = g.filled(g.shape(mask), g.dtype(x), 0);
  const TensorId out = g.make(Op::MaskedScatter, g.shape(mask), g.dtype(x), {zeros, mask, x}, true);
  g.drop({zeros});
  return out;
}

// -log_probs.sum() / (mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch)
TensorId mean_of(GraphBuilder& g, Scored& made, TensorId count) {
  const TensorId log_probs = made.log_probs;
  const TensorId mask = made.mask;
  const TensorId sum = g.make(Op::SumDim, Shape{}, DType::Float32, {log_probs}, true);
  const TensorId negated = g.unary(Op::Neg, sum);
  g.drop({sum});
  TensorId number = count == kNone ? kNone : g.keep(count);
  if (number == kNone) {
    const TensorId counted = g.make(Op::SumDim, Shape{}, DType::Int64, {mask});
    number = g.make(Op::Clamp, Shape{}, DType::Int64, {counted}, false, 1);
    g.drop({counted});
  }
  const TensorId loss = g.make(Op::Div, Shape{}, DType::Float32, {negated, number}, true);
  g.drop({negated, number});
  made.aside.insert(made.aside.end(), {loss, negated, sum});
  return loss;
}

// The head, piece by piece, from the backbone's last hidden state, which dies with the model's outputs.
Scored score(GraphBuilder& g, TensorId hidden, TensorId labels, LogProbs outputs, TensorId count) {
  const Shape all = g.shape(hidden);
  const std::int64_t rows = all.dims[0];
  const std::int64_t next = all.dims[1] - 1;
  const TensorId states = g.slice(hidden, 1, 0, next);
  const TensorId targets = g.view(labels, Shape{rows, next}, {step_narrow(1, 1, next)});
  Scored made;
  made.mask = g.make(Op::NotEqual, Shape{rows, next}, DType::Bool, {targets}, false, kIgnoredLabel);
  const ModuleId head = g.child(g.causal(), "lm_head");
  const TensorId weight = g.parameter_of(head, "weight");
  const TensorId bias = g.parameter_of(head, "bias");
  const TensorId chosen =
      g.make(Op::MaskedRows, Shape{rows * next, all.dims[2]}, g.dtype(hidden), {states, made.mask}, true);
  const TensorId wanted = g.make(Op::MaskedRows, Shape{rows * next}, DType::Int64, {targets, made.mask});
  const std::vector<TensorId> per_token = chunked_log_probs(g, {chosen, weight, wanted, bias}, outputs);
  g.drop({chosen, wanted});
  made.log_probs = put_back(g, made.mask, per_token.front());
  for (std::size_t i = 1; i < per_token.size(); ++i) made.others.push_back(put_back(g, made.mask, per_token[i]));
  for (const TensorId one : per_token) g.drop({one});
  if (!made.others.empty()) made.aside.push_back(made.others.front());  // The entropy; others have no gradient.
  made.loss = mean_of(g, made, count);
  g.drop({states, targets});
  return made;
}

// The model's forward and what comes between it and the trainer: autocast's region ends, DistributedDataParallel copies
// what has a gradient.
Scored call_model(GraphBuilder& g, const Backbone& backbone, TensorId ids, TensorId ones, TensorId labels,
                  LogProbs outputs) {
  g.enter_model();
  const TensorId hidden = backbone(ids, ones);
  Scored made = score(g, hidden, labels, outputs, kNone);
  g.drop({hidden});
  g.exit_model();
  const auto become = [&](const std::vector<TensorId*>& named, const auto& next) {
    std::vector<TensorId> before;
    for (TensorId* one : named) {
      before.push_back(*one);
      *one = next(*one);
    }
    for (const TensorId one : before) g.drop({one});
    made.aside.push_back(made.loss);
    if (!made.others.empty()) made.aside.push_back(made.others.front());
  };
  std::vector<TensorId*> returned{&made.loss, &made.log_probs};
  if (g.options().casts_loss) {  // fully_shard's output_dtype: whatever floats.
    std::vector<TensorId*> floating = returned;
    for (TensorId& one : made.others) {
      if (is_floating(g.dtype(one))) floating.push_back(&one);
    }
    become(floating, [&](TensorId one) { return g.cast(one, g.options().dtype); });
  }
  g.leave_autocast();
  if (!g.options().copies_outputs || g.graph().tensor(made.log_probs).requires_grad == false) return made;
  if (!made.others.empty()) returned.push_back(&made.others.front());  // The entropy; others have no gradient.
  become(returned, [&](TensorId one) { return g.copy(one); });
  return made;
}

void drop_outputs(GraphBuilder& g, const Scored& made) {
  g.drop({made.loss, made.log_probs, made.mask});
  for (const TensorId one : made.others) g.drop({one});
  for (const TensorId one : made.aside) g.forget(one);
}

// The sum of -log_probs over the labels of all ranks' micro-batches, which the trainer counts before the step.
TensorId supervised_loss(GraphBuilder& g, const Backbone& backbone, TensorId ids, TensorId ones, TensorId labels,
                         TensorId count) {
  const Scored made = call_model(g, backbone, ids, ones, labels, LogProbs::WithLikeliest);
  const TensorId losses = g.unary(Op::Neg, made.log_probs);
  const TensorId total = g.make(Op::SumDim, Shape{}, g.dtype(losses), {losses}, true);
  const TensorId number = g.make(Op::Clamp, Shape{}, DType::Int64, {count}, false, 1);
  const TensorId mean = g.make(Op::Div, Shape{}, g.dtype(total), {total, number}, true);
  g.drop({total});
  const TensorId loss = g.unary(Op::MulScalar, mean, 1);  // By the number of ranks.
  g.drop({mean, number});
  drop_outputs(g, made);
  g.drop({losses});
  return loss;
}

Halves row_sums(GraphBuilder& g, TensorId log_probs) {
  const Shape rows{g.shape(log_probs).dims[0]};
  const TensorId sums = g.make(Op::SumDim, rows, g.dtype(log_probs), {log_probs}, true);
  const Halves halves = halves_of(g, sums);
  g.drop({sums});
  return halves;
}

// -logsigmoid(x).mean()
TensorId mean_of_sigmoids(GraphBuilder& g, TensorId x) {
  const TensorId logs = g.unary(Op::LogSigmoid, x);
  const TensorId mean = g.make(Op::SumDim, Shape{}, g.dtype(logs), {logs}, true);
  g.drop({logs});
  return mean;
}

Halves reference_sums(GraphBuilder& g, const Backbone& backbone, TensorId ids, TensorId ones, TensorId labels) {
  const GraphBuilder::Reference reference(g);
  const bool same = g.model().reference == kNone;  // Whose head makes what it makes for the loss.
  const Scored made = call_model(g, backbone, ids, ones, labels, same ? LogProbs::WithBoth : LogProbs::Alone);
  const Halves sums = row_sums(g, made.log_probs);
  drop_outputs(g, made);
  return sums;
}

TensorId preference_loss(GraphBuilder& g, const Backbone& backbone, TensorId ids, TensorId ones, TensorId labels,
                         Halves reference) {
  const Scored made = call_model(g, backbone, ids, ones, labels, LogProbs::WithBoth);
  const Halves own = row_sums(g, made.log_probs);
  if (reference.chosen == kNone) reference = reference_sums(g, backbone, ids, ones, labels);
  const MarginLoss margin = margin_loss(g, own, reference);
  drop_margin(g, margin);
  g.drop({own.chosen, own.rejected});
  if (g.options().loss == Loss::Dpo) g.drop({reference.chosen, reference.rejected});
  drop_outputs(g, made);
  return margin.loss;
}

// inputs["input_ids"].masked_fill(completion_mask == 0, -100)
TensorId labels_of(GraphBuilder& g, TensorId ids, TensorId completion) {
  const TensorId flags = g.make(Op::Equal, g.shape(ids), DType::Bool, {completion});
  const TensorId labels = g.make(Op::MaskedFill, g.shape(ids), DType::Int64, {ids, flags}, false, kIgnoredLabel);
  g.drop({flags});
  return labels;
}

// What the model says of rows, and the sums of them. KTOTrainer asks for the last of a row's places, which are all.
struct RowsInPieces {
  Scored scored;
  TensorId part = kNone;
  TensorId sums = kNone;
};
RowsInPieces in_pieces(GraphBuilder& g, const Backbone& backbone, TensorId ids, TensorId ones, TensorId labels,
                       LogProbs outputs) {
  RowsInPieces made;
  made.scored = call_model(g, backbone, ids, ones, labels, outputs);
  const Shape shape = g.shape(made.scored.log_probs);
  made.part = g.slice(made.scored.log_probs, 1, 0, shape.dims[1]);
  made.sums = g.make(Op::SumDim, Shape{shape.dims[0]}, g.dtype(made.part), {made.part}, true);
  return made;
}

// compute_ref_log_probs' and _compute_kl_logps' outputs: a reference of its own has no others.
LogProbs tagged_outputs(const GraphBuilder& g) {
  return g.options().reference && g.model().reference != kNone ? LogProbs::Alone : LogProbs::WithMean;
}

// _compute_kl_logps
TensorId fused_divergent_sums(GraphBuilder& g, const Backbone& backbone, const TensorId (&batch)[3]) {
  const TensorId labels = labels_of(g, batch[0], batch[2]);
  RowsInPieces made;
  {
    const GraphBuilder::Unrecorded unrecorded(g);
    made = in_pieces(g, backbone, batch[0], batch[1], labels, tagged_outputs(g));
    g.drop({made.part});
    drop_outputs(g, made.scored);
  }
  g.drop({labels});
  return made.sums;
}

// KTOTrainer._compute_loss. `own`: ids, the mask of ones and which tokens are a completion's.
Graph tagged_model(GraphBuilder& g, const Backbone& backbone, const TensorId (&own)[3]) {
  const auto input = [&] { return g.batch_input(g.shape(own[0]), DType::Int64); };
  const TensorId other[] = {input(), input(), input()};
  const TensorId tags = g.batch_input(Shape{g.shape(own[0]).dims[0]}, DType::Bool);
  g.set_batch({own[0], own[1], own[2], other[0], other[1], other[2], tags});
  const TensorId desirable = g.make(Op::SumDim, Shape{}, DType::Int64, {tags});
  const TensorId undesirable = g.unary(Op::AddScalar, desirable);
  const TensorId kl_own = fused_divergent_sums(g, backbone, other);
  const TensorId labels = labels_of(g, own[0], own[2]);
  const RowsInPieces said = in_pieces(g, backbone, own[0], own[1], labels, LogProbs::WithMean);
  TaggedSides sides = tagged_sides(g, tags);
  sides.take_own(g, said.sums);
  RowsInPieces reference;
  TensorId kl_reference = kNone;
  {
    const GraphBuilder::Reference asked(g);
    kl_reference = fused_divergent_sums(g, backbone, other);
    reference = in_pieces(g, backbone, own[0], own[1], labels, tagged_outputs(g));
    sides.take_reference(g, reference.sums);
  }
  const TensorId kl = divergence(g, kl_own, kl_reference);
  const TensorId losses = sides.weigh(g, kl);
  const TensorId loss = mean_of_numbers(g, losses);
  sides.drop(g);
  g.drop({desirable, undesirable, losses, kl, kl_own, kl_reference, labels, said.part, said.sums, reference.part,
          reference.sums});
  drop_outputs(g, said.scored);
  drop_outputs(g, reference.scored);
  return g.finish(loss);
}

}  // namespace

Halves halves_of(GraphBuilder& g, TensorId x) {
  Shape half = g.shape(x);
  half.dims[0] /= 2;
  const std::vector<TensorId> parts = g.split(Op::Split, x, {half, half}, 0);
  return {parts[0], parts[1]};
}

MarginLoss margin_loss(GraphBuilder& g, const Halves& own, const Halves& reference) {
  MarginLoss made;
  made.ratios.chosen = g.binary(Op::Sub, own.chosen, reference.chosen);
  made.ratios.rejected = g.binary(Op::Sub, own.rejected, reference.rejected);
  made.difference = g.binary(Op::Sub, made.ratios.chosen, made.ratios.rejected);
  const TensorId scaled = g.unary(Op::MulScalar, made.difference, 1);
  const TensorId logs = g.unary(Op::LogSigmoid, scaled);
  g.drop({scaled});
  made.losses = g.unary(Op::Neg, logs);
  g.drop({logs});
  const TensorId mean = g.make(Op::SumDim, Shape{}, g.dtype(made.losses), {made.losses}, true);
  const TensorId weighted = g.unary(Op::MulScalar, mean, 1);
  g.drop({mean});
  made.loss = g.unary(Op::AddScalar, weighted);
  g.drop({weighted});
  return made;
}

void drop_margin(GraphBuilder& g, const MarginLoss& made) {
  g.drop({made.losses, made.difference, made.ratios.chosen, made.ratios.rejected});
  for (const TensorId one : made.others) g.drop({one});
}

Graph trl_model(GraphBuilder& g, const Backbone& backbone) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const TensorId ids = g.batch_input(shape, DType::Int64);
  const TensorId ones = g.batch_input(shape, DType::Int64);
  const TensorId told = g.batch_input(shape, DType::Int64);  // Labels, or which tokens are a completion's.
  if (g.options().loss == Loss::Kto) return tagged_model(g, backbone, {ids, ones, told});
  if (g.options().loss == Loss::Trl) {
    const TensorId count = g.batch_input(Shape{}, DType::Int64);
    g.set_batch({ids, ones, told, count});
    return g.finish(supervised_loss(g, backbone, ids, ones, told, count));
  }
  Halves reference;
  std::vector<TensorId> batch{ids, ones, told};
  if (g.options().loss == Loss::DpoPrecomputed) {
    const Shape pairs{shape.dims[0] / 2};
    reference = {g.batch_input(pairs, DType::Float32), g.batch_input(pairs, DType::Float32)};
    batch.insert(batch.end(), {reference.chosen, reference.rejected});
  }
  g.set_batch(batch);
  const TensorId labels = labels_of(g, ids, told);
  const TensorId loss = preference_loss(g, backbone, ids, ones, labels, reference);
  g.drop({labels});
  return g.finish(loss);
}

namespace {

TensorId reward_loss(GraphBuilder& g, TensorId rewards) {
  const TensorId flat = g.view(rewards, Shape{g.shape(rewards).dims[0]});
  const Halves halves = halves_of(g, flat);
  const TensorId difference = g.binary(Op::Sub, halves.chosen, halves.rejected);
  const TensorId mean = mean_of_sigmoids(g, difference);
  g.drop({difference});
  TensorId loss = g.unary(Op::Neg, mean);
  g.drop({mean});
  if (g.options().loss == Loss::CenteredReward) {  // loss += coefficient * mean((chosen + rejected) ** 2)
    const TensorId sum = g.binary(Op::Add, halves.chosen, halves.rejected);
    const TensorId square = g.unary(Op::PowScalar, sum, 2);
    const TensorId drawn = g.make(Op::SumDim, Shape{}, g.dtype(square), {square}, true);
    const TensorId weighted = g.unary(Op::MulScalar, drawn, 1);
    const TensorId both = g.in_place(Op::Add, loss, weighted);
    g.drop({sum, square, drawn, weighted, loss});
    loss = both;
  }
  g.drop({flat, halves.chosen, halves.rejected});
  return loss;
}

}  // namespace

// The rewards leave the model as its logits do, in fp32 where accelerate says so.
Graph reward_model(GraphBuilder& g, const Backbone& scored) {
  const TensorId ids = g.batch_input(Shape{g.options().micro_batch, g.options().seq}, DType::Int64);
  const TensorId ones = g.batch_input(g.shape(ids), DType::Int64);
  g.set_batch({ids, ones});
  g.enter_model();
  TensorId rewards = scored(ids, ones);
  const auto becomes = [&](TensorId next) {
    g.drop({rewards});
    rewards = next;
  };
  g.exit_model();
  if (g.options().outputs_to_fp32) becomes(g.cast(rewards, DType::Float32));
  g.leave_autocast();
  if (g.options().copies_outputs) becomes(g.copy(rewards));
  const TensorId loss = reward_loss(g, rewards);
  g.drop({rewards});
  return g.finish(loss);
}

}  // namespace dsplan
