// What Megatron's tensor parallelism adds (megatron/core/tensor_parallel/mappings.py, layers.py and cross_entropy.py):
// sums over ranks are the transport's, and make nothing.
#include "core/error.h"
#include "exec/operators/maker.h"

namespace dsplan::exec::rules {
namespace {

// A call of torch.Tensor.lt or __or__: flags of the graph's shape.
void flags(Maker& m) { m.output(0, {DType::Bool, contiguous(m.told().shape)}); }

void masked_backward(Maker& m) {
  if (m.needs(0)) m.gradient(0, {m.in(0).dtype, contiguous_like(m.in(0).layout)});
}
std::vector<Kept> mask_kept(const Graph&, const Node& node) {
  return node.requires_grad ? std::vector<Kept>{{Kept::Kind::Input, 1}} : std::vector<Kept>{};
}

// What exists for each token.
struct PerToken {
  Described wide;
  Described index;
  Described flag;
};
PerToken per_token(const Maker& m) {
  const Layout tokens = contiguous_like(m.in(1).layout);
  return {{DType::Float32, tokens}, {DType::Int64, tokens}, {DType::Bool, tokens}};
}

void make(Maker& m, const Described& what) {
  m.temporary(what);
  m.next();
}

// _VocabParallelCrossEntropy.forward. Logits that are no fp32 are cast; others are overwritten.
void cross_entropy(Maker& m) {
  const PerToken each = per_token(m);
  if (!m.node().in_place) {
    m.output(0, {DType::Float32, contiguous_like(m.in(0).layout)});
    m.next();
  }
  m.temporary(each.wide);  // max: values and indices.
  make(m, each.index);
  make(m, each.flag);     // Below this rank's words,
  make(m, each.flag);     // above them,
  m.extra(1, each.flag);  // either.
  m.next();
  make(m, each.index);     // Targets, counted from this rank's first word,
  m.extra(2, each.index);  // with 0 for others.
  m.next();
  make(m, each.index);  // arange.
  make(m, each.wide);   // The targets' logits,
  make(m, each.wide);   // with 0 for others.
  make(m, each.wide);   // Sums of exponentials,
  make(m, each.wide);   // their logarithms.
  m.output(1, each.wide);
}

// backward: arange, flags as numbers, what the targets' places lose, those places. In place of the softmax, which is
// the gradient unless its dtype is another.
void cross_entropy_backward(Maker& m) {
  if (!m.needs(0)) return;
  const PerToken each = per_token(m);
  make(m, each.index);
  make(m, each.wide);
  make(m, each.wide);
  make(m, each.wide);
  if (!m.node().in_place) m.gradient(0, {m.in(0).dtype, contiguous_like(m.in(0).layout)});
}

std::vector<Kept> cross_entropy_kept(const Graph&, const Node&) {
  return {{Kept::Kind::Output, 0}, {Kept::Kind::Extra, 1}, {Kept::Kind::Extra, 2}};
}

}  // namespace

Rules parallel(Op op) {
  switch (op) {
    case Op::AllReduce:
    case Op::CopyToParallel: return {makes_nothing, makes_nothing, nothing};
    case Op::Less:
    case Op::BitwiseOr: return {flags, makes_nothing, nothing};
    case Op::MaskedFillInPlace: return {makes_nothing, masked_backward, mask_kept};
    case Op::ParallelCrossEntropy: return {cross_entropy, cross_entropy_backward, cross_entropy_kept};
    default: return {};
  }
}

}  // namespace dsplan::exec::rules
