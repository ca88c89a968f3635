#include "model/graphs/encoders/embedded.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"
#include "model/traits.h"

namespace dsplan {
// Of a mask in int32, in which all tokens count.
TensorId counted_positions(GraphBuilder& g, TensorId ids) {
  const Shape shape = g.shape(ids);
  const auto cast = [&](TensorId x, DType to) { return g.make(Op::Cast, shape, to, {x}); };
  const auto padding = static_cast<double>(std::max<std::int64_t>(g.dims().padding, 0));
  const TensorId differs = g.make(Op::NotEqual, shape, DType::Bool, {ids}, false, padding);
  const TensorId mask = cast(differs, DType::Int32);
  g.drop({differs});
  const TensorId sums = g.make(Op::CumSum, shape, DType::Int64, {mask});
  const TensorId narrow = cast(sums, DType::Int32);
  g.drop({sums});
  const TensorId shifted = g.make(Op::AddScalar, shape, DType::Int32, {narrow});
  g.drop({narrow});
  const TensorId counted = g.make(Op::Mul, shape, DType::Int32, {shifted, mask});
  g.drop({shifted});
  const TensorId wide = cast(counted, DType::Int64);
  const TensorId out = g.make(Op::AddScalar, shape, DType::Int64, {wide}, false, padding);
  g.drop({wide, counted, mask});
  return out;
}

namespace {

// Of zeros in a buffer.
TensorId token_types(GraphBuilder& g, TensorId positions, const Shape& shape) {
  const Shape rows{g.shape(positions).dims[0], g.dims().max_positions};
  const TensorId zeros = g.view(g.buffer("token_type_ids"), rows, Op::Expand);
  const TensorId gathered = g.make(Op::Gather, g.shape(positions), DType::Int64, {zeros, positions});
  g.drop({zeros});
  const TensorId types = g.view(gathered, shape, Op::Expand);
  g.drop({gathered});
  return types;
}

}  // namespace

TextBatch begin_text(GraphBuilder& g) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  TextBatch batch;
  batch.of_text = g.model().graph_class.ends_with("ForSequenceClassification");
  batch.words = g.model().graph_class.ends_with("ForMaskedLM");
  batch.ids = g.batch_input(shape, DType::Int64);
  batch.number = regresses(g.model());
  const bool answers = g.model().graph_class.ends_with("ForQuestionAnswering");
  batch.labels = g.batch_input(batch.of_text || answers ? Shape{shape.dims[0]} : shape,
                               batch.number ? DType::Float32 : DType::Int64);
  std::vector<TensorId> given{batch.ids, batch.labels};
  if (answers) given.push_back(batch.ends = g.batch_input(Shape{shape.dims[0]}, DType::Int64));
  g.set_batch(std::move(given));
  g.enter_model();
  return batch;
}

TensorId loss_of_text(GraphBuilder& g, const TextBatch& batch, TensorId logits, bool widens) {
  return batch.number ? squared_loss(g, logits, batch.labels) : class_loss(g, logits, batch.labels, widens);
}

TensorId embedded_text(GraphBuilder& g, ModuleId module, TensorId ids, TextTables tables) {
  const bool typed = tables != TextTables::WithoutTypes;
  const bool counted = tables == TextTables::Counted;
  const auto looked_up = [&](std::string_view name, TensorId rows, bool pads) {
    return table_module(g, g.child(module, name), rows, pads ? g.dims().padding : -1);
  };
  g.enter(module);
  TensorId words = typed ? kNone : looked_up("word_embeddings", ids, true);
  const TensorId positions =
      counted ? counted_positions(g, ids) : g.slice(g.buffer("position_ids"), 1, 0, g.options().seq);
  const TensorId types = typed ? token_types(g, positions, g.shape(ids)) : kNone;
  if (typed) words = looked_up("word_embeddings", ids, true);
  if (g.options().inputs_require_grad) g.require_grad(words);
  const TensorId kinds = typed ? looked_up("token_type_embeddings", types, false) : kNone;
  const TensorId sum = typed ? g.binary(Op::Add, words, kinds) : g.keep(words);
  const TensorId places = looked_up("position_embeddings", positions, counted);
  TensorId x = rebound(g, sum, g.binary(Op::Add, sum, places));
  TensorId tasks = kNone;  // What each token is there for (ernie): of zeros, where nobody says.
  TensorId task_ids = kNone;
  if (g.model().child(module, "task_type_embeddings") != kNone) {
    task_ids = g.filled(g.shape(ids), DType::Int64, 0);
    tasks = looked_up("task_type_embeddings", task_ids, false);
    x = rebound(g, x, g.in_place(Op::Add, x, tasks));
  }
  x = rebound(g, x, norm_module(g, NormKind::Layer, g.child(module, "LayerNorm"), x));
  x = rebound(g, x, dropout_module(g, g.child(module, "dropout"), x, g.dims().embedding_dropout));
  g.drop({words, places, positions});
  if (typed) g.drop({types, kinds});
  if (tasks != kNone) g.drop({task_ids, tasks});
  g.exit(module);
  return x;
}

}  // namespace dsplan
