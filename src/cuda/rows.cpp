// Softmax, norms, losses and lookups: which kernels each of them takes.
#include <limits>

#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

// What PyTorch composes: a plain softmax, where the scores are minus infinity, which rows are that throughout, and
// zeros there.
void safe_softmax(const Args& args, const Queue& queue) {
  switch (args.part()) {
    case 0: return softmax(queue, args.in(0), args.output(), false);
    case 1:
      return map(queue, Arithmetic::Double, args.temporary(0),
                 {Function::EqualNumber, {&args.in(0)}, -std::numeric_limits<double>::infinity()});
    case 2: return all_of_rows(queue, args.temporary(0), args.temporary(1));
    default:
      // Where a row is masked throughout zero, else the softmax.
      fill(queue, args.temporary(2), 0);
      return map(queue, Arithmetic::Double, args.output(),
                 {Function::Choose, {&args.temporary(2), &args.temporary(1), &args.output()}});
  }
}

void softmax_forward(const Args& args, const Queue& queue) {
  if (args.flag(DSPLAN_FLAG_SAFE)) return safe_softmax(args, queue);
  const dsplan_tensor* copy = args.find(SlotKind::Temporary, 0);
  if (copy != nullptr && args.part() == 0) return copy_in_order(queue, args.in(0), *copy);
  softmax(queue, copy != nullptr ? *copy : args.in(0), args.output(), args.op() == Op::LogSoftmax);
}

void softmax_gradient(const Args& args, const Queue& queue) {
  const dsplan_tensor* wide = exec::host::widened(args);
  if (wide != nullptr && args.part() == 1) return copy_in_order(queue, *wide, args.gradient(0));
  softmax_backward(queue, args.gradient_of(), args.saved_out(0), wide != nullptr ? *wide : args.gradient(0),
                   args.op() == Op::LogSoftmax);
}

void norm_forward(const Args& args, const Queue& queue) {
  Norm norm;
  norm.x = args.in(0);
  if (args.has_in(1)) norm.weight = args.in(1);
  if (args.has_in(2)) norm.bias = args.in(2);
  norm.mean = args.extra(0);
  norm.scale = args.extra(1);
  norm.epsilon = args.number();
  layer_norm(queue, norm, args.output());
}

void norm_backward(const Args& args, const Queue& queue) {
  Norm norm;
  norm.x = args.saved_in(0);
  if (args.keeps_in(1)) norm.weight = args.saved_in(1);
  norm.mean = args.saved_extra(0);
  norm.scale = args.saved_extra(1);
  if (const dsplan_tensor* to = args.find(SlotKind::Gradient, 0)) {
    layer_norm_input(queue, norm, args.gradient_of(), *to);
  }
  if (const dsplan_tensor* to = args.find(SlotKind::Gradient, 1)) {
    layer_norm_columns(queue, norm, args.gradient_of(), *to, true);
  }
  if (const dsplan_tensor* to = args.find(SlotKind::Gradient, 2)) {
    layer_norm_columns(queue, norm, args.gradient_of(), *to, false);
  }
}

bool is_mean(const Args& args) { return static_cast<Reduction>(args.integer(DSPLAN_REDUCTION)) == Reduction::Mean; }

void embedding_gradient(const Args& args, const Queue& queue) {
  const std::size_t copies = args.flag(DSPLAN_FLAG_BY_HEAD) ? 1 : 0;
  if (args.part() < copies) return copy_in_order(queue, args.gradient_of(), args.temporary(0));
  const dsplan_tensor& gradient = copies > 0 ? args.temporary(0) : args.gradient_of();
  const dsplan_tensor* sorted = args.find(SlotKind::Temporary, copies);
  const dsplan_tensor* origins = sorted == nullptr ? nullptr : &args.temporary(copies + 1);
  const dsplan_tensor& ids = args.saved_in(1);
  if (sorted != nullptr && args.part() == copies) return sort_indices(queue, ids, *sorted, *origins);
  const dsplan_tensor& to = args.gradient(0);
  embedding_backward(queue, gradient, ids, sorted, origins, to);
  if (args.number() > 0) fill(queue, exec::host::selected(to, 0, static_cast<std::int64_t>(args.number()) - 1), 0);
}

bool backward(const Args& args, const Queue& queue) {
  switch (args.op()) {
    case Op::Softmax:
    case Op::LogSoftmax: softmax_gradient(args, queue); return true;
    case Op::LayerNorm: norm_backward(args, queue); return true;
    case Op::NllLoss:
      nll_loss_backward(queue, args.gradient_of(), args.saved_in(1), args.saved_extra(0), is_mean(args),
                        args.gradient(0));
      return true;
    case Op::Embedding: embedding_gradient(args, queue); return true;
    default: return false;
  }
}

}  // namespace

bool run_rows(const Args& args, const Queue& queue) {
  if (args.backward()) return backward(args, queue);
  switch (args.op()) {
    case Op::Softmax:
    case Op::LogSoftmax: softmax_forward(args, queue); return true;
    case Op::LayerNorm: norm_forward(args, queue); return true;
    case Op::NllLoss: nll_loss(queue, args.in(0), args.in(1), is_mean(args), args.output(), args.extra(0)); return true;
    case Op::Embedding: embedding(queue, args.in(0), args.in(1), args.output()); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
