// The causal losses, from the last hidden state. Labels are shifted by padding (transformers, loss/loss_utils.py,
// ForCausalLMLoss); the chunked form is torchtune's (modules/transformer.py, chunked_output, and
// modules/loss/ce_chunked_output_loss.py), whose recipes shift labels alike.
#include "model/graphs/loss.h"

#include <algorithm>

#include "model/graphs/decoders/text_heads.h"
#include "model/graphs/linear.h"
#include "model/graphs/pieces.h"
#include "model/parts.h"

namespace dsplan {
namespace {

// labels[..., 1:] of the padded labels, contiguous, [B, S]; with the padded ones, which live on.

struct Shifted {
  TensorId padded = kNone;
  TensorId labels = kNone;
};

Shifted shifted_labels(GraphBuilder& g, TensorId labels) {
  const std::int64_t batch = g.shape(labels).dims[0];
  const std::int64_t seq = g.shape(labels).dims[1];
  const TensorId padded = g.make(Op::Pad, Shape{batch, seq + 1}, DType::Int64, {labels}, false, kIgnoredLabel);
  // A single row that starts one token later is contiguous already. In any case the first column goes.
  const TensorId shifted = batch == 1 ? g.view(padded, Shape{batch, seq}, {step_narrow(1, 1, seq)})
                                      : g.make(Op::Contiguous, Shape{batch, seq}, DType::Int64, {padded}, false, 1);
  return {padded, shifted};
}

// The model's outputs hold the logits until the training loop drops them.
TensorId whole_loss(GraphBuilder& g, TensorId logits, TensorId labels, DType as) {
  const Shape shape = g.shape(logits);
  const std::int64_t tokens = shape.dims[0] * shape.dims[1];
  const TensorId upcast = g.cast(logits, as);
  const Shifted shifted = shifted_labels(g, labels);
  const TensorId rows = g.view(upcast, Shape{tokens, shape.dims[2]});
  g.drop({upcast});
  const TensorId targets = g.view(shifted.labels, Shape{tokens});
  g.drop({shifted.labels});
  const TensorId log_probabilities = g.unary(Op::LogSoftmax, rows);
  const TensorId loss = g.nll_loss(log_probabilities, targets, Reduction::Mean).first;
  g.drop({log_probabilities, rows, shifted.padded, targets});
  return loss;
}

// vocab_parallel_cross_entropy of each token, in fp32 whatever the logits' dtype, then the mean over the labels that
// count: (losses * counted).sum() / counted.sum(). Labels are shifted as above.
TensorId parallel_loss(GraphBuilder& g, TensorId logits, TensorId labels) {
  const Shifted shifted = shifted_labels(g, labels);
  const auto [softmax, losses] = parallel_cross_entropy(g, logits, shifted.labels);
  g.drop({softmax});
  const TensorId counted =
      g.make(Op::NotEqual, g.shape(shifted.labels), DType::Bool, {shifted.labels}, false, kIgnoredLabel);
  const TensorId masked = g.binary(Op::Mul, losses, counted);
  const TensorId total = g.make(Op::SumDim, Shape{}, DType::Float32, {masked}, true);
  g.drop({masked});
  const TensorId count = g.make(Op::SumDim, Shape{}, DType::Int64, {counted});
  const TensorId loss = g.make(Op::Div, Shape{}, DType::Float32, {total, count}, true);
  g.drop({total, count, counted, losses, shifted.padded, shifted.labels});
  return loss;
}

// tensor_split along the sequence, and the head on each piece; with several rows a piece is no matrix yet.
std::vector<TensorId> logits_by_piece(GraphBuilder& g, TensorId hidden, const Head& head) {
  Shape shape = g.shape(hidden);
  shape.dims[1] /= g.options().loss_chunks;
  std::vector<TensorId> pieces;
  for (std::int64_t i = 0; i < g.options().loss_chunks; ++i) {
    pieces.push_back(g.slice(hidden, 1, i * shape.dims[1], shape.dims[1]));
  }
  std::vector<TensorId> logits;
  for (TensorId piece : pieces) {
    const bool copied = shape.dims[0] > 1 && g.options().loss_chunks > 1;
    const TensorId rows = copied ? g.copy(piece) : g.keep(piece);
    logits.push_back(head(rows));
    g.drop({rows});
  }
  for (TensorId piece : pieces) g.drop({piece});
  return logits;
}

// The number of labels that count; then the labels in pieces, of which reshape copies those of several rows.
struct Targets {
  TensorId count = kNone;
  std::vector<TensorId> pieces;
};

Targets targets_by_piece(GraphBuilder& g, TensorId labels) {
  const Shape shape = g.shape(labels);
  const std::int64_t chunks = g.options().loss_chunks;
  const TensorId counted = g.make(Op::NotEqual, shape, DType::Bool, {labels}, false, kIgnoredLabel);
  Targets targets;
  targets.count = g.make(Op::SumDim, Shape{}, DType::Int64, {counted});
  g.drop({counted});
  const std::int64_t length = shape.dims[1] / chunks;
  const Shape piece{shape.dims[0] * length};
  for (std::int64_t i = 0; i < chunks; ++i) {
    const TensorId part = g.view(labels, piece, {step_narrow(1, i * length, length), step_reshape(piece)});
    targets.pieces.push_back(shape.dims[0] > 1 && chunks > 1 ? g.copy(part) : g.keep(part));
    g.drop({part});
  }
  return targets;
}

// cross_entropy(logits.float(), labels, reduction="sum").
TensorId summed_loss(GraphBuilder& g, TensorId logits, TensorId targets) {
  const Shape shape = g.shape(logits);
  const TensorId rows = g.view(logits, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  const TensorId upcast = g.cast(rows, DType::Float32);
  const TensorId log_probabilities = g.unary(Op::LogSoftmax, upcast);
  const TensorId loss = g.nll_loss(log_probabilities, targets, Reduction::Sum).first;
  g.drop({log_probabilities, upcast, rows});
  return loss;
}

TensorId chunked_loss(GraphBuilder& g, const std::vector<TensorId>& logits, TensorId labels) {
  const Shifted shifted = shifted_labels(g, labels);
  const Targets targets = targets_by_piece(g, shifted.labels);
  g.drop({shifted.labels});  // The variable becomes the list of pieces.
  TensorId total = kNone;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const TensorId loss = summed_loss(g, logits[i], targets.pieces[i]);
    const TensorId next = total == kNone ? g.unary(Op::AddScalar, loss) : g.in_place(Op::Add, total, loss);
    g.drop({loss});
    if (total != kNone) g.drop({total});
    total = next;
  }
  const TensorId result = g.make(Op::Div, Shape{}, DType::Float32, {total, targets.count}, true);
  for (TensorId piece : targets.pieces) g.drop({piece});
  g.drop({total, targets.count, shifted.padded});
  return result;
}

// fully_shard's output_dtype, when the model has returned: a loss that the model computed is one of its outputs.
TensorId output_loss(GraphBuilder& g, TensorId loss) {
  if (!is_of_model(g.options().loss) || !g.options().casts_loss || g.options().dtype == g.dtype(loss)) return loss;
  const TensorId cast = g.cast(loss, g.options().dtype);
  g.drop({loss});
  return cast;
}

// The model returns. The training loop keeps the loss and drops the outputs or holds them, then its autocast region
// ends. accelerate's region is the model's forward itself, within its call, and outputs become fp32 there (accelerate,
// utils/operations.py, convert_to_fp32).
TensorId drop_outputs(GraphBuilder& g, TensorId loss, std::vector<TensorId> outputs,
                      const std::vector<TensorId>& cache) {
  const bool widens = g.options().outputs_to_fp32;
  const auto renew = [&](const auto& made_of) {  // All are there until all are made.
    const std::vector<TensorId> before = outputs;
    for (TensorId& output : outputs) output = made_of(output);
    for (const TensorId output : before) g.drop({output});
  };
  if (widens) {
    g.leave_autocast();
    renew([&](TensorId output) { return g.cast(output, DType::Float32); });
  }
  g.exit_model();
  loss = output_loss(g, loss);
  if (g.options().copies_outputs) {  // torch/nn/parallel/distributed.py, _DDPSink.
    const TensorId copied = g.copy(loss);
    renew([&](TensorId output) { return g.graph().tensor(output).requires_grad ? g.copy(output) : g.keep(output); });
    g.drop({loss});
    loss = copied;
  }
  for (const TensorId output : outputs) g.give_to_loop(output);
  for (const TensorId one : cache) g.give_to_loop(one);
  if (!widens) g.leave_autocast();
  return loss;
}

// lce_forward of liger_kernel/transformers/model/<family>.py, version 0.8.5: no logits, and the head's module is not
// called.
TensorId liger_loss(GraphBuilder& g, TensorId hidden, TensorId labels, const std::vector<TensorId>& cache) {
  const Shape shape = g.shape(hidden);
  const std::int64_t tokens = shape.dims[0] * shape.dims[1];
  const TensorId kept = g.view(hidden, shape);
  const Shifted shifted = shifted_labels(g, labels);
  const TensorId rows = g.view(kept, Shape{tokens, shape.dims[2]});
  const TensorId targets = g.view(shifted.labels, Shape{tokens});
  g.drop({shifted.labels});
  const TensorId weight = g.parameter_of(g.child(g.causal(), "lm_head"), "weight");
  const TensorId loss = g.make(Op::FusedLinearCrossEntropy, Shape{}, DType::Float32, {rows, weight, targets}, true);
  g.drop({rows, targets, shifted.padded, kept, hidden});
  return drop_outputs(g, loss, {}, cache);
}

}  // namespace

TensorId class_loss(GraphBuilder& g, TensorId logits, TensorId labels, bool widens, Reduction reduction) {
  const std::int64_t classes = g.shape(logits).dims[g.shape(logits).rank - 1U];
  const std::int64_t count = g.shape(labels).elements().value();
  TensorId rows = g.view(logits, Shape{count, classes});
  const TensorId targets = g.view(labels, Shape{count});
  if (widens) {
    const TensorId wide = g.cast(rows, DType::Float32);
    g.drop({rows});
    rows = wide;
  }
  const TensorId log_probabilities = g.unary(Op::LogSoftmax, rows);
  const TensorId loss = g.nll_loss(log_probabilities, targets, reduction).first;
  g.drop({log_probabilities, rows, targets});
  return loss;
}

TensorId squared_loss(GraphBuilder& g, TensorId logits, TensorId labels) {
  const Shape each = g.shape(labels);
  const TensorId rows = g.view(logits, each);
  const TensorId targets = g.view(labels, each);
  const TensorId wide = g.widened(rows);
  const DType type = g.dtype(wide) == g.dtype(targets) ? g.dtype(targets) : DType::Float32;
  const TensorId loss = g.make(Op::MseLoss, Shape(), type, {wide, targets}, true);
  g.drop({wide, rows, targets});
  return loss;
}

void copy_behind(GraphBuilder& g, TensorId rows, TensorId source) {
  const Shape shape = g.shape(source);
  if (shape.dims[1] == 1) return;
  const Shape rest{shape.dims[0], shape.dims[1] - 1};
  const TensorId part = g.view(source, rest, {step_narrow(1, 0, rest.dims[1])});
  const TensorId copied = g.make(Op::Contiguous, rest, DType::Int64, {part});
  const TensorId filled = g.in_place(Op::CopyInto, rows, copied, 1, 1);
  g.drop({copied, part, filled});
}

// Zeros into which the labels are copied behind a first token, and where they do not count a token.
TensorId shifted_right(GraphBuilder& g, TensorId labels) {
  const Shape shape = g.shape(labels);
  const TensorId zeros = g.filled(shape, DType::Int64, static_cast<double>(g.model().dims.first_target));
  copy_behind(g, zeros, labels);
  const TensorId ignored = g.make(Op::Equal, shape, DType::Bool, {zeros}, false, kIgnoredLabel);
  const std::int64_t padding = std::max<std::int64_t>(g.model().dims.padding, 0);
  const TensorId out = g.in_place(Op::MaskedFillInPlace, zeros, ignored, 0, padding);
  g.drop({ignored, zeros});
  return out;
}

TensorId loss_of_whole(GraphBuilder& g, TensorId logits, TensorId labels) {
  return whole_loss(g, logits, labels, DType::Float32);
}

TensorId end_model(GraphBuilder& g, TensorId logits, TensorId loss, const std::vector<TensorId>& others,
                   const std::vector<TensorId>& cache) {
  std::vector<TensorId> outputs{logits};
  outputs.insert(outputs.end(), others.begin(), others.end());
  return drop_outputs(g, loss, std::move(outputs), cache);
}

namespace {

// hidden_states[:, slice(0, None), :], a view of all. PyTorch before 2.9 slices along each dimension all the same, and
// each slice has a gradient of its own (TensorIndexing.h, applySlice).
TensorId all_tokens(GraphBuilder& g, TensorId hidden) {
  TensorId seen = g.keep(hidden);
  if (g.options().torch >= Version{2, 9, 0}) return seen;
  const Shape shape = g.shape(hidden);
  for (std::uint8_t dim = 0; dim < shape.rank; ++dim) {
    const TensorId part = g.slice(seen, static_cast<std::int8_t>(dim), 0, shape.dims[dim]);
    g.drop({seen});
    seen = part;
  }
  return seen;
}

// _build_flat_valids: the places of labels whose next one counts, which all do. [B, S - 1], then one number each.
TensorId counted_places(GraphBuilder& g, TensorId labels) {
  const std::int64_t batch = g.shape(labels).dims[0];
  const Shape next{batch, g.shape(labels).dims[1] - 1};
  const std::int64_t count = next.elements().value();
  const TensorId targets = g.view(labels, next, {step_narrow(1, 1, next.dims[1])});
  const TensorId flags = g.make(Op::NotEqual, next, DType::Bool, {targets}, false, kIgnoredLabel);
  g.drop({targets});
  const TensorId found = g.make(Op::NonZero, Shape{count, 2}, DType::Int64, {flags});
  g.drop({flags});
  const TensorId narrow = g.cast(found, DType::Int32);
  g.drop({found});
  const TensorId places = g.make(Op::SumDim, Shape{count}, DType::Int64, {narrow});
  g.drop({narrow});
  return places;
}

// What the head would multiply its result by.
TensorId scaled_for_head(GraphBuilder& g, TensorId hidden) {
  const DecoderParts& parts = *g.model().parts;
  if (parts.logits_divisor > 0) return g.unary(Op::DivScalar, hidden, parts.logits_divisor);
  if (parts.logits_multiplier > 0) return g.unary(Op::MulScalar, hidden, parts.logits_multiplier);
  return g.keep(hidden);
}

// cce_forward and apply_lce of cut_cross_entropy/transformers (axolotl's fork, 5f0c7a7): the head's module is not
// called, and what reaches it in fp32 is cast.
TensorId cut_loss(GraphBuilder& g, TensorId hidden, TensorId labels, const std::vector<TensorId>& others) {
  const TensorId weight = g.parameter_of(g.child(g.causal(), "lm_head"), "weight");
  const TensorId seen = all_tokens(g, hidden);
  const TensorId scaled = scaled_for_head(g, seen);
  g.drop({seen});
  const TensorId states = g.dtype(scaled) == DType::Float32 ? g.cast(scaled, g.dtype(weight)) : g.keep(scaled);
  g.drop({scaled});
  const TensorId places = counted_places(g, labels);
  const Shape shape = g.shape(states);
  const std::int64_t tokens = shape.dims[0] * shape.dims[1];
  const TensorId rows = g.view(states, Shape{tokens, shape.dims[2]});
  const TensorId targets = g.view(labels, Shape{tokens});
  const TensorId loss = g.make(Op::CutCrossEntropy, Shape{}, DType::Float32, {rows, weight, targets, places}, true);
  g.drop({rows, targets, places, states, hidden});
  return drop_outputs(g, loss, others, {});
}

}  // namespace

TensorId causal_loss(GraphBuilder& g, TensorId hidden, TensorId labels, const Head& head,
                     const std::vector<TensorId>& others, const std::vector<TensorId>& cache, TensorId local) {
  if (g.options().loss == Loss::Cut) return cut_loss(g, hidden, labels, others);
  if (g.options().loss == Loss::Liger) return liger_loss(g, hidden, labels, cache);
  if (g.options().loss == Loss::Chunked) {
    const std::vector<TensorId> logits = logits_by_piece(g, hidden, head);
    g.drop({hidden});
    g.exit_model();
    const TensorId loss = chunked_loss(g, logits, labels);
    for (TensorId piece : logits) g.drop({piece});
    g.leave_autocast();
    return loss;
  }
  const TensorId seen = all_tokens(g, hidden);
  const TensorId logits = head(seen);
  g.drop({seen});
  const DType as = g.options().loss == Loss::Native ? g.dtype(logits) : DType::Float32;
  const bool outside = g.options().loss == Loss::Native;  // The model has returned its logits, and nothing else.
  if (outside) g.drop({hidden});
  const TensorId loss = g.parallel() ? parallel_loss(g, logits, labels) : whole_loss(g, logits, labels, as);
  if (!outside) g.drop({hidden});
  if (local != kNone) g.drop({local});
  return end_model(g, logits, loss, others, cache);
}

TensorId returned_loss(GraphBuilder& g, TensorId logits, TensorId labels, const std::vector<TensorId>& locals,
                       const std::vector<TensorId>& others) {
  const TensorId loss = whole_loss(g, logits, labels, DType::Float32);
  for (const TensorId one : locals) g.drop({one});
  return end_model(g, logits, loss, others);
}

Graph language_model(GraphBuilder& g, const std::function<TensorId(TensorId ids)>& body,
                     const std::vector<TensorId>& cache) {
  const Shape shape{g.options().micro_batch, g.options().seq};
  const TensorId ids = g.batch_input(shape, DType::Int64);
  const bool one = g.options().labels_are_ids;
  const DecoderParts* parts = g.model().parts.get();
  const bool classes = parts != nullptr && parts->head != TextHead::LanguageModel;
  const TensorId labels = one ? ids : (classes ? class_labels(g, *parts, ids) : g.batch_input(shape, DType::Int64));
  g.set_batch(one ? std::vector{ids} : std::vector{ids, labels});
  g.enter_model();
  const TensorId hidden = body(ids);
  if (classes) return g.finish(classes_loss(g, *parts, ids, hidden, labels, {}, false, cache));
  return g.finish(causal_loss(
      g, hidden, labels, [&](TensorId x) { return vocabulary_head(g, g.child(g.causal(), "lm_head"), x); }, {}, cache));
}

}  // namespace dsplan
