// The catalogue: what Megatron's tensor parallelism adds (megatron/core/tensor_parallel/mappings.py and
// cross_entropy.py). Collectives work in place on a contiguous tensor; none of them takes memory of its own.
#include "model/catalogue/rules.h"

namespace dsplan::rules {

// _ReduceFromModelParallelRegion.
void all_reduce(Writer& w) {
  w.in_place();
  w.all_reduce(kGivenSlot);
  w.pass(0);
}

// _CopyToModelParallelRegion: the synchronous form, after all gradients of the input have been added up on this rank.
void copy_to_parallel(Writer& w) {
  w.alias();
  if (w.needs(0)) w.backward_all_reduce(kGivenSlot);
  w.pass(0);
}

namespace {

struct PerToken {
  Bytes wide;
  Bytes index;
  Bytes flag;
};

PerToken per_token(const Writer& w) {
  const Elements tokens = w.in(1).shape.elements();
  return {storage(tokens, DType::Float32), storage(tokens, DType::Int64), storage(tokens, DType::Bool)};
}

// calculate_predicted_logits: the flags of targets that lie elsewhere, the targets counted from this rank's first word,
// the logit of each target, and the sum of exponentials, in place of the logits. Returns the last two.
std::pair<std::uint8_t, std::uint8_t> predicted_logits(Writer& w, const PerToken& size) {
  const auto make = [&](Bytes bytes, DType dtype) {
    const std::uint8_t made = w.forward_temporary(bytes, dtype);
    w.kernel();
    return made;
  };
  const std::uint8_t below = make(size.flag, DType::Bool);
  const std::uint8_t above = make(size.flag, DType::Bool);
  w.extra(1, size.flag, DType::Bool, Visibility::Dispatch);
  w.kernel();
  w.forward_drop(below);
  w.forward_drop(above);
  const std::uint8_t cloned = make(size.index, DType::Int64);
  w.extra(2, size.index, DType::Int64, Visibility::Dispatch);
  w.kernel();
  w.forward_drop(cloned);
  const std::uint8_t range = make(size.index, DType::Int64);
  const std::uint8_t picked = make(size.wide, DType::Float32);
  const std::uint8_t predicted = make(size.wide, DType::Float32);
  w.forward_drop(picked);
  const std::uint8_t sum = make(size.wide, DType::Float32);
  w.forward_drop(range);
  return {predicted, sum};
}

}  // namespace

// _VocabParallelCrossEntropy without label smoothing, unfused. fp32 logits are overwritten (Node::in_place), others are
// upcast first; what they become, the softmax, is saved with the flags and the targets, and becomes the gradient of the
// logits in backward, which the engine casts to their dtype.
void parallel_cross_entropy(Writer& w) {
  const PerToken size = per_token(w);
  w.output(0);
  if (!w.node().in_place) w.kernel();
  const std::uint8_t largest = w.forward_temporary(size.wide, DType::Float32);
  const std::uint8_t indices = w.forward_temporary(size.index, DType::Int64);
  w.kernel();
  w.forward_drop(indices);
  w.all_reduce(largest);
  const auto [predicted, sum] = predicted_logits(w, size);
  w.all_reduce(predicted);
  w.all_reduce(sum);
  const std::uint8_t logarithm = w.forward_temporary(size.wide, DType::Float32);
  w.kernel();
  w.output(1);
  w.kernel();
  w.forward_drop(logarithm);
  w.save_output(0, "_saved_tensors");
  w.save_extra(1, "_saved_tensors");
  w.save_extra(2, "_saved_tensors");
  if (!w.needs(0)) return;
  const std::uint8_t range = w.temporary(size.index, DType::Int64);
  const std::uint8_t counted = w.temporary(size.wide, DType::Float32);
  const std::uint8_t update = w.temporary(size.wide, DType::Float32);
  w.drop(counted);
  const std::uint8_t picked = w.temporary(size.wide, DType::Float32);
  w.drop(picked);
  w.drop(range);
  w.drop(update);
  if (w.node().in_place) {
    w.hand_out(0);
  } else {
    w.gradient(0);
  }
}

}  // namespace dsplan::rules
