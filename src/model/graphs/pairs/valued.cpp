// LLaMA-Factory 0.9.5: train/rm/trainer.py; ValueHead and AutoModelForCausalLMWithValueHead of TRL 0.24.0.
#include <vector>

#include "model/graphs/linear.h"
#include "model/graphs/pairs/preference.h"
#include "model/graphs/pieces.h"
#include "model/graphs/trl.h"

namespace dsplan {
namespace {

constexpr double kHeadDropout = 0.1;  // summary_dropout_prob

// ValueHead.forward, and `.squeeze(-1)`.
TensorId value_of(GraphBuilder& g, TensorId hidden) {
  const ModuleId head = g.child(0, "v_head");
  g.enter(head);
  TensorId output = dropout_module(g, g.child(head, "dropout"), hidden, kHeadDropout);
  const TensorId wide = g.cast(output, g.dtype(g.parameter_of(g.child(head, "summary"), "weight")));
  g.drop({output});
  output = wide;
  const TensorId column = linear_module(g, g.child(head, "summary"), output, 1);
  g.drop({output});
  g.exit(head);
  const Shape rows = g.shape(hidden);
  const TensorId values = g.view(column, Shape{rows.dims[0], rows.dims[1]});
  g.drop({column});
  return values;
}

// What the wrapper returns, behind accelerate's fp32 and DistributedDataParallel's copy. The logits die where the
// caller's variable becomes the loss.
struct Returned {
  TensorId loss = kNone;
  TensorId values = kNone;
};
Returned ask_valued(GraphBuilder& g, const Telling& telling, const PairBatch& batch) {
  g.enter_model();
  const Told told = telling(batch);
  Returned made;
  made.loss = told.loss;
  made.values = value_of(g, told.last);
  TensorId logits = g.cast(told.logits, DType::Float32);
  g.drop({told.logits, told.last});
  for (const TensorId one : told.states) g.drop({one});
  g.leave_autocast();
  const auto renew = [&](const auto& made_of) {
    const TensorId before[] = {logits, made.loss, made.values};
    logits = made_of(logits);
    made.loss = made_of(made.loss);
    made.values = made_of(made.values);
    for (const TensorId one : before) g.drop({one});
  };
  if (g.options().outputs_to_fp32) renew([&](TensorId one) { return g.cast(one, DType::Float32); });
  g.exit_model();
  if (g.options().copies_outputs) renew([&](TensorId one) { return g.copy(one); });
  g.drop({logits});
  return made;
}

// values.gather(dim=-1, index=masks.sum(dim=-1, keepdim=True) - 1)
TensorId score_of(GraphBuilder& g, TensorId values, TensorId masks) {
  const Shape column{g.shape(values).dims[0], 1};
  const TensorId lengths = g.make(Op::SumDim, column, DType::Int64, {masks});
  const TensorId last = g.make(Op::SubScalar, column, DType::Int64, {lengths}, false, 1);
  g.drop({lengths});
  const TensorId score = g.make(Op::Gather, column, g.dtype(values), {values, last}, true);
  g.drop({last});
  return score;
}

}  // namespace

Graph valued_model(GraphBuilder& g, const Telling& telling) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const PairBatch batch = rows_of_batch(g, shape);
  g.set_batch({batch.ids, batch.ones, batch.told});
  const Returned returned = ask_valued(g, telling, batch);
  const Halves masks = halves_of(g, batch.ones);
  const Halves values = halves_of(g, returned.values);
  TensorId chosen = score_of(g, values.chosen, masks.chosen);
  TensorId rejected = score_of(g, values.rejected, masks.rejected);
  const auto squeezed = [&](TensorId column) {
    const TensorId row = g.view(column, Shape{g.shape(column).dims[0]});
    g.drop({column});
    return row;
  };
  chosen = squeezed(chosen);
  rejected = squeezed(rejected);
  const TensorId first = g.cast(chosen, DType::Float32);
  const TensorId second = g.cast(rejected, DType::Float32);
  const TensorId difference = g.binary(Op::Sub, first, second);
  g.drop({first, second});
  const TensorId logs = g.unary(Op::LogSigmoid, difference);
  g.drop({difference});
  const TensorId mean = g.make(Op::SumDim, Shape{}, DType::Float32, {logs}, true);
  g.drop({logs});
  const TensorId loss = g.unary(Op::Neg, mean);
  g.drop({mean, chosen, rejected, values.chosen, values.rejected, masks.chosen, masks.rejected, returned.values,
          returned.loss});
  forget_all_but(g, loss);
  return g.finish(loss);
}

}  // namespace dsplan
