// transformers 5.17, modeling_layers.py (GenericForSequenceClassification, GenericForTokenClassification), and the
// classes that families with code of their own have beside it, which do the same.
#include "model/graphs/decoders/text_heads.h"

#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"
#include "model/traits.h"

namespace dsplan {

TensorId token_logits(GraphBuilder& g, const DecoderParts& parts, TensorId hidden, std::vector<TensorId>& held) {
  const TensorId dropped = dropout_module(g, g.child(g.causal(), "dropout"), hidden, g.dims().classifier_dropout);
  held.push_back(dropped);
  return linear_module(g, g.child(g.causal(), parts.token_classes), dropped, g.dims().labels);
}

TensorId text_logits(GraphBuilder& g, const DecoderParts& parts, TensorId ids, TensorId hidden,
                     std::vector<TensorId>& held) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const Shape result{rows, g.dims().labels};
  const TensorId logits = linear_module(g, g.child(g.causal(), "score"), hidden, g.dims().labels);
  held.push_back(logits);
  const auto numbers = [&](std::int64_t count, DType dtype) { return g.make(Op::Arange, Shape{count}, dtype, {}); };
  if (!parts.pads) {
    const TensorId range = numbers(rows, DType::Int64);
    const TensorId last = g.slice(logits, 1, seq - 1, 1);
    const TensorId column = g.view(last, result);
    const TensorId picked = g.make(Op::Index, result, g.dtype(logits), {column, range}, true);
    g.drop({range, last, column});
    return picked;
  }
  const Shape shape = g.shape(ids);
  const TensorId differs = g.make(Op::NotEqual, shape, DType::Bool, {ids});
  const TensorId kept = g.make(Op::Cast, shape, DType::Int32, {differs});
  g.drop({differs});
  const TensorId places = numbers(seq, DType::Int32);
  const TensorId product = g.make(Op::Mul, shape, DType::Int32, {places, kept});
  const TensorId last = g.make(Op::Max, Shape{rows}, DType::Int64, {product});
  g.drop({product});
  const TensorId range = numbers(rows, DType::Int64);
  const TensorId picked = g.make(Op::Index, result, g.dtype(logits), {logits, range, last}, true);
  g.drop({range});
  held.insert(held.end(), {kept, places, last});
  return picked;
}

TensorId class_labels(GraphBuilder& g, const DecoderParts& parts, TensorId ids) {
  const bool of_text = parts.head == TextHead::Text;
  return g.batch_input(of_text ? Shape{g.options().micro_batch} : g.shape(ids),
                       regresses(g.model()) ? DType::Float32 : DType::Int64);
}

TensorId classes_loss(GraphBuilder& g, const DecoderParts& parts, TensorId ids, TensorId hidden, TensorId labels,
                      std::vector<TensorId> held, bool widens, const std::vector<TensorId>& cache) {
  const bool of_text = parts.head == TextHead::Text;
  const TensorId logits = of_text ? text_logits(g, parts, ids, hidden, held) : token_logits(g, parts, hidden, held);
  const TensorId loss =
      regresses(g.model()) ? squared_loss(g, logits, labels) : class_loss(g, logits, labels, !of_text && widens);
  g.drop({hidden});
  for (const TensorId one : held) g.drop({one});
  return end_model(g, logits, loss, {}, cache);
}

}  // namespace dsplan
